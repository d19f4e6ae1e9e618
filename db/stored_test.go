package db_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// sizes computes the bytes of a tenant's jobs from the jobs themselves.
const sizes = `select coalesce(sum(ojs._size(j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors)), 0)::bigint
	from (table ojs.job union all table ojs.dead_job) j where j.tenant_id = $1`

// counted returns the count of a tenant's limit in bytes.
const counted = "select current from ojs.limits where tenant_id = $1 and resource = 'max_stored_bytes'"

// measure makes the upkeep measure the limits in bytes now.
func measure(t testing.TB, d *pgtest.DB) {
	t.Helper()
	exec(t, d.Pool, "update ojs.quota set measure_at = null where resource = 'max_stored_bytes'")
	for one[bool](t, d.Pool, "select exists (select from ojs.upkeep_status where task = 'measure' and next_at <= ojs.now())") {
		exec(t, d.Service(), "select ojs.upkeep()")
	}
}

// Whichever way they come, jobs that would take up more than max_stored_bytes are refused with 507, which trying again does not mend.
func TestStoredBytesAreLimited(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	// 0 means that the tenant may store nothing, as one that leaves (003 section 7).
	for _, most := range []int{100, 0} {
		limited(t, d.Operator(), "acme", fmt.Sprintf(`{"max_stored_bytes": %d}`, most))
		for _, way := range waysIn {
			q := querier(service)
			if way.name == "login" {
				q = acme
			}
			failure := refused(t, q, "OJ507", way.sql, way.name)
			if said := detail(t, failure); said["limit"] != "max_stored_bytes" || said["maximum"] != float64(most) ||
				said["current"] != 0.0 || said["retry_after"] != nil {
				t.Errorf("%s is refused with %s %v", way.name, failure.Message, said)
			}
		}
	}
	measure(t, d)
	if got := stored(t, d); got != nothing {
		t.Errorf("of refused jobs are left: %s", got)
	}
	if got := answers(t, d.Open(), refused(t, acme, "OJ507", "insert into ojs.jobs (type) values ('a'), ('a')")); got.Status != 507 ||
		got.Code != "TENANT_LIMIT_EXCEEDED" || got.Retryable {
		t.Errorf("it is answered with %+v", got)
	}
	limited(t, d.Operator(), "acme", `{"max_stored_bytes": 1000000}`)
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		exec(t, q, way.sql, way.name)
	}
	// A column that was compressed takes less than it did when it was sent.
	if got, want := one[int64](t, acme, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got < want || got > want+100 {
		t.Errorf("%d bytes count, and %d are there", got, want)
	}
}

// Of jobs of which each is by itself the first ones go in, as many as fit; those of duplicates are given back.
func TestStoredBytesWhereEachJobIsByItself(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_stored_bytes": 5000}`)
	id := one[string](t, service, "select ojs._uuid_v7()")
	got := lines(t, service, `select n, sqlstate from ojs.enqueue_rows('{a,a,a,a,a}',
		array['[]', '[]', to_json(array[repeat('x', 2000)]), to_json(array[repeat('x', 1500)]), '[]']::json[],
		p_ids => array[$1, $1, null, null, null]::uuid[], p_tenant => 'acme', p_each => true) order by n`, id)
	if want := []string{"0 -", "1 OJ410", "2 -", "3 OJ507", "4 OJ507"}; !slices.Equal(got, want) {
		t.Errorf("the results are %v, want %v", got, want)
	}
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got < want || got > want+2100 {
		t.Errorf("%d bytes count, and %d are there", got, want)
	}
	measure(t, d)
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got != want {
		t.Errorf("measured, %d bytes count, and %d are there", got, want)
	}
}

// What was there before the limit, and results count when they are measured, what is gone does not, and a limit that is changed acts.
func TestStoredBytesAreMeasured(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, service, `select ojs.enqueue('a', json_build_array(repeat('x', 100), i), p_tenant => t)
		from generate_series(1, 20) i, unnest('{acme,globex}'::text[]) t`)
	limited(t, operator, "acme", `{"max_stored_bytes": 1000}`)
	measure(t, d)
	refused(t, service, "OJ507", "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'globex')")
	was := one[int64](t, d.Pool, sizes, "acme")
	limited(t, operator, "acme", fmt.Sprintf(`{"max_stored_bytes": %d}`, was+600))
	measure(t, d)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	refused(t, service, "OJ507", "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, `select ojs.ack(f.id, f.lease, to_json(repeat('y', 300)), f.tenant_id) from ojs.fetch('{default}', 50) f
		where f.tenant_id = 'acme'`)
	measure(t, d)
	refused(t, service, "OJ507", "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, operator, "acme", `{"max_stored_bytes": 100000}`)
	measure(t, d)
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got != want || got < was+20*300 {
		t.Errorf("with results %d bytes count, and %d are there, %d before", got, want, was)
	}
	limited(t, operator, "acme", `{"max_stored_bytes": 600}`)
	exec(t, d.Pool, "delete from ojs.job where tenant_id = 'acme'")
	refused(t, service, "OJ507", "select ojs.enqueue('a', p_tenant => 'acme')")
	measure(t, d)
	if got := one[int64](t, service, counted, "acme"); got != 0 {
		t.Errorf("of jobs that are gone %d bytes count", got)
	}
	limited(t, operator, "acme", `{"max_stored_bytes": {"limit": 10, "soft": true}}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	measure(t, d)
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got != want || got < 512 {
		t.Errorf("beyond a soft limit %d bytes count, and %d are there", got, want)
	}
	exec(t, service, "select ojs.tick()")
	if got := list[string](t, operator, "select type from ojs.notice where subject = 'acme' order by at"); !slices.Contains(got,
		"tenant.limit_exceeded") {
		t.Errorf("told is %q", got)
	}
}

