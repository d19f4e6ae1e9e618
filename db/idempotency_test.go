package db_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const once = "select concat_ws(' ', o.replayed, o.id, o.tenant_id, o.state, o.attempt, o.args) from ojs.enqueue_once($1, $2, $3) o"

func TestARepeatedRequestIsAnsweredAsTheFirst(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const request = `[
		{"type": "a", "args": [ 1.50, {"b":1 , "a":"\"\u00e9"}], "tags": ["x y", "{}"], "meta": {"k": null}},
		{"type": "b", "args": [], "scheduled_at": "2099-01-01T00:00:00Z", "options": { "x":1}}]`
	const whole = `select (o).* from (select o from ojs.enqueue_once('k', $1, 'acme') o) x`
	first := lines(t, service, whole, request)
	exec(t, service, "select ojs.ack(id, p_result => '1') from ojs.fetch('{default}')")
	second := lines(t, service, whole, request)
	for i := range first {
		first[i] = strings.Replace(first[i], "false", "true", 1)
	}
	if len(first) != 2 || !slices.Equal(first, second) {
		t.Errorf("the first answer was\n%s\nand the second\n%s", strings.Join(first, "\n"), strings.Join(second, "\n"))
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 2 {
		t.Errorf("there are %d jobs", got)
	}
	// Nor does it matter that the jobs are gone.
	exec(t, d.Pool, "truncate ojs.job")
	if got := lines(t, service, whole, request); !slices.Equal(got, second) {
		t.Errorf("without the jobs: %v", got)
	}

	failure := refused(t, service, "OJ409", once, "k", `[{"type": "other", "args": []}]`, "acme")
	if got := detail(t, failure); got["field"] != "idempotency_key" {
		t.Errorf("the refusal says %v", got)
	}
	for _, bad := range []any{nil, "", strings.Repeat("é", 257)} {
		refused(t, service, "OJ400", once, bad, request, "acme")
	}
	refused(t, service, "OJ400", once, "l", nil, "acme")
	refused(t, service, "OJ400", once, "l", `{}`, "acme")
	refused(t, service, "OJ400", once, "l", `[{"type": "a", "args": [], "tenant": "!"}]`, nil)
	if got := one[string](t, service, once, strings.Repeat("é", 256), `[{"type": "a", "args": []}]`,
		"acme"); !strings.HasPrefix(got, "f ") {
		t.Errorf("the longest key: %s", got)
	}
}

func TestKeysBelongToTheirTenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, c := range []struct {
		who     querier
		request string
		tenant  any
		want    string
	}{
		{service, `[{"type": "a", "args": []}]`, "acme", "f acme"},
		{service, `[{"type": "a", "args": []}]`, "globex", "f globex"},
		{service, `[{"type": "a", "args": []}]`, nil, "f _default"},
		{d.As("acme"), `[{"type": "a", "args": []}]`, nil, "t acme"},
		{d.As("initech"), `[{"type": "a", "args": []}]`, nil, "f initech"},
		{service, `[{"type": "a", "args": [], "meta": {"tenant_id": "umbrella"}}]`, nil, "f umbrella"},
		{service, `[{"type": "a", "tenant_id": "pied"}]`, nil, "f pied"},
		{service, `[{"type": "a", "args": [], "tenant": "hooli"}, {"type": "a", "args": [], "tenant": "globex"}]`, nil, "f hooli"},
	} {
		got := strings.Fields(list[string](t, c.who, once, "k", c.request, c.tenant)[0])
		if got[0]+" "+got[2] != c.want {
			t.Errorf("%s of %v: %v, want %s", c.request, c.tenant, got, c.want)
		}
	}
	refused(t, d.As("acme"), "OJ403", once, "k", `[{"type": "a", "args": []}]`, "globex")
	refused(t, d.As("acme"), "42501", "select * from ojs.idempotency")
	exec(t, d.Operator(), "select ojs.configure(p_tenant_required => true)")
	refused(t, service, "OJ402", once, "new", `[{"type": "a", "args": []}]`, nil)
}

// What failed or was rolled back may be repeated; what was not may not, until its time is over.
func TestKeysAreForgotten(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const request = `[{"type": "a", "args": []}]`
	refused(t, service, "OJ400", once, "k", `[{"type": "a", "args": [], "priority": 1000}]`, "acme")
	tx := begin(t, service)
	exec(t, tx, once, "k", `[{"type": "rolled.back", "args": []}]`, "acme")
	rollback(t, tx)
	now := time.Now()
	d.SetNow(now)
	first := one[string](t, service, once, "k", request, "acme")
	exec(t, d.Operator(), "select ojs.configure(p_idempotency_window => '2 hours')")
	one[string](t, service, once, "long", request, "acme")
	for _, bad := range []string{"59 seconds", "366 days"} {
		refused(t, d.Operator(), "OJ422", "select ojs.configure(p_idempotency_window => $1)", bad)
	}
	keepUp(t, d)
	d.SetNow(now.Add(24*time.Hour - time.Second))
	keepUp(t, d)
	if got := list[string](t, d.Pool, "select key from ojs.idempotency"); !slices.Equal(got, []string{"k"}) {
		t.Errorf("after a day there are %v, want what is not over", got)
	}
	if got := one[string](t, service, once, "k", request, "acme"); got[2:] != first[2:] || got[0] != 't' {
		t.Errorf("within the window: %s, first %s", got, first)
	}
	d.SetNow(now.Add(24 * time.Hour))
	if got := one[string](t, service, once, "k", `[{"type": "b", "args": []}]`, "acme"); got[0] != 'f' {
		t.Errorf("after it: %s", got)
	}
	exec(t, service, `
		select from generate_series(1, 2500) n
		cross join lateral ojs.enqueue_once(n::text, '[{"type": "a", "args": []}]', 'acme') o`)
	d.SetNow(now.AddDate(0, 0, 2))
	if got := keepUp(t, d); !slices.Contains(got, "forget: again: there are more") {
		t.Errorf("the upkeep did %v", got)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.idempotency"); got != 0 {
		t.Errorf("%d keys are left", got)
	}
}

func TestTheSameKeyAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const request = `[{"type": "a", "args": []}]`
	// The second waits for the first to end: here it fails, there it does not.
	for _, ends := range []string{"commit", "rollback"} {
		tx := begin(t, service)
		first := one[string](t, tx, once, ends, request, "acme")
		got := make(chan string, 1)
		waiting := begin(t, service)
		go func() {
			var second string
			if err := waiting.QueryRow(t.Context(), once, ends, request, "acme").Scan(&second); err != nil {
				second = err.Error()
			}
			got <- second
		}()
		d.Blocked(backendPID(waiting))
		if ends == "commit" {
			commit(t, tx)
			if second := <-got; second[2:] != first[2:] || second[0] != 't' {
				t.Errorf("beside one that commits: %s, first %s", second, first)
			}
		} else {
			rollback(t, tx)
			if second := <-got; second[2:] == first[2:] || second[0] != 'f' {
				t.Errorf("beside one that is rolled back: %s, first %s", second, first)
			}
		}
		commit(t, waiting)
	}
	var running sync.WaitGroup
	answers := make([]string, 16)
	for i := range answers {
		running.Go(func() {
			_ = service.QueryRow(t.Context(), once, "many", request, "acme").Scan(&answers[i])
		})
	}
	running.Wait()
	slices.Sort(answers)
	for i, answer := range answers {
		if len(answer) < 3 || answer[2:] != answers[0][2:] || (answer[0] == 'f') != (i == 0) {
			t.Errorf("the answers are %v", answers)
			break
		}
	}
}
