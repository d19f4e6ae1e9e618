package db_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The view takes what a table would: rows from anywhere, what was asked back, and the count of them.
func TestInsertIntoTheView(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, who := range []struct {
		name string
		q    *pgxpool.Pool
	}{{"a tenant", d.As("acme")}, {"the service", d.Service()}, {"an operator", d.Operator()}} {
		count := func() int { return one[int](t, d.Pool, "select count(*) from ojs.job") }
		for _, c := range []struct {
			sql  string
			jobs int
		}{
			{"insert into ojs.jobs (type) values ('a')", 1},
			{"insert into ojs.jobs (type, queue, args) values ('a', 'q', '[1]'), ('b', default, '[2]'), ('c', 'r', default)", 3},
			{`insert into ojs.jobs (type, args) select 'a', to_json(array[i]) from generate_series(1, 5) i
				returning id, state, queue, args`, 5},
			{"with made as (insert into ojs.jobs (type) values ('a'), ('b') returning *) select id, tenant_id, created_at from made", 2},
			{"insert into ojs.jobs as j (type, priority) values ('a', 5) returning j.priority + 1", 1},
			{"insert into ojs.jobs (type, scheduled_at, tags) values ('a', now() + interval '1 hour', '{x}') returning state", 1},
		} {
			before := count()
			if got := exec(t, who.q, c.sql); got != int64(c.jobs) || count()-before != c.jobs {
				t.Errorf("%s, %s: %d jobs are said to be inserted and %d are", who.name, c.sql, got, count()-before)
			}
		}
		// An expression that is given runs once for each row.
		tx := begin(t, who.q)
		exec(t, tx, "create temp sequence given")
		exec(t, tx, `
			insert into ojs.jobs (type, args, priority)
			select 'a', to_json(array[nextval('given')]), i from generate_series(1, 3) i`)
		exec(t, tx, `
			insert into ojs.jobs (type, args, meta)
			values ('a', to_json(array[nextval('given')]), jsonb_build_object('n', nextval('given')))`)
		if got := one[int](t, tx, "select last_value from given"); got != 5 {
			t.Errorf("%s: expressions for five values ran %d times", who.name, got)
		}
		exec(t, tx, "prepare mine as insert into ojs.jobs (type, queue) values ($1, $2) returning queue")
		if got := one[string](t, tx, "execute mine ('a', 'prepared')"); got != "prepared" {
			t.Errorf("%s: a prepared insert returns %s", who.name, got)
		}
		// A tenant reads jobs that it has just inserted, before its commit.
		if got := one[int](t, tx, "select count(*) from ojs.jobs where queue = 'prepared'"); got != 1 {
			t.Errorf("%s reads %d of its own jobs before it commits", who.name, got)
		}
		rollback(t, tx)
		refused(t, who.q, "OJ400", "insert into ojs.jobs (type, queue) values ('a', repeat('q', 5000))")
		refused(t, who.q, "42501", "insert into ojs.job (type) values ('a')")
	}
	// A default that the table has and the rule lacks would make an insert through the view fail; one that differs would make it another.
	rule := one[string](t, d.Pool, "select pg_catalog.pg_get_ruledef(oid) from pg_catalog.pg_rewrite where rulename = 'jobs_insert'")
	for _, value := range list[string](t, d.Pool, `
		select 'COALESCE(new.' || a.attname || ', ' || pg_catalog.pg_get_expr(f.adbin, f.adrelid) || ')' from pg_catalog.pg_attribute a
		join pg_catalog.pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
		where a.attrelid = 'ojs.job'::pg_catalog.regclass and exists (select from pg_catalog.pg_attribute v
			where v.attrelid = 'ojs.jobs'::pg_catalog.regclass
			and v.attname = a.attname and v.attname <> all ('{state,attempt,max_attempts,created_at,enqueued_at}'))`) {
		if !strings.Contains(rule, value) {
			t.Errorf("the rule lacks %s: %s", value, rule)
		}
	}
}

// A column that no producer sets is refused by its name, with what to do instead, and may be null.
func TestColumnsThatNobodySets(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tenant := d.As("acme")
	stored := strings.Split(one[string](t, d.Pool, `
		select substring(pg_catalog.pg_get_ruledef(oid) from 'INSERT INTO ojs.job AS j \((.*?)\)') from pg_catalog.pg_rewrite
		where rulename = 'jobs_insert'`), ", ")
	for _, column := range list[string](t, d.Pool, `
		select attname::text from pg_catalog.pg_attribute where attrelid = 'ojs.jobs'::regclass and attname <> all ('{type,tenant_id}')
		order by attnum`) {
		exec(t, tenant, "insert into ojs.jobs (type, "+column+") values ('a', null)")
		if slices.Contains(stored, column) {
			continue
		}
		value := one[string](t, d.Pool, `
			select case when t = 'timestamptz'::regtype then now()::text when t = 'ojs.job_state'::regtype then 'active' else '3' end
			from (select atttypid as t from pg_catalog.pg_attribute where attrelid = 'ojs.jobs'::regclass and attname = $1) a`, column)
		err := refused(t, tenant, "OJ400", "insert into ojs.jobs (type, "+column+") values ('a', '"+value+"')")
		if !strings.HasPrefix(err.Message, column+" cannot") || err.Hint == "" || !strings.Contains(err.Detail, `"field": "`+column+`"`) {
			t.Errorf("%s: %s (%s; %s)", column, err.Message, err.Detail, err.Hint)
		}
	}
}

