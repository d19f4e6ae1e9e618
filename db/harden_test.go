package db_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// scripts/harden.sql takes from a tenant's login what one login can use against all others. What ojs-pg
// itself does goes on: jobs, migrations, and the advisory lock of a migration by the owner of the database.
func TestHardenedDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	text, err := os.ReadFile("../scripts/harden.sql")
	if err != nil {
		t.Fatal(err)
	}
	owner := d.LoginURL("owner", "createrole")
	exec(t, d.Pool, "do $$ begin execute format('alter database %I owner to %I', current_database(), '"+d.RoleName("owner")+"'); end $$")
	tenant := connect(t, d.TenantURL("acme"))
	takes := []string{
		"select count(pg_advisory_lock(i)) from generate_series(1, 5) i", "select pg_try_advisory_xact_lock_shared(1, 2)",
		"select lo_from_bytea(0, 'x')", "select pg_logical_emit_message(false, 'a', 'b')", "create temporary table t (a int)",
	}
	for _, sql := range takes {
		if sql != takes[2] { // a large object would keep the role from being dropped
			exec(t, tenant, sql)
		}
	}
	exec(t, tenant, "select pg_advisory_unlock_all()")

	super := connect(t, d.URL)
	for range 2 {
		results, err := super.PgConn().Exec(t.Context(), string(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		said := results[len(results)-2].Rows
		if len(said) != 5 {
			t.Errorf("it shows %d rows", len(said))
		}
		for _, row := range said {
			if !bytes.Equal(row[1], []byte("closed")) {
				t.Errorf("it shows %s", row)
			}
		}
	}
	for _, sql := range append(takes, "create table public.t (a int)") {
		refused(t, tenant, "42501", sql)
	}

	exec(t, tenant, "select ojs.enqueue('a')")
	service := d.Service()
	held := oneJob(t, service, "ojs.fetch('{default}')")
	exec(t, service, "select ojs.ack($1)", held.ID)
	exec(t, service, "select ojs.tick()")
	exec(t, service, "select ojs.upkeep()")
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', 2)")
	if err := migrate.Run(t.Context(), d.URL, migrate.Up, nil); err != nil {
		t.Errorf("migrate up: %v", err)
	}
	exec(t, connect(t, owner), "select pg_try_advisory_lock(1), pg_advisory_unlock(1)")
	refused(t, connect(t, owner), "P0001", string(text), pgx.QueryExecModeSimpleProtocol)
}

// It stands at the top of the script what it takes, and from whom.
func TestTheScriptSaysWhatItTakes(t *testing.T) {
	text, err := os.ReadFile("../scripts/harden.sql")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "\ndo $$")
	for _, want := range []string{
		"READ THIS FIRST", "ojs-pg's own", "pg_advisory_*", "lo_*", "pg_logical_emit_message", "TEMP",
		"CREATE on schema public",
	} {
		if !strings.Contains(head, want) {
			t.Errorf("its head lacks %q", want)
		}
	}
}
