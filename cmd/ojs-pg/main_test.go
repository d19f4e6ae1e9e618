package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// binary is the path of the program, which testMain builds before the tests.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ojs-pg-binary-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "ojs-pg")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m)
}

// program is a running ojs-pg. launch starts one. mu guards written.
type program struct {
	t       *testing.T
	cmd     *exec.Cmd
	lines   chan string // of stdout and stderr
	exited  chan struct{}
	exit    error
	mu      sync.Mutex
	written strings.Builder
}

// environment returns the environment of a program: ours without settings of ojs-pg and PostgreSQL, and
// vars.
func environment(vars ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		// The environment must not change what is tested, but for the directory of PostgreSQL.
		if !strings.HasPrefix(v, "OJS_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "DATABASE_URL=") {
			env = append(env, v)
		}
	}
	if dir := os.Getenv("OJS_TEST_PG_BIN"); dir != "" {
		env = append(env, "OJS_PG_BIN="+dir)
	}
	return append(env, vars...)
}

// launch starts ojs-pg with arguments. The end of the test kills it, and logs its output if the test
// failed.
func launch(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary, args...), lines: make(chan string, 1000), exited: make(chan struct{})}
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = environment(append(env, "XDG_DATA_HOME="+p.cmd.Dir)...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.mu.Lock()
			p.written.WriteString(scan.Text() + "\n")
			p.mu.Unlock()
			p.lines <- scan.Text()
		}
		close(p.lines)
		p.exit = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("ojs-pg %s wrote:\n%s", strings.Join(args, " "), p.output())
		}
	})
	return p
}

// output returns what the program has written so far.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written.String()
}

// find waits for a line of output that matches a pattern, and returns its first group. It skips the lines
// before. The test ends if the program ends first, or after a minute.
func (p *program) find(pattern string) string {
	p.t.Helper()
	expr := regexp.MustCompile(pattern)
	timeout := time.After(time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended without a line like %s", pattern)
			}
			if m := expr.FindStringSubmatch(line); m != nil {
				return m[1]
			}
		case <-timeout:
			p.t.Fatalf("no line like %s within a minute", pattern)
		}
	}
}

