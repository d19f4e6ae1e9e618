package db_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// walk reads all pages of a list of jobs. It returns the ids, the number of pages, and how many were empty.
func walk(t *testing.T, q querier, states, tenant any, limit int) (ids []string, pages, empty int) {
	t.Helper()
	var before *string
	for {
		pages++
		floor := one[*string](t, q, "select ojs.jobs_floor($1, null, $2)::text", before, tenant)
		page := list[string](t, q, `select id::text from ojs.list_jobs(p_states => $1, p_before => $2, p_floor => $3, p_limit => $4,
			p_tenant => $5)`, states, before, floor, limit, tenant)
		ids = append(ids, page...)
		if len(page) == 0 {
			empty++
		}
		switch {
		case len(page) == limit:
			before = &page[limit-1]
		case floor == nil:
			return ids, pages, empty
		default:
			before = floor
		}
		if pages > 1000 {
			t.Fatal("the pages do not come to an end")
		}
	}
}

// Pages look at 10,000 jobs at most, go on behind, and show each job once, the newest first. A tenant with few jobs has them on full pages.
func TestJobsAreListedByBoundedPages(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('first', p_tenant => 'small')")
	for range 3 {
		exec(t, service, "select ojs.enqueue_bulk('a', array_agg('[]'::json), p_tenant => 'big') from generate_series(1, 10000)")
	}
	exec(t, service, "select ojs.fetch('{default}', 7, p_tenant => 'big')")
	for _, c := range []struct {
		states, tenant any
		limit          int
		where          string
		pages          [2]int // at least, at most
	}{
		{nil, nil, 1000, "true", [2]int{31, 36}},
		{[]string{"active"}, nil, 50, "state = 'active'", [2]int{3, 5}},
		{[]string{"completed"}, nil, 50, "state = 'completed'", [2]int{3, 5}},
		{nil, "big", 1000, "tenant_id = 'big'", [2]int{31, 36}},
		{nil, "small", 50, "tenant_id = 'small'", [2]int{1, 1}},
	} {
		name := fmt.Sprint(c.states, c.tenant)
		ids, pages, _ := walk(t, service, c.states, c.tenant, c.limit)
		want := list[string](t, d.Pool, "select id::text from ojs.job where "+c.where+" order by id desc")
		if !slices.Equal(ids, want) {
			t.Errorf("%s: %d jobs are listed, not in order or not the %d there are", name, len(ids), len(want))
		}
		if pages < c.pages[0] || pages > c.pages[1] {
			t.Errorf("%s: %d pages", name, pages)
		}
	}
}

// What pages are bounded by names no job of another tenant.
func TestTheFloorOfAPageIsNoJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select ojs.enqueue_bulk('a', array_agg('[]'::json), p_tenant => 'big') from generate_series(1, 10000)")
	exec(t, d.Service(), "select ojs.enqueue_bulk('a', array_agg('[]'::json), p_tenant => 'big') from generate_series(1, 10000)")
	if n := one[int](t, d.Service(), "select count(*) from ojs.job where id = ojs.jobs_floor()"); n != 0 {
		t.Error("the floor is a job")
	}
	if floor := one[*string](t, d.Service(), "select ojs.jobs_floor()::text"); floor == nil {
		t.Error("there is no floor")
	}
}

func TestJobsAreListedByFilters(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, `select ojs.enqueue(t, p_queue => q, p_tenant => n) from (values
		('mail.send', 'mail', 'acme'), ('mail.bounce', 'mail', 'globex'), ('report', 'default', 'acme')) x(t, q, n)`)
	exec(t, service, "select ojs.enqueue('later', p_tenant => 'acme', p_scheduled_at => ojs.now() + interval '1 hour')")
	for arguments, want := range map[string][]string{
		"":                          {"later", "report", "mail.bounce", "mail.send"},
		"p_queue => 'mail'":         {"mail.bounce", "mail.send"},
		"p_type => 'mail.*'":        {"mail.bounce", "mail.send"},
		"p_type => 'mail'":          nil,
		"p_tenant => 'acme'":        {"later", "report", "mail.send"},
		"p_states => '{scheduled}'": {"later"},
		"p_until => ojs.now() - interval '1 day'": nil,
		"p_since => ojs.now() + interval '1 day'": nil,
		"p_skip => 1, p_limit => 2":               {"report", "mail.bounce"},
		"p_tenant => 'acme', p_type => 'm*'":      {"mail.send"},
	} {
		if got := list[string](t, service, "select type from ojs.list_jobs("+arguments+")"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", arguments, got, want)
		}
	}
	refused(t, d.As("acme"), "42501", "select ojs.list_jobs()")
}

// Many jobs are cancelled at once. Jobs that cannot be cancelled are named, and the call does not wait for locked ones.
func TestManyJobsAreCancelled(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	ids := list[string](t, service, "select (ojs.enqueue('a', p_queue => n, p_tenant => 'acme')).id from unnest('{q,r,s,t}'::text[]) n")
	exec(t, service, "select ojs.fetch('{r}')")
	exec(t, service, "select ojs.cancel($1)", ids[2])
	tx := begin(t, d.Pool)
	exec(t, tx, "select from ojs.job where id = $1 for update", ids[3])
	unknown := one[string](t, service, "select ojs._uuid_v7()::text")
	got := lines(t, service, "select c.sqlstate from ojs.cancel_many($1) c order by 1", append(slices.Clone(ids), unknown, ids[0]))
	if want := []string{"55P03", "OJ404", "OJ409"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	rollback(t, tx)
	if got := lines(t, d.Pool, "select queue, state from ojs.job order by 1"); !slices.Equal(got,
		[]string{"q cancelled", "r cancelled", "s cancelled", "t available"}) {
		t.Errorf("jobs are %v", got)
	}
	if got := lines(t, service, "select c.sqlstate from ojs.cancel_many($1, 'globex') c", ids[3:]); !slices.Equal(got, []string{"OJ404"}) {
		t.Errorf("another tenant's job is %v", got)
	}
	if got := lines(t, service, "select cancelled, active from ojs.queue_stats where queue < 's' order by queue"); !slices.Equal(got,
		[]string{"1 0", "1 0"}) {
		t.Errorf("counted are %v", got)
	}
}
