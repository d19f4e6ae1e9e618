package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Hand-outs of an hour beside a clock that ticks, and beside one that does not: the windows hold the same, whether it has been rolled up or
// stands in the journal alone.
func TestPaceOfAnHour(t *testing.T) {
	t.Parallel()
	for _, ticks := range []bool{true, false} {
		t.Run(fmt.Sprintf("with ticks %t", ticks), func(t *testing.T) {
			t.Parallel()
			p := startPace(t)
			p.ticks = ticks
			exec(t, p.d.Operator(), "select from ojs.configure_tenant('acme', 3)")
			exec(t, p.d.Operator(), "select from ojs.configure_tenant('idle', 3)")
			p.at(0).enqueue("acme", "mail", 10).enqueue("globex", "mail", 10).enqueue("acme", "reports", 10)
			p.at(2*time.Minute).fetch("acme", "mail", 3).fetch("globex", "mail", 1)
			p.at(57*time.Minute).fetch("acme", "mail", 6).fetch("globex", "mail", 2)
			p.at(60*time.Minute).fetch("acme", "mail", 1).fetch("globex", "mail", 3)
			p.at(60*time.Minute+20*time.Second).fetch("acme", "reports", 4)
			p.queues(
				"mail 4 0.5 01:00:00 12 0.75 00:58:00 16 0.8 00:44:00 4 16",
				"reports 4 0.5 01:00:20 4 0.25 01:00:20 4 0.2 01:00:20 6 4")
			p.tenants(
				"acme 3 0.75 5 0.625 1 01:00:16 11 0.6875 00:58:29.090909 14 0.7 00:46:22.857143 6 14",
				"globex 1 0.25 3 0.375 -1 01:00:00 5 0.3125 00:58:48 6 0.3 00:49:20 4 6",
				"idle 3 - 0 0 - - 0 0 - 0 0 - 0 0")
			p.waits(
				"mail 01:30:00 00:52:30 00:45:00 01:57:36",
				"reports 01:30:00 01:30:00 01:30:00 01:59:24")
			p.at(3 * time.Hour)
			p.queues("mail 0 - - 0 - - 0 - - 4 16", "reports 0 - - 0 - - 0 - - 6 4")
		})
	}
}

// A tenant with work only in queues that no worker asks for does not count in the shares of others.
func TestIdealSharesOfWhatIsServed(t *testing.T) {
	t.Parallel()
	p := startPace(t)
	p.enqueue("acme", "dead", 4).enqueue("e1", "live", 5).enqueue("e2", "live", 5).fetch("e1", "live", 1)
	p.want("select tenant_id, ideal_share::float8, available, active from ojs.tenant_shares order by 1",
		"acme - 4 0", "e1 0.5 4 1", "e2 0.5 5 0")
}

// A pool has the jobs that its workers were handed, and their waits.
func TestPaceOfPools(t *testing.T) {
	t.Parallel()
	p := startPace(t)
	exec(t, p.d.Operator(), `select ojs.configure_pool(n, '{}') from unnest('{busy,idle}'::text[]) n`)
	p.enqueue("acme", "mail", 20)
	fetch := func(pool string, count int) {
		exec(t, p.d.Service(), "select ojs.fetch('{mail}', $1, p_pool => $2)", count, pool)
	}
	p.at(time.Minute)
	fetch("busy", 3)
	p.at(50 * time.Minute)
	fetch("busy", 2)
	fetch("unknown", 3)
	p.want(`
		select name, dispatched, dispatched_1m, ratio_1m::float8, p50_wait_1m::text, dispatched_1h, ratio_1h::float8, avg_wait_1h::text,
			p95_wait_1h::text
		from ojs.pool_stats order by name`,
		"busy 5 2 0.4 00:45:00 5 0.625 00:20:36 00:56:15", "idle 0 0 0 - 0 0 - -")
}

// A roll-up at the wrong moment would count twice, or not at all.
func TestPaceCountsEachJobOnce(t *testing.T) {
	t.Parallel()
	p := startPace(t)
	p.enqueue("acme", "mail", 20)
	roll := func(q querier) { t.Helper(); exec(t, q, "select ojs._roll_up_pace()") }
	handedOut := func(want string) {
		t.Helper()
		const sql = `
			select dispatched_1h, ratio_1h::float8 from ojs.scheduling_stats
			union all select dispatched_1h, share_1h::float8 from ojs.tenant_shares`
		p.want(sql, want+" 1", want+" 1")
	}
	p.fetch("acme", "mail", 1)
	handedOut("1")
	roll(p.d.Pool)
	handedOut("1")

	p.at(time.Minute)
	both := begin(t, p.d.Pool)
	exec(t, both, "select from ojs.fetch('{mail}')")
	roll(both)
	commit(t, both)
	handedOut("2")
	p.at(2 * time.Minute)
	handedOut("2")

	late := begin(t, p.d.Pool)
	exec(t, late, "select from ojs.fetch('{mail}')")
	p.fetch("acme", "mail", 1)
	roll(p.d.Pool)
	handedOut("3")
	commit(t, late)
	handedOut("4")
	p.at(3 * time.Minute)
	handedOut("4")

	p.ticks = false
	p.at(time.Minute).fetch("acme", "mail", 1) // the clock was put back
	roll(p.d.Pool)
	const sql = "select count(*) from ojs._leases_since((select m.pace_snapshot from ojs.tally_mark m))"
	if lag := one[int](t, p.d.Pool, sql); lag != 0 {
		t.Errorf("%d rows wait until the clock has come to where it was", lag)
	}
	handedOut("5")
	p.at(4 * time.Minute)
	roll(p.d.Pool)
	handedOut("5")

	// A copy of the database in another cluster, whose transactions have lower numbers.
	exec(t, p.d.Pool, `update ojs.tally_mark set pace_snapshot = (select format('%1$s:900000000000:%1$s', min(l.xid::text::bigint))
		from ojs.lease l)::pg_snapshot`)
	p.at(5 * time.Minute)
	handedOut("5")
	roll(p.d.Pool)
	p.fetch("acme", "mail", 1)
	handedOut("6")
	p.at(6 * time.Minute)
	roll(p.d.Pool)
	handedOut("6")
}

