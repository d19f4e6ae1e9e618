package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// uuidAt returns the lowest UUIDv7 of an instant. Ids that were made before it are lower.
func uuidAt(at time.Time) string {
	var id uuid.UUID
	ms := at.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	id[6], id[8] = 0x70, 0x80
	return id.String()
}

// untilDone repeats a step until its answer says that it is done, and returns the answers.
func untilDone(t testing.TB, q querier, sql string, args ...any) (answers []string) {
	t.Helper()
	for range 200 {
		answer := one[string](t, q, sql, args...)
		if strings.HasPrefix(answer, "done") {
			return answers
		}
		if answer != "again: the table was in use" {
			answers = append(answers, answer)
		}
	}
	t.Fatalf("%s is not done: %v", sql, answers)
	return nil
}

// cutAhead cuts the last partition at a time after all jobs. It returns that time, and the steps that it
// took. It stops the clock meanwhile: on a slow machine the time could come before the cut, which would
// then be refused.
func cutAhead(t testing.TB, d *pgtest.DB) (at time.Time, steps []string) {
	t.Helper()
	now := time.Now()
	d.SetNow(now)
	defer d.SetNow(time.Time{})
	at = now.Truncate(time.Second).Add(time.Second)
	return at, untilDone(t, d.Operator(), "select ojs.cut_partition($1)", at)
}

func partitions(t testing.TB, d *pgtest.DB) (names []string) {
	t.Helper()
	for _, name := range list[string](t, d.Operator(), "select partition from ojs.job_partitions") {
		// The rest of the name is its time.
		names = append(names, strings.Join(strings.Split(name, "_")[:2], "_"))
	}
	return names
}

// Retention by drop: the table of jobs is cut at an instant into a partition of the past and one of the future without a byte
// being rewritten, work goes on in both, and the past goes away in one drop once nothing in it is unfinished.
func TestPartitionsAreCutWithoutARewriteAndDropped(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	enqueueFor(t, d.Service(), "default", "acme", 200)
	cutWithoutARewrite(t, d)
	workOnBothSides(t, d)
	counted := statistics(t, d)
	dropWhatIsFinished(t, d)
	goOnWithWhatWasKept(t, d)
	if got := statistics(t, d); len(got) != len(counted) {
		t.Errorf("the statistics are %v, were %v", got, counted)
	}
	sums := lines(t, d.Service(), `
		select sum(total_jobs)::int, sum(completed)::int, sum(cancelled)::int from ojs.shard_stats`)
	if got := sums; !slices.Equal(got, []string{"253 251 2"}) {
		t.Errorf("the statistics count %v", got)
	}
}

func statistics(t *testing.T, d *pgtest.DB) []string {
	t.Helper()
	return lines(t, d.Service(), "select queue, "+numbers+" from ojs.shard_stats order by 1")
}

func cutWithoutARewrite(t *testing.T, d *pgtest.DB) {
	t.Helper()
	file := func() string {
		return one[string](t, d.Pool, `
			select format('%s %s', pg_catalog.pg_relation_filenode('ojs.job_all'), pg_catalog.pg_relation_size('ojs.job_all'))`)
	}
	before := file()
	if _, got := cutAhead(t, d); len(got) > 0 {
		t.Errorf("cutting a small partition took the steps %v", got)
	}
	if after := file(); after != before {
		t.Errorf("the partition was rewritten: file and size %s, were %s", after, before)
	}
	if got := partitions(t, d); !slices.Equal(got, []string{"job_all", "job_from"}) {
		t.Errorf("after the cut the partitions are %v", got)
	}
}

// workOnBothSides completes 200 jobs before the cut and 50 after it, which are of one queue. Two jobs
// before the cut stay unfinished.
func workOnBothSides(t *testing.T, d *pgtest.DB) {
	t.Helper()
	service := d.Service()
	for i := range 50 {
		exec(t, service, `
			select ojs.enqueue('fair.job', p_id => $1,
				p_tenant => 'acme')`, uuidAt(time.Now().Add(time.Hour+time.Duration(i)*time.Millisecond)))
	}
	var last int64
	for total := 0; total < 250; {
		batch, err := fetchJobs(t.Context(), service, "default", 60)
		if err != nil || len(batch.jobs) == 0 {
			t.Fatalf("after %d jobs: %d, %v", total, len(batch.jobs), err)
		}
		for _, j := range batch.jobs {
			if j.seq <= last {
				t.Fatalf("job %d came after job %d", j.seq, last)
			}
			last = j.seq
			exec(t, service, "select ojs.ack($1)", j.id)
		}
		total += len(batch.jobs)
	}
	exec(t, service, `
		select ojs.enqueue('later', p_id => $1, p_scheduled_at => now() + interval '1 day',
			p_tenant => 'acme')`, uuidAt(time.Now().Add(-time.Hour)))
	exec(t, service, `
		select ojs.enqueue('failed', p_id => $1, p_queue => 'other', p_tenant => 'acme')`, uuidAt(time.Now().Add(-2*time.Hour)))
	exec(t, service, `select ojs.nack(f.id, '{"message": "x"}') from ojs.fetch('{other}') f`)
}

