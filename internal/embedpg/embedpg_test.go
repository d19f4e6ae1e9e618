//go:build unix

package embedpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// childEnv names the environment variable that makes this test binary a program that runs a server
// until it is killed.
const childEnv = "OJS_EMBEDPG_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv("OJS_TEST_PG_BIN"); dir != "" {
		_ = os.Setenv(BinEnv, dir)
	}
	if dir := os.Getenv(childEnv); dir != "" {
		s, err := Start(context.Background(), Options{DataDir: dir})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.PID(), s.URL("postgres"))
		select {}
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{DataDir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func query[T any](t *testing.T, url, sql string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStartStopAndStartAgain(t *testing.T) {
	t.Parallel()
	// A temporary directory of root is one that the server's user cannot walk to.
	dir := filepath.Join(t.TempDir(), "a b", "data")
	s := start(t, dir)
	url := s.URL("postgres")
	for setting, want := range map[string]string{
		"server_encoding": "UTF8", "listen_addresses": "127.0.0.1", "data_checksums": "on",
		"unix_socket_directories": "", "password_encryption": "scram-sha-256",
	} {
		if got := query[string](t, url, "show "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	got := query[string](t, url, "select current_user || rolsuper::text from pg_roles where rolname = current_user")
	if got != Superuser+"true" {
		t.Errorf("the superuser is %q", got)
	}
	if _, err := pgx.Connect(t.Context(), s.URLFor(Superuser, "wrong", "postgres")); err == nil {
		t.Error("a wrong password is accepted")
	}
	if info, err := os.Stat(filepath.Join(dir, passwordName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the password file has mode %v (%v), want 0600", info.Mode(), err)
	}
	execute(t, url, "create table kept (value int)", "insert into kept values (42)")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if servesCluster(s.PID(), filepath.Join(dir, clusterName)) {
		t.Error("the server is still there after Stop")
	}
	if err := s.Stop(); err != nil {
		t.Errorf("a second Stop: %v", err)
	}

	again := start(t, dir)
	if again.URL("postgres") != url {
		t.Errorf("the address changed from %s to %s", url, again.URL("postgres"))
	}
	if got := query[int](t, url, "select value from kept"); got != 42 {
		t.Errorf("read %d after a restart, want 42", got)
	}
}

func TestTwoAtOnceOnOneDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	_, err := Start(t.Context(), Options{DataDir: dir})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("the second start answers %v, want an error that names this process", err)
	}
	if got := query[int](t, first.URL("postgres"), "select 1"); got != 1 {
		t.Error("the first server suffered")
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
}

func TestKilledProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), childEnv+"="+dir)
	program.Stderr = os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	rawPID, url, _ := strings.Cut(strings.TrimSpace(line), " ")
	pid, err := strconv.Atoi(rawPID)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, url, "create table kept (value int)", "insert into kept values (42)")

	// A session with an open transaction must not keep the old server alive.
	busy, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close(context.Background())
	if _, err := busy.Exec(t.Context(), "begin; insert into kept values (43)"); err != nil {
		t.Fatal(err)
	}
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Not reaped yet, so the kernel may still hold the lock for a moment.
	_ = program.Wait()

	s := start(t, dir)
	if servesCluster(pid, filepath.Join(dir, clusterName)) {
		t.Errorf("the server of the killed program (process %d) is still there", pid)
	}
	if got := query[int](t, s.URL("postgres"), "select sum(value)::int from kept"); got != 42 {
		t.Errorf("read %d after the crash, want the committed 42", got)
	}
}

// A server that a program without the lock has started in our directory is stopped; otherwise no
// start would succeed.
func TestLeftoverServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	execute(t, s.URL("postgres"), "create table kept (value int)", "insert into kept values (42)")
	// As if the program were gone: the lock is free, the server runs.
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	next := start(t, dir)
	select {
	case <-s.Exited():
	default:
		t.Error("the leftover server is still there")
	}
	if got := query[int](t, next.URL("postgres"), "select value from kept"); got != 42 {
		t.Errorf("read %d, want 42", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	oldCluster := t.TempDir()
	for name, content := range map[string]string{lockName: "", passwordName: "x", clusterName + "/PG_VERSION": "9\n"} {
		path := filepath.Join(oldCluster, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Find("")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		opts Options
		want string
	}{
		"a directory with other people's files is not touched": {
			Options{DataDir: foreign}, "was not made by ojs-pg",
		},
		"a directory without programs is named": {
			Options{DataDir: t.TempDir(), BinDir: foreign}, "is not a directory of PostgreSQL's server programs",
		},
		"another version's data is not opened": {
			Options{DataDir: oldCluster, BinDir: found[0].Dir}, "was made by PostgreSQL 9",
		},
		"a bad setting is explained by the server's own words": {
			Options{DataDir: t.TempDir(), Throwaway: true, Settings: map[string]string{"work_mem": "a lot"}},
			`invalid value for parameter "work_mem"`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Start(t.Context(), c.opts)
			if err == nil {
				_ = s.Stop()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
	if entries, _ := os.ReadDir(foreign); len(entries) != 1 {
		t.Errorf("the foreign directory now holds %v", entries)
	}
}

// An interrupted first start leaves a lock, a password and half a cluster under its temporary name.
func TestInterruptedFirstStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{lockName, passwordName} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, clusterName+".new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir)
	if got := query[int](t, s.URL("postgres"), "select 1"); got != 1 {
		t.Error("it does not answer")
	}
}

// Root may start a server on the directory of an ordinary user. That user can start it later.
func TestRootKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		start(t, dir)
		if uid, _, err := ownerOf(filepath.Join(dir, clusterName)); err != nil || uid != os.Getuid() {
			t.Errorf("the cluster belongs to uid %d (%v), want %d", uid, err, os.Getuid())
		}
		return
	}
	account, err := user.Lookup("daemon")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	dir := t.TempDir()
	if err := os.Chown(dir, uid, -1); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
	for _, name := range []string{"", clusterName, lockName, passwordName, portName, logName} {
		if got, _, err := ownerOf(filepath.Join(dir, name)); err != nil || got != uid {
			t.Errorf("%q belongs to uid %d (%v), want %d", name, got, err, uid)
		}
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 18.4\n":                           18,
		"postgres (PostgreSQL) 19devel\n":                        19,
		"postgres (PostgreSQL) 18beta1\n":                        18,
	} {
		if _, major, err := parseVersion(line); err != nil || major != want {
			t.Errorf("%q: %d, %v", line, major, err)
		}
	}
	if _, _, err := parseVersion("Segmentation fault\n"); err == nil {
		t.Error("nonsense has a version")
	}
}
