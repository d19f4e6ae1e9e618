//go:build linux

package soak

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// Two servers of the last release serve while the database is upgraded, go on afterwards, and are
// replaced one by one. No job is lost, no two workers hold a job, and requests fail only with errors that
// say that they may be repeated.
func TestAnUpgradeFromTheLastRelease(t *testing.T) {
	duration := 12 * time.Second
	old := buildRelease(t)
	binary := build(t)
	server := pgtest.NewEmpty(t, nil)
	migrateUp(t, old, server.URL)
	if err := setup.CreateServerRole(t.Context(), server.URL, pgtest.PrivateRole, pgtest.PrivatePassword); err != nil {
		t.Fatal(err)
	}
	server.Exec("create table public.orders (job uuid); grant insert, select on public.orders to public")
	w := newWorld(server.ServiceURL, start(t, old, server.ServiceURL), start(t, old, server.ServiceURL))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %v", seed, duration)
	open := w.live(t, seed, duration, func() {
		before, _ := w.answers()
		began := time.Now()
		migrateUp(t, binary, server.URL)
		took := time.Since(began)
		meanwhile, _ := w.answers()
		t.Logf("longest answer %v before; the upgrade took %v, and the longest answer meanwhile %v", before, took, meanwhile)
		time.Sleep(duration / 6)
		_, worked := w.answers()
		t.Logf("servers of the last release then answered %v", worked)
		for _, path := range []string{"/ojs/v1/jobs", fetchPath, "/ojs/v1/workers/ack"} {
			if worked[path] == 0 {
				t.Errorf("after the upgrade no request to %s succeeded at a server of the last release", path)
			}
		}
		for _, s := range w.servers {
			s.replace(t, binary, server.ServiceURL)
		}
		replaced, _ := w.answers()
		t.Logf("until both servers were replaced, the longest answer took %v", replaced)
	})
	w.judge(t, open)
}

// buildRelease builds the program of the last release: the commit that added its dump.
func buildRelease(t *testing.T) string {
	t.Helper()
	dumps, err := filepath.Glob("../db/releases/*.sql.gz")
	if err != nil || len(dumps) == 0 {
		t.Fatalf("no dump of a release: %v", err)
	}
	last := slices.MaxFunc(dumps, func(a, b string) int { return db.CompareReleases(releaseOf(a), releaseOf(b)) })
	commit, err := exec.CommandContext(t.Context(), "git", "log", "-1", "--diff-filter=A", "--format=%H", "--", last).Output()
	if err != nil || len(commit) == 0 {
		t.Fatalf("the last release is built from the history of this repository, which is not here: %v", err)
	}
	source := t.TempDir()
	archive := exec.CommandContext(t.Context(), "git", "-C", "..", "archive", strings.TrimSpace(string(commit)))
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", source)
	unpack.Stdin, err = archive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{archive.Start(), unpack.Run(), archive.Wait()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(t.TempDir(), "ojs-pg")
	make := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/ojs-pg")
	make.Dir = source
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", last, err, out)
	}
	return binary
}

func releaseOf(dump string) string { return strings.TrimSuffix(filepath.Base(dump), ".sql.gz") }

func migrateUp(t *testing.T, binary, databaseURL string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "migrate", "up")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+databaseURL)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("migrate up: %v\n%s", err, out.String())
	}
}

// replace stops a server in good order and starts another program on the same port.
func (s *server) replace(t *testing.T, binary, databaseURL string) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%s ended with %v", s.url, err)
	}
	s.cmd = startAt(t, strings.TrimPrefix(s.url, "http://"), binary, databaseURL).cmd
}
