package setup_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestCreateServerRole(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	role := d.RoleName("server's")
	for _, password := range []string{"first", `it's "second"`} {
		if err := setup.CreateServerRole(t.Context(), d.URL, role, password); err != nil {
			t.Fatal(err)
		}
	}
	var plain bool
	err := d.Pool.QueryRow(t.Context(), `
		select rolcanlogin and not (rolsuper or rolcreaterole or rolcreatedb or rolbypassrls) and pg_has_role(oid, 'ojs_service', 'member')
		from pg_roles where rolname = $1`, role).Scan(&plain)
	if err != nil || !plain {
		t.Errorf("the server's role is not what it should be (%v)", err)
	}
	// Where the server of the tests asks for passwords, as one of our own does, only the right
	// verifier lets it in.
	address, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(role, `it's "second"`)
	conn, err := pgx.Connect(t.Context(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
	if stored := pgtest.One[string](t, d.Pool, "select rolpassword from pg_authid where rolname = $1", role); !strings.HasPrefix(stored,
		"SCRAM-SHA-256$4096:") {
		t.Errorf("the password is stored as %s", stored)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	use := func() {
		t.Helper()
		if _, err := d.Service().Exec(ctx, `
			select ojs.configure(p_tenant_required => true);
			select ojs.enqueue('a', p_tenant => t) from unnest(array['acme', 'globex']) t`, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		var fetched int
		if err := d.Service().QueryRow(ctx, "select count(*) from ojs.fetch(array['default'], 10)").Scan(&fetched); err != nil ||
			fetched != 2 {
			t.Fatalf("fetched %d of 2 jobs (%v)", fetched, err)
		}
	}
	if _, err := d.Pool.Exec(ctx, "grant ojs_operator to "+pgx.Identifier{d.RoleName("service")}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("pool_max_conns", "3") // a server's URL
	address.RawQuery = query.Encode()
	for range 2 {
		use()
		if err := setup.Reset(ctx, address.String()); err != nil {
			t.Fatal(err)
		}
		var left int
		if err := d.Pool.QueryRow(ctx, "select (select count(*) from ojs.job) + (select count(*) from ojs.tenant_stats) + (select "+
			"count(*) from ojs.settings where tenant_required)").Scan(&left); err != nil || left != 0 {
			t.Fatalf("%d rows are left (%v)", left, err)
		}
	}
	if err := migrate.CheckSchema(ctx, d.Open().Pool()); err != nil {
		t.Error(err)
	}
}

// A reset gives way to work: it takes its locks in an order of its own, and no work may fail
// because of it.
func TestResetGivesWay(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	tx, err := d.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, "lock table ojs.journal in row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- setup.Reset(context.WithoutCancel(ctx), d.URL) }()
	// It holds tables that come before ojs.journal, and waits for that.
	d.Eventually("the reset waits", `
		select exists (select from pg_catalog.pg_locks where relation = 'ojs.journal'::pg_catalog.regclass and not granted)`)
	if _, err := tx.Exec(ctx, "lock table ojs.job in row exclusive mode"); err != nil {
		t.Errorf("somebody at work lost to a reset: %v", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
