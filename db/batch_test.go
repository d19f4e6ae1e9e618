package db_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Jobs that differ in their args only are what as many single jobs would be.
func TestBulkIsManyOfOneKind(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := connect(t, d.TenantURL("acme"))
	const options = `p_queue => 'bulk', p_priority => 3, p_expires_at => '2999-01-01Z', p_meta => '{"a": 1}',
		p_retry => '{"max_attempts": 7}', p_timeout_ms => 5, p_visibility_timeout_ms => 6000, p_tags => '{x,y}'`
	ids := list[string](t, acme, `
		select ojs.enqueue_bulk('bulk.job', array(select json_build_array(i) from generate_series(1, 2500) i),`+options+")::text")
	order := list[string](t, d.Pool, "select id::text from ojs.job where queue = 'bulk' order by seq")
	if len(ids) != 2500 || !slices.Equal(ids, order) {
		t.Fatalf("%d ids, in the order of the jobs: %t", len(ids), slices.Equal(ids, order))
	}
	if got := list[bool](t, d.Pool, `
		select json_agg(args -> 0 order by seq)::text = json_agg(row_number order by row_number)::text
		from (select j.*, row_number() over (order by seq) from ojs.job j) j`); !got[0] {
		t.Error("the args are not in order")
	}
	exec(t, acme, "select from ojs.enqueue('bulk.job', '[1]', "+options+")")
	kinds := `
		select distinct tenant_id, state::text, queue, type, priority, max_attempts, expires_at, timeout_ms,
			visibility_timeout_ms, tags::text, meta, retry, attempt, enqueued_at = created_at
		from ojs.jobs`
	if got := lines(t, acme, kinds); len(got) != 1 {
		t.Errorf("the jobs differ:\n  %s", strings.Join(got, "\n  "))
	}
	if got := stored(t, d); got != "2501 jobs, 2 wakes, 4 timers, 0 leases, 0 releases" {
		t.Error(got)
	}
	if got := one[int](t, d.Service(), "select count(*)::int from ojs.fetch('{bulk}', 3000)"); got != 2501 {
		t.Errorf("%d of 2501 jobs were fetched", got)
	}

	exec(t, acme, `
		select from ojs.enqueue_bulk('late.job', array(select json_build_array(i) from generate_series(1, 2500) i),
			p_scheduled_at => '2999-01-01Z')`)
	if got := lines(t, d.Pool, `
		select cardinality(ids), cardinality(tenant_ids) from ojs.timer where kind = 'due'
		order by 1`); !slices.Equal(got, []string{"500 500", "1000 1000", "1000 1000"}) {
		t.Errorf("the timers are %v", got)
	}
	if got := one[int](t, d.Pool, "select count(*)::int from ojs.job where state = 'scheduled' and seq is null"); got != 2500 {
		t.Errorf("%d of 2500 jobs are scheduled", got)
	}

	for _, c := range []struct{ args, field string }{
		{"null", "args"},
		{"'{}'", "args"},
		{"array[array['[]'::json]]", "args"},
		{"array(select '[]'::json from generate_series(1, 10001))", "args"},
	} {
		failure := refused(t, acme, "OJ400", "select from ojs.enqueue_bulk('bulk.job', "+c.args+")")
		if detail(t, failure)["field"] != c.field {
			t.Errorf("%s: %s", c.args, failure.Detail)
		}
	}
	refused(t, acme, "OJ403", "select from ojs.enqueue_bulk('bulk.job', array['[]'::json], p_tenant => 'globex')")
	if got := list[string](t, d.Service(), `
		select tenant_id from ojs.jobs
		where id in (select ojs.enqueue_bulk('bulk.job', array['[]'::json], p_meta => '{"tenant_id": "initech"}'))`); len(got) != 0 {
		t.Errorf("a job is seen by the statement that makes it: %v", got)
	}
	if got := one[int](t, d.Service(), "select count(*)::int from ojs.jobs where tenant_id = 'initech'"); got != 1 {
		t.Errorf("initech has %d jobs, want 1", got)
	}
}

func TestBatchKeepsItsOrder(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	const given = `[
		{"type": "c", "args": [], "queue": "z", "priority": -5},
		{"type": "a", "args": [], "pending": true, "id": "01932a4e-0000-7000-8000-00000000000b"},
		{"type": "b", "args": [], "scheduled_at": "2999-01-01T00:00:00Z", "id": "01932a4e-0000-7000-8000-00000000000a"},
		{"type": "a", "args": [], "queue": null, "priority": null, "tags": null, "meta": null, "retry": null, "pending": null,
			"id": null, "max_attempts": null}]`
	got := list[string](t, acme, `
		select type || ' ' || queue || ' ' || priority || ' ' || state || ' ' || max_attempts
		from ojs.enqueue_many($1::text::json)`, given)
	want := []string{"c z -5 available 3", "a default 0 pending 3", "b default 0 scheduled 3", "a default 0 available 3"}
	if !slices.Equal(got, want) {
		t.Errorf("a batch came back as %q, want %q", got, want)
	}
	// First in first out is the order of the batch.
	if got := list[string](t, acme, `
		select type
		from ojs.enqueue_many((select json_agg(json_build_object('type', 't' || i, 'args', '[]'::json, 'queue', 'fifo')
			order by i) from generate_series(1, 300) i))`); len(got) != 300 || got[0] != "t1" || got[299] != "t300" {
		t.Fatalf("300 jobs came back as %v", got)
	}
	for i, kind := range list[string](t, d.Service(), "select type from ojs.fetch('{fifo}', 300)") {
		if want := "t" + strconv.Itoa(i+1); kind != want {
			t.Fatalf("job %d is %s, want %s", i+1, kind, want)
		}
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	exec(t, acme, "select from ojs.enqueue('first', p_id => $1)", someID)
	before := stored(t, d)
	failure := refused(t, acme, "OJ410", `select id from ojs.enqueue_many(json_build_array(
		'{"type": "a", "args": []}'::json, json_build_object('type', 'b', 'args', '[]'::json, 'id', $2::text),
			json_build_object('type', 'c', 'args', '[]'::json, 'id', $1::text)))`, someID, otherID)
	if got := detail(t, failure); got["index"] != 2.0 || got["job_id"] != someID || got["field"] != "id" {
		t.Errorf("the duplicate is described as %v", got)
	}
	if got := stored(t, d); got != before {
		t.Errorf("stored: %s, before: %s", got, before)
	}
}