// What is older than an hour goes, and nothing comes where nothing is handed out.
func TestPaceStaysSmall(t *testing.T) {
	t.Parallel()
	p := startPace(t)
	p.enqueue("acme", "mail", 20)
	for range 3 {
		p.fetch("acme", "mail", 1)
		p.at(p.now.Sub(beginning) + time.Minute)
	}
	rows := func(want int) {
		t.Helper()
		if got := one[int](t, p.d.Pool, "select count(*) from ojs.pace"); got != want {
			t.Errorf("%d rows after %s, want %d", got, p.now.Sub(beginning), want)
		}
	}
	rows(9) // three times one of the queue, one of the tenant, one of all
	p.at(30 * time.Minute)
	rows(9)
	mark := one[string](t, p.d.Pool, "select pace_at::text from ojs.tally_mark")
	p.at(40 * time.Minute)
	if again := one[string](t, p.d.Pool, "select pace_at::text from ojs.tally_mark"); again != mark {
		t.Errorf("where nothing is handed out the mark goes from %s to %s", mark, again)
	}
	p.ticks = false
	p.at(3*time.Hour).fetch("acme", "mail", 1)
	exec(t, p.d.Service(), "select ojs.tick()")
	rows(3)
}

var beginning = time.Date(2031, 5, 5, 12, 0, 0, 0, time.UTC)

type pace struct {
	*testing.T
	d     *pgtest.DB
	ticks bool
	now   time.Time
}

func startPace(t *testing.T) *pace {
	t.Helper()
	p := &pace{T: t, d: pgtest.New(t), ticks: true}
	return p.at(0)
}

// at sets the clock to a time after the beginning. If the run ticks, it rolls up ojs.pace once on the way,
// 20 s after the time before.
func (p *pace) at(since time.Duration) *pace {
	p.Helper()
	then := beginning.Add(since)
	if p.ticks && !p.now.IsZero() && then.Sub(p.now) > 20*time.Second {
		p.d.SetNow(p.now.Add(20 * time.Second))
		exec(p, p.d.Pool, "select ojs._roll_up_pace()")
	}
	p.now = then
	p.d.SetNow(then)
	return p
}

func (p *pace) enqueue(tenant, queue string, jobs int) *pace {
	p.Helper()
	exec(p, p.d.Pool, `
		select from ojs.enqueue_many((select json_agg(json_build_object('type', 'a', 'args', '[]'::json, 'tenant', $1::text,
			'queue', $2::text, 'visibility_timeout_ms', 604800000)) from generate_series(1, $3)))`, tenant, queue, jobs)
	return p
}

func (p *pace) fetch(tenant, queue string, count int) *pace {
	p.Helper()
	if got := exec(p, p.d.Pool, "select from ojs.fetch(array[$1], $2, p_tenant => $3)", queue, count, tenant); got != int64(count) {
		p.Fatalf("%d jobs instead of %d", got, count)
	}
	return p
}

func (p *pace) want(sql string, want ...string) {
	p.Helper()
	for _, who := range []querier{p.d.Service(), p.d.Operator()} {
		if got := lines(p, who, sql); !slices.Equal(got, want) {
			p.Errorf("%s\n  %q, want\n  %q", p.now, got, want)
		}
	}
}

func (p *pace) queues(want ...string) {
	p.Helper()
	p.want(`
		select queue, dispatched_1m, ratio_1m::float8, avg_wait_1m::text, dispatched_5m, ratio_5m::float8, avg_wait_5m::text, dispatched_1h,
			ratio_1h::float8, avg_wait_1h::text, available, active
		from ojs.scheduling_stats order by queue`, want...)
}

// waits compares percentiles of waits, which come from a histogram.
func (p *pace) waits(want ...string) {
	p.Helper()
	p.want(`
		select queue, p50_wait_1m::text, p50_wait_5m::text, p50_wait_1h::text, p99_wait_1h::text
		from ojs.scheduling_stats order by queue`, want...)
}

func (p *pace) tenants(want ...string) {
	p.Helper()
	p.want(`
		select tenant_id, weight::float8, ideal_share::float8, dispatched_1m, share_1m::float8, lag_1m::float8, avg_wait_1m::text,
			dispatched_5m, share_5m::float8, avg_wait_5m::text, dispatched_1h, share_1h::float8, avg_wait_1h::text,
			available, active
		from ojs.tenant_shares order by tenant_id`, want...)
}