func dropWhatIsFinished(t *testing.T, d *pgtest.DB) {
	t.Helper()
	operator := d.Operator()
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	const drop = "select ojs.drop_finished($1, $2)"
	failure := refused(t, operator, "OJ409", drop, now, 1)
	if got := detail(t, failure); got["partition"] != "job_all" || len(got["job_ids"].([]any)) != 2 {
		t.Errorf("the refusal says %v", got)
	}
	if got := untilDone(t, operator, drop, now, 2); len(got) != 2 {
		t.Errorf("dropping took the steps %v, want two", got)
	}
	if got := partitions(t, d); !slices.Equal(got, []string{"job_before", "job_from"}) {
		t.Errorf("after the drop the partitions are %v", got)
	}
	if got := lines(t, d.Pool, `
		select tableoid::pg_catalog.regclass::text like 'ojs.job_before%', state, count(*) from ojs.job group by 1, 2
		order by 1, 2`); !slices.Equal(got,
		[]string{"false completed 50", "true scheduled 1", "true retryable 1"}) {
		t.Errorf("after the drop there are jobs %v", got)
	}
	if got := untilDone(t, operator, drop, now, 0); len(got) > 0 {
		t.Errorf("dropping again took the steps %v", got)
	}
}

// goOnWithWhatWasKept checks the database after a drop: no row refers to a dropped job, jobs that were kept
// come when they are due, and jobs with ids of any time can be stored.
func goOnWithWhatWasKept(t *testing.T, d *pgtest.DB) {
	t.Helper()
	service := d.Service()
	exec(t, service, "select ojs.enqueue('old', p_id => $1, p_tenant => 'acme')", uuidAt(time.Now().AddDate(-5, 0, 0)))
	d.SetNow(time.Now().AddDate(0, 0, 2))
	if got := tick(t, service, 10000); got != "2 0" {
		t.Errorf("a tick promoted and reaped %s, want the two that were kept", got)
	}
	if got := list[string](t, service, `
		select type from ojs.fetch('{default,other}', 10)`); !slices.Equal(got, []string{"old", "failed", "later"}) {
		t.Errorf("handed out %v", got)
	}
	exec(t, service, "select ojs.ack(id) from ojs.job where state = 'active' and type = 'old'")
	exec(t, service, "select ojs.cancel(id) from ojs.job where state = 'active'")
}

// New partitions are like the first: who sees what, and what the planner may know.
func TestPartitionsAreAlike(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	read := func(table string) []string {
		t.Helper()
		return lines(t, d.Pool, `
			select c.relowner::pg_catalog.regrole::text, c.relrowsecurity, c.relforcerowsecurity, c.reloptions::text, c.relacl::text,
				(select string_agg(concat_ws(' ', p.polname, p.polcmd, p.polroles::pg_catalog.regrole[], p.polpermissive), ',')
					from pg_catalog.pg_policy p where p.polrelid = c.oid),
				(select string_agg(concat_ws(' ', a.attname, a.attnum, a.attnotnull, nullif(a.attstattarget, -1)), ','
						order by a.attnum) from pg_catalog.pg_attribute a where a.attrelid = c.oid
					and a.attnum > 0),
				(select string_agg(concat_ws(' ', d.adnum, pg_catalog.pg_get_expr(d.adbin, d.adrelid)), ',' order by d.adnum)
					from pg_catalog.pg_attrdef d where d.adrelid = c.oid),
				(select string_agg(concat_ws(' ', o.conname, pg_catalog.pg_get_constraintdef(o.oid)),
						',' order by o.contype,
						pg_catalog.pg_get_constraintdef(o.oid)) from pg_catalog.pg_constraint o where o.conrelid = c.oid
					and o.contype = 'c'),
				(select string_agg(concat_ws(' ', i.indkey, i.indisprimary, i.indisvalid,
						pg_catalog.pg_get_expr(i.indpred, i.indrelid)),
					',' order by i.indkey::text) from pg_catalog.pg_index i where i.indrelid = c.oid),
				(select string_agg(concat_ws(' ', g.tgname, g.tgenabled), ',' order by g.tgname) from pg_catalog.pg_trigger g
					where g.tgrelid = c.oid)
			from pg_catalog.pg_class c where c.oid = $1::text::pg_catalog.regclass`, table)
	}
	first := read("ojs.job_all")
	cutAhead(t, d)
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	untilDone(t, d.Operator(), "select ojs.drop_finished($1)", now)
	for _, name := range list[string](t, d.Pool, "select partition from ojs.job_partitions") {
		if got := read("ojs." + name); got[0] != first[0] {
			t.Errorf("%s differs from the first partition: %s", name,
				firstDifference(strings.ReplaceAll(first[0], ",", "\n"), strings.ReplaceAll(got[0], ",", "\n")))
		}
	}
}

