package db_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const (
	someID  = "01932a4e-0000-7000-8000-00000000000a"
	otherID = "01932a4e-0000-7000-8000-00000000000b"
)

// Whichever way a job comes, what becomes of it is the same.
func TestEveryDoorMakesTheSameJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	const kept = `select concat_ws(' ', state, seq is null, tenant_id, queue, type, priority, max_attempts, attempt, scheduled_at,
		expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra, created_at = enqueued_at, created_at)
		from ojs.job where type <> 'beside' order by seq nulls first, id limit 1`
	for i, fields := range []map[string]string{
		{"args": `[]`},
		{"args": `[{"a": [1, "x:y"], "b": null}]`, "queue": "mail", "priority": "-7"},
		{"args": `["\u00e9\\", 1e999999]`, "queue": strings.Repeat("q", 128)},
		{"args": `[1]`, "meta": `{"a": {"b": [1.50]}}`, "tags": `["a,b", "\"", "é", "\\"]`},
		{"args": `[1]`, "meta": `{"tenant_id": "globex"}`, "timeout_ms": "0", "visibility_timeout_ms": "604800000"},
		{"args": `[1]`, "retry": `{"max_attempts": 9, "initial_interval": "PT2S"}`, "expires_at": "2999-01-01T00:00:00+02:00"},
		{"args": `[1]`, "scheduled_at": "2999-01-01T00:00:00Z", "options": `{"x": 1,  "x2": [ ]}`, "extra": `{"x_y": 2}`},
		{"args": `[1]`, "scheduled_at": "1999-01-01T00:00:00Z", "id": someID},
		{"args": `[1]`, "pending": "true", "max_attempts": "0", "priority": "100"},
	} {
		fields["type"] = "some.job-" + strconv.Itoa(i)
		var named, columns, values, lists, members []string
		insertable := true
		for name, value := range fields {
			kind := sqlType[name]
			text := "'" + strings.ReplaceAll(value, "'", "''") + "'"
			member := value
			if kind == "text" || kind == "uuid" || kind == "timestamptz" {
				member = strconv.Quote(value)
			}
			members = append(members, strconv.Quote(name)+": "+member)
			first := "null"
			if name == "type" {
				first = "'beside'"
			} else if name == "args" {
				first = "'[]'"
			}
			lists = append(lists, listed(name, first, text))
			if name == "tags" {
				text = "array(select json_array_elements_text(" + text + "))"
			}
			named = append(named, "p_"+name+" => "+text+"::"+kind)
			columns, values = append(columns, name), append(values, text+"::"+kind)
			insertable = insertable && name != "pending" && name != "max_attempts"
		}
		one := "{" + strings.Join(members, ", ") + "}"
		beside := `[{"type": "beside", "args": []}, ` + one + `]`
		doors := map[string]string{
			"enqueue": "select from ojs.enqueue(" + strings.Join(named, ", ") + ")",
			"many":    "select from ojs.enqueue_many('" + beside + "')",
			"each":    "select from ojs.enqueue_each('" + beside + "')",
			"rows":    "select from ojs.enqueue_rows(" + strings.Join(lists, ", ") + ")",
			"once":    "select from ojs.enqueue_once('k', '" + beside + "')",
		}
		if insertable {
			doors["insert"] = "insert into ojs.jobs (" + strings.Join(columns, ", ") + ") values (" + strings.Join(values, ", ") + ")"
		}
		want := ""
		for door, sql := range doors {
			tx := begin(t, d.Service())
			exec(t, tx, sql)
			got := lines(t, tx, kept)
			rollback(t, tx)
			if len(got) != 1 || !strings.Contains(got[0], "some.job-") {
				t.Fatalf("%s: %v", door, got)
			}
			if want == "" {
				want = got[0]
			}
			if got[0] != want {
				t.Errorf("%s makes\n  %s, another way\n  %s", door, got[0], want)
			}
		}
	}
}

func TestAnIDIsUniqueWithinItsTenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme, globex, service := d.As("acme"), d.As("globex"), d.Service()
	enqueue := "select from ojs.enqueue('a', p_id => $1)"
	exec(t, acme, enqueue, someID)
	failure := refused(t, acme, "OJ410", enqueue, someID)
	if got := detail(t, failure); got["field"] != "id" || got["job_id"] != someID {
		t.Errorf("the duplicate is described as %v", got)
	}
	refused(t, acme, "23505", "insert into ojs.jobs (type, id) values ('a', $1)", someID)
	refused(t, acme, "0A000", "insert into ojs.jobs (type, id) values ('a', $1) on conflict do nothing", someID)
	if got := exec(t, acme, `
		insert into ojs.jobs (type, id)
		select 'a', i from unnest(array[$1::uuid]) i where not exists (select from ojs.jobs j where j.id = i)`, someID); got != 0 {
		t.Errorf("%d jobs were inserted beside the one with their id", got)
	}
	// Another tenant neither collides nor learns of it, in a batch either.
	exec(t, globex, `
		select from ojs.enqueue_many(json_build_array(json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::text)))`, someID)
	failure = refused(t, globex, "OJ410", `select id from ojs.enqueue_many(json_build_array(
		json_build_object('type', 'a', 'args', '[]'::json, 'id', $2::text),
			json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::text)))`, someID, otherID)
	if got := detail(t, failure); got["index"] != 1.0 {
		t.Errorf("the duplicate is described as %v", got)
	}
	if got := jobs(t, acme, "ojs.job_info($1)", someID); got[0].Tenant != "acme" {
		t.Errorf("acme reads %v", got)
	}
	// Who sees both has to say which.
	for _, call := range []string{
		"ojs.job_info($1)", "ojs.cancel($1)", "ojs.activate($1)", "ojs.ack($1)", `ojs.nack($1, '{"message": "x"}')`,
	} {
		failure := refused(t, service, "OJ411", "select from "+call, someID)
		if got := detail(t, failure); got["job_id"] != someID {
			t.Errorf("%s: the ambiguity is described as %v", call, got)
		}
	}
	if got := oneJob(t, service, "ojs.job_info($1, 'globex')", someID); got.Tenant != "globex" {
		t.Errorf("the service reads %v", got)
	}
	// Giving back a job takes its lease, and that tells.
	for _, held := range jobs(t, service, "ojs.fetch('{default}', 10)") {
		if got := oneJob(t, service, "ojs.release($1, $2)", held.ID, held.Lease); got.Tenant != held.Tenant {
			t.Errorf("releasing %s's job released %s's", held.Tenant, got.Tenant)
		}
	}
}

