package pgtest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func one[T any](t *testing.T, url, sql string, args ...any) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func TestEveryTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	first, second := pgtest.New(t), pgtest.New(t)
	if _, err := first.Pool.Exec(t.Context(), "create table public.mine ()"); err != nil {
		t.Fatal(err)
	}
	if one[bool](t, second.URL, "select to_regclass('public.mine') is not null") {
		t.Error("a table of one test is seen by another")
	}
	if got := one[string](t, first.URL, "show search_path"); got != `""` {
		t.Errorf("search_path is %s, want it empty", got)
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const groups = `
		select coalesce(string_agg(g, ' ' order by g), '') || case when rolsuper or rolbypassrls then ' superuser' else '' end
		from pg_catalog.pg_roles r
		left join unnest('{ojs_operator,ojs_owner,ojs_producer,ojs_service,ojs_tenant,ojs_worker}'::name[]) g
			on pg_catalog.pg_has_role(r.oid, g, 'member')
		where r.rolname = session_user group by r.rolsuper, r.rolbypassrls`
	for url, want := range map[string]string{
		d.ServiceURL:        "ojs_service",
		d.OperatorURL():     "ojs_operator",
		d.TenantURL("acme"): "ojs_tenant",
		d.GroupURL(""):      "",
	} {
		if got := one[string](t, url, groups); got != want {
			t.Errorf("a login is a member of %q, want %q", got, want)
		}
	}
	acme, again, globex := d.TenantURL("acme"), d.TenantURL("acme"), d.TenantURL("globex")
	if acme != again || acme == globex {
		t.Error("a tenant does not have one login role of its own")
	}
	var tenant string
	if err := d.As("globex").QueryRow(t.Context(), "select ojs.current_tenant()").Scan(&tenant); err != nil || tenant != "globex" {
		t.Errorf("the login role of globex is %q's (%v)", tenant, err)
	}
	if got := one[string](t, d.ServiceURL, "select (ojs.enqueue('a', p_tenant => 'acme')).tenant_id"); got != "acme" {
		t.Errorf("the service enqueued for %q", got)
	}
}

func TestDatabasesAndRolesGoWithTheTest(t *testing.T) {
	t.Parallel()
	outer := pgtest.New(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		d := pgtest.New(t)
		name = d.Name
		d.TenantURL("acme")
		d.OperatorURL()
		// Even a session that is still open does not keep them.
		if _, err := pgx.Connect(context.Background(), d.URL); err != nil {
			t.Fatal(err)
		}
	})
	left := one[string](t, outer.URL, `
		select coalesce(string_agg(n, ' '), '') from (
			select datname from pg_catalog.pg_database union all select rolname from pg_catalog.pg_roles) x(n)
		where n like '%' || $1`, name)
	if left != "" {
		t.Errorf("left behind: %s", left)
	}
}

func TestSetNow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	d.SetNow(at)
	if got := one[time.Time](t, d.ServiceURL, "select (ojs.enqueue('a')).created_at"); !got.Equal(at) {
		t.Errorf("a job was created at %s, want %s", got, at)
	}
	d.SetNow(time.Time{})
	if got := one[time.Time](t, d.ServiceURL, "select ojs.now()"); time.Since(got).Abs() > time.Hour {
		t.Errorf("the clock says %s", got)
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	first, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), "update ojs.settings set tenant_required = false"); err != nil {
		t.Fatal(err)
	}
	second, err := d.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		defer second.Release()
		_, err := second.Exec(t.Context(), "update ojs.settings set tenant_required = true")
		done <- err
	}()
	d.Blocked(second.Conn().PgConn().PID())
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		pgtest.New(b)
	}
}
