package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Whichever way they come, jobs of a suspended tenant are refused, with all that came with them, and those of others are not.
func TestASuspendedTenantCannotEnqueue(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme, operator := d.Service(), d.As("acme"), d.Operator()
	exec(t, service, "select ojs.enqueue('a', p_queue => 'before', p_tenant => 'acme')")
	exec(t, operator, "select ojs.suspend_tenant('acme', 'unpaid')")
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		failure := refused(t, q, "OJ406", way.sql, way.name)
		if said := detail(t, failure); said["tenant_id"] != "acme" || !strings.HasSuffix(failure.Message, "tenant acme is suspended") {
			t.Errorf("%s is refused with %s %v", way.name, failure.Message, said)
		}
	}
	if got := answers(t, d.Open(), refused(t, acme, "OJ406", "select ojs.enqueue('a')")); got.Code != "TENANT_SUSPENDED" ||
		got.Status != 403 || got.Retryable {
		t.Errorf("it is answered with %+v", got)
	}
	got := lines(t, service, `select n, sqlstate, detail ->> 'index' from ojs.enqueue_rows('{a,a,a}', array['[]', '[]', '[]']::json[],
		p_tenants => '{acme,globex,acme}', p_each => true) order by n`)
	if want := []string{"0 OJ406 0", "1 - -", "2 OJ406 2"}; !slices.Equal(got, want) {
		t.Errorf("of three jobs the results are %v, want %v", got, want)
	}
	// What is there goes on.
	if got := taken(t, service, "before", 2); got != "acme" {
		t.Errorf("handed out are jobs of %q", got)
	}
	exec(t, operator, "select ojs.resume_tenant('acme')")
	exec(t, acme, "select ojs.enqueue('a')")
	trail := lines(t, operator, "select action, reason from ojs.audit_trail where kind = 'tenant' order by n")
	if want := []string{"suspended unpaid", "resumed -"}; !slices.Equal(trail, want) {
		t.Errorf("recorded are %v, want %v", trail, want)
	}
}

// Jobs that fail, and dead letters, of a suspended tenant come back: they are not new. Its cron jobs are skipped, and the tick goes on.
func TestASuspendedTenantGoesOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	begin := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	d.SetNow(begin)
	exec(t, service, `select ojs.enqueue('a', p_tenant => 'acme', p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`)
	exec(t, service, `select ojs.nack(f.id, '{"code": "x", "message": "x"}', f.lease) from ojs.fetch('{default}') f`)
	exec(t, service, `select ojs.put_cron('c', '@daily', 'a', p_tenant => 'acme')`)
	exec(t, d.Pool, "update ojs.cron set upcoming = array[ojs.now() + interval '1 minute']")
	exec(t, d.Pool, `insert into ojs.timer (due_at, kind, tenant_ids, ids)
		select ojs.now() + interval '1 minute', 'cron', array[tenant_id], array[id] from ojs.cron`)
	exec(t, d.Operator(), "select ojs.suspend_tenant('acme')")
	exec(t, service, "select ojs.retry_dead_letter(id) from ojs.dead_letters()")
	if got := taken(t, service, "default", 2); got != "acme" {
		t.Errorf("handed out are jobs of %q", got)
	}
	d.SetNow(begin.Add(2 * time.Minute))
	exec(t, service, "select ojs.tick()")
	got := lines(t, service, "select reason, message from ojs.cron_runs")
	if want := []string{"refused tenant acme is suspended"}; !slices.Equal(got, want) {
		t.Errorf("the cron job has %v", got)
	}
}

// A deployment may take jobs of configured tenants only, and of the default tenant.
func TestUnknownTenantsAreRefusedIfAskedTo(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	const enqueue = "select ojs.enqueue('a', p_tenant => $1)"
	exec(t, service, enqueue, "acme")
	refused(t, operator, "OJ422", "select ojs.configure(p_unknown_tenants => 'maybe')")
	exec(t, operator, "select ojs.configure(p_unknown_tenants => 'refuse'), ojs.configure_tenant('globex', 1)")
	exec(t, service, enqueue, "globex")
	exec(t, service, "select ojs.enqueue('a')")
	if got := answers(t, d.Open(), refused(t, service, "OJ407", enqueue, "acme")); got.Code != "TENANT_UNKNOWN" || got.Status != 403 {
		t.Errorf("it is answered with %+v", got)
	}
	exec(t, operator, "select ojs.configure(p_unknown_tenants => 'accept')")
	exec(t, service, enqueue, "acme")
}

