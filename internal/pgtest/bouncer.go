package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Bouncer starts PgBouncer in transaction mode, with six connections to the server of address, a
// postgres:// URL, and returns the address of the same database through it. settings are further
// lines of its configuration, which override the others. The test fails if PgBouncer is not
// installed. The end of the test stops it.
func Bouncer(t testing.TB, address string, settings ...string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Fatalf("this test needs PgBouncer (on Debian: apt-get install pgbouncer): %v", err)
	}
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ojs-bouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port := freePort(t)
	args, err := configureBouncer(dir, to, port, settings)
	if err != nil {
		t.Fatalf("configure PgBouncer: %v", err)
	}
	var log bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("PgBouncer wrote:\n%s", log.String())
		}
	})
	through := *to
	through.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	Eventually(t, "PgBouncer lets connections through", func() bool {
		conn, err := pgx.Connect(t.Context(), through.String())
		if err == nil {
			_ = conn.Close(context.WithoutCancel(t.Context()))
		}
		return err == nil
	})
	return through.String()
}

// freePort returns a port that is free at this moment.
func freePort(t testing.TB) int {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	return socket.Addr().(*net.TCPAddr).Port
}

// configureBouncer writes PgBouncer's files for a server, and returns its arguments. PgBouncer
// refuses to run as root; if root runs the test, it runs as the user nobody.
func configureBouncer(dir string, to *url.URL, port int, settings []string) (args []string, err error) {
	password, _ := to.User.Password()
	config, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	files := map[string]string{
		users: fmt.Sprintf("%q %q\n", to.User.Username(), password),
		config: fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = 6
max_client_conn = 200
%s
`, to.Hostname(), to.Port(), port, users, strings.Join(settings, "\n")),
	}
	for name, content := range files {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	if os.Getuid() != 0 {
		return []string{config}, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{dir, users, config} {
		if err := os.Chown(name, uid, -1); err != nil {
			return nil, err
		}
	}
	return []string{"-u", "nobody", config}, nil
}