// A large partition is read before the cut, and a cut that is never made does no harm.
func TestALargePartitionIsCutInSteps(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'acme', 'a', 'q' from generate_series(1, 20000)")
	refused(t, operator, "OJ400", "select ojs.cut_partition($1)", time.Now().Add(time.Minute))
	at := time.Now().Add(time.Hour)
	if got := one[string](t, operator, "select ojs.cut_partition($1)", at); got != "again: to read what is there" {
		t.Fatalf("the first step says %q", got)
	}
	refused(t, service, "OJ503", "select ojs.enqueue('a', p_id => $1)", uuidAt(at.Add(time.Second)))
	refused(t, service, "OJ503", "insert into ojs.jobs (tenant_id, type, id) values ('acme', 'a', $1)", uuidAt(at.Add(time.Second)))
	exec(t, service, "select ojs.enqueue('a')")
	if got := one[int](t, d.Pool, "select count(*) from ojs.cut"); got != 1 {
		t.Errorf("%d cuts in preparation", got)
	}
	// Its time comes, and it has not been made.
	d.SetNow(at.Add(-10 * time.Minute))
	if got := one[string](t, service, "select (ojs.upkeep()).step"); got != "again: a cut that was not made in time was given up" {
		t.Errorf("the upkeep says %q", got)
	}
	exec(t, service, "select ojs.enqueue('a', p_id => $1)", uuidAt(at.Add(-9*time.Minute)))
	if got := one[int](t, d.Pool, `
		select (select count(*) from ojs.cut) + (select count(*) from pg_catalog.pg_constraint where conname = 'job_cut')`); got != 0 {
		t.Error("the preparation was not undone")
	}
	d.SetNow(time.Time{})
	if got := untilDone(t, operator, "select ojs.cut_partition($1)", at); !slices.Equal(got,
		[]string{"again: to read what is there", "again: to make the cut"}) {
		t.Errorf("cutting took the steps %v", got)
	}
	exec(t, service, "select ojs.enqueue('a', p_id => $1)", uuidAt(at.Add(time.Second)))
	refused(t, operator, "OJ409", "select ojs.cut_partition($1)", at.Add(-time.Minute))
	refused(t, operator, "OJ400", "select ojs.cut_partition($1)", time.Now())
	refused(t, operator, "OJ400", "select ojs.drop_finished($1)", time.Now().Add(time.Hour))
	refused(t, service, "42501", "select ojs.cut_partition($1)", at)
}

