package migrate_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func migrateTo(t *testing.T, url string, direction migrate.Direction) (steps []int64) {
	t.Helper()
	var end int64
	err := migrate.Run(t.Context(), url, direction, func(_ string, done, total int64) {
		steps = append(steps, done)
		end = total
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(steps) || steps[len(steps)-1] != end {
		t.Errorf("progress went %v of %d", steps, end)
	}
	return steps
}

func status(t *testing.T, url string) (s migrate.SchemaStatus, applied int) {
	t.Helper()
	s, err := migrate.Status(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Migrations {
		if m.Applied {
			applied++
		}
	}
	return s, applied
}

// objects lists what the schema consists of, with definitions and rights.
const objects = `
	select string_agg(x, e'\n' order by x) from (
		select concat_ws(' ', 'table', c.oid::regclass, c.relkind, c.relacl, c.relrowsecurity, c.relforcerowsecurity,
			pg_get_viewdef(c.oid)) from pg_class c
			where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p', 'v', 'i', 'S')
		union all select concat_ws(' ', 'column', a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull, a.attacl) from
			pg_attribute a
			join pg_class c on c.oid = a.attrelid where c.relnamespace = 'ojs'::regnamespace and a.attnum > 0 and not a.attisdropped and
				c.relkind <> 'i'
		union all select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid)) from pg_constraint where
			connamespace = 'ojs'::regnamespace
		union all select concat_ws(' ', 'function', p.oid::regprocedure, p.proacl, pg_get_functiondef(p.oid)) from pg_proc p
			where p.pronamespace = 'ojs'::regnamespace and p.prokind <> 'a'
		union all select concat_ws(' ', 'policy', polrelid::regclass, polname, polcmd, pg_get_expr(polqual, polrelid),
			pg_get_expr(polwithcheck, polrelid)) from pg_policy
		union all select concat_ws(' ', 'trigger', tgrelid::regclass, tgname, pg_get_triggerdef(oid)) from pg_trigger where not tgisinternal
		union all select concat_ws(' ', 'privileges', defaclobjtype, defaclacl) from pg_default_acl where defaclnamespace <> 0
	) y(x)`

func TestMigrateUpDownUp(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	before, all := status(t, d.URL)
	if !before.Current || all != len(before.Migrations) || before.Hash != db.Hash() {
		t.Fatalf("the template is not current: %+v", before)
	}
	var first, second string
	if err := d.Pool.QueryRow(ctx, objects).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if got := migrateTo(t, d.URL, migrate.Up); len(got) != 1 {
		t.Errorf("up on a current schema took steps %v", got)
	}

	if got := migrateTo(t, d.URL, migrate.Down); len(got) != all+1 {
		t.Errorf("down reported %v for %d migrations", got, all)
	}
	var left bool
	if err := d.Pool.QueryRow(ctx, "select to_regnamespace('ojs') is not null").Scan(&left); err != nil || left {
		t.Fatalf("the schema is still there (%v)", err)
	}
	if s, applied := status(t, d.URL); s.Current || applied != 0 || s.Hash != "" {
		t.Errorf("after down: %+v", s)
	}
	opened := d.Open()
	err := migrate.CheckSchema(ctx, opened.Pool())
	if !errors.Is(err, migrate.ErrSchema) || !strings.Contains(err.Error(), "ojs-pg migrate up") {
		t.Errorf("an empty database: %v", err)
	}

	migrateTo(t, d.URL, migrate.Up)
	if s, applied := status(t, d.URL); !s.Current || applied != all {
		t.Errorf("after up: %+v", s)
	}
	if err := migrate.CheckSchema(ctx, opened.Pool()); err != nil {
		t.Error(err)
	}
	if err := d.Pool.QueryRow(ctx, objects).Scan(&second); err != nil {
		t.Fatal(err)
	}
	if first != second {
		a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
		for _, line := range a {
			if !slices.Contains(b, line) {
				t.Errorf("lost by down and up: %s", line)
			}
		}
		for _, line := range b {
			if !slices.Contains(a, line) {
				t.Errorf("new after down and up: %s", line)
			}
		}
	}
	if _, err := d.Service().Exec(ctx, "select ojs.enqueue('a')"); err != nil {
		t.Error(err)
	}
}

func TestForeignSchema(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	opened := d.Open()
	if _, err := d.Pool.Exec(ctx, "select ojs._set_schema_hash($1, 'another')", db.Version()); err != nil {
		t.Fatal(err)
	}
	err := migrate.CheckSchema(ctx, opened.Pool())
	if !errors.Is(err, migrate.ErrSchema) || !strings.Contains(err.Error(), "drop schema ojs cascade") {
		t.Errorf("serving another schema: %v", err)
	}
	if err := migrate.Run(ctx, d.URL, migrate.Up, nil); !errors.Is(err, migrate.ErrSchema) {
		t.Errorf("migrating another schema: %v", err)
	}
	if s, _ := status(t, d.URL); s.Current || s.Hash != "another" {
		t.Errorf("status of another schema: %+v", s)
	}
	// The advice works.
	if _, err := d.Pool.Exec(ctx, "drop schema ojs cascade"); err != nil {
		t.Fatal(err)
	}
	migrateTo(t, d.URL, migrate.Up)
	if err := migrate.CheckSchema(ctx, opened.Pool()); err != nil {
		t.Error(err)
	}
}

func TestMigratingTogether(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	migrateTo(t, d.URL, migrate.Down)
	var together sync.WaitGroup
	for range 3 {
		together.Go(func() {
			if err := migrate.Run(t.Context(), d.URL, migrate.Up, nil); err != nil {
				t.Error(err)
			}
		})
	}
	together.Wait()
	if s, _ := status(t, d.URL); !s.Current {
		t.Errorf("after three at once: %+v", s)
	}
}

func TestWhoMayNotMigrate(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrate.Run(t.Context(), d.GroupURL(""), migrate.Up, nil); err == nil || !strings.Contains(err.Error(), "CREATEROLE") {
		t.Errorf("a plain role: %v", err)
	}
	nobody, err := pg.Open(t.Context(), pg.Config{URL: d.GroupURL("")})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	err = migrate.CheckSchema(t.Context(), nobody.Pool())
	role, is := errors.AsType[*migrate.RoleError](err)
	if !is || len(role.Groups) > 0 || !strings.Contains(err.Error(), "member of ojs_service") {
		t.Errorf("serving as a plain role: %v", err)
	}
}

// On managed servers nobody is a superuser. The role here stands where it would after creating
// the groups itself: it administers them, and is no member.
func TestMigrateWithoutSuperuser(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	migrateTo(t, d.URL, migrate.Down)
	var version int
	if err := d.Pool.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	admin := "with admin option"
	if version >= 160000 {
		admin = "with admin true, inherit false, set false"
	}
	owner := pgx.Identifier{d.RoleName("owner")}.Sanitize()
	url := d.LoginURL("owner", "createrole")
	for _, sql := range []string{
		"alter database " + d.Name + " owner to " + owner,
		"grant ojs_owner, ojs_service, ojs_operator, ojs_tenant to " + owner + " " + admin,
	} {
		if _, err := d.Pool.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	migrateTo(t, url, migrate.Up)
	if s, _ := status(t, url); !s.Current {
		t.Errorf("after up: %+v", s)
	}
	if err := setup.CreateServerRole(ctx, url, d.RoleName("another"), "secret"); err != nil {
		t.Error(err)
	}
	if err := migrate.CheckSchema(ctx, d.Open().Pool()); err != nil {
		t.Error(err)
	}
	if _, err := d.Service().Exec(ctx, "select ojs.enqueue('a')"); err != nil {
		t.Error(err)
	}
	migrateTo(t, url, migrate.Down)
}

// Who may not migrate leaves nothing behind.
func TestARefusedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	migrateTo(t, d.URL, migrate.Down)
	url := d.LoginURL("owner", "nocreaterole")
	pgtest.Exec(t, d.Pool, "alter database "+d.Name+" owner to "+pgx.Identifier{d.RoleName("owner")}.Sanitize())
	if err := migrate.Run(t.Context(), url, migrate.Up, nil); err == nil || !strings.Contains(err.Error(), "CREATEROLE") {
		t.Errorf("without CREATEROLE: %v", err)
	}
	if left := pgtest.List[string](t, d.Pool, `
		select oid::regclass::text from pg_class where relnamespace = 'public'::regnamespace
		union all select nspname::text from pg_namespace where nspname = 'ojs'`); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// A migration that waits for a lock gives way again and again, so that enqueues go on while a
// transaction has the table open.
func TestMigrateWaitsInTurns(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from ojs.job"); err != nil {
		t.Fatal(err)
	}
	later := pgtest.Later(t, map[string]string{"migrations/90001_note.sql": "-- +goose Up\nalter table ojs.job add column note text;\n"})
	done := make(chan error, 1)
	go func() { done <- migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil) }()
	refusals := func() (n int) {
		t.Helper()
		const sql = "select xact_rollback from pg_stat_database where datname = current_database()"
		if err := d.Pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := refusals()
	pgtest.Eventually(t, "it gives way three times", func() bool {
		pgtest.Exec(t, d.Service(), "select ojs.enqueue('a')")
		return refusals() >= before+3
	})
	select {
	case err := <-done:
		t.Fatalf("it ended before the transaction that was in its way: %v", err)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Who writes a migration is told where it fails.
func TestAMigrationThatFailsIsLocated(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const head = "-- +goose Up\nset local role ojs_owner;\n\n-- A function.\n-- +goose StatementBegin\n" +
		"create function ojs._sum() returns int\nlanguage sql\nas $$\n    select 1;\n$$;\n-- +goose StatementEnd\n\n"
	inFunction := strings.Replace(head, "select 1", "select\n1 + ojs.nothing()", 1)
	for name, c := range map[string]struct{ text, where string }{
		"in a line of a statement":  {head + "create table ojs.more (\n    größe text, -- ü\n    n nonsense\n);\n", ":15: ERROR:"},
		"somewhere in a statement":  {head + "create table\n    ojs.job (n int);\n", ":13: ERROR:"},
		"in a line of a function":   {inFunction, ":10: ERROR:"},
		"in what a statement calls": {head + "select ojs._raise('OJ400', 'no');\nreset role;\n", ":13: ERROR:"},
		"before any is sent":        {head + "select 1", ": "},
	} {
		t.Run(name, func(t *testing.T) {
			files := pgtest.Later(t, map[string]string{"migrations/90001_more.sql": c.text})
			err := migrate.RunFrom(t.Context(), files, d.URL, migrate.Up, nil)
			if err == nil || !strings.Contains(err.Error(), "90001_more.sql"+c.where) {
				t.Errorf("it says %v, want 90001_more.sql%s", err, c.where)
			}
		})
	}
}

// Down to nothing leaves nothing, not even where the migrations are remembered.
func TestDownLeavesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for range 2 { // what is not there can be taken back, too
		migrateTo(t, d.URL, migrate.Down)
		if left := pgtest.List[string](t, d.Pool, `
			select oid::regclass::text from pg_class where relnamespace = 'public'::regnamespace
			union all select nspname::text from pg_namespace where nspname = 'ojs'`); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	}
}

// A schema ojs that no migration made, or whose rows are lost, is not built upon.
func TestASchemaWithoutRowsIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, sql := range []string{"truncate ojs.schema_hash", "drop schema ojs cascade; create schema ojs"} {
		if _, err := d.Pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		err := migrate.Run(t.Context(), d.URL, migrate.Up, nil)
		if !errors.Is(err, migrate.ErrSchema) || !strings.Contains(err.Error(), "drop schema ojs cascade") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// What a database lacks that a restore has left out is made again; what an operator has taken from
// a group on purpose stays taken.
func TestMigratePutsRight(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	opened := d.Open()
	for name, c := range map[string]struct{ sql, lacks string }{
		"the schema is somebody's":  {"alter schema ojs owner to " + pgx.Identifier{d.RoleName("service")}.Sanitize(), "permission denied"},
		"a function is everybody's": {"grant execute on function ojs.rebuild() to public", "1 revocations"},
		"the server may not fetch":  {"revoke execute on all functions in schema ojs from ojs_service", " grants"},
		"a policy is missing":       {"drop policy functions on ojs.job", "1 policies"},
	} {
		pgtest.Exec(t, d.Pool, c.sql)
		err := migrate.CheckSchema(t.Context(), opened.Pool())
		if !errors.Is(err, migrate.ErrUnfit) || !strings.Contains(err.Error(), "ojs-pg migrate up") {
			t.Errorf("%s: a server says %v", name, err)
		}
		if s, _ := status(t, d.URL); !strings.Contains(s.Unfit, c.lacks) {
			t.Errorf("%s: the status is %q", name, s.Unfit)
		}
		migrateTo(t, d.URL, migrate.Up)
		if err := migrate.CheckSchema(t.Context(), opened.Pool()); err != nil {
			t.Errorf("%s: afterwards a server says %v", name, err)
		}
	}
	pgtest.Exec(t, d.Pool, "revoke execute on function ojs.enqueue_many from ojs_producer; grant select on ojs.settings to public",
		pgx.QueryExecModeSimpleProtocol)
	if err := migrate.CheckSchema(t.Context(), opened.Pool()); err != nil {
		t.Errorf("with a grant less: %v", err)
	}
	migrateTo(t, d.URL, migrate.Up)
	if pgtest.One[bool](t, d.Pool, `select bool_or(has_function_privilege('ojs_producer', oid, 'execute')) from pg_proc
		where proname = 'enqueue_many'`) {
		t.Error("what was taken from producers is given back")
	}
	if n := pgtest.One[int](t, d.Pool, "select count(*)::int from ojs.doctor() where finding like '1 grants of the migrations%'"); n != 1 {
		t.Errorf("the doctor mentions it %d times", n)
	}

	// Objects cannot be made again.
	pgtest.Exec(t, d.Pool, "drop function ojs.rebuild()")
	if err := migrate.CheckSchema(t.Context(), opened.Pool()); !errors.Is(err, migrate.ErrUnfit) {
		t.Errorf("with a function less: %v", err)
	}
	err := migrate.Run(t.Context(), d.URL, migrate.Up, nil)
	if err == nil || !strings.Contains(err.Error(), "ojs.rebuild()") || !strings.Contains(err.Error(), "restore the dump again") {
		t.Errorf("with a function less, migrate says %v", err)
	}
}

// Who migrates without the right to put anything right is told who may.
func TestWhoMayNotPutRight(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pgtest.Exec(t, d.Pool, "drop policy functions on ojs.job")
	url := d.LoginURL("weak", "in role ojs_owner nocreaterole")
	if err := migrate.Run(t.Context(), url, migrate.Up, nil); err == nil || !strings.Contains(err.Error(), "as a superuser") {
		t.Errorf("it says %v", err)
	}
}
