package db_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Without fairness a queue is first in, first out across tenants: in whatever way jobs come, come back and are held, each FETCH gets those
// that were first of all that may be had, and as many as it asked for.
func TestFirstInFirstOutAcrossTenants(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	r := rand.New(rand.NewPCG(seed, 0))
	d := pgtest.New(t)
	service := d.Service()
	fair := func(enabled string) {
		exec(t, service, `
			select ojs.configure_queue('q', jsonb_build_object('tenant_fairness', jsonb_build_object(
				'enabled', $1::text::boolean, 'weights', '{"t3": 100}'::jsonb)))`, enabled)
	}
	fair("false")
	exec(t, service, "select ojs.configure_tenant('t1', 5)")
	tenant := func() string { return fmt.Sprintf("t%d", r.IntN(12)) }
	enqueue := func(q querier) {
		exec(t, q, "select ojs.enqueue('a', p_queue => 'q', p_tenant => $1, p_max_attempts => 1000) from generate_series(1, $2)",
			tenant(), 1+r.IntN(1+r.IntN(40)))
	}
	late := begin(t, service)
	for step := range 400 {
		salt := strconv.Itoa(step) // so that the seed decides which jobs, and repeats the walk
		switch r.IntN(14) {
		case 0, 1, 2:
			enqueue(service)
		case 3:
			enqueue(late)
		case 4:
			commit(t, late)
			late = begin(t, service)
		case 5:
			exec(t, service, `select ojs.nack(j.id, '{"message": "broken"}', p_requeue => true)
				from (select id from ojs.job where state = 'active' order by md5(seq::text || $1) limit 3) j`, salt)
		case 6:
			exec(t, service, "select ojs.limit_concurrency(p_tenant => $1, p_max_concurrency => $2)", tenant(), r.IntN(3)*20+1)
		case 7:
			exec(t, service, `select ojs.ack(j.id)
				from (select id from ojs.job where state = 'active' order by md5(seq::text || $1) limit 30) j`, salt)
		case 12:
			exec(t, service, `select ojs.cancel(j.id)
				from (select id from ojs.job where state = 'available' order by md5(seq::text || $1) limit 5) j`, salt)
		case 13:
			fair("true")
			exec(t, service, "select ojs.fetch('{q}', 3)")
			fair("false")
		case 8:
			// Runs of more than 64 jobs that ended, which it has looked at again, are passed over.
			if step < 50 {
				exec(t, d.Pool, "select ojs.rebuild()")
			}
		default:
			count := 1 + r.IntN(1+r.IntN(60))
			// Of a tenant with a limit only its first jobs may be had.
			want := lines(t, service, `
				select id::text from (
					select j.*, row_number() over (partition by j.tenant_id order by j.seq) + coalesce(a.jobs, 0) as nth, l.most
					from ojs.job j
					left join (
						select tenant_id, count(*) as jobs from ojs.job where state = 'active' group by tenant_id) a using (tenant_id)
					left join (select tenant_id, max_concurrency as most from ojs.rule) l using (tenant_id)
					where j.state = 'available'
				) j
				where (j.nth <= j.most) is not false order by j.seq limit $1`, count)
			// In one message: a caller that is slow between two would fetch without the lane.
			got := lines(t, service, "select id::text from ojs.fetch('{q}', $1)", pgx.QueryExecModeSimpleProtocol, count)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: of %d jobs asked for, the FETCH got %d, want %d: others, or in disorder\n%v\n%v",
					seed, step, count, len(got), len(want), got, want)
			}
		}
	}
}