// What stays below half of a limit is measured, too: results fill it, and room that retention makes comes back.
func TestStoredBytesAreMeasuredWhateverIsUsed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	limited(t, d.Operator(), "acme", `{"max_stored_bytes": 100000}`)
	measure(t, d)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 5)")
	exec(t, service, "select ojs.ack(f.id, f.lease, to_json(repeat('y', 50000))) from ojs.fetch('{default}', 5) f")
	later := func(minutes time.Duration) {
		t.Helper()
		d.SetNow(noon.Add(minutes * time.Hour))
		for one[bool](t, d.Pool, "select exists (select from ojs.upkeep_status where task = 'measure' and next_at <= ojs.now())") {
			exec(t, service, "select ojs.upkeep()")
		}
	}
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, d.Pool, "alter table ojs.job alter column result set storage external")
	later(1)
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got != want {
		t.Errorf("%d bytes count, and %d are there", got, want)
	}
	exec(t, d.Pool, "delete from ojs.job where tenant_id = 'acme'")
	later(2)
	exec(t, service, "select ojs.enqueue('a', to_json(array[repeat('x', 90000)]), p_tenant => 'acme')")
	// Neither does a change to soft and back give anything away.
	limited(t, d.Operator(), "acme", `{"max_stored_bytes": {"limit": 100000, "soft": true}}`)
	limited(t, d.Operator(), "acme", `{"max_stored_bytes": 100000}`)
	refused(t, service, "OJ507", "select ojs.enqueue('a', to_json(array[repeat('x', 90000)]), p_tenant => 'acme')")
}

// A limit that is lowered during a measurement keeps no tokens of the old maximum.
func TestStoredBytesAreLoweredMeanwhile(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 100)")
	limited(t, d.Operator(), "acme", `{"max_stored_bytes": 40000000}`)
	change := begin(t, d.Operator())
	limited(t, change, "acme", `{"max_stored_bytes": 10000}`)
	if got := one[string](t, d.Pool, "select ojs._measure()"); got != "again: the table was in use" {
		t.Errorf("a measurement beside a change says %q", got)
	}
	commit(t, change)
	measure(t, d)
	refused(t, service, "OJ507", "select ojs.enqueue('a', p_tenant => 'acme')")
	if got := one[float64](t, d.Pool, "select sum(tokens[4]) from ojs.stripe"); got != 0 {
		t.Errorf("%v tokens are left", got)
	}
}

// A limit that is lowered while a session has tokens locked, and raised again, is what it was.
func TestStoredBytesAreLoweredAndRaised(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const lower, higher = `{"max_stored_bytes": 100000}`, `{"max_stored_bytes": 200000}`
	limited(t, d.Operator(), "acme", higher)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 300)")
	want := one[int64](t, service, counted, "acme")
	producer := begin(t, service)
	exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, d.Operator(), "acme", lower)
	limited(t, d.Operator(), "acme", higher)
	rollback(t, producer)
	if got := one[int64](t, service, counted, "acme"); got != want {
		t.Errorf("%d bytes count, and before it were %d", got, want)
	}
}

// However many producers there are, whatever is measured, raised and lowered meanwhile, never more than the maximum is there.
func TestStoredBytesAreExact(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const most = 200_000
	limited(t, d.Operator(), "acme", fmt.Sprintf(`{"max_stored_bytes": %d}`, most))
	measure(t, d)
	var producers, others sync.WaitGroup
	done := make(chan struct{})
	for i := range 8 {
		producers.Go(func() {
			q, sql := d.Service(), `select ojs.enqueue('a', to_json(array[repeat(md5(random()::text), 1 + (random() * 40)::int)]),
				p_tenant => 'acme')`
			if i%2 == 1 {
				sql = `insert into ojs.jobs (tenant_id, type, args) select 'acme', 'a', to_json(array[repeat(md5(random()::text), n)])
					from generate_series(1, 3) n`
			}
			for full := 0; full < 20; {
				if _, err := q.Exec(t.Context(), sql); err != nil {
					if !strings.Contains(err.Error(), "max_stored_bytes") {
						t.Errorf("to enqueue: %s", pgtest.Explain(err))
						return
					}
					full++
				}
			}
		})
	}
	others.Go(func() {
		for change := 0; ; change++ {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			limited(t, d.Operator(), "acme", fmt.Sprintf(`{"max_stored_bytes": %d}`, most-50_000*(change%2)))
			measure(t, d)
			exec(t, d.Pool, "delete from ojs.job where id in (select id from ojs.job limit 3 for update skip locked)")
			if got := one[int64](t, d.Pool, sizes, "acme"); got > most {
				t.Errorf("%d bytes are there", got)
			}
		}
	})
	producers.Wait()
	close(done)
	others.Wait()
	limited(t, d.Operator(), "acme", fmt.Sprintf(`{"max_stored_bytes": %d}`, most))
	measure(t, d)
	if got, want := one[int64](t, d.Operator(), counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got != want {
		t.Errorf("at the end %d bytes count, and %d are there", got, want)
	}
}

// What a job takes up beside its values is about what ojs._size takes it for.
func TestWhatAJobTakesUp(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const jobs = 20_000
	exec(t, d.Service(), "insert into ojs.jobs (type) select 'report.make' from generate_series(1, $1)", jobs)
	exec(t, d.Service(), "select ojs.ack_many(array_agg(f.id), p_leases => array_agg(f.lease)) from ojs.fetch('{default}', 10000) f")
	got := one[int](t, d.Pool, "select (sum(bytes) / $1)::int from ojs.job_partitions", jobs)
	if t.Logf("a bare job takes up %d bytes", got); got < 400 || got > 700 {
		t.Errorf("a bare job takes up %d bytes, and is taken for 512", got)
	}
}