func TestMT51TenantOfANewJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	enqueue := func(q querier, args string) string {
		t.Helper()
		return one[string](t, q, "select tenant_id from ojs.enqueue('a'"+args+")")
	}
	batch := func(q querier, args string) string {
		t.Helper()
		return one[string](t, q, `select tenant_id from ojs.enqueue_many('[{"type": "a", "args": []`+args)
	}
	insert := func(q querier, columns, values string) string {
		t.Helper()
		return one[string](t, q, "insert into ojs.jobs (type"+columns+") values ('a'"+values+") returning tenant_id")
	}
	type row struct{ name, got, want string }
	rows := []row{
		{"nobody named", enqueue(service, ""), "_default"},
		{"named", enqueue(service, ", p_tenant => 'acme'"), "acme"},
		{"named in meta", enqueue(service, `, p_meta => '{"tenant_id": "acme:eu.1_x-Y"}'`), "acme:eu.1_x-Y"},
		{"named twice, alike", enqueue(service, `, p_tenant => 'acme', p_meta => '{"tenant_id": "acme"}'`), "acme"},
		{"reserved", enqueue(service, ", p_tenant => '_other'"), "_other"},
		{"256 bytes", enqueue(service, ", p_tenant => repeat('a', 256)"), strings.Repeat("a", 256)},
		{"an operator", enqueue(operator, ", p_tenant => 'acme'"), "acme"},
		{"a tenant's own", enqueue(acme, ""), "acme"},
		{"a tenant's own, named", enqueue(acme, ", p_tenant => 'acme'"), "acme"},
		{"batch, nobody named", batch(service, `}]')`), "_default"},
		{"batch, by the call", batch(service, `}]', 'acme')`), "acme"},
		{"batch, by the job", batch(service, `, "tenant": "globex"}]')`), "globex"},
		{"batch, by the job's tenant_id", batch(service, `, "tenant_id": "globex"}]')`), "globex"},
		{"batch, by both names", batch(service, `, "tenant": "globex", "tenant_id": "globex", "priority": 1}]')`), "globex"},
		{"batch, by both", batch(service, `, "tenant": "globex"}]', 'globex')`), "globex"},
		{"batch, in meta", batch(service, `, "meta": {"tenant_id": "globex"}}]')`), "globex"},
		{"batch of a tenant", batch(acme, `, "meta": {"tenant_id": "acme"}}]')`), "acme"},
		{"insert, nobody named", insert(service, "", ""), "_default"},
		{"insert, named", insert(service, ", tenant_id", ", 'acme'"), "acme"},
		{"insert, in meta", insert(service, ", meta", `, '{"tenant_id": "globex"}'`), "globex"},
		{"insert, the default named, in meta", insert(service, ", tenant_id, meta", `, '_default', '{"tenant_id": "globex"}'`), "globex"},
		{"insert of a tenant", insert(acme, "", ""), "acme"},
		{"insert of a tenant, in meta", insert(acme, ", meta", `, '{"tenant_id": "acme"}'`), "acme"},
	}
	exec(t, operator, "select from ojs.configure(p_default_tenant => 'house')")
	rows = append(rows, row{"another default", enqueue(service, ""), "house"},
		row{"another default, insert", insert(service, "", ""), "house"})
	for _, r := range rows {
		if r.got != r.want {
			t.Errorf("%s: the job is %s's, want %s", r.name, r.got, r.want)
		}
	}
}

func TestTenantsThatNoJobMayHave(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, c := range []struct{ name, state, field, sql string }{
		{"empty", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '')"},
		{"a blank", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => 'a b')"},
		{"beginning with a dash", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '-a')"},
		{"beginning with an underscore", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '_a')"},
		{"a line end", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => E'a\\n')"},
		{"257 bytes", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => repeat('a', 257))"},
		{"too long, insert", "OJ400", "tenant", "insert into ojs.jobs (type, tenant_id) values ('a', repeat('a', 257))"},
		{"malformed, insert", "OJ400", "tenant", "insert into ojs.jobs (type, tenant_id) values ('a', 'a b')"},
		{"malformed in meta", "OJ400", "meta.tenant_id", `select from ojs.enqueue('a', p_meta => '{"tenant_id": "a b"}')`},
		{"named twice", "OJ405", "meta.tenant_id", `select from ojs.enqueue('a', p_tenant => 'acme', p_meta => '{"tenant_id": "globex"}')`},
		{
			"named twice, batch", "OJ405", "tenant",
			`select from ojs.enqueue_many('[{"type": "a", "args": [], "tenant": "globex"}]', 'acme')`,
		},
		{
			"named twice, insert", "OJ405", "meta.tenant_id",
			`insert into ojs.jobs (type, tenant_id, meta) values ('a', 'acme', '{"tenant_id": "globex"}')`,
		},
	} {
		if got := detail(t, refused(t, service, c.state, c.sql)); got["field"] != c.field {
			t.Errorf("%s: the error names %v, want %s", c.name, got["field"], c.field)
		}
	}
}

