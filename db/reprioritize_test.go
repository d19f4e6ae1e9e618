package db_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A job that gets another priority stands at the end of that line, and is handed out and counted there, once.
func TestReprioritizedJobsJoinTheEndOfTheLine(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueue := func(kind string, priority int) string {
		return one[string](t, service, "select id from ojs.enqueue($1, p_priority => $2, p_tenant => 'acme')", kind, priority)
	}
	first := enqueue("raised", 0)
	enqueue("low", 0)
	enqueue("high", 5)
	lowered := enqueue("lowered", 5)
	// Cursors are at these jobs from here on.
	exec(t, service, "select ojs.release(id, lease) from ojs.fetch('{default}')")
	exec(t, d.Operator(), "select ojs.reprioritize($1, 5), ojs.reprioritize($2, 0, 'acme'), ojs.reprioritize($1, 5)", first, lowered)
	counts := func() []string {
		return lines(t, service, `
			select priority, available::int, active::int, completed::int, total::int from ojs._shard_counts order by 1`)
	}
	if got := counts(); !slices.Equal(got, []string{"0 2 0 0 2", "5 2 0 0 2"}) {
		t.Errorf("counted are %v", got)
	}
	got := list[string](t, service, "select type from ojs.fetch('{default}', 9)")
	if want := []string{"high", "raised", "low", "lowered"}; !slices.Equal(got, want) {
		t.Errorf("handed out are %v, want %v", got, want)
	}
	exec(t, service, "select ojs.ack(id) from ojs.job")
	exec(t, service, "select ojs.tick()")
	if got := lines(t, d.Pool, "select priority, available, active, completed, total from ojs.tally order by 1"); !slices.Equal(got,
		[]string{"0 0 0 2 2", "5 0 0 2 2"}) {
		t.Errorf("rolled up are %v", got)
	}
	trail := lines(t, service, "select tenant_id, kind, action, old, new from ojs.audit_trail where name = $1", first)
	if want := []string{"acme jobs changed map[priority:0] map[priority:5]"}; !slices.Equal(trail, want) {
		t.Errorf("recorded are %v, want %v", trail, want)
	}
	ringsAgree(t, d.Pool)
}

// Only jobs that wait have a priority to change, of one's own tenant, up to its max_priority.
func TestReprioritizingIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	id := one[string](t, service, "select id from ojs.enqueue('a', p_tenant => 'acme')")
	const call = "select ojs.reprioritize($1, $2)"
	refused(t, operator, "OJ400", call, id, 101)
	refused(t, operator, "OJ400", call, id, nil)
	refused(t, operator, "OJ404", "select ojs.reprioritize($1, 1, 'globex')", id)
	refused(t, d.As("acme"), "42501", call, id, 1)
	exec(t, operator, "select ojs.configure_tenant('acme', p_max_priority => 3)")
	refused(t, operator, "OJ422", call, id, 4)
	exec(t, operator, call, id, 3)
	exec(t, service, "select ojs.fetch('{default}')")
	refused(t, operator, "OJ409", call, id, 2)
	exec(t, service, "select ojs.ack($1)", id)
	refused(t, operator, "OJ409", call, id, 2)
	scheduled := one[string](t, service, "select id from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '1 hour')")
	exec(t, operator, call, scheduled, 2)
	got := lines(t, service, `
		select priority, scheduled::int, total::int from ojs._shard_counts where tenant_id = '_default' and total > 0`)
	if want := []string{"2 1 1"}; !slices.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// However priorities change between fetches, all jobs are handed out once, and the rings agree with the jobs.
func TestReprioritizingLosesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	s := newSeed()
	t.Logf("-seed %d", s)
	random := rand.New(rand.NewPCG(s, 1))
	exec(t, service, `select ojs.enqueue('a', p_priority => p, p_tenant => n)
		from generate_series(-1, 1) p, unnest('{acme,globex,initech}'::text[]) n, generate_series(1, 12)`)
	waiting := list[string](t, d.Pool, "select id::text from ojs.job")
	done := map[string]bool{}
	for len(done) < 108 {
		for range random.IntN(4) {
			id := waiting[random.IntN(len(waiting))]
			if !done[id] {
				exec(t, operator, "select ojs.reprioritize($1, $2)", id, random.IntN(3)-1)
			}
		}
		got := list[string](t, service, "select id::text from ojs.fetch('{default}', $1)", 1+random.IntN(5))
		if len(got) == 0 {
			t.Fatalf("%d jobs of 108 are handed out, and no more come", len(done))
		}
		for _, id := range got {
			if done[id] {
				t.Errorf("job %s is handed out twice", id)
			}
			done[id] = true
		}
		if random.IntN(5) == 0 {
			exec(t, service, "select ojs.tick()")
		}
		ringsAgree(t, d.Pool)
	}
	got := lines(t, service, "select sum(available)::int, sum(active)::int, sum(total_jobs)::int from ojs.queue_stats")
	if want := []string{"0 108 108"}; !slices.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// Who gives a job another priority holds the lane, so it does not wait for the job.
func TestReprioritizeWaitsForNoJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	id := one[string](t, d.Service(), "select id::text from ojs.enqueue('a', p_tenant => 'acme')")
	tx := begin(t, d.Service())
	exec(t, tx, "select ojs.cancel($1)", id)
	refused(t, d.Operator(), "55P03", "select ojs.reprioritize($1, 5)", id)
	rollback(t, tx)
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', p_max_priority => 3, p_over_priority => 'clamp')")
	if got := one[int](t, d.Operator(), "select priority from ojs.reprioritize($1, 50)", id); got != 3 {
		t.Errorf("clamped, the priority is %d", got)
	}
}
