package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestAdminShowsJobs(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.sql("select ojs.fetch('{mail}', 1, 'w1', p_tenant => 'globex')")
	// The newest job first, and only those that the filters let pass.
	o.lines(o.admin(0, "jobs"), "id tenant queue state age")
	var rows []struct{ ID, Queue, State, Type string }
	list := func(want int, args ...string) {
		t.Helper()
		text := o.admin(0, append([]string{"--json"}, args...)...)
		if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) != want {
			t.Fatalf("%v lists %d jobs, want %d (%v):\n%s", args, len(rows), want, err, text)
		}
	}
	list(4, "jobs")
	newest := pgtest.One[string](t, o.pool, "select id::text from ojs.jobs order by id desc limit 1")
	if rows[0].ID != newest {
		t.Errorf("the first job is %s, want the newest, %s", rows[0].ID, newest)
	}
	list(4, "jobs", "--oldest")
	if rows[3].ID != newest {
		t.Errorf("the last of the oldest jobs is %s, want %s", rows[3].ID, newest)
	}
	list(1, "jobs", "--oldest", "--limit", "1", "--queue", "dead")
	list(1, "jobs", "--oldest", "--state", "active")
	list(3, "jobs", "--oldest", "--type", "a*")
	list(2, "--tenant", "acme", "jobs", "--oldest", "--limit", "3")
	list(2, "jobs", "--limit", "2")
	list(1, "jobs", "--state", "active")
	list(4, "jobs", "--state", "active,available")
	list(3, "jobs", "--queue", "mail")
	list(1, "jobs", "--type", "b")
	list(2, "--tenant", "acme", "jobs")
	list(0, "--tenant", "acme", "jobs", "--queue", "dead")
	id := pgtest.One[string](t, o.pool, "select id::text from ojs.jobs where state = 'active'")

	text := o.admin(0, "jobs", id)
	o.lines(text, "id "+id, "tenant_id globex", "type a", "queue mail", "state active", "attempt 1", "worker_id w1", "args []")
	if strings.Contains(text, "lease ") {
		t.Errorf("the lease is shown:\n%s", text)
	}
	var job struct {
		State string
		Args  []any
		Lease *string
	}
	if err := json.Unmarshal([]byte(o.admin(0, "--json", "jobs", id)), &job); err != nil || job.State != "active" || job.Args == nil ||
		job.Lease != nil {
		t.Errorf("as JSON it is %+v: %v", job, err)
	}
	if got := o.admin(1, "--tenant", "acme", "jobs", id); !strings.Contains(got, id+" not found") {
		t.Error(got)
	}
	o.admin(2, "jobs", "7")
	o.admin(2, "jobs", "--state", "running")
	o.admin(2, "jobs", "--limit", "0")
}

// A filter that few jobs pass is looked for beyond the jobs that one statement looks at.
func TestAdminFindsOldJobs(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	for range 2 {
		o.sql(`select ojs.enqueue_many((select jsonb_agg('{"type": "many", "args": [], "queue": "bulk", "tenant": "acme"}'::jsonb)
			from generate_series(1, 5025)))`)
	}
	o.sql("select ojs.tick()")
	if got := o.admin(0, "jobs", "--queue", "dead"); strings.Count(got, "available") != 1 {
		t.Errorf("behind 10,050 newer jobs it finds\n%s", got)
	}
}