func TestWhereTenantsAreRequired(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, d.Operator(), "select from ojs.configure(p_tenant_required => true)")
	for _, sql := range []string{
		"select from ojs.enqueue('a')", `select from ojs.enqueue_many('[{"type": "a", "args": []}]')`,
		"insert into ojs.jobs (type) values ('a')", `insert into ojs.jobs (type, meta) values ('a', '{"tenant_id": ""}')`,
	} {
		refused(t, service, "OJ402", sql)
	}
	const inMeta = `insert into ojs.jobs (type, meta) values ('a', '{"tenant_id": "acme"}') returning tenant_id`
	if got := one[string](t, service, inMeta); got != "acme" {
		t.Errorf("an inserted job with a tenant in meta is %s's", got)
	}
	for q, named := range map[querier]string{d.As("acme"): "", service: ", p_tenant => 'acme'"} {
		if got := one[string](t, q, "select tenant_id from ojs.enqueue('a'"+named+")"); got != "acme" {
			t.Errorf("a job with a tenant is %s's", got)
		}
	}
}

func TestStatesOfNewJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	now := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	d.SetNow(now)
	acme := d.As("acme")
	for _, c := range []struct{ name, columns, values, want string }{
		{"plain", "", "", "available"},
		{"due at this moment", "scheduled_at", "'2031-05-04 12:00Z'", "available"},
		{"due long ago", "scheduled_at", "'0001-01-01 00:00Z'", "available"},
		{"due in a moment", "scheduled_at", "'2031-05-04 12:00:00.000001Z'", "scheduled"},
		{"due in the year 9999", "scheduled_at", "'9999-12-31 23:59:59Z'", "scheduled"},
		{"expired already", "expires_at", "'2031-05-04 11:00Z'", "available"},
		{"expires after it is due", "scheduled_at expires_at", "'2032-01-01 00:00Z' '2032-01-01 00:00:00.000001Z'", "scheduled"},
	} {
		columns, values := strings.Fields(c.columns), strings.Split(c.values, "' '")
		named, inserted, given := "", "", ""
		for i, column := range columns {
			value := "'" + strings.Trim(values[i], "'") + "'"
			named += ", p_" + column + " => " + value
			inserted += ", " + column
			given += ", " + value
		}
		for door, sql := range map[string]string{
			"enqueue": "select id::text from ojs.enqueue('a'" + named + ")",
			"insert":  "insert into ojs.jobs (type" + inserted + ") values ('a'" + given + ") returning id::text",
		} {
			got := one[string](t, d.Pool, "select state::text || (seq is null) from ojs.job where id = $1", one[string](t, acme, sql))
			want := c.want + strconv.FormatBool(c.want != "available")
			if got != want {
				t.Errorf("%s, %s: %s, want %s", c.name, door, got, want)
			}
		}
	}
	const never = "expires_at must be later than scheduled_at: the job would expire before it is due"
	for _, sql := range []string{
		"select ojs.enqueue('a', p_scheduled_at => '2032-01-01 00:00Z', p_expires_at => '2032-01-01 00:00Z')",
		"insert into ojs.jobs (type, scheduled_at, expires_at) values ('a', '2032-01-01 00:00Z', '2031-06-01 00:00Z')",
	} {
		if got := refused(t, acme, "OJ400", sql); got.Message != never {
			t.Errorf("%s: %s", sql, got.Message)
		}
	}
	if got := one[string](t, acme, `
		select state from ojs.enqueue('a', p_pending => true, p_scheduled_at => '2040-01-01 00:00Z')`); got != "pending" {
		t.Errorf("pending and scheduled: %s", got)
	}
	// Expired jobs are not handed out, but end.
	if got := one[int](t, d.Service(), "select count(*) from ojs.fetch('{default}', 100)"); got != 6 {
		t.Errorf("fetched %d jobs, want the 6 available ones that have not expired", got)
	}
	exec(t, d.Service(), "select ojs.tick()")
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'discarded' and finished_at = $1", now); got != 2 {
		t.Errorf("%d jobs were discarded, want the two expired ones", got)
	}
	// When it became available, and for one not yet available, when it was created.
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where created_at <> $1 or enqueued_at <> $1", now); got != 0 {
		t.Errorf("%d jobs have another time of creation", got)
	}
}

