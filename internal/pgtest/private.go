package pgtest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/setup"
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
	p := NewEmpty(t, settings)
	for _, err := range []error{
		migrate.Run(t.Context(), p.URL, migrate.Up, nil),
		setup.CreateServerRole(t.Context(), p.URL, PrivateRole, PrivatePassword),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// NewEmpty starts a server with one empty database: a cluster in which our roles have never been.
func NewEmpty(t testing.TB, settings map[string]string) *Private {
	t.Helper()
	p := stopped(t, embedpg.Options{BinDir: binDir(), Settings: settings})
	p.Start()
	if err := setup.CreateDatabase(t.Context(), p.server.URL("postgres"), privateDatabase); err != nil {
		t.Fatal(err)
	}
	return p
}

// PrivateRole is the server's login to a Private, for which NewEmpty has no role yet.
const PrivateRole, PrivatePassword = "ojs_server", "secret"

const privateDatabase = "ojs"

// stopped is a server without data, which has not been started yet.
func stopped(t testing.TB, options embedpg.Options) *Private {
	t.Helper()
	dir, err := os.MkdirTemp("", "ojs-private-")
	if err != nil {
		t.Fatal(err)
	}
	options.DataDir, options.Port = dir, 0
	p := &Private{t: t, options: options}
	t.Cleanup(func() {
		p.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Start starts it, again where it was; it returns when connections are accepted.
func (p *Private) Start() {
	p.t.Helper()
	var err error
	if p.server, err = embedpg.Start(p.t.Context(), p.options); err != nil {
		p.t.Fatal(err)
	}
	p.options.Port = p.server.Port
	p.URL, p.ServiceURL = p.server.URL(privateDatabase), p.server.URLFor(PrivateRole, PrivatePassword, privateDatabase)
}

// Backup takes a base backup of the server, which runs and goes on, by pg_basebackup. It returns a server that has that data, to be
// started.
func (p *Private) Backup() *Private {
	p.t.Helper()
	const cluster = "pgdata"
	to := stopped(p.t, p.options)
	from, into := p.options.DataDir, to.options.DataDir
	command := exec.CommandContext(p.t.Context(), filepath.Join(p.server.Binaries.Dir, "pg_basebackup"),
		"-D", filepath.Join(into, cluster), "-X", "stream", "--checkpoint=fast", "-d", p.server.URL("postgres"))
	if out, err := command.CombinedOutput(); err != nil {
		p.t.Fatalf("%q: %v\n%s", command.Args, err, out)
	}
	// What else embedpg keeps beside the data: the password, and the file that tells whose directory it is.
	for _, name := range []string{"password", "ojs-pg.lock"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(into, name), content, 0o600)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	// PostgreSQL starts on no data but its own, and is another user where we are root.
	info, err := os.Stat(filepath.Join(from, cluster))
	if err != nil {
		p.t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	err = filepath.WalkDir(filepath.Join(into, cluster), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return to
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