// wait waits for the end of the program and returns its exit status.
func (p *program) wait() int {
	p.t.Helper()
	for open := true; open; {
		select {
		case _, open = <-p.lines:
		case <-time.After(time.Minute):
			p.t.Fatal("it does not end")
		}
	}
	<-p.exited
	var exit *exec.ExitError
	if errors.As(p.exit, &exit) {
		return exit.ExitCode()
	}
	if p.exit != nil {
		p.t.Fatal(p.exit)
	}
	return 0
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// finish runs ojs-pg to its end.
func finish(t *testing.T, env []string, args ...string) (status int, output string) {
	t.Helper()
	p := launch(t, env, args...)
	status = p.wait()
	return status, p.output()
}

// launchDev starts `ojs-pg dev` with its data in dir, and returns the addresses of HTTP and PostgreSQL when
// it serves.
func launchDev(t *testing.T, dir string, more ...string) (p *program, base, url string) {
	t.Helper()
	p = launch(t, nil, append([]string{"dev", "--listen", "127.0.0.1:0", "--data-dir", dir}, more...)...)
	base = p.find(`HTTP +(http://\S+)$`)
	file := p.find(`psql "\$\(cat '(\S+/url)'\)"$`)
	p.find(`msg=(serving)`)
	noted, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p, base, strings.TrimSpace(string(noted))
}

// request sends an HTTP request, which must get an answer.
func request(t *testing.T, method, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

// query returns the only value of a query, as text.
func query(t *testing.T, url, sql string) (answer string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// inside returns the command lines of processes whose working directory is below dir. It works on Linux.
func inside(t *testing.T, dir string) (found []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir) {
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			found = append(found, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

func TestDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "data")
	p, base, url := launchDev(t, dir)
	if status, answer := request(t, "GET", base+"/ojs/v1/health", ""); status != 200 {
		t.Errorf("health is %d: %s", status, answer)
	}
	if noted, err := os.ReadFile(filepath.Join(dir, devURLFile)); err != nil || string(noted) != url+"\n" {
		t.Errorf("the file with the address holds %q (%v), want %q", noted, err, url)
	}
	noted, err := os.ReadFile(filepath.Join(dir, devAdminFile))
	if err != nil {
		t.Fatal(err)
	}
	admin := strings.TrimSpace(string(noted))
	// The login for applications can work and is no administrator.
	if got := query(t, url, "select count(*)::text from ojs.fetch('{none}')"); got != "0" {
		t.Errorf("an application fetches %s jobs", got)
	}
	if got := query(t, admin, `
		select concat(rolsuper, pg_has_role('ojs_app', 'ojs_operator', 'member'), pg_has_role('ojs_app', 'ojs_service', 'member'))
		from pg_roles where rolname = 'ojs_app'`); got != "fff" {
		t.Errorf("the application's login is more than a producer and worker: %s", got)
	}
	// The server is held by row security, here as anywhere.
	if got := query(t, admin, `
		select string_agg(distinct usename, ' ') from pg_stat_activity where application_name = 'ojs-pg dev'`); got != devServerRole {
		t.Errorf("the server logs in as %s", got)
	}
	if got := query(t, admin, `
		select (rolsuper or rolbypassrls or rolcreaterole)::text from pg_roles where rolname = '`+devServerRole+"'"); got != "false" {
		t.Error("the server's role is more than a plain login role")
	}
	id := query(t, url, "select id::text from ojs.enqueue('a', '[1]', p_tenant => 'acme')")

	// A crash of everything at once.
	p.signal(os.Kill)
	if p.wait(); len(inside(t, dir)) > 0 {
		t.Log("the server outlives the program for a moment")
	}
	p, base, again := launchDev(t, dir)
	if again != url {
		t.Errorf("the address changed from %s to %s", url, again)
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/workers/fetch",
		`{"queues": ["default"], "worker_id": "w"}`); status != 200 || !strings.Contains(answer, id) {
		t.Errorf("after the crash a fetch answers %d: %s", status, answer)
	}

	status, output := finish(t, nil, "dev", "--listen", "127.0.0.1:0", "--data-dir", dir)
	if status != 1 || !strings.Contains(output, "is used by process") || !strings.Contains(output, "--data-dir") {
		t.Errorf("a second dev on the same directory ends with %d: %s", status, output)
	}
	if status, _ := request(t, "GET", base+"/ojs/v1/ready", ""); status != 200 {
		t.Errorf("and the first is no longer ready: %d", status)
	}
	if status, _ := request(t, "POST", base+"/ojs/v1/admin/reset", ""); status != 404 {
		t.Errorf("reset answers %d without --allow-reset", status)
	}

	p.signal(os.Interrupt)
	if status := p.wait(); status != 0 {
		t.Errorf("an interrupt ended it with %d", status)
	}
	if left := inside(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestDevEndsWithItsPostgres(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, nil, "dev", "--listen", "127.0.0.1:0", "--data-dir", dir)
	var pid int
	if _, err := fmt.Sscan(p.find(`msg="PostgreSQL has started".* pid=(\d+)`), &pid); err != nil {
		t.Fatal(err)
	}
	p.find(`msg=(serving)`)
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if status := p.wait(); status != 1 || !strings.Contains(p.output(), "PostgreSQL has ended by itself") {
		t.Errorf("it ended with %d", status)
	}
}

// A request that never ends delays an orderly stop. A second signal ends the program at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, base, _ := launchDev(t, dir, "--drain", "1h")
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const head = "POST /ojs/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n" +
		"Expect: 100-continue\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	// The server asks for the body: so it is in the middle of the request.
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	p.signal(syscall.SIGTERM)
	pgtest.Eventually(t, "stopping has begun, so that nobody is let in any more", func() bool {
		second, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err == nil {
			_ = second.Close()
		}
		return err != nil
	})
	p.signal(syscall.SIGTERM)
	if p.wait(); !p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		t.Errorf("two signals ended it with %v", p.cmd.ProcessState)
	}
	_, _, url := launchDev(t, dir)
	if got := query(t, url, "select 'usable'"); got != "usable" {
		t.Error(got)
	}
}

func TestDevOnAGivenDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.URL, "OJS_LISTEN=127.0.0.1:0", "OJS_ALLOW_RESET=true", "OJS_LOG_FORMAT=json"}, "dev")
	base := p.find(`HTTP +(http://\S+)$`)
	p.find(`"msg":"(serving)"`)
	if got := query(t, d.URL, `
		select string_agg(distinct concat_ws(' ', usename), ' ') from pg_stat_activity
		where application_name = 'ojs-pg dev'`); got == "" {
		t.Error("it does not use the database")
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/jobs", `{"type": "a", "args": []}`); status != 201 {
		t.Errorf("enqueue answers %d: %s", status, answer)
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/admin/reset", ""); status != 200 {
		t.Errorf("reset answers %d: %s", status, answer)
	}
	if got := query(t, d.URL, "select count(*)::text from ojs.job"); got != "0" {
		t.Errorf("%s jobs are left after a reset", got)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
}

