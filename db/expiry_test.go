package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// However a job was enqueued and whatever it waits for: after expires_at the clock discards it, also if no worker asks for it.
func TestJobsExpireByThemselves(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	at, later := noon.Add(time.Minute), noon.Add(10*time.Minute)
	for _, sql := range []string{
		`select from ojs.enqueue('single', p_queue => 'q', p_expires_at => $1,
				p_scheduled_at => least($1::timestamptz - interval '1 second', $2))`,
		`select from ojs.enqueue_many(json_build_array(json_build_object('type', 'many', 'args', '[]'::json, 'queue',
					'q', 'expires_at', $1::timestamptz),
				json_build_object('type', 'stays', 'args', '[]'::json, 'queue', 'q', 'scheduled_at', $2::timestamptz)))`,
		`select from ojs.enqueue_each(json_build_array(json_build_object('type', 'each', 'args', '[]'::json, 'queue', 'q',
				'expires_at', $1::timestamptz, 'scheduled_at', least($1::timestamptz - interval '1 second', $2::timestamptz))))`,
		`select from ojs.enqueue_bulk('bulk', array(select '[]'::json from generate_series(1, 3)), 'q', p_expires_at => $1,
				p_scheduled_at => least($1::timestamptz - interval '1 second', $2))`,
		`select from ojs.enqueue_bulk('bulk.now', array(select '[]'::json from generate_series(1, 3)), 'q',
				p_expires_at => least($1, $2::timestamptz))`,
		`insert into ojs.jobs (type, queue, expires_at, scheduled_at)
			select 'plain', 'q', case when i % 2 = 0 then $1::timestamptz end,
				case when i % 2 = 0 then $1::timestamptz - interval '1 second' else $2 end from generate_series(1, 4) i`,
		"insert into ojs.jobs (type, queue, expires_at) select 'plain.one', 'q', least($1::timestamptz, $2)",
		"select from ojs.enqueue('pending', p_queue => 'q', p_pending => true, p_expires_at => least($1, $2::timestamptz))",
	} {
		exec(t, service, sql, at, later)
	}
	retried := one[string](t, service, `
		select id::text
		from ojs.enqueue('retryable', p_queue => 'r', p_expires_at => $1,
			p_retry => '{"initial_interval": "PT1H", "jitter": false}')`, at)
	exec(t, service, "select from ojs.enqueue('active', p_queue => 'r', p_expires_at => $1, p_visibility_timeout_ms => 300000)", at)
	done := one[string](t, service, "select id::text from ojs.enqueue('done', p_queue => 'r', p_expires_at => $1)", at)
	exec(t, service, "select count(*) from ojs.fetch('{r}', 10)")
	exec(t, service, `select from ojs.nack($1, '{"message": "m"}')`, retried)
	exec(t, service, "select from ojs.ack($1)", done)

	states := func() []string {
		t.Helper()
		return lines(t, service, "select type, state::text, count(*) from ojs.job group by 1, 2 order by 1, 2")
	}
	d.SetNow(at.Add(-time.Millisecond))
	tick(t, service, 1000)
	before := states()
	if slices.ContainsFunc(before, func(s string) bool { return len(s) > 12 && s[len(s)-11:len(s)-2] == "discarded" }) {
		t.Errorf("before their time jobs were discarded: %v", before)
	}
	d.SetNow(at)
	for range 3 {
		tick(t, service, 1000)
	}
	if got, want := states(), []string{
		"active active 1", "bulk discarded 3", "bulk.now discarded 3", "done completed 1", "each discarded 1", "many discarded 1",
		"pending discarded 1", "plain discarded 2",
		"plain scheduled 2", "plain.one discarded 1", "retryable discarded 1", "single discarded 1", "stays scheduled 1",
	}; !slices.Equal(got, want) {
		t.Errorf("the jobs are\n%v, want\n%v", got, want)
	}
	if got := lines(t, service, `
		select sum(available)::int, sum(scheduled)::int, sum(pending)::int, sum(retryable)::int, sum(active)::int,
			sum(discarded)::int, sum(completed)::int, sum(failed)::int
		from ojs.shard_stats`); !slices.Equal(got,
		[]string{"0 3 0 0 1 14 1 1"}) {
		t.Errorf("the statistics are %v", got)
	}
	if got := lines(t, service, `
		select data ->> 'job_type', data ->> 'ttl_ms', (data ->> 'expired_at')::timestamptz = $1,
			data ->> 'created_at' like '%Z' and data ->> 'expired_at' like '%Z'
		from ojs.events('{job.expired}') where data ->> 'job_type' = 'single'`, at); !slices.Equal(got,
		[]string{"single 60000 true true"}) {
		t.Errorf("the event says %v", got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.events('{job.expired}')"); got != 14 {
		t.Errorf("%d events say that a job expired", got)
	}
	if got := one[int](t, service, "select ojs.dead_letter_count()::int"); got != 0 {
		t.Errorf("%d expired jobs are dead letters", got)
	}
	if got := list[string](t, d.Pool, unsound); len(got) > 0 {
		t.Errorf("unsound: %v", got)
	}
	d.SetNow(later)
	tick(t, service, 1000)
	if got := list[string](t, service, `
		select type from ojs.fetch('{q,r}', 100) order by 1`); !slices.Equal(got, []string{"plain", "plain", "stays"}) {
		t.Errorf("handed out %v", got)
	}
}

// What a worker gives back when its time has passed is not handed out again.
func TestWhatIsGivenBackLateExpires(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	at := noon.Add(time.Minute)
	id := one[string](t, service, `
		select id::text from ojs.enqueue('active', p_queue => 'r', p_expires_at => $1, p_visibility_timeout_ms => 300000)`, at)
	oneJob(t, service, "ojs.fetch('{r}')")
	d.SetNow(at)
	tick(t, service, 1000)
	exec(t, service, `select from ojs.nack($1, '{"message": "m"}', p_requeue => true)`, id)
	d.SetNow(at.Add(6 * time.Minute))
	tick(t, service, 1000)
	if got := oneJob(t, service, "ojs.job_info($1)", id); got.State != "discarded" {
		t.Errorf("given back late, it is %s", got.State)
	}
	if got := jobs(t, service, "ojs.fetch('{r}', 100)"); len(got) != 0 {
		t.Errorf("handed out %v", got)
	}
}

// A job that another session has locked at that moment is looked at again.
func TestExpiryBesideALock(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	id := one[string](t, service, "select id::text from ojs.enqueue('a', p_expires_at => $1)", noon.Add(time.Minute))
	exec(t, service, "select from ojs.enqueue('a', p_expires_at => $1)", noon.Add(time.Minute))
	tx := begin(t, service)
	exec(t, tx, "select from ojs.cancel($1)", id)
	d.SetNow(noon.Add(time.Minute))
	tick(t, service, 1000)
	if got := lines(t, service, `
		select state, count(*) from ojs.job group by 1 order by 1`); !slices.Equal(got, []string{"available 1", "discarded 1"}) {
		t.Errorf("beside the lock: %v", got)
	}
	rollback(t, tx)
	d.SetNow(noon.Add(time.Minute + 2*time.Second))
	tick(t, service, 1000)
	if got := oneJob(t, service, "ojs.job_info($1)", id); got.State != "discarded" {
		t.Errorf("after the lock it is %s", got.State)
	}
}

// However an attempt ends that was under way when its job expired, the job is discarded then, and not when its lease would have ended:
// also if the attempt's end was under way, too, and committed after the clock had looked.
func TestExpiryDuringAnAttempt(t *testing.T) {
	t.Parallel()
	at := noon.Add(time.Minute)
	for name, end := range map[string]string{
		"retried later": `select from ojs.nack($1, '{"message": "m"}')`,
		"requeued":      `select from ojs.nack($1, '{"message": "m"}', p_requeue => true)`,
		"settled":       `select from ojs.settle(json_build_array(json_build_object('id', $1::text, 'error', '{"message": "m"}'::json)))`,
		"given back":    `select from ojs.release($1, (select lease from ojs.job where id = $1))`,
	} {
		for _, underWay := range []bool{false, true} {
			t.Run(fmt.Sprint(name, underWay), func(t *testing.T) {
				t.Parallel()
				d := pgtest.New(t)
				d.SetNow(noon)
				service := d.Service()
				id := one[string](t, service, `select id::text from ojs.enqueue('a', p_expires_at => $1, p_visibility_timeout_ms => 3600000,
					p_retry => '{"initial_interval": "PT1H", "jitter": false}')`, at)
				exec(t, service, "select count(*) from ojs.fetch('{default}', 10)")
				tx := begin(t, service)
				if underWay {
					exec(t, tx, end, id)
				}
				d.SetNow(at)
				tick(t, service, 1000)
				if !underWay {
					exec(t, tx, end, id)
				}
				commit(t, tx)
				d.SetNow(at.Add(time.Second))
				tick(t, service, 1000)
				if got := oneJob(t, service, "ojs.job_info($1)", id); got.State != "discarded" {
					t.Errorf("it is %s", got.State)
				}
			})
		}
	}
}

// A dead letter that is retried while its job expires is discarded then.
func TestExpiryDuringARetry(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	at := noon.Add(time.Minute)
	id := one[string](t, service, "select id::text from ojs.enqueue('a', p_expires_at => $1)", at)
	exec(t, service, "select count(*) from ojs.fetch('{default}', 10)")
	exec(t, service, `select from ojs.nack($1, '{"message": "m", "code": "DEAD_LETTER"}')`, id)
	tx := begin(t, service)
	exec(t, tx, "select from ojs.retry_dead_letter($1)", id)
	d.SetNow(at)
	tick(t, service, 1000)
	commit(t, tx)
	d.SetNow(at.Add(time.Second))
	tick(t, service, 1000)
	if got := oneJob(t, service, "ojs.job_info($1)", id); got.State != "discarded" {
		t.Errorf("it is %s", got.State)
	}
}