// COPY enqueues as inserts do.
func TestJobsAreCopied(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	job := pgx.Identifier{"ojs", "jobs"}
	rows := [][]any{{"a", json.RawMessage("[1]"), 5}, {"b", nil, nil}}
	columns := []string{"type", "args", "priority"}
	if n, err := d.As("acme").CopyFrom(t.Context(), job, columns, pgx.CopyFromRows(rows)); n != 2 || err != nil {
		t.Errorf("a tenant copies %d jobs: %v", n, err)
	}
	for i := range rows {
		rows[i] = append(rows[i], "globex")
	}
	if n, err := d.Service().CopyFrom(t.Context(), job, append(columns, "tenant_id"), pgx.CopyFromRows(rows)); n != 2 || err != nil {
		t.Errorf("the service copies %d jobs: %v", n, err)
	}
	want := []string{
		"acme a 5 [1] available", "acme b 0 [] available", "globex a 5 [1] available", "globex b 0 [] available",
	}
	const all = "select tenant_id, type, priority, args::text, state::text from ojs.job order by tenant_id, type"
	if got := lines(t, d.Pool, all); !slices.Equal(got, want) {
		t.Errorf("the jobs are %q", got)
	}
	if got := handedOut(t, d.Service(), "{default}", 9); got != "acme 2, globex 2" {
		t.Errorf("handed out: %s", got)
	}
	for column, value := range map[string]any{"state": "active", "queue": "Q", "meta": json.RawMessage(`{"tenant_id": "globex"}`)} {
		_, err := d.As("acme").CopyFrom(t.Context(), job, []string{"type", column}, pgx.CopyFromRows([][]any{{"a", value}}))
		sqlstate(t, err, "OJ400 OJ405", column)
	}
	_, err := d.As("acme").CopyFrom(t.Context(), job, []string{"type", "tenant_id"}, pgx.CopyFromRows([][]any{{"a", "acme"}}))
	sqlstate(t, err, "42501", "tenant_id")
}

// ORMs and mappers write null into all columns that the program does not set.
func TestNullsInAnInsertAreDefaults(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const shape = `select tenant_id, queue, priority, state::text, args::text, meta::text, max_attempts, id is not null, seq is not null
		from ojs.job order by tenant_id, priority`
	exec(t, d.Service(), `
		insert into ojs.jobs (tenant_id, id, type, queue, priority, args, meta, scheduled_at, expires_at, timeout_ms,
			visibility_timeout_ms, tags, retry, options, extra)
		values (null, null, 'a', null, null, null, null, null, null, null, null, null, null, null, null),
			('globex', null, 'a', 'q', 1, '[1]', null, null, null, null, null, null, null, null, null)`)
	exec(t, d.As("acme"), "insert into ojs.jobs (id, type, queue, priority, args, meta) values (null, 'a', null, null, null, null)")
	want := []string{
		"_default default 0 available [] {} 3 true true", "acme default 0 available [] {} 3 true true",
		"globex q 1 available [1] {} 3 true true",
	}
	if got := lines(t, d.Pool, shape); !slices.Equal(got, want) {
		t.Errorf("the jobs are %q, want %q", got, want)
	}
	for _, insert := range []string{
		"insert into ojs.jobs (type) values (null)", "insert into ojs.jobs (args) values ('[]')", "insert into ojs.jobs default values",
		"insert into ojs.jobs (type) select nullif(n, 2)::text from generate_series(2, 2) n", "insert into ojs.jobs (type) values ('')",
		"select ojs.enqueue('')", `select ojs.enqueue_many('[{"type": "", "args": []}]')`,
	} {
		for role, pool := range map[string]*pgxpool.Pool{"the service": d.Service(), "a tenant": d.As("acme")} {
			got := refused(t, pool, "OJ400", insert)
			want := "type is required"
			if strings.Contains(insert, "enqueue_many") {
				want = "jobs[0]: " + want
			}
			if got.Message != want || !strings.Contains(got.Detail, `"field": "type"`) {
				t.Errorf("%s as %s: %s, %s", insert, role, got.Message, got.Detail)
			}
		}
	}
}

// A job without arguments need not say so, whichever way it comes.
func TestArgsMayBeLeftOut(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, sql := range []string{
		"select ojs.enqueue('a')", `select ojs.enqueue_many('[{"type": "a"}]')`, `select ojs.enqueue_many('[{"type": "a", "args": null}]')`,
		`select ojs.enqueue_each('[{"type": "a"}]')`, `select ojs.enqueue_once('k', '[{"type": "a"}]')`,
		"insert into ojs.jobs (type) values ('a')", "select ojs.put_cron('n', '@daily', 'a')",
	} {
		exec(t, d.Service(), sql)
	}
	if got := lines(t, d.Pool, "select args::text, count(*) from ojs.job group by 1"); !slices.Equal(got, []string{"[] 6"}) {
		t.Errorf("the arguments of jobs are %v", got)
	}
}