func TestAdminShowsEvents(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.sql("select ojs.ack(f.id) from ojs.fetch('{mail}', 1, 'w1', p_tenant => 'globex') f")
	text := o.admin(0, "events", "--type", "job.completed")
	o.lines(text, "age type tenant queue subject")
	if strings.Count(text, "job.completed") != 1 || strings.Contains(text, "job.enqueued") || !strings.Contains(text, "globex") {
		t.Errorf("events are\n%s", text)
	}
	count := func(want int, args ...string) {
		t.Helper()
		var rows []struct {
			Type string
			Data map[string]any
		}
		text := o.admin(0, append([]string{"--json"}, args...)...)
		if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) != want {
			t.Fatalf("%v lists %d events, want %d (%v):\n%s", args, len(rows), want, err, text)
		}
	}
	count(1, "events", "--queue", "dead")
	count(2, "events", "--limit", "2")
	count(2, "--tenant", "acme", "events", "--type", "job.enqueued")
	count(4, "events", "--type", "job.enqueued", "--since", "PT1H")
	count(0, "events", "--since", "2999-01-01T00:00:00Z")
	o.sql("update ojs.job set created_at = created_at - interval '2 hours' where queue = 'dead'")
	count(3, "events", "--type", "job.enqueued", "--since", "PT1H")
	if got := o.admin(2, "events", "--since", "yesterday"); !strings.Contains(got, "neither a time") {
		t.Error(got)
	}
}

func TestAdminShowsBlockedTenants(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.admin(0, "--reason", "deploy", "pause", "mail")
	text := o.admin(0, "blocked")
	o.lines(text, "tenant queue waiting why since", "acme mail 2 queue paused", "globex mail 1 queue paused",
		"globex dead 1 no worker asks for queue")
	if wide := o.admin(0, "--wide", "blocked"); !strings.Contains(wide, ": deploy") {
		t.Errorf("it does not say why the queue is paused:\n%s", wide)
	}
	o.lines(o.admin(0, "--wide", "blocked"), "tenant_id queue available active why since detail", "acme mail 2 0 the queue is paused")
	if got := o.admin(0, "--tenant", "acme", "blocked"); strings.Contains(got, "globex") || !strings.Contains(got, "acme") {
		t.Error(got)
	}
	if got := o.admin(0, "blocked", "--queue", "dead"); strings.Contains(got, "mail") {
		t.Error(got)
	}
	if got := strings.TrimSpace(o.admin(0, "--json", "--tenant", "nobody", "blocked")); got != "[]" {
		t.Errorf("for a tenant without jobs it is %s", got)
	}
}

// Jobs are cancelled and retried by their ids, each for itself.
func TestAdminCancelsAndRetriesJobs(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	ids := pgtest.List[string](t, o.pool, "select id::text from ojs.jobs where queue = 'mail' order by id")
	o.lines(o.admin(0, "cancel", ids[0], ids[1]), ids[0]+" acme mail cancelled", ids[1]+" acme mail cancelled")
	if said := o.admin(1, "cancel", ids[0], ids[2]); !strings.Contains(said, "conflict: cannot cancel job "+ids[0]) ||
		strings.Contains(said, "SQLSTATE") {
		t.Error(said)
	}
	if state := pgtest.One[string](t, o.pool, "select state from ojs.jobs where id = $1", ids[2]); state != "cancelled" {
		t.Errorf("the job after one that cannot be cancelled is %s", state)
	}
	dead := pgtest.One[string](t, o.pool, "select id::text from ojs.jobs where queue = 'dead'")
	o.sql("select ojs.fetch('{dead}', 1, 'w')")
	o.sql("select ojs.nack('" + dead + `', '{"code": "x", "message": "x"}')`)
	o.admin(1, "--tenant", "acme", "retry", dead)
	o.lines(o.admin(0, "retry", dead), dead+" globex dead available")
	o.admin(2, "cancel")
	o.admin(2, "retry", "7")
}

// A change for a misspelt tenant makes a tenant, which is said.
func TestAdminTellsOfANewTenant(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	for tenant, unknown := range map[string]bool{"acme": false, "gama": true} {
		var out, told strings.Builder
		if run([]string{"ojs-pg", "admin", "--database-url", o.url, "--tenant", tenant, "weigh", "3"}, &out, &told) != 0 ||
			strings.Contains(told.String(), "tenant "+tenant+" was not known before") != unknown {
			t.Errorf("%s: %s%s", tenant, &out, &told)
		}
	}
}