// Pauses, throttles and suspensions do not make a mistyped tenant known. A limit does, and so does an empty configuration.
func TestOnlyAConfigurationMakesATenantKnown(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, operator, "select ojs.configure(p_unknown_tenants => 'refuse')")
	const (
		pause    = "select ojs.pause(null, 'acme'), ojs.pause('q', 'acme'), ojs.resume(null, 'acme'), ojs.resume('q', 'acme')"
		throttle = "select ojs.throttle('acme'), ojs.throttle('acme', p_action => 'concurrency'), ojs.release_throttle('acme')"
		suspend  = "select ojs.suspend_tenant('acme'), ojs.resume_tenant('acme')"
	)
	for _, c := range []struct {
		sql   string
		known bool
	}{
		{"select ojs.pause(null, 'acme')", false},
		{pause, false},
		{throttle, false},
		{suspend, false},
		{"select ojs.limit_concurrency(1, 'acme')", true},
		{"select ojs.deregister_tenant('acme', 'acme')", false},
		{"select ojs.pause(null, 'acme'), ojs.configure_tenant('acme')", true},
		{pause, true},
		{throttle, true},
		{suspend, true},
	} {
		exec(t, operator, c.sql)
		if c.known {
			exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
		} else {
			refused(t, service, "OJ407", "select ojs.enqueue('a', p_tenant => 'acme')")
		}
		bare := one[bool](t, d.Pool, `
			select exists (select from ojs.tenant t where t.created_at is null
				and not exists (select from ojs.rule r where r.tenant_id = t.tenant_id))`)
		if got := one[bool](t, d.Pool, "select exists (select from ojs.tenant where created_at is not null)"); got != c.known || bare {
			t.Errorf("after %s there is a configured tenant: %v, want %v; one without anything in it: %v", c.sql, got, c.known, bare)
		}
	}
	created := lines(t, operator,
		"select action from ojs.audit_trail where kind = 'tenant' and action in ('created', 'removed') order by n")
	if want := []string{"created", "removed", "created"}; !slices.Equal(created, want) {
		t.Errorf("recorded are %v, want %v", created, want)
	}
}

// A deployment without such tenants calls no function that asks for them.
func TestNobodyPaysForSuspensionsThatAreNot(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, c := range []struct{ sql, want string }{
		{"select ojs.configure_tenant('acme', 2)", ""},
		{"select ojs.suspend_tenant('acme')", "ojs._job_rules"},
		{"select ojs.suspend_tenant('globex')", "ojs._job_rules"},
		{"select ojs.resume_tenant('acme')", "ojs._job_rules"},
		{"select ojs.resume_tenant('globex')", ""},
		{"select ojs.configure(p_unknown_tenants => 'refuse')", "ojs._job_rules"},
		{"select ojs.configure(p_unknown_tenants => 'accept')", ""},
	} {
		exec(t, operator, c.sql)
		got := one[string](t, d.Pool, "select coalesce(to_regclass('ojs._job_rules')::text, '')")
		if bars := one[bool](t, d.Pool, "select bars from ojs.settings"); got != c.want || bars != (c.want != "") {
			t.Errorf("after %s jobs are checked by %q (%v), want %q", c.sql, got, bars, c.want)
		}
	}
}

// With jobs that have not ended a word of confirmation is wanted: the tenant's name.
func TestDeregisteringWantsAWord(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	exec(t, d.Service(), "select ojs.enqueue('a', p_tenant => 'acme')")
	for _, word := range []any{nil, "yes", "globex"} {
		if said := detail(t, refused(t, operator, "OJ409", "select ojs.deregister_tenant('acme', $1::text)", word)); said["jobs"] != 1.0 {
			t.Errorf("the refusal says %v", said)
		}
	}
	refused(t, operator, "OJ404", "select ojs.deregister_tenant('globex')")
	refused(t, operator, "OJ400", "select ojs.deregister_tenant(' ')")
	refused(t, d.As("acme"), "42501", "select ojs.deregister_tenant('acme', 'acme')")
	if got := lines(t, d.Pool, "select state from ojs.job"); !slices.Equal(got, []string{"available"}) {
		t.Errorf("jobs are %v", got)
	}
}

