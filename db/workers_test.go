package db_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// beat sends a heartbeat and returns the answer.
func beat(t testing.TB, q querier, arguments string, args ...any) string {
	t.Helper()
	return one[string](t, q, "select state from ojs.beat("+arguments+")", args...)
}

// workers returns the names of workers, the states that they report and their directives.
func workers(t testing.TB, q querier) []string {
	t.Helper()
	return lines(t, q, `
		select tenant_id, worker_id, state, directive, case when stale then 'stale' else 'fresh' end from ojs.workers
		order by tenant_id nulls first, worker_id`)
}

func fetched(t testing.TB, q querier, worker string, count int) int {
	t.Helper()
	return len(jobs(t, q, "ojs.fetch('{default}', $1, $2)", count, worker))
}

func TestWorkersAreKnown(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	got := lines(t, service, `select state, jobs_extended, heartbeat_interval_ms, heartbeat_timeout_ms
		from ojs.register_worker('w1', 'host', 17, '{mail,default}', 5, '{canary}', '1.2', '{"node": 3}', ojs.now() - interval '1 hour')`)
	if want := []string{"running [] 5000 30000"}; !slices.Equal(got, want) {
		t.Errorf("a registration is answered with %q, want %q", got, want)
	}
	exec(t, service, "select from ojs.enqueue('a')")
	held := oneJob(t, service, "ojs.fetch('{default}', 1, 'w1')")
	d.SetNow(noon.Add(5 * time.Second))
	// What is not said again stays known.
	beat(t, service, "'w1', array[$1::uuid], 'running', p_concurrency => 6", held.ID)
	beat(t, service, "'w2', p_active => 3")
	got = lines(t, service, `
		select worker_id, state, hostname, pid, queues, concurrency, active_jobs, active_job_ids = array[$1::uuid], labels,
			version, metadata, started_at at time zone 'UTC', registered_at at time zone 'UTC',
			last_heartbeat_at at time zone 'UTC'
		from ojs.workers order by worker_id`, held.ID)
	want := []string{
		"w1 running host 17 [mail default] 6 1 true [canary] 1.2 map[node:3] " +
			"2031-05-04 11:00:00 +0000 UTC 2031-05-04 12:00:00 +0000 UTC 2031-05-04 12:00:05 +0000 UTC",
		"w2 running - - - - 3 false - - - - 2031-05-04 12:00:05 +0000 UTC 2031-05-04 12:00:05 +0000 UTC",
	}
	if !slices.Equal(got, want) {
		t.Errorf("known are\n  %s, want\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	// Heartbeats in quick succession are written down once.
	rev := one[int](t, d.Pool, "select rev from ojs.worker_beat where worker_id = 'w1'")
	d.SetNow(noon.Add(6 * time.Second))
	beat(t, service, "'w1', array[$1::uuid]", held.ID)
	if got := one[int](t, d.Pool, "select rev from ojs.worker_beat where worker_id = 'w1'"); got != rev {
		t.Errorf("a second after a heartbeat another one was written down, as number %d after %d", got, rev)
	}
	d.SetNow(noon.Add(21 * time.Second))
	if got, want := workers(t, service), []string{"- w1 running - stale", "- w2 running - stale"}; !slices.Equal(got, want) {
		t.Errorf("after a while workers are %q, want %q", got, want)
	}
	if !one[bool](t, service, "select ojs.deregister_worker('w1')") || one[bool](t, service, "select ojs.deregister_worker('w1')") {
		t.Error("a worker that signs off was not known, or is still")
	}
	if got := row(t, d, held.ID); !strings.HasPrefix(got, "(active,") {
		t.Errorf("a job of a worker that signed off is %s", got)
	}
	if got := one[int](t, d.Pool, "select (select count(*) from ojs.worker) + (select count(*) from ojs.worker_beat)"); got != 2 {
		t.Errorf("%d rows are left of one worker", got)
	}
}

// Who rests gets nothing, by whatever door; others of the same call get theirs.
func TestDirectives(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (type) select 'a' from generate_series(1, 100)")
	for _, c := range []struct {
		name, say, told string
		gets            int
	}{
		{"runs", "select ojs.beat('w', p_state => 'running')", "running", 1},
		{"drains by itself", "select ojs.beat('w', p_state => 'drain')", "quiet", 0},
		{"is quiet by itself", "select ojs.beat('w', p_state => 'quiet')", "quiet", 0},
		{"says nothing new", "select ojs.beat('w')", "quiet", 0},
		{"is told to go on", "select ojs.direct_worker('w', 'running')", "running", 1},
		{"goes on", "select ojs.beat('w', p_state => 'running')", "running", 1},
		{"rests again by itself, having gone on", "select ojs.beat('w', p_state => 'quiet')", "quiet", 0},
		{"runs again", "select ojs.beat('w', p_state => 'running')", "running", 1},
		{"is told to rest", "select ojs.direct_worker('w', 'quiet')", "quiet", 0},
		{"has not heard it", "select ojs.beat('w', p_state => 'running')", "quiet", 0},
		{"rests as told", "select ojs.beat('w', p_state => 'quiet')", "quiet", 0},
		{"is told to resume", "select ojs.direct_workers('resume')", "running", 1},
		{"is told to end", "select ojs.direct_workers('terminate')", "terminate", 0},
		{"cannot be told to go on with all others", "select ojs.direct_workers('running')", "terminate", 0},
		{"ends", "select ojs.beat('w', p_state => 'terminate')", "terminate", 0},
		{"came back under its name", "select ojs.beat('w', p_state => 'running')", "running", 1},
		{"ends by itself", "select ojs.beat('w', p_state => 'terminate')", "terminate", 0},
		{"registers anew", "select ojs.register_worker('w')", "running", 1},
		{"is told to end", "select ojs.direct_worker('w', 'terminate')", "terminate", 0},
		{
			"is another process",
			"select ojs.beat('w', p_state => 'running', p_pid => 1), ojs.beat('w', p_state => 'running', p_pid => 2)", "running", 1,
		},
	} {
		exec(t, service, c.say)
		if got := beat(t, service, "'w'"); got != c.told {
			t.Errorf("a worker that %s is told %s, want %s", c.name, got, c.told)
		}
		for _, count := range []int{1, 3} {
			if got := fetched(t, service, "w", count); got != c.gets*count {
				t.Errorf("a worker that %s gets %d jobs of %d", c.name, got, count)
			}
		}
		got := lines(t, service, `
			select worker_id, count(id) from ojs.fetch_many('{default}', '{1,2,1}', '{w,v,w}', '{0,0,0}') group by worker_id
			order by 1`)
		want := []string{"v 2", fmt.Sprintf("w %d", 2*c.gets)}
		if !slices.Equal(got, want) {
			t.Errorf("beside a worker that %s one call got %q, want %q", c.name, got, want)
		}
	}
	exec(t, service, "select ojs.direct_worker('w', 'terminate')")
	refused(t, service, "OJ409", "select ojs.direct_worker('w', 'running')")
	refused(t, service, "OJ409", "select ojs.direct_worker('w', 'quiet')")
	if got := lines(t, service, `
		select worker_id, count(id) from ojs.fetch_many('{default,other}', '{1,1}', '{w,w}', '{0,0}')
		group by worker_id`); !slices.Equal(got, []string{"w 0"}) {
		t.Errorf("where all rest, a call for two queues got %q", got)
	}
	// It is the name that rests, and a worker without one does not.
	if got := len(jobs(t, service, "ojs.fetch('{default}', 2)")); got != 2 {
		t.Errorf("a worker without a name gets %d jobs", got)
	}
}

// Workers of one name in two tenants, and one that serves all, do not know of each other.
func TestWorkersOfTenants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme, globex := d.Service(), d.As("acme"), d.As("globex")
	exec(t, service, "select ojs.beat('w')")
	exec(t, acme, "select ojs.beat('w')")
	exec(t, globex, "select ojs.beat('w')")
	exec(t, globex, "select ojs.beat('only')")
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, "select ojs.enqueue('a', p_tenant => $1) from generate_series(1, 10)", tenant)
	}
	for _, c := range []struct {
		q    querier
		want []string
	}{
		{acme, []string{"acme w running - fresh"}},
		{globex, []string{"globex only running - fresh", "globex w running - fresh"}},
		{service, []string{"- w running - fresh", "acme w running - fresh", "globex only running - fresh", "globex w running - fresh"}},
	} {
		if got := workers(t, c.q); !slices.Equal(got, c.want) {
			t.Errorf("somebody sees %q, want %q", got, c.want)
		}
	}
	// A tenant's directive reaches its own workers only.
	if got := one[int](t, acme, "select ojs.direct_workers('quiet')"); got != 1 {
		t.Errorf("a tenant told %d workers", got)
	}
	for _, call := range []string{
		"ojs.direct_worker('only', 'quiet')", "ojs.direct_worker('nobody', 'quiet')", "ojs.remove_worker('only')",
		"ojs.remove_worker('nobody')", "ojs.worker_info('only')", "ojs.worker_info('nobody')",
	} {
		if got := refused(t, acme, "OJ404", "select "+call).Message; !strings.HasSuffix(got, "not found") {
			t.Errorf("%s: %s", call, got)
		}
	}
	for _, call := range []string{
		"ojs.direct_worker('w', 'quiet', 'globex')", "ojs.direct_workers('quiet', 'globex')", "ojs.remove_worker('w', 'globex')",
		"ojs.worker_info('w', 'globex')",
		"ojs.beat('w', p_tenant => 'globex')", "ojs.register_worker('w', p_tenant => 'globex')", "ojs.deregister_worker('w', 'globex')",
	} {
		refused(t, acme, "OJ403", "select "+call)
	}
	if one[bool](t, acme, "select ojs.deregister_worker('only')") {
		t.Error("a tenant signed off another's worker")
	}
	for _, c := range []struct {
		who, tenant string
		q           querier
		want        int
	}{
		{"acme's worker", "", acme, 0},
		{"acme's worker by the service", "acme", service, 0},
		{"globex's worker", "", globex, 1},
		{"globex's worker by the service", "globex", service, 1},
		{"the worker of all", "", service, 1},
	} {
		call := "ojs.fetch('{default}', 1, 'w', p_tenant => nullif($1, ''))"
		if got := len(jobs(t, c.q, call, c.tenant)); got != c.want {
			t.Errorf("%s got %d jobs, want %d", c.who, got, c.want)
		}
	}
	// Without a tenant the one that serves all is meant, else the only one of that name.
	if got := one[string](t, service, "select coalesce(tenant_id, 'all') from ojs.worker_info('w')"); got != "all" {
		t.Errorf("a bare name means the worker of %s", got)
	}
	if got := one[string](t, service, "select tenant_id from ojs.worker_info('only')"); got != "globex" {
		t.Errorf("the only worker of a name is that of %s", got)
	}
	exec(t, service, "select ojs.deregister_worker('w')")
	refused(t, service, "OJ411", "select ojs.direct_worker('w', 'quiet')")
}