func TestTimesOfANewJobAgree(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select from ojs.enqueue('a')")
	exec(t, d.Service(), `select from ojs.enqueue_many('[{"type": "a", "args": []}, {"type": "a", "args": []}]')`)
	if got := lines(t, d.Pool, "select created_at, enqueued_at from ojs.job where created_at <> enqueued_at"); len(got) > 0 {
		t.Errorf("created_at and enqueued_at differ: %s", strings.Join(got, "; "))
	}
}

func TestAttemptsOfANewJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for args, want := range map[string]int{
		"":                                   3,
		`, p_retry => '{}'`:                  3,
		`, p_retry => '{"max_attempts": 7}'`: 7,
		`, p_retry => '{"max_attempts": 0}'`: 0,
		`, p_max_attempts => 1000`:           1000,
		`, p_max_attempts => 2, p_retry => '{"max_attempts": 7}'`: 2,
	} {
		if got := one[int](t, d.As("acme"), "select max_attempts from ojs.enqueue('a'"+args+")"); got != want {
			t.Errorf("enqueue('a'%s) has %d attempts, want %d", args, got, want)
		}
	}
	if got := one[int](t, d.As("acme"), `
		with i as (insert into ojs.jobs (type, retry) values ('a', '{"max_attempts": 9}') returning max_attempts) select *
		from i`); got != 9 {
		t.Errorf("an insert with a retry policy has %d attempts, want 9", got)
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	statements := []string{
		"select from ojs.enqueue('a')", "select from ojs.enqueue('a', p_scheduled_at => now() + interval '1 hour')",
		`select from ojs.enqueue_many('[{"type": "a", "args": []}, {"type": "a", "args": [], "pending": true}]')`,
		"insert into ojs.jobs (type) values ('a'), ('b')",
	}
	tx := begin(t, acme)
	for _, sql := range statements {
		exec(t, tx, sql)
	}
	if got := one[int](t, tx, "select count(*) from ojs.jobs"); got != 6 {
		t.Errorf("within the transaction there are %d jobs, want 6", got)
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("before the commit others see %s", got)
	}
	rollback(t, tx)
	if got := stored(t, d); got != nothing {
		t.Errorf("after the rollback: %s", got)
	}
	// A savepoint takes back its own, and a refused job does not harm what came before it.
	tx = begin(t, acme)
	exec(t, tx, statements[0])
	exec(t, tx, "savepoint s")
	exec(t, tx, statements[3])
	exec(t, tx, "rollback to s")
	exec(t, tx, "savepoint s")
	refused(t, tx, "OJ400", "insert into ojs.jobs (type) values ('a'), ('B')")
	exec(t, tx, "rollback to s")
	commit(t, tx)
	if got := stored(t, d); got != "1 jobs, 1 wakes, 0 timers, 0 leases, 0 releases" {
		t.Errorf("after the commit: %s", got)
	}
}

// A psql session of a tenant: one simple query message, one transaction, a business table of the tenant's own.
func TestEnqueueBesideABusinessRow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "create schema shop")
	exec(t, d.Pool, "create table shop.orders (id bigint generated always as identity, total numeric)")
	exec(t, d.Pool, "grant usage on schema shop to ojs_tenant")
	exec(t, d.Pool, "grant select, insert on shop.orders to ojs_tenant")
	conn := connect(t, d.TenantURL("acme")).PgConn()
	run := func(sql string) error {
		results := conn.Exec(t.Context(), sql)
		_, err := results.ReadAll()
		return err
	}
	const work = `begin;
		insert into shop.orders (total) values (99.50);
		select id, state from ojs.enqueue('order.ship', '[1]', p_queue => 'shop');
		insert into ojs.jobs (type, args, queue) values ('order.mail', '["x"]', 'shop');`
	if err := run(work + " rollback;"); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("after the rollback: %s", got)
	}
	if err := run(work + " commit;"); err != nil {
		t.Fatal(err)
	}
	if got := jobs(t, d.Service(), "ojs.fetch('{shop}', 5)"); len(got) != 2 || got[0].Tenant != "acme" {
		t.Errorf("after the commit a worker receives %v", got)
	}
	// A job that breaks a rule takes the order with it.
	err := run(work + " insert into ojs.jobs (type) values ('Order'); commit;")
	sqlstate(t, err, "OJ400", "a bad job in the transaction")
	if err := run("rollback"); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, d.Pool, "select count(*) from shop.orders"); got != 1 {
		t.Errorf("there are %d orders, want the one that committed", got)
	}
}

func TestOwnTransactionSeesItsJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Service())
	id := one[string](t, tx, "select id::text from ojs.enqueue('a')")
	held := jobs(t, tx, "ojs.fetch('{default}')")
	if len(held) != 1 || held[0].ID != id {
		t.Fatalf("fetched %v, want the job enqueued before it in the same transaction", held)
	}
	exec(t, tx, "select from ojs.ack($1)", id)
	commit(t, tx)
	if got := jobs(t, d.Service(), "ojs.fetch('{default}', 10)"); len(got) != 0 {
		t.Errorf("it is handed out once more: %v", got)
	}
}

// Transaction ids that a snapshot does not list: those of the transaction that took it.
func TestEnqueueAfterFetchInOneTransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('before')")
	tx := begin(t, service)
	// The transaction has its number before a later one commits.
	exec(t, tx, "select pg_catalog.pg_current_xact_id()")
	exec(t, service, "select from ojs.enqueue('elsewhere')")
	held := jobs(t, tx, "ojs.fetch('{default}', 10)")
	if len(held) != 2 {
		t.Fatalf("fetched %v", held)
	}
	exec(t, tx, "select from ojs.enqueue('after')")
	exec(t, tx, `select from ojs.nack($1, '{"message": "x"}', p_requeue => true)`, held[0].ID)
	commit(t, tx)
	if got := jobs(t, service, "ojs.fetch('{default}', 10)"); len(got) != 2 {
		t.Errorf("fetched %v, want the job enqueued and the job given back after a fetch in one transaction", got)
	}
}

func TestTimesThatCountFromNow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	given := `[
		{"type": "a", "args": [], "scheduled_at": "+PT2S", "expires_at": "+P1DT1.5S"},
		{"type": "a", "args": [], "scheduled_at": "+PT0S"},
		{"type": "a", "args": [], "scheduled_at": "` + noon.Add(time.Minute).Format(time.RFC3339) + `"},
		{"type": "a", "args": []}]`
	want := []string{
		"scheduled {2000000 0 0 true} {1500000 1 0 true}",
		"available {0 0 0 true} -",
		"scheduled {60000000 0 0 true} -",
		"available - -",
	}
	for _, call := range []string{"ojs.enqueue_many($1)", "ojs.enqueue_each($1)"} {
		got := lines(t, d.Service(), `
			select state, scheduled_at - ojs.now(), expires_at - ojs.now() from `+call+` where id is not null`, given)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", call, got)
		}
	}
	for _, bad := range []string{"+", "+2", "+PT", "+P", "+PT-2S", "+-PT2S", "PT2S", "+infinity", "+PT2S ", "++PT2S", "+P99999999Y"} {
		for _, field := range []string{"scheduled_at", "expires_at"} {
			failure := refused(t, d.Service(), "OJ400 22007 22008 22015", "select ojs.enqueue_many($1)",
				`[{"type": "a", "args": [], "`+field+`": "`+bad+`"}]`)
			if got := detail(t, failure)["field"]; strings.HasPrefix(failure.Code, "OJ") && got != field {
				t.Errorf("%s %q: field %v (%s)", field, bad, got, failure.Message)
			}
		}
	}
}