// All that is configured of a tenant goes, its jobs in all states are cancelled by the clock, others' are not, and it may come again.
func TestDeregisteringEndsATenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	exec(t, operator, `select ojs.configure_tenant('acme', 5, 10, 50), ojs.configure_tenant('acme', 3, p_queue => 'q'),
		ojs.limit_concurrency(1, 'acme'), ojs.limit_concurrency(2, 'acme', 'q'), ojs.pause('p', 'acme'), ojs.suspend_tenant('acme'),
		ojs.resume_tenant('acme')`)
	exec(t, acme, "select ojs.put_cron('c', '@daily', 'a')")
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, `select ojs.enqueue('a', p_queue => q, p_priority => p, p_tenant => $1)
			from unnest('{q,r}'::text[]) q, generate_series(0, 20, 10) p, generate_series(1, 300)`, tenant)
		exec(t, service, `select ojs.enqueue('a', p_queue => 'q', p_tenant => $1, p_pending => n % 2 = 0,
			p_scheduled_at => case when n % 2 = 1 then ojs.now() + interval '1 hour' end) from generate_series(1, 600) n`, tenant)
		exec(t, service, "select ojs.fetch('{r}', 5, p_tenant => $1)", tenant)
	}
	exec(t, operator, "select ojs.deregister_tenant('acme', 'acme', 'left us')")
	if got := one[int](t, service, "select count(*) from ojs.fetch('{q,r}', 1000) f where f.tenant_id = 'acme'"); got != 0 {
		t.Errorf("%d jobs of the tenant are handed out", got)
	}
	// A job that is made meanwhile is a new tenant's.
	later := one[string](t, service, "select id from ojs.enqueue('later', p_queue => 'q', p_tenant => 'acme')")
	ticks := 0
	for ; one[bool](t, d.Pool, "select exists (select from ojs.departure)"); ticks++ {
		if exec(t, service, "select ojs.tick()"); ticks > 1000 {
			t.Fatal("it does not come to an end")
		}
	}
	got := lines(t, d.Pool, "select tenant_id, state, count(*) from ojs.job where tenant_id = 'acme' group by 1, 2 order by 2")
	if want := []string{"acme available 1", "acme cancelled 2400"}; !slices.Equal(got, want) {
		t.Errorf("jobs are %v, want %v", got, want)
	}
	for _, table := range []string{"tenant", "rule", "queue_weight", "tenant_role", "cron", "suspended", "usage"} {
		if n := one[int](t, d.Pool, "select count(*) from ojs."+table+" where tenant_id = 'acme'"); n != 0 {
			t.Errorf("ojs.%s has %d rows of the tenant", table, n)
		}
	}
	if got := one[string](t, service, "select id from ojs.fetch('{q}', p_tenant => 'acme')"); got != later {
		t.Errorf("handed out is %s, want %s", got, later)
	}
	refused(t, acme, "OJ403", "select ojs.enqueue('a')")
	trail := lines(t, operator, "select action, reason, new from ojs.audit_trail where tenant_id = 'acme' and action = 'deregistered'")
	if want := []string{"deregistered left us map[jobs:2400]"}; !slices.Equal(trail, want) {
		t.Errorf("recorded are %v, want %v", trail, want)
	}
	if n := one[int](t, d.Pool, "select count(*) from ojs.job where tenant_id = 'globex' and state = 'cancelled'"); n != 0 {
		t.Errorf("%d jobs of another tenant are cancelled", n)
	}
	counts := lines(t, service, `
		select sum(available)::int, sum(active)::int, sum(cancelled)::int from ojs.shard_stats where tenant_id = 'acme'`)
	if !slices.Equal(counts, []string{"0 1 2400"}) {
		t.Errorf("counted are %v", counts)
	}
	ringsAgree(t, d.Pool)
}

// A job that another session has locked is cancelled later, and until then the tenant has not departed. No session waits for it.
func TestDeregisteringComesBackToLockedJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	begun := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	d.SetNow(begun)
	id := one[string](t, service, "select id from ojs.enqueue('a', p_tenant => 'acme')")
	tx := begin(t, d.Pool)
	exec(t, tx, "select from ojs.job where id = $1 for update", id)
	exec(t, d.Operator(), "select ojs.deregister_tenant('acme', 'acme')")
	tick := func(seconds int) []string {
		d.SetNow(begun.Add(time.Duration(seconds) * time.Second))
		// On a slow machine one tick is not enough.
		for range 5 {
			exec(t, service, "select ojs.tick()")
		}
		return lines(t, d.Pool, "select j.state, (select count(*) from ojs.departure) from ojs.job j")
	}
	if got := tick(1); !slices.Equal(got, []string{"available 1"}) {
		t.Errorf("while it is locked: %v", got)
	}
	commit(t, tx)
	if got := tick(3); !slices.Equal(got, []string{"cancelled 0"}) {
		t.Errorf("afterwards: %v", got)
	}
}

