package db_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func scope(t testing.TB, q querier, queue, scope string) {
	t.Helper()
	exec(t, q, "select ojs.configure_queue($1, jsonb_build_object('tenant_fairness', jsonb_build_object('priority_scope', $2::text)))",
		queue, scope)
}

// In whatever way jobs come, come back and are held: each FETCH gets of each tenant those of its jobs that go first, by priority and then
// by age, and as many in sum as it asked for.
func TestPrioritiesOfATenantsOwn(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]bool{"limits": true, "callers without the lane": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := newSeed()
			o := &ownOrder{t: t, d: pgtest.New(t), r: rand.New(rand.NewPCG(seed, 0))}
			o.service = o.d.Service()
			scope(t, o.service, "q", "tenant")
			late := begin(t, o.service)
			for o.step = range 400 {
				switch o.r.IntN(16) {
				case 0, 1, 2:
					o.enqueue(o.service)
				case 3:
					o.enqueue(late)
				case 4:
					commit(t, late)
					late = begin(t, o.service)
				case 5, 6:
					if limits {
						o.limit()
					} else {
						o.fetchAside(seed)
					}
				case 7, 8, 9:
					o.disturb()
				default:
					o.fetch(o.service, seed, "")
				}
			}
		})
	}
}

type ownOrder struct {
	t       *testing.T
	d       *pgtest.DB
	service *pgxpool.Pool
	r       *rand.Rand
	step    int
}

func (o *ownOrder) tenant() string { return fmt.Sprintf("t%d", o.r.IntN(6)) }

func (o *ownOrder) enqueue(q querier) {
	exec(o.t, q, `select ojs.enqueue('a', p_queue => 'q', p_tenant => $1, p_priority => $2, p_max_attempts => 1000)
		from generate_series(1, $3)`, o.tenant(), o.r.IntN(4)-1, 1+o.r.IntN(1+o.r.IntN(40)))
}

func (o *ownOrder) limit() {
	exec(o.t, o.service, "select ojs.limit_concurrency(p_tenant => $1, p_max_concurrency => $2)", o.tenant(), o.r.IntN(3)*20+1)
}

func (o *ownOrder) disturb() {
	o.t.Helper()
	const some = "from (select id from ojs.job where state = $1::text::ojs.job_state order by random() limit $2) j"
	switch o.r.IntN(6) {
	case 0:
		exec(o.t, o.service, `select ojs.nack(j.id, '{"message": "broken"}', p_requeue => true) `+some, "active", 3)
	case 1:
		exec(o.t, o.service, "select ojs.ack(j.id) "+some, "active", 30)
	case 2:
		exec(o.t, o.service, "select ojs.cancel(j.id) "+some, "available", 1+o.r.IntN(1+o.r.IntN(30)))
	case 3:
		exec(o.t, o.service, "select ojs.configure_tenant($1, $2, p_priority_boost => $3)", o.tenant(), 1+o.r.IntN(3), o.r.IntN(5)-2)
	case 4:
		scope(o.t, o.service, "q", "queue")
		if o.r.IntN(2) == 0 {
			exec(o.t, o.service, "select ojs.fetch('{q}', 3)")
		}
		scope(o.t, o.service, "q", "tenant")
	case 5:
		exec(o.t, o.d.Pool, "select ojs.rebuild()")
	}
}

// fetchAside fetches in a transaction that stays open, and rolls it back half of the time.
func (o *ownOrder) fetchAside(seed uint64) {
	o.t.Helper()
	tx := begin(o.t, o.d.Service())
	exec(o.t, tx, "select pg_sleep(0.025)")
	o.fetch(tx, seed, []string{"", o.tenant()}[o.r.IntN(2)])
	if o.r.IntN(2) == 0 {
		commit(o.t, tx)
	} else if err := tx.Rollback(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *ownOrder) fetch(q querier, seed uint64, tenant string) {
	o.t.Helper()
	count := 1 + o.r.IntN(1+o.r.IntN(60))
	// Of a tenant with a limit only its first jobs may be had.
	free := lines(o.t, o.service, `
		select j.tenant_id, j.id::text from (
			select j.*, row_number() over (partition by j.tenant_id order by j.priority desc, j.seq) + coalesce(a.jobs, 0) as nth, l.most
			from ojs.job j
			left join (select tenant_id, count(*) as jobs from ojs.job where state = 'active' group by tenant_id) a using (tenant_id)
			left join (select tenant_id, max_concurrency as most from ojs.rule) l using (tenant_id)
			where j.state = 'available'
		) j
		where (j.nth <= j.most) is not false and $1 in ('', j.tenant_id) order by j.priority desc, j.seq`, tenant)
	got := lines(o.t, q, "select tenant_id, id::text from ojs.fetch('{q}', $1, p_tenant => nullif($2, ''))", count, tenant)
	if len(got) != min(count, len(free)) {
		o.t.Fatalf("seed %d, step %d: %d jobs of %d asked for, %d may be had", seed, o.step, len(got), count, len(free))
	}
	for _, of := range []string{"t0", "t1", "t2", "t3", "t4", "t5"} {
		mine := func(all []string) []string {
			return slices.DeleteFunc(slices.Clone(all), func(j string) bool { return !strings.HasPrefix(j, of+" ") })
		}
		if had, first := mine(got), mine(free); !slices.Equal(had, first[:min(len(had), len(first))]) {
			o.t.Fatalf("seed %d, step %d: the %d jobs of %s are others than its first ones, or in disorder:\n%v\n%v", seed, o.step,
				len(had), of, had, first[:min(len(had), len(first))])
		}
	}
}

// The example of fair scheduling section 9.3: who sends the highest priority only has its share, and no more.
func TestThePriorityOfOneStarvesNobody(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	scope(t, service, "q", "tenant")
	exec(t, service, `select ojs.enqueue('a', p_queue => 'q', p_tenant => 'a', p_priority => 100) from generate_series(1, 200)`)
	exec(t, service, `select ojs.enqueue('b', p_queue => 'q', p_tenant => 'b') from generate_series(1, 200)`)
	exec(t, service, `select ojs.enqueue('c', p_queue => 'q', p_tenant => 'b', p_priority => 1) from generate_series(1, 10)`)
	got := strings.Join(list[string](t, service, "select type from ojs.fetch('{q}', 60)"), "")
	if n := strings.Count(got, "a"); n < 29 || n > 31 {
		t.Errorf("%d of 60 jobs are of the tenant with the highest priority: %s", n, got)
	}
	if own := strings.ReplaceAll(got, "a", ""); own != strings.Repeat("c", 10)+strings.Repeat("b", len(own)-10) {
		t.Errorf("the other's are not in the order of its own priorities: %s", own)
	}
	exec(t, service, "select ojs.enqueue('c', p_queue => 'q', p_tenant => 'b', p_priority => 7)")
	if got := strings.Join(list[string](t, service, "select type from ojs.fetch('{q}', 2)"), ""); !strings.Contains(got, "c") {
		t.Errorf("its next two turns are %s: what is of a higher priority has not gone first", got)
	}
	scope(t, service, "q", "queue")
	if got := strings.Join(list[string](t, service, "select type from ojs.fetch('{q}', 20)"), ""); got != strings.Repeat("a", 20) {
		t.Errorf("with priorities for all, %s", got)
	}
}
