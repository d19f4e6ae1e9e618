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

// Private is a PostgreSQL server that belongs to one test, which may stop or kill it. Unlike the shared
// server it syncs its data, because such tests are about data that survives.
type Private struct {
	// URL logs in as a superuser, ServiceURL as the server does. Both stay the same after a restart.
	URL, ServiceURL string

	t       testing.TB
	options embedpg.Options
	server  *embedpg.Server // nil while it is stopped
}

// NewPrivate starts a server with one migrated database and the server's role. settings are
// PostgreSQL settings. The end of the test stops the server and removes its data.
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

// NewEmpty starts a server with one empty database, in a cluster that has never had our roles.
func NewEmpty(t testing.TB, settings map[string]string) *Private {
	t.Helper()
	p := stopped(t, embedpg.Options{BinDir: binDir(), Settings: settings})
	p.Start()
	if err := setup.CreateDatabase(t.Context(), p.server.URL("postgres"), privateDatabase); err != nil {
		t.Fatal(err)
	}
	return p
}

// PrivateRole and PrivatePassword are the login in ServiceURL. NewEmpty does not make this role.
const PrivateRole, PrivatePassword = "ojs_server", "secret"

const (
	privateDatabase = "ojs"
	cluster         = "pgdata" // the directory of the data, in that of embedpg
)

// stopped returns a server without data that has not been started.
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

// Start starts the server, on the same port as before, and returns when it accepts connections.
func (p *Private) Start() {
	p.t.Helper()
	var err error
	if p.server, err = embedpg.Start(p.t.Context(), p.options); err != nil {
		p.t.Fatal(err)
	}
	p.options.Port = p.server.Port
	p.URL, p.ServiceURL = p.server.URL(privateDatabase), p.server.URLFor(PrivateRole, PrivatePassword, privateDatabase)
}

// Backup takes a base backup of the running server with pg_basebackup. It returns another server with
// the data of the backup, which the caller starts.
func (p *Private) Backup() *Private {
	p.t.Helper()
	to := stopped(p.t, p.options)
	from, into := p.options.DataDir, to.options.DataDir
	command := exec.CommandContext(p.t.Context(), filepath.Join(p.server.Binaries.Dir, "pg_basebackup"),
		"-D", filepath.Join(into, cluster), "-X", "stream", "--checkpoint=fast", "-d", p.server.URL("postgres"))
	if out, err := command.CombinedOutput(); err != nil {
		p.t.Fatalf("%q: %v\n%s", command.Args, err, out)
	}
	// embedpg needs two more files in its directory: the password, and the file that says that the
	// directory was made by it.
	for _, name := range []string{"password", "ojs-pg.lock"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(into, name), content, 0o600)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	// PostgreSQL refuses a data directory of another user, and it runs as another user if root runs the
	// test.
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

// Standby returns a server that is a standby of the running server, as of now: it accepts no writes.
// The caller starts it.
func (p *Private) Standby() *Private {
	p.t.Helper()
	to := p.Backup()
	signal := filepath.Join(to.options.DataDir, cluster, "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
	info, err := os.Stat(filepath.Dir(signal))
	if err != nil {
		p.t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(signal, int(owner.Uid), int(owner.Gid)); err != nil {
		p.t.Fatal(err)
	}
	return to
}

// Stop shuts the server down, if it runs, and ends open sessions.
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

// Kill ends the server without a checkpoint, so that the next start has to recover.
func (p *Private) Kill() {
	p.t.Helper()
	p.server.Kill()
	<-p.server.Exited()
	p.Stop()
}

// Exec runs statements as the superuser, through a connection of its own.
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