// A job that came in while its partition was being taken out.
func TestALateJobIsNotDropped(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, service, "select ojs.enqueue('a')")
	cutAhead(t, d)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}')")
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	for !strings.HasPrefix(one[string](t, operator, "select ojs.drop_finished($1)", now), "again: took out") {
	}
	dropped := one[string](t, d.Pool, "select relname from pg_catalog.pg_class where relname like 'job\\_dropped\\_%' and relkind = 'r'")
	for i, state := range []string{"available", "scheduled", "retryable", "active", "completed"} {
		exec(t, d.Pool, fmt.Sprintf(`insert into ojs.%s (id, tenant_id, type, state, seq, attempt, scheduled_at, retry_at, lease_expires_at)
			select $1, 'acme', $2::text, $2::text::ojs.job_state, nextval('ojs.job_seq'), 1, $3::timestamptz,
				$3, $3`, dropped), uuidAt(now.Add(-2*time.Hour+time.Duration(i)*time.Minute)), state, now.Add(-time.Minute))
	}
	untilDone(t, operator, "select ojs.drop_finished($1)", now)
	tick(t, service, 1000)
	if got := list[string](t, service, `
		select type from ojs.fetch('{default}', 10)
		order by 1`); !slices.Equal(got, []string{"active", "available", "retryable", "scheduled"}) {
		t.Errorf("handed out %v, want all that had not ended", got)
	}
	exec(t, service, "select ojs.enqueue('a', p_id => $1)", uuidAt(now.Add(-3*time.Hour)))
	if got := one[string](t, d.Pool, "select state from ojs.job where type = 'a'"); got != "available" {
		t.Errorf("a new job there is %s", got)
	}
}

// Producers and workers go on while partitions are cut and dropped. No job is lost, and no call fails.
func TestPartitionsChangeBesideWork(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	made := 0
	work := func(f func(context.Context, *pgxpool.Pool) error) {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := f(t.Context(), service); err != nil {
					t.Error(pgtest.Explain(err))
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	work(func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "insert into ojs.jobs (tenant_id, type) select 'acme', 'a' from generate_series(1, 5)")
		made += 5
		return err
	})
	for range 2 {
		work(func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "select ojs.ack(id, lease) from ojs.fetch('{default}', 10)")
			return err
		})
	}
	for range 3 {
		at, _ := cutAhead(t, d)
		d.Eventually("the ids have passed the cut, and the jobs before it have ended", `
			select $1::timestamptz <= clock_timestamp()
				and not exists (select from ojs.job where id < ojs._id_at($1) and state <> 'completed')`, at)
		untilDone(t, operator, "select ojs.drop_finished($1, 1000)", at)
	}
	stop()
	running.Wait()
	for exec(t, service, "select ojs.ack(id, lease) from ojs.fetch('{default}', 1000)") > 0 {
	}
	if got := one[int](t, service, "select sum(completed)::int from ojs.shard_stats"); got != made {
		t.Errorf("%d jobs were completed, of %d", got, made)
	}
	if got := partitions(t, d); !slices.Equal(got, []string{"job_before", "job_from"}) {
		t.Errorf("in the end the partitions are %v", got)
	}
}

// Times that no id can hold are refused, or are before all jobs.
func TestPartitionsAtAbsurdTimes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	for _, at := range []string{"infinity", "-infinity", "294276-01-01", "10000-01-01 00:00Z"} {
		refused(t, operator, "OJ400", "select ojs.cut_partition($1::text::timestamptz)", at)
	}
	refused(t, operator, "OJ400", "select ojs.drop_finished('infinity')")
	enqueueFor(t, service, "default", "acme", 5)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}', 5)")
	cutAhead(t, d)
	d.SetNow(time.Now().Add(time.Hour))
	for _, before := range []string{"-infinity", "1500-01-01", "1969-12-31"} {
		if got := one[string](t, operator, "select ojs.drop_finished($1::text::timestamptz, 10)", before); !strings.HasPrefix(got, "done") {
			t.Errorf("dropping what ended before %s: %s", before, got)
		}
	}
}

// A prepared transaction holds what it holds, though no session does.
func TestPreparedTransactionsAreSeen(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"max_prepared_transactions": "1", "fsync": "off"})
	conn := connect(t, p.URL)
	held := func() bool {
		t.Helper()
		return one[bool](t, conn, "select ojs._held_long(array['ojs.job'::regclass::oid])")
	}
	exec(t, conn, "begin")
	exec(t, conn, "select count(*) from ojs.job")
	if held() {
		t.Error("what this session itself holds counts")
	}
	exec(t, conn, "prepare transaction 'open'")
	if !held() {
		t.Error("a prepared transaction does not count")
	}
	exec(t, conn, "rollback prepared 'open'")
	if held() {
		t.Error("one that has ended counts")
	}
}

