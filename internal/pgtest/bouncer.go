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
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bouncer starts PgBouncer in transaction mode with a few connections to the server of address, a postgres:// URL, and returns the same
// address through it. Without the program the test fails where CI is true and is skipped elsewhere, which a line on standard output tells.
func Bouncer(t testing.TB, address string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		fmt.Printf("%s did not run: there is no pgbouncer\n", t.Name())
		t.SkipNow()
	}
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := to.User.Password()
	dir, err := os.MkdirTemp("", "ojs-bouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := socket.Addr().(*net.TCPAddr).Port
	socket.Close()
	files := map[string]string{
		"users": fmt.Sprintf("%q %q\n", to.User.Username(), password),
		"pgbouncer.ini": fmt.Sprintf(`[databases]
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
`, to.Hostname(), to.Port(), port, filepath.Join(dir, "users")),
	}
	args := []string{filepath.Join(dir, "pgbouncer.ini")}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 {
		// It refuses to be root.
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		for _, name := range []string{".", "users", "pgbouncer.ini"} {
			if err := os.Chown(filepath.Join(dir, name), uid, -1); err != nil {
				t.Fatal(err)
			}
		}
		args = append([]string{"-u", "nobody"}, args...)
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
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), through.String())
		if err == nil {
			_ = conn.Close(context.WithoutCancel(t.Context()))
			return through.String()
		}
		if time.Now().After(deadline) {
			t.Fatalf("PgBouncer is not there: %v", err)
		}
	}
}