// A job whose transaction was open when its tenant was deregistered is cancelled when that has committed, and a cron job is removed
// before it fires. Until then the tenant has not departed.
func TestDeregisteringWaitsForWhatCommitsLate(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	begun := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	d.SetNow(begun)
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', 2)")
	jobs, crons := begin(t, d.Pool), begin(t, d.Pool)
	exec(t, jobs, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, crons, "select ojs.put_cron('c', '@daily', 'a', p_tenant => 'acme')")
	exec(t, crons, "update ojs.cron set upcoming = array[ojs.now() + interval '1 second']")
	exec(t, crons, `insert into ojs.timer (due_at, kind, tenant_ids, ids)
		select ojs.now() + interval '1 second', 'cron', array[tenant_id], array[id] from ojs.cron`)
	exec(t, d.Operator(), "select ojs.deregister_tenant('acme')")
	tick := func(seconds int) []string {
		d.SetNow(begun.Add(time.Duration(seconds) * time.Second))
		// On a slow machine one tick is not enough.
		for range 5 {
			exec(t, service, "select ojs.tick()")
		}
		return lines(t, d.Pool, `select (select string_agg(j.state::text, ',') from ojs.job j), (select count(*) from ojs.cron),
			(select count(*) from ojs.departure)`)
	}
	if got := tick(3); !slices.Equal(got, []string{"- 0 1"}) {
		t.Errorf("while both are open: %v", got)
	}
	commit(t, jobs)
	if got := tick(5); !slices.Equal(got, []string{"cancelled 0 1"}) {
		t.Errorf("while one is open: %v", got)
	}
	commit(t, crons)
	if got := tick(5); !slices.Equal(got, []string{"cancelled 1 1"}) {
		t.Errorf("before the clock looks again: %v", got)
	}
	if got := tick(7); !slices.Equal(got, []string{"cancelled 0 0"}) {
		t.Errorf("afterwards: %v", got)
	}
}

// Nothing brings back the dead letters of a tenant that leaves: no rule for all tenants and, before they are gone, no operator.
func TestDeregisteringDeletesDeadLetters(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	begun := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	d.SetNow(begun)
	exec(t, operator, "select ojs.set_replay_rule('all', '1 minute')")
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, `
			select ojs.enqueue('a', p_tenant => $1, p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`, tenant)
	}
	exec(t, service, `select ojs.nack(f.id, '{"code": "x", "message": "x"}', f.lease) from ojs.fetch('{default}', 2) f`)
	id := one[string](t, service, "select id from ojs.dead_letters(p_tenant => 'acme')")
	if said := detail(t, refused(t, operator, "OJ409", "select ojs.deregister_tenant('acme')")); said["dead_letters"] != 1.0 {
		t.Errorf("the refusal says %v", said)
	}
	exec(t, operator, "select ojs.deregister_tenant('acme', 'acme')")
	refused(t, service, "OJ409", "select ojs.retry_dead_letter($1)", id)
	if got := one[int](t, service, "select ojs.retry_dead_letters(p_tenant => 'acme')"); got != 0 {
		t.Errorf("%d dead letters are retried", got)
	}
	for seconds := 1; seconds < 100; seconds += 30 {
		d.SetNow(begun.Add(time.Duration(seconds) * time.Second))
		for range 5 {
			exec(t, service, "select ojs.tick()")
		}
	}
	got := lines(t, d.Pool, "select tenant_id, state from ojs.job union all select 'departure', null from ojs.departure")
	if !slices.Equal(got, []string{"globex available"}) {
		t.Errorf("jobs are %v", got)
	}
}

// In a copy of the database in another cluster the running transaction may have the id of one that fetched jobs in the first cluster.
func TestACopyIsNotTakenForATransactionThatHasFetched(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.fetch('{default}')")
	// What a restore leaves: other oids, and ids that this cluster has not reached yet.
	exec(t, d.Pool, "update ojs.fold set home = 0")
	tx := begin(t, d.Pool)
	exec(t, tx, "update ojs.lease set xid = pg_current_xact_id()")
	for _, sql := range []string{"select ojs.limit_concurrency(5, 'acme')", "select ojs.rebuild()"} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	rollback(t, tx)
}

// A transaction that has fetched jobs may call the tick, too: what changes settings is left to another one.
func TestATickAfterAFetchChangesNoSettings(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'globex')")
	exec(t, d.Operator(), "select ojs.configure_tenant('acme'), ojs.throttle('globex', p_lasts => '1 second')")
	exec(t, d.Operator(), "select ojs.deregister_tenant('acme')")
	d.SetNow(time.Now().Add(time.Minute))
	exec(t, d.Pool, "update ojs.departure set done = true")
	const left = "select (select count(*) from ojs.departure), (select count(*) from ojs.throttle)"
	tx := begin(t, service)
	if n := exec(t, tx, "select ojs.fetch('{default}')"); n != 1 {
		t.Errorf("%d jobs are handed out", n)
	}
	exec(t, tx, "select ojs.tick()")
	if got := lines(t, tx, left); !slices.Equal(got, []string{"1 1"}) {
		t.Errorf("left are %v", got)
	}
	commit(t, tx)
	exec(t, service, "select ojs.tick()")
	if got := lines(t, d.Pool, left); !slices.Equal(got, []string{"0 0"}) {
		t.Errorf("afterwards are left %v", got)
	}
}
