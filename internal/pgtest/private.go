package pgtest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Private is a PostgreSQL that belongs to one test, which may stop it. Its data is synced, since that is what such tests are about.
type Private struct {
	// URL logs in as a superuser, ServiceURL as the server does; both stay the same.
	URL, ServiceURL string

	t       testing.TB
	options embedpg.Options
	server  *embedpg.Server // nil while it is stopped
}

// NewPrivate starts a server with one migrated database. settings are PostgreSQL's.
func NewPrivate(t testing.TB, settings map[string]string) *Private {
	t.Helper()
	const database, role, password = "ojs", "ojs_server", "secret"
	dir, err := os.MkdirTemp("", "ojs-private-")
	if err != nil {
		t.Fatal(err)
	}
	p := &Private{t: t, options: embedpg.Options{DataDir: dir, BinDir: binDir(), Settings: settings}}
	t.Cleanup(func() {
		p.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.Start()
	p.options.Port = p.server.Port
	p.URL, p.ServiceURL = p.server.URL(database), p.server.URLFor(role, password, database)
	for _, err := range []error{
		pg.CreateDatabase(t.Context(), p.server.URL("postgres"), database),
		pg.Migrate(t.Context(), p.URL, pg.Up, nil),
		pg.CreateServerRole(t.Context(), p.URL, role, password),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// Start starts it again, where it was; it returns when connections are accepted.
func (p *Private) Start() {
	p.t.Helper()
	var err error
	if p.server, err = embedpg.Start(p.t.Context(), p.options); err != nil {
		p.t.Fatal(err)
	}
}

// Stop stops it in good order, cutting off sessions, if it runs.
func (p *Private) Stop() {
	p.t.Helper()
	if p.server == nil {
		return
	}
	err := p.server.Stop()
	if p.server = nil; err != nil {
		p.t.Fatal(err)
	}
}

// Kill stops it at once, so that the next start has to recover.
func (p *Private) Kill() {
	p.t.Helper()
	p.server.Kill()
	<-p.server.Exited()
	p.Stop()
}

// Exec runs statements as the superuser.
func (p *Private) Exec(sql string) {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), p.URL)
	if err == nil {
		_, err = conn.Exec(p.t.Context(), sql)
		err = errors.Join(err, conn.Close(context.WithoutCancel(p.t.Context())))
	}
	if err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}