// The worker lived on, and knew nothing of the job: its answer was late.
func TestAJobWhoseAnswerWasLateComesBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, d.Operator(), "select from ojs.configure(p_heartbeat_timeout_ms => 2000)")
	exec(t, service, "select ojs.enqueue('a', p_visibility_timeout_ms => 3600000)")
	fetched(t, service, "w", 1)
	d.SetNow(noon.Add(5 * time.Second))
	beat(t, service, "'w'")
	d.SetNow(noon.Add(10 * time.Second))
	if got := tick(t, service, 1000); got != "0 1" {
		t.Errorf("a tick promoted and reaped %s, want 0 1", got)
	}
}

func TestDeadWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, `
		select ojs.enqueue('said', p_visibility_timeout_ms => 3600000),
			ojs.enqueue('since', p_visibility_timeout_ms => 3600000),
			ojs.enqueue('last', p_visibility_timeout_ms => 3600000,
				p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'),
			ojs.enqueue('other', p_visibility_timeout_ms => 3600000)`)
	held := jobs(t, service, "ojs.fetch('{default}', 1, 'w')")
	d.SetNow(noon.Add(10 * time.Second))
	beat(t, service, "'w', array[$1::uuid]", held[0].ID)
	beat(t, service, "'v'")
	// Handed out after the heartbeat, and never said.
	held = append(held, jobs(t, service, "ojs.fetch('{default}', 2, 'w')")...)
	held = append(held, jobs(t, service, "ojs.fetch('{default}', 1, 'v')")...)
	for _, c := range []struct {
		at   time.Duration
		want string
		left int
	}{
		{40 * time.Second, "0 0", 2}, // a fifteenth of its time is for heartbeats that were not written down
		{41 * time.Second, "0 0", 2},
		{42 * time.Second, "0 3", 1},
		{43 * time.Second, "0 0", 1},
	} {
		d.SetNow(noon.Add(c.at - time.Millisecond))
		beat(t, service, "'v'")
		d.SetNow(noon.Add(c.at))
		if got := tick(t, service, 1000); got != c.want {
			t.Errorf("after %s a tick promoted and reaped %s, want %s", c.at, got, c.want)
		}
		if got := len(workers(t, service)); got != c.left {
			t.Errorf("after %s %d workers are known, want %d", c.at, got, c.left)
		}
	}
	got := lines(t, d.Pool, `
		select type, state, attempt, errors -> -1 ->> 'type', errors -> -1 ->> 'timeout_kind', errors -> -1 ->> 'worker_id',
			lease is null, started_at is null, finished_at is null
		from ojs.job order by seq`)
	want := []string{
		"said available 1 worker_death stalled w true true true", "since available 1 worker_death stalled w true true true",
		"last discarded 1 worker_death stalled w true false false",
		"other active 1 - - - false false true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the jobs are\n  %s, want\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	events := list[string](t, service, `
		select type || ' ' || (data ->> 'worker_id') from ojs.events('{job.stalled,job.timeout,job.failed}') order by 1`)
	want = []string{"job.failed w", "job.failed w", "job.failed w", "job.stalled w", "job.stalled w", "job.stalled w"}
	if !slices.Equal(events, want) {
		t.Errorf("events tell %q, want %q", events, want)
	}
	if got, want := lines(t, service, `
		select j.type, d.error_type from ojs.dead_letter d
		join ojs.jobs j using (id)`), []string{"last worker_death"}; !slices.Equal(got, want) {
		t.Errorf("dead letters are %q, want %q", got, want)
	}
	// It comes back: what it holds is no longer its own, and its next heartbeat registers it.
	refused(t, service, "OJ409", "select ojs.ack($1, $2)", held[0].ID, held[0].Lease)
	if got := list[[]string](t, service, "select jobs_extended::text[] from ojs.beat('w', array[$1::uuid])", held[0].ID); len(got[0]) != 0 {
		t.Errorf("a worker that came back still holds %v", got)
	}
	if got := fetched(t, service, "w", 2); got != 2 {
		t.Errorf("a worker that came back gets %d jobs", got)
	}
	if got := len(workers(t, service)); got != 2 {
		t.Errorf("%d workers are known after one came back", got)
	}
}

// A worker that only fetches is known by its leases alone; a tenant's is not taken for one of that name that serves all.
func TestSilenceIsOfOneWorker(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, "select ojs.enqueue('a', p_visibility_timeout_ms => 3600000, p_tenant => $1) from generate_series(1, 2)", tenant)
	}
	beat(t, service, "'w'")
	exec(t, service, "select ojs.beat('w', p_tenant => 'acme')")
	own := oneJob(t, service, "ojs.fetch('{default}', 1, 'w', p_tenant => 'acme')")
	jobs(t, service, "ojs.fetch('{default}', 1, 'w', p_tenant => 'globex')")
	jobs(t, service, "ojs.fetch('{default}', 1, 'mute', p_tenant => 'acme')")
	d.SetNow(noon.Add(31 * time.Second))
	exec(t, service, "select ojs.beat('w', array[$1::uuid], p_tenant => 'acme')", own.ID)
	d.SetNow(noon.Add(33 * time.Second))
	if got := tick(t, service, 1000); got != "0 1" {
		t.Errorf("the end of a worker whose name a tenant's has, too, reaped %s, want the other tenant's job", got)
	}
	if got, want := workers(t, service), []string{"acme w running - fresh"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	d.SetNow(noon.Add(64 * time.Second))
	if got := tick(t, service, 1000); got != "0 1" {
		t.Errorf("the end of a tenant's worker reaped %s, want its one job", got)
	}
	if got := list[string](t, d.Pool, `
		select tenant_id || ' ' || worker_id from ojs.job where state = 'active'
		order by 1`); !slices.Equal(got, []string{"acme mute"}) {
		t.Errorf("active are %q", got)
	}
}

// Another tenant's worker of that name cannot have been handed its jobs.
func TestNamesakesElsewhereKeepNoJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, "select ojs.enqueue('a', p_visibility_timeout_ms => 3600000, p_tenant => $1)", tenant)
		jobs(t, service, "ojs.fetch('{default}', 1, 'w', p_tenant => $1)", tenant)
	}
	exec(t, service, "select ojs.beat('w', p_active => 2)")
	d.SetNow(noon.Add(31 * time.Second))
	exec(t, d.As("globex"), "select ojs.beat('w')")
	exec(t, d.As("evil"), "select ojs.beat('w')")
	d.SetNow(noon.Add(33 * time.Second))
	if got := tick(t, service, 1000); got != "0 1" {
		t.Errorf("the end of a worker that serves all reaped %s, want the job of the tenant that has no worker of that name", got)
	}
	if got := list[string](t, d.Pool, "select tenant_id from ojs.job where state = 'active'"); !slices.Equal(got, []string{"globex"}) {
		t.Errorf("active are %q", got)
	}
}

func TestRemovingAWorker(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_visibility_timeout_ms => 3600000)")
	jobs(t, service, "ojs.fetch('{default}', 1, 'w')")
	beat(t, service, "'w'")
	d.SetNow(noon.Add(15 * time.Second))
	refused(t, service, "OJ409", "select ojs.remove_worker('w')")
	d.SetNow(noon.Add(16 * time.Second))
	if got := one[int](t, service, "select ojs.remove_worker('w')"); got != 1 {
		t.Errorf("a stale worker that is removed leaves %d jobs", got)
	}
	refused(t, service, "OJ404", "select ojs.remove_worker('w')")
	d.SetNow(noon.Add(time.Minute))
	if got := tick(t, service, 1000); got != "0 0" {
		t.Errorf("afterwards a tick reaped %s", got)
	}
}

// A heartbeat under way keeps its worker alive, and one that comes while the clock ends the registration begins a new one.
func TestHeartbeatAndDeathRace(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_visibility_timeout_ms => 3600000)")
	held := oneJob(t, service, "ojs.fetch('{default}', 1, 'w')")
	beat(t, service, "'w', array[$1::uuid]", held.ID)
	d.SetNow(noon.Add(time.Minute))

	living := begin(t, service)
	exec(t, living, "select ojs.beat('w', array[$1::uuid])", held.ID)
	if got := tick(t, service, 1000); got != "0 0" {
		t.Errorf("beside a heartbeat a tick reaped %s", got)
	}
	rollback(t, living)
	// The heartbeat was never to be: the clock looks again a second later.
	d.SetNow(noon.Add(61 * time.Second))
	dying := begin(t, service)
	if got := tick(t, dying, 1000); got != "0 1" {
		t.Errorf("a tick reaped %s, want the job of the silent worker", got)
	}
	var extended []string
	var running sync.WaitGroup
	late := begin(t, service)
	running.Go(func() {
		if err := late.QueryRow(context.WithoutCancel(t.Context()), `
			select jobs_extended::text[] from ojs.beat('w', array[$1::uuid])`, held.ID).Scan(&extended); err != nil {
			t.Error(err)
		}
	})
	d.Blocked(backendPID(late))
	commit(t, dying)
	running.Wait()
	commit(t, late)
	if len(extended) != 0 {
		t.Errorf("a worker that was declared dead still holds %v", extended)
	}
	if got, want := workers(t, service), []string{"- w running - fresh"}; !slices.Equal(got, want) {
		t.Errorf("known are %q, want %q", got, want)
	}
}

// Many workers beat while the clock ticks: none of them dies, and those that stop do. Time goes on by half a second whenever all have been
// heard, so that on a slow machine none is silent for longer.
func TestNobodyDiesWhoBeats(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	now := noon
	d.SetNow(now)
	exec(t, d.Pool, "select ojs.configure(p_heartbeat_timeout_ms => 1500)")
	const alive, dead = 8, 4
	exec(t, service, "insert into ojs.jobs (type, visibility_timeout_ms) select 'a', 3600000 from generate_series(1, $1::int)", alive+dead)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	repeat := func(what, sql string, args ...any) {
		running.Go(func() {
			for ctx.Err() == nil {
				if _, err := service.Exec(context.WithoutCancel(ctx), sql, args...); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	for n := range alive + dead {
		worker := fmt.Sprintf("w%d", n)
		job := oneJob(t, service, "ojs.fetch('{default}', 1, $1)", worker)
		exec(t, service, "select ojs.beat($1, array[$2::uuid])", worker, job.ID)
		if n < alive {
			for range 2 { // two of one name at once must not hurt
				repeat("heartbeat of "+worker, "select ojs.beat($1, array[$2::uuid])", worker, job.ID)
			}
		}
	}
	for range 2 {
		repeat("tick", "select ojs.tick(1000)")
	}
	for range 10 {
		now = now.Add(500 * time.Millisecond)
		d.SetNow(now)
		d.Eventually("all have been heard since", `
			select count(distinct worker_id) = $1 from ojs.worker_beat where seen_at >= $2`, alive, now)
	}
	d.Eventually("those that are silent have gone", "select count(*) = $1 from ojs.worker", alive)
	stop()
	running.Wait()
	if got := one[string](t, d.Pool, `
		select count(*) || ' ' || count(distinct worker_id) from ojs.worker_beat`); got != fmt.Sprintf("%d %d", alive, alive) {
		t.Errorf("%s workers are left, want %d", got, alive)
	}
	if got := one[string](t, d.Pool, `
		select count(*) filter (where state = 'active') || ' '
			|| count(*) filter (where errors -> -1 ->> 'type' = 'worker_death')
		from ojs.job`); got != fmt.Sprintf("%d %d", alive, dead) {
		t.Errorf("jobs active, and taken from the dead: %s, want %d %d", got, alive, dead)
	}
}

func TestExecutionTimeouts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	const policy = `{"max_attempts": 2, "initial_interval_ms": 5000, "jitter": false}`
	exec(t, service, `
		select ojs.enqueue('short', p_timeout_ms => 2500, p_retry => $1),
			ojs.enqueue('kept', p_timeout_ms => 60000, p_retry => $1), ojs.enqueue('lost', p_timeout_ms => 60000, p_retry => $1),
			ojs.enqueue('picky', p_timeout_ms => 2500, p_retry => '{"non_retryable_errors": ["timeout"]}')`, policy)
	held := jobs(t, service, "ojs.fetch('{default}', 4, 'w')")
	step := func(at time.Duration, want string, states string) {
		t.Helper()
		d.SetNow(noon.Add(at))
		if got := tick(t, service, 1000); got != want {
			t.Errorf("after %s a tick promoted and reaped %s, want %s", at, got, want)
		}
		if got := strings.Join(list[string](t, d.Pool, `
			select type || ' ' || state || ' ' || attempt || coalesce(' ' || (errors -> -1 ->> 'type'), '') from ojs.job
			order by type`), ", "); got != states {
			t.Errorf("after %s: %s, want %s", at, got, states)
		}
	}
	step(2400*time.Millisecond, "0 0", "kept active 1, lost active 1, picky active 1, short active 1")
	step(2500*time.Millisecond, "0 2", "kept active 1, lost active 1, picky discarded 1 timeout, short retryable 1 timeout")
	got := one[string](t, d.Pool, `
		select (errors -> -1 ->> 'message') || ' ' || (errors -> -1 ->> 'timeout_kind') || ' '
			|| (errors -> -1 ->> 'limit_seconds') || ' ' || (errors -> -1 ->> 'elapsed_seconds') || ' '
		|| (retry_at - $1) || ' ' || (lease is null)  from ojs.job where type = 'short'`, noon)
	if want := "Job execution exceeded timeout of 2.5 seconds execution 2.5 2.500 00:00:07.5 true"; got != want {
		t.Errorf("a timeout is told as %q, want %q", got, want)
	}
	// A heartbeat keeps it, but not for longer than it may run.
	d.SetNow(noon.Add(25 * time.Second))
	exec(t, service, "select from ojs.heartbeat('w', array[$1::uuid], 600000)", held[1].ID)
	if got := one[string](t, d.Pool, "select (lease_expires_at - started_at)::text from ojs.job where type = 'kept'"); got != "00:01:00" {
		t.Errorf("a lease was extended to %s of its attempt, want 00:01:00", got)
	}
	step(30*time.Second, "1 1", "kept active 1, lost available 1 visibility_timeout, picky discarded 1 timeout, short available 1 timeout")
	again := jobs(t, service, "ojs.fetch('{default}', 2)")
	if len(again) != 2 {
		t.Fatalf("handed out again are %v", again)
	}
	step(33*time.Second, "0 1", "kept active 1, lost active 2 visibility_timeout, picky discarded 1 timeout, short discarded 2 timeout")
	// A job that loses its workers ends, too.
	step(60*time.Second, "0 2",
		"kept retryable 1 timeout, lost discarded 2 visibility_timeout, picky discarded 1 timeout, short discarded 2 timeout")
	if got, want := list[string](t, service, `
		select type || ' ' || (data ->> 'job_type') || ' ' || (data ->> 'timeout_kind')
			|| coalesce(' ' || (data ->> 'limit_seconds'), '')
		from ojs.events('{job.timeout,job.stalled}') order by 1`),
		[]string{
			"job.stalled lost stalled", "job.stalled lost stalled", "job.timeout kept execution 60",
			"job.timeout picky execution 2.5", "job.timeout short execution 2.5", "job.timeout short execution 2.5",
		}; !slices.Equal(got, want) {
		t.Errorf("events tell\n  %s, want\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if got := one[string](t, service, `
		select active || ' ' || available || ' ' || retryable || ' ' || discarded || ' ' || failed
		from ojs.queue_stats`); got != "0 0 1 3 5" {
		t.Errorf("statistics say %s", got)
	}
}

// The deployment's timeout holds for jobs without one of their own: heartbeats keep them no longer.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, `
		select ojs.enqueue('a'), ojs.enqueue('zero', p_timeout_ms => 0), ojs.enqueue('long', p_visibility_timeout_ms => 7200000)`)
	held := jobs(t, service, "ojs.fetch('{default}', 3, 'w')")
	ends := func(want string) {
		t.Helper()
		d.SetNow(noon.Add(20 * time.Second))
		for _, j := range held {
			exec(t, service, "select from ojs.heartbeat('w', array[$1::uuid], 604800000)", j.ID)
		}
		if got := strings.Join(list[string](t, d.Pool, `
			select (lease_expires_at - started_at)::text from ojs.job order by seq`), " "); got != want {
			t.Errorf("leases last %s, want %s", got, want)
		}
	}
	ends("00:30:00 00:30:00 02:00:00")
	exec(t, d.Pool, "select ojs.configure(p_timeout_ms => 3600000)")
	ends("01:00:00 01:00:00 02:00:00")
	exec(t, d.Pool, "select ojs.configure(p_timeout_ms => 0)")
	ends("7 days 00:00:20 7 days 00:00:20 7 days 00:00:20")
	refused(t, d.Pool, "OJ400", "select ojs.configure(p_timeout_ms => -1)")
	refused(t, d.Pool, "OJ400", "select ojs.configure(p_heartbeat_timeout_ms => 999)")
}

func TestMalformedWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, c := range []struct{ call, field, states string }{
		{"ojs.beat(null)", "worker_id", "OJ400"},
		{"ojs.beat('')", "worker_id", "OJ400"},
		{"ojs.beat(repeat('w', 256))", "worker_id", "OJ400"},
		{"ojs.beat('w', p_state => 'idle')", "state", "OJ400"},
		{"ojs.beat('w', p_active => -1)", "active_jobs", "OJ400"},
		{"ojs.beat('w', p_visibility_timeout_ms => 1)", "visibility_timeout_ms", "OJ400"},
		{"ojs.beat('w', p_pid => -1)", "pid", "OJ400"},
		{"ojs.beat('w', p_concurrency => 0)", "concurrency", "OJ400"},
		{"ojs.beat('w', p_hostname => repeat('h', 256))", "hostname", "OJ400"},
		{"ojs.beat('w', p_version => repeat('v', 256))", "version", "OJ400"},
		{"ojs.beat('w', p_queues => '{A}')", "queues", "OJ400"},
		{"ojs.beat('w', p_queues => array[null])", "queues", "OJ400"},
		{"ojs.beat('w', p_queues => array_fill('q'::text, array[101]))", "queues", "OJ400"},
		{"ojs.beat('w', p_labels => array[repeat('l', 256)])", "labels", "OJ400"},
		{"ojs.beat('w', p_metadata => '[]')", "metadata", "OJ400"},
		{"ojs.beat('w', p_metadata => jsonb_build_object('a', repeat('x', 16384)))", "metadata", "OJ413"},
		{"ojs.beat('w', p_started_at => 'infinity')", "started_at", "OJ400"},
		{"ojs.beat('w', p_started_at => '0044-03-15 12:00Z BC')", "started_at", "OJ400"},
		{"ojs.register_worker('w', p_started_at => '-infinity')", "started_at", "OJ400"},
		{"ojs.register_worker('w', p_started_at => '10000-01-01 00:00Z')", "started_at", "OJ400"},
		{"ojs.register_worker('', 'h')", "worker_id", "OJ400"},
		{"ojs.register_worker('w', p_concurrency => -1)", "concurrency", "OJ400"},
		{"ojs.deregister_worker(null)", "worker_id", "OJ400"},
		{"ojs.direct_worker(null, 'quiet')", "worker_id", "OJ400"},
		{"ojs.direct_worker('w', 'drain')", "directive", "OJ400"},
		{"ojs.direct_worker('w', null)", "directive", "OJ400"},
		{"ojs.direct_workers('stop')", "directive", "OJ400"},
	} {
		if got := detail(t, refused(t, service, c.states, "select "+c.call))["field"]; got != c.field {
			t.Errorf("%s names the field %v, want %s", c.call, got, c.field)
		}
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.worker"); got != 0 {
		t.Errorf("refused calls left %d workers", got)
	}
}

// What the end of a worker and a heartbeat cost does not depend on how many jobs of others there are.
func TestAWorkersJobsAreFoundByTheirIds(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "default", "acme", 30000)
	untilDone(t, d.Operator(), "select ojs.cut_partition($1)", time.Now().Add(24*time.Hour))
	exec(t, d.Pool, "vacuum analyze ojs.job")
	beat(t, service, "'w1'")
	if got := fetched(t, service, "w1", 300); got != 300 {
		t.Fatalf("handed out %d", got)
	}
	tx := begin(t, d.Pool)
	defer rollback(t, tx)
	exec(t, tx, "set local role ojs_owner")
	read := func() int {
		t.Helper()
		return one[int](t, tx, `
			select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_xact_all_tables
			where relid in (select inhrelid from pg_inherits where inhparent = 'ojs.job'::regclass)`)
	}
	for _, step := range []string{
		"ojs.heartbeat('w1', (select array_agg(j.id) from (select i as id from ojs.lease l, unnest(l.ids) i) j))",
		"ojs._end_workers('{\"\"}', '{w1}')",
	} {
		before := read()
		exec(t, tx, "select count(*) from "+step)
		if got := read() - before; got > 3000 {
			t.Errorf("%s read %d rows for 300 jobs", step, got)
		}
	}
	if got := one[int](t, tx, "select count(*)::int from ojs.job where state = 'active'"); got != 0 {
		t.Errorf("%d jobs are still the dead worker's", got)
	}
}

// Workers that claim many jobs each and fall silent together do not make one tick as long as all of them.
func TestManyWorkersFallSilentAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	enqueueFor(t, service, "default", "acme", 3)
	for n := range 3 {
		worker := fmt.Sprintf("w%d", n)
		if got := fetched(t, service, worker, 1); got != 1 {
			t.Fatalf("handed out %d", got)
		}
		exec(t, service, "select ojs.beat($1, (select array_agg(gen_random_uuid()) from generate_series(1, 6000)))", worker)
	}
	d.SetNow(noon.Add(29 * time.Second))
	tick(t, service, 1000)
	for n, want := range []int{3, 1, 0} {
		if got := one[int](t, service, "select count(*)::int from ojs.workers"); got != want {
			t.Errorf("after %d ticks %d workers are left, want %d", n, got, want)
		}
		d.SetNow(noon.Add(time.Minute + time.Duration(n)*time.Second))
		tick(t, service, 1000)
	}
	if got := len(jobs(t, service, "ojs.fetch('{default}', 10)")); got != 3 {
		t.Errorf("%d jobs went back, want 3", got)
	}
}

// Heartbeats of the official clients name no queues: what a FETCH names is noted, once.
func TestQueuesOfAFetchAreNoted(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.heartbeat('go-7'), ojs.beat('js-1', p_queues => '{mail}')")
	fetch := func(worker, queues string) { exec(t, service, "select ojs.fetch($1, 1, $2)", queues, worker) }
	serve := func(what string, want ...string) {
		t.Helper()
		got := lines(t, d.Operator(), "select worker_id, queue, known_by from ojs.queue_workers order by worker_id, queue")
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	fetch("go-7", "{mail,default}")
	fetch("js-1", "{mail}")
	serve("after a FETCH", "go-7 default heartbeat", "go-7 mail heartbeat", "js-1 mail heartbeat")

	tx := begin(t, d.Pool)
	exec(t, tx, "set local track_functions = 'all'")
	const versions = "select string_agg(xmin || ' ' || ctid, ',' order by worker_id) from ojs.worker"
	before := one[string](t, tx, versions)
	for range 3 {
		exec(t, tx, "select ojs.fetch('{default,mail}', 1, 'go-7'), ojs.fetch('{mail}', 1, 'js-1'), ojs.fetch('{mail}', 1, 'none')")
	}
	if got := one[string](t, tx, versions); got != before {
		t.Errorf("FETCHes of queues that are noted write the workers' rows: %s, before %s", got, before)
	}
	if n := one[int](t, tx, `select count(*) from pg_stat_xact_user_functions where schemaname = 'ojs' and funcname = '_ask'`); n != 1 {
		t.Error("calls of functions are not counted")
	}
	expectNone(t, tx, "calls for queues that are noted",
		"select funcname, calls from pg_stat_xact_user_functions where schemaname = 'ojs' and funcname in ('_note_fetch', '_asks_anew')")
	rollback(t, tx)

	fetch("js-1", "{default}")
	fetch("go-7", "{bulk}")
	serve("of other queues within a minute", "go-7 bulk heartbeat", "go-7 default heartbeat", "go-7 mail heartbeat",
		"js-1 default heartbeat", "js-1 mail heartbeat")
	d.SetNow(noon.Add(20 * time.Second))
	exec(t, service, "select ojs.heartbeat('go-7')")
	serve("after a heartbeat", "go-7 bulk heartbeat", "go-7 default heartbeat", "go-7 mail heartbeat",
		"js-1 default heartbeat", "js-1 mail heartbeat")
	d.SetNow(noon.Add(2 * time.Minute))
	fetch("go-7", "{video}")
	exec(t, service, "select ojs.register_worker('js-1', p_queues => '{mail}')")
	serve("later", "go-7 video heartbeat", "js-1 mail heartbeat")

	// A worker that asks for each queue by itself does not have its row written each time.
	for i := range 150 {
		fetch("go-7", fmt.Sprintf("{q%d}", i))
	}
	if n := one[int](t, d.Pool, "select cardinality(asks) from ojs.worker where worker_id = 'go-7'"); n != 100 {
		t.Errorf("of one worker %d queues are noted", n)
	}
}

// A worker without a heartbeat is known by the jobs that it holds, and by waiting.
func TestWorkersWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	enqueueFor(t, service, "mail", "acme", 2)
	enqueueFor(t, service, "mail", "globex", 2)
	id := one[string](t, service, "select id::text from ojs.job where tenant_id = 'acme' order by seq limit 1")
	exec(t, service, "select ojs.fetch('{mail}', 3, 'curl'), ojs.register_waiters(gen_random_uuid(), '{mail,new}')")
	got := lines(t, d.Operator(), `
		select queue, worker_id, known_by, tenant_id, active_jobs from ojs.queue_workers order by queue, worker_id`)
	if want := []string{"mail curl jobs - 3", "mail - fetch - -", "new - fetch - -"}; !slices.Equal(got, want) {
		t.Errorf("the queues' workers are %q, want %q", got, want)
	}
	got = lines(t, d.Operator(), "select queue, available, active, waiting_servers, workers, served from ojs.queue_demands order by queue")
	if want := []string{"mail 1 3 1 0 true", "new 0 0 1 0 true"}; !slices.Equal(got, want) {
		t.Errorf("the queues' demands are %q, want %q", got, want)
	}
	for _, q := range []querier{service, d.As("acme")} {
		if got := one[string](t, q, "select ojs.job_status($1)", id); !strings.HasSuffix(got, "Queue mail is served by curl.") {
			t.Errorf("the status is %s", got)
		}
	}
	exec(t, service, "select ojs.ack(id) from ojs.job where state = 'active' and id <> $1", id)
	exec(t, service, "select ojs.release(id, lease) from ojs.job where state = 'active'")
	if got := one[string](t, service, "select ojs.job_status($1)", id); !strings.HasSuffix(got,
		"A FETCH waits for jobs of queue mail; its worker is not registered.") {
		t.Errorf("the status is %s", got)
	}
	if got := one[string](t, d.As("acme"), "select ojs.job_status($1)", id); !strings.Contains(got, "No worker of the tenant is") {
		t.Errorf("the status is %s", got)
	}
}

// A worker that registers with a later start, or another pid on its host, has lost its old process, whose jobs come back at once.
func TestRegisteringAgainGivesBackTheJobsOfTheOldProcess(t *testing.T) {
	t.Parallel()
	type process struct {
		host  any
		pid   any
		start any
	}
	at := func(s int) any { return noon.Add(time.Duration(s) * time.Second) }
	for name, c := range map[string]struct {
		old, new process
		back     bool
	}{
		"later start":                        {process{"h", 1, at(0)}, process{"h", 1, at(3)}, true},
		"later start on another host":        {process{"h", 7, at(0)}, process{"i", 9, at(3)}, true},
		"another pid":                        {process{"h", 7, nil}, process{"h", 8, nil}, true},
		"another pid, start said once":       {process{"h", 7, at(0)}, process{"h", 8, nil}, true},
		"the same registration":              {process{"h", 7, at(0)}, process{"h", 7, at(0)}, false},
		"nothing said":                       {process{nil, nil, nil}, process{nil, nil, nil}, false},
		"another pid on another host":        {process{"h", 7, nil}, process{"i", 8, nil}, false},
		"another pid, hosts unknown":         {process{nil, 7, nil}, process{nil, 8, nil}, false},
		"an earlier registration comes late": {process{"h", 8, at(3)}, process{"h", 7, at(0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			d.SetNow(noon)
			register := func(p process, tenant any) {
				t.Helper()
				exec(t, service, "select ojs.register_worker('w', p_hostname => $1, p_pid => $2, p_started_at => $3, p_tenant => $4)",
					p.host, p.pid, p.start, tenant)
			}
			register(c.old, nil)
			register(c.old, "globex")
			exec(t, service, "select ojs.enqueue('a', p_max_attempts => 2, p_tenant => 'acme') from generate_series(1, 4)")
			exec(t, service, "select ojs.enqueue('last', p_max_attempts => 1, p_tenant => 'acme')")
			d.SetNow(noon.Add(10 * time.Second))
			held := jobs(t, service, "ojs.fetch('{default}', 2, 'w')")
			exec(t, service, "select ojs.beat('w', array[$1, $2]::uuid[])", held[0].ID, held[1].ID)
			d.SetNow(noon.Add(11 * time.Second))
			if got := fetched(t, service, "w", 3); got != 3 {
				t.Fatalf("%d jobs fetched", got)
			}
			if c.back {
				// A job that another session has locked stays; that session ends it.
				tx := begin(t, d.Pool)
				exec(t, tx, "select from ojs.job where id = $1 for update", held[1].ID)
				register(c.new, nil)
				rollback(t, tx)
			} else {
				register(c.new, nil)
			}
			got := lines(t, service,
				"select type, state, attempt, coalesce(jsonb_array_length(errors), 0), lease is null from ojs.job order by 1, 2, 3")
			want := []string{
				"a available 1 1 true", "a available 1 1 true", "a available 1 1 true", "a active 1 0 false",
				"last discarded 1 1 true",
			}
			if !c.back {
				want = []string{
					"a active 1 0 false", "a active 1 0 false", "a active 1 0 false", "a active 1 0 false",
					"last active 1 0 false",
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("after the registration %q, want %q", got, want)
			}
			if n := one[int](t, service, "select count(*)::int from ojs.workers"); n != 2 {
				t.Errorf("%d workers are registered", n)
			}
			if c.back {
				refused(t, service, "OJ409", "select ojs.ack($1, $2)", held[0].ID, held[0].Lease)
				// The new process has the next lease, and a second registration of it takes nothing.
				if got := fetched(t, service, "w", 3); got != 3 {
					t.Errorf("the new process gets %d jobs", got)
				}
				register(c.new, nil)
				if n := one[int](t, service, "select count(*)::int from ojs.job where state = 'active'"); n != 4 {
					t.Errorf("%d jobs run after a second registration of the new process", n)
				}
			}
		})
	}
}
