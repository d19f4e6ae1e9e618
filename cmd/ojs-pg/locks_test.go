package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// While one idle login holds as many locks as PostgreSQL's lock table has room for, the doctor and
// the connections of a server that runs name the session. When it ends, everything works.
func TestALoginThatFillsTheLockTableIsNamed(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"max_locks_per_transaction": "64", "max_connections": "30"})
	p.Exec("select ojs.create_tenant_role('evil', 'evil_app', 'pe')")
	super, server, evil := session(t, p.URL), serverOf(t, p.ServiceURL), session(t, as(t, p.URL, "evil_app", "pe"))
	if short, err := server.Shortage(t.Context()); err != nil || short != (pg.Shortage{}) {
		t.Errorf("before, it says %+v: %v", short, err)
	}
	for from := 0; from < 5; from++ {
		_, err := evil.Exec(t.Context(), "select pg_advisory_lock($1::int, i) from generate_series(1, 20000) i", from)
		if err == nil {
			t.Fatal("the lock table has room for 20,000 locks")
		}
	}
	holder := fmt.Sprintf("process %d", evil.PgConn().PID())
	if _, err := server.Pool().Exec(t.Context(), "select ojs.enqueue('a', p_tenant => 'good')"); err == nil {
		t.Error("an enqueue has found room for its locks")
	}
	short, err := server.Shortage(t.Context())
	if err != nil || !strings.Contains(short.What, "lock table is nearly full") || !strings.HasPrefix(short.Holders, holder+": ") {
		t.Errorf("the server finds %+v: %v", short, err)
	}
	rows, err := super.Query(t.Context(), "select finding from ojs.doctor() where runbook = 'locks-or-notify-full.md'")
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if text := strings.Join(found, "\n"); err != nil || !strings.Contains(text, "Most locks are held by "+holder) ||
		!strings.Contains(text, "evil_app") && !strings.Contains(text, "with oid") {
		t.Errorf("the doctor finds %s: %v", text, err)
	}
	doctor := func(want int) string {
		var stdout, stderr bytes.Buffer
		if got := run([]string{"ojs-pg", "doctor", "--database-url", p.URL}, &stdout, &stderr); got != want {
			t.Errorf("it ends with %d: %s%s", got, &stdout, &stderr)
		}
		return stdout.String()
	}
	// It may not even be let in.
	if text := doctor(foundErrors); !strings.HasPrefix(text, "error: server: ") || !strings.Contains(text,
		"docs/runbooks/locks-or-notify-full.md") {
		t.Errorf("ojs-pg doctor says\n%s", text)
	}

	// pg_terminate_backend reads the role of the other session, which takes a lock. A signal takes none.
	if err := syscall.Kill(int(evil.PgConn().PID()), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "jobs can be enqueued again", func() bool {
		_, err := server.Pool().Exec(t.Context(), "select ojs.enqueue('a', p_tenant => 'good')")
		return err == nil
	})
	if text := doctor(foundErrors); strings.Contains(text, "error: server: ") {
		t.Errorf("afterwards, ojs-pg doctor says\n%s", text)
	}
}

func session(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// serverOf opens the database as a server does, and warms the connections up.
func serverOf(t *testing.T, address string) *pg.DB {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Config{URL: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// as returns the address with another login.
func as(t *testing.T, address, user, password string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