func TestMigrateServeHealth(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	admin, service := []string{"DATABASE_URL=" + d.URL}, []string{"DATABASE_URL=" + d.ServiceURL, "OJS_ALLOW_RESET=true"}
	expect := func(env []string, wantStatus int, want string, args ...string) {
		t.Helper()
		if status, output := finish(t, env, args...); status != wantStatus || !strings.Contains(output, want) {
			t.Errorf("ojs-pg %s ends with %d, want %d and %q in:\n%s", strings.Join(args, " "), status, wantStatus, want, output)
		}
	}
	expect(admin, 0, "the schema is this program's", "migrate", "status")
	expect(admin, 0, "nothing to do", "migrate", "up")
	query(t, d.URL, "select (ojs.cancel(a.id)).state::text from ojs.enqueue('a') a, ojs.enqueue('b') b")
	const lost = "has 1 jobs that have not ended, 1 that have, and 0 dead letters, which would be lost: add --yes"
	expect(admin, 2, lost, "migrate", "down")
	expect(admin, 0, "the schema is this program's", "migrate", "status")
	expect(admin, 0, "migrating down is done: 0 of", "migrate", "down", "--yes")
	expect(admin, 0, "nothing to do: 0 of", "migrate", "down")
	expect(admin, 0, "there is no complete schema: run ojs-pg migrate up", "migrate", "status")
	expect(service, 1, "ojs-pg migrate up", "serve", "--listen", "127.0.0.1:0")
	expect(admin, 0, "migrating is done", "migrate", "up")
	expect(admin, 0, "the schema is this program's", "migrate", "status")
	const one = "pool_max_conns in the URL of the database: 1 is less than 2"
	expect([]string{"DATABASE_URL=" + d.ServiceURL + "&pool_max_conns=1"}, 2, one, "serve", "--listen", "127.0.0.1:0")
	expect([]string{"DATABASE_URL=" + d.URL + "&pool_max_conns=1"}, 2, one, "dev", "--listen", "127.0.0.1:0")

	p := launch(t, service, "serve", "--listen", "127.0.0.1:0")
	base := p.find(`msg=serving address=(http://\S+)$`)
	if status, answer := request(t, "GET", base+"/ojs/v1/ready", ""); status != 200 {
		t.Errorf("ready answers %d: %s", status, answer)
	}
	if status, _ := request(t, "POST", base+"/ojs/v1/admin/reset", ""); status != 404 {
		t.Errorf("reset answers %d in production", status)
	}
	address := strings.TrimPrefix(base, "http://127.0.0.1")
	expect([]string{"OJS_LISTEN=0.0.0.0" + address}, 0, `"status":"ok"`, "health")
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
	expect(nil, 1, "refused", "health", "--listen", address)
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for _, c := range []struct {
		args   string
		env    string
		status int
		want   string
	}{
		{"", "", 0, "COMMANDS:"},
		{"dev --help", "", 0, "$OJS_DATA_DIR"},
		{"version", "", 0, "ojs-pg version "},
		{"--version", "", 0, "ojs-pg version "},
		{"completion bash", "", 0, "complete "},
		{"completion tcsh", "", 2, "Try: ojs-pg completion --help"},
		{"migrate --generate-shell-completion", "", 0, "status:list the migrations"},
		{"fly", "", 2, `ojs-pg has no command "fly"`},
		{"dev --port 9000", "", 2, "there is no option --port; did you mean --postgres-port"},
		{"docter", "", 2, `did you mean "ojs-pg doctor"?`},
		{"fly", "", 2, "Try: ojs-pg --help"},
		{"admin --tenant queue limit --nope", "", 2, "Try: ojs-pg admin limit --help"},
		{"migrate up", "", 2, "Try: ojs-pg migrate up --help"},
		{"--log-level warn serve --drain=1s", "OJS_MAX_CONNS=1", 2, "Try: ojs-pg serve --help"},
		{"serve", "", 2, "set DATABASE_URL"},
		{"migrate up", "", 2, "set DATABASE_URL"},
		{"serve --allow-reset", "", 2, "allow-reset"},
		{"serve now", "", 2, `takes no argument "now"`},
		{"migrate sideways", "", 2, `ojs-pg migrate has no command "sideways"`},
		{"serve --tick 0", "", 2, "0s is less than 1ms"},
		{"serve --max-conns 1", "", 2, "1 is less than 2"},
		{"dev", "OJS_MAX_CONNS=1", 2, "1 is less than 2"},
		{"version", "OJS_LOG_LEVEL=loud", 2, "none of debug, info, warn, error"},
		{"health --listen nowhere", "", 2, "nowhere"},
		{"dev --listen " + taken.Addr().String(), "", 1, "choose another address with --listen"},
		{"serve", "DATABASE_URL=postgres://user:secret@127.0.0.1:1/x", 1, "connect to the database"},
		{
			"dev --postgres-bin /nonexistent --listen 127.0.0.1:0 --data-dir data", "", 1,
			"/nonexistent is not a directory of PostgreSQL's server programs",
		},
	} {
		t.Run(c.args+" "+c.env, func(t *testing.T) {
			t.Parallel()
			status, output := finish(t, []string{c.env}, strings.Fields(c.args)...)
			if status != c.status || !strings.Contains(output, c.want) || strings.Contains(output, "secret") {
				t.Errorf("it ends with %d, want %d and %q in:\n%s", status, c.status, c.want, output)
			}
		})
	}
}

func TestEveryOptionHasAnEnvironmentName(t *testing.T) {
	t.Parallel()
	var walk func(c *cli.Command)
	walk = func(c *cli.Command) {
		for _, flag := range c.Flags {
			documented, ok := flag.(cli.DocGenerationFlag)
			if !ok || len(documented.GetEnvVars()) == 0 {
				t.Errorf("%s --%s has none", c.Name, flag.Names()[0])
			}
		}
		for _, sub := range c.Commands {
			walk(sub)
		}
	}
	walk(command())
}