// A cut that is not made, because a tenant's transaction stays open, is given up as soon as that ends, whether or not dispatch is held.
// Meanwhile what is refused can be tried again.
func TestACutNobodyCanMakeIsGivenUp(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	start := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
	d.SetNow(start)
	exec(t, service, `
		insert into ojs.jobs (tenant_id, type, queue, id) select 'acme', 'a', 'old', ($1 || lpad(to_hex(n), 12, '0'))::uuid
		from generate_series(1, 20000) n`, uuidAt(start)[:24])
	exec(t, service, "select ojs.put_cron('c', '* * * * *', 'a', p_overlap_policy => 'cancel_previous', p_tenant => 'acme')")
	exec(t, d.Pool, "update ojs.cron set open = array[(select j.id from ojs.job j limit 1)]")
	at := start.Add(time.Hour)
	for _, want := range []string{"again: to read what is there", "again: to make the cut"} {
		if got := one[string](t, operator, "select ojs.cut_partition($1)", at); got != want {
			t.Fatalf("the step says %q, want %q", got, want)
		}
	}
	tx := begin(t, acme)
	exec(t, tx, "select count(*) from ojs.jobs where id = $1", uuidAt(start))
	const inUse, given = "again: the table was in use", "again: a cut that was not made in time was given up"
	if got := one[string](t, operator, "select ojs.cut_partition($1)", at); got != inUse {
		t.Fatalf("the last step says %q", got)
	}
	step := func(want string) {
		t.Helper()
		if got := one[string](t, service, "select (ojs.upkeep()).step"); got != want {
			t.Errorf("the upkeep says %q, want %q", got, want)
		}
	}
	// A quarter of an hour before, after 45 minutes, however long it was put off before.
	d.SetNow(start.Add(44 * time.Minute))
	step(inUse)
	exec(t, d.Pool, "update ojs.upkeep_task set not_before = 'infinity'")
	if got := one[string](t, service, "select (next_at - $1)::text from ojs.upkeep_status where task = 'cut'", start); got != "00:45:00" {
		t.Errorf("it is looked at after %s", got)
	}
	d.SetNow(start.Add(45 * time.Minute))
	step(inUse)
	if got := one[int](t, service, "select (ojs.upkeep()).next_in_ms"); got != 2000 {
		t.Errorf("it is tried again in %d ms", got)
	}

	// Ids are made later than the cut by now.
	d.SetNow(start.Add(2 * time.Hour))
	exec(t, operator, "select ojs.hold_dispatch()")
	step(inUse)
	server := d.Open()
	for _, sql := range []string{
		"select ojs.enqueue('a')", "select ojs.enqueue('a', p_priority => 7, p_tags => '{x}')",
		`select from ojs.enqueue_many('[{"type": "a", "args": []}]')`,
		`select from ojs.enqueue_each('[{"type": "a", "args": []}]')`, `select from ojs.enqueue_once('k', '[{"type": "a", "args": []}]')`,
		"select ojs.enqueue_bulk('a', array['[]']::json[])", "insert into ojs.jobs (tenant_id, type) values ('acme', 'a')",
	} {
		if failure := answers(t, server, refused(t, service, "OJ503", sql)); failure.Status != 503 || !failure.Retryable {
			t.Errorf("%s is answered with %d, retryable %v", sql, failure.Status, failure.Retryable)
		}
	}
	refused(t, acme, "OJ503", "insert into ojs.jobs (type) values ('a')")
	exec(t, operator, "select ojs.resume_dispatch()")
	due(t, d.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
	tick(t, service, 1000)
	if got := one[int](t, d.Pool, "select count(*) from ojs.cron_run"); got != 0 {
		t.Errorf("the cron job's history has %d rows", got)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'cancelled'"); got != 0 {
		t.Errorf("%d jobs were cancelled, and none came after them", got)
	}
	exec(t, operator, "select ojs.hold_dispatch()")
	rollback(t, tx)
	d.SetNow(start.Add(2*time.Hour + time.Minute))
	step(given)
	exec(t, service, "select ojs.enqueue('a')")
	exec(t, operator, "select ojs.resume_dispatch()")
	tick(t, service, 1000)
	if got := list[string](t, d.Pool, "select coalesce(reason, 'fired') from ojs.cron_run"); !slices.Equal(got, []string{"fired"}) {
		t.Errorf("the cron job's history is %v", got)
	}
	// The next one lies where there is time.
	step("again: to read what is there")
	if got := one[bool](t, d.Pool, "select cut_at > ojs.now() + interval '1 day' from ojs.cut"); !got {
		t.Error("the next cut is not a day ahead")
	}
}

// Transactions that overlap for ever, none of them for long, do not keep an operator from giving up a cut.
func TestACutIsGivenUpBetweenTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'acme', 'a', 'q' from generate_series(1, 20000)")
	at := time.Now().Add(time.Hour)
	exec(t, operator, "select ojs.cut_partition($1)", at)
	d.SetNow(at)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for range 3 {
		running.Go(func() {
			for ctx.Err() == nil {
				tx, err := acme.Begin(t.Context())
				if err == nil {
					_, err = tx.Exec(t.Context(), "select count(*) from ojs.jobs where id = $1", uuidAt(at))
				}
				if err != nil {
					t.Error(pgtest.Explain(err))
					return
				}
				time.Sleep(400 * time.Millisecond)
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	now := at
	pgtest.Eventually(t, "the cut is given up", func() bool {
		now = now.Add(2 * time.Second)
		d.SetNow(now)
		return one[string](t, service, "select (ojs.upkeep()).step") == "again: a cut that was not made in time was given up"
	})
}

// Statements that find rows changed under them look again, with what they know of the partitions.
func TestContendedJobsInSeveralPartitions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	untilDone(t, d.Operator(), "select ojs.cut_partition($1)", time.Now().Add(time.Hour))
	const jobs, rounds = 30, 150
	enqueueFor(t, service, "default", "acme", jobs)
	ids := one[[]string](t, service, "select array_agg(f.id::text) from ojs.fetch('{default}', $1, 'w') f", jobs)
	var working sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		working.Go(func() {
			for n := 0; n < rounds && !t.Failed(); n++ {
				some := slices.Clone(ids)
				random.Shuffle(jobs, func(a, b int) { some[a], some[b] = some[b], some[a] })
				sql, args := "select count(*) from ojs.heartbeat('w', $1::uuid[])", []any{some}
				switch i {
				case 0, 1:
					sql = `
						select count(*)
						from ojs.settle((select json_agg(json_build_object('id', i, 'worker_id', 'w', 'requeue', true,
							'error', json_build_object('message', 'm'))) from unnest($1::uuid[]) i))`
					args = []any{some[:5]}
				case 2, 3:
					sql, args = "select count(*) from ojs.fetch('{default}', 40, 'w')", nil
				}
				if _, err := service.Exec(t.Context(), sql, args...); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
		})
	}
	working.Wait()
	if got := one[int](t, service, "select count(*)::int from ojs.jobs where state in ('active', 'available')"); got != jobs {
		t.Errorf("%d jobs are left, want %d", got, jobs)
	}
}

// While the lock is held nothing is read: the constraint proves where the partition ends.
func TestTheCutOfALargePartitionReadsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "insert into ojs.jobs (tenant_id, type, queue) select 'acme', 'a', 'q' from generate_series(1, 20000)")
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["client_min_messages"] = "debug1"
	var said []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { said = append(said, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	untilDone(t, conn, "select ojs.cut_partition($1)", time.Now().Add(time.Hour))
	const proved = `partition constraint for table "job_all" is implied by existing constraints`
	if !slices.Contains(said, proved) {
		t.Errorf("nothing says that %s: %q", proved, said)
	}
}

// A job that is enqueued while the preparation of a cut looks around is not caught behind it.
func TestALateIDIsSeenBeforeTheCutRefusesIt(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	enqueueFor(t, service, "default", "acme", 20000)
	at := time.Now().Add(time.Hour)
	// It is seen to hold on to the table, and has let go when it is looked at again.
	tx := begin(t, service)
	exec(t, tx, "insert into ojs.jobs (tenant_id, type, id) values ('acme', 'a', $1)", uuidAt(at.Add(time.Minute)))
	answer := make(chan error, 1)
	go func() {
		_, err := operator.Exec(t.Context(), "select ojs.cut_partition($1)", at)
		answer <- err
	}()
	pgtest.Eventually(t, "it looks around, or has done so", func() bool {
		return len(answer) > 0 || one[bool](t, d.Pool, `
			select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')`)
	})
	commit(t, tx)
	err := <-answer
	if got := one[bool](t, d.Pool, "select exists (select from ojs.cut)"); got {
		t.Errorf("a cut is being prepared (%v) before a job that is there", err)
	}
	if got := one[int](t, service, `
		select count(*)::int
		from ojs.fetch('{default}', 10000)`) + one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 10000)") +
		one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 10000)"); got != 20001 {
		t.Errorf("%d jobs were handed out", got)
	}
}
