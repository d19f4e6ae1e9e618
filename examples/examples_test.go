// Package examples holds programs to copy. They are run here as people run them, each where its interpreter is.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "ojs-pg-examples-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	for program, of := range map[string]string{"ojs-pg": "../cmd/ojs-pg", "worker": "./worker/go", "producer": "./producer/go"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, program), of).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
	}
	return pgtest.Main(m)
}

// environment keeps what the outside has set for ojs-pg and PostgreSQL from the programs.
func environment(vars ...string) (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OJS_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "DATABASE_URL=") {
			env = append(env, v)
		}
	}
	return append(env, vars...)
}

// serve starts a server and returns its address.
func serve(t *testing.T, d *pgtest.DB) (base string) {
	t.Helper()
	server := exec.Command(filepath.Join(bin, "ojs-pg"), "serve", "--listen", "127.0.0.1:0")
	server.Env = environment("DATABASE_URL=" + d.ServiceURL)
	out, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	address, rest := make(chan string, 1), make(chan string, 1)
	go func() {
		var log bytes.Buffer
		for lines := bufio.NewScanner(out); lines.Scan(); log.WriteString(lines.Text() + "\n") {
			if m := regexp.MustCompile(`msg=serving address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
		rest <- log.String()
	}()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		log := <-rest
		if err := server.Wait(); err != nil || t.Failed() {
			t.Errorf("the server ended with %v:\n%s", err, log)
		}
	})
	return pgtest.Receive(t, "the server's address", address)
}

// available says in one line what does not run here.
func available(t *testing.T, example string, programs ...string) bool {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s did not run: there is no %s here", example, program)
			return false
		}
	}
	return true
}

var workers = map[string][]string{
	"worker.py":  {"python3", "worker/worker.py"},
	"worker.mjs": {"node", "worker/worker.mjs"},
	"worker.rb":  {"ruby", "worker/worker.rb"},
	"worker.sh":  {"bash", "worker/worker.sh"},
	"go":         {"worker"},
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	base := serve(t, d)
	t.Run("of each language", func(t *testing.T) {
		for name, command := range workers {
			needs := []string{command[0]}
			switch name {
			case "worker.sh":
				needs = append(needs, "curl", "jq")
			case "go":
				command, needs = []string{filepath.Join(bin, command[0])}, nil
			}
			if available(t, name, needs...) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					tryWorker(t, d, base, command)
				})
			}
		}
	})
}

// leaseMs is shorter than the work of the last job, so that only heartbeats keep it, and long enough for a loaded machine.
const (
	leaseMs   = 5000
	longerNap = 7
)

func tryWorker(t *testing.T, d *pgtest.DB, base string, command []string) {
	queue := filepath.Base(t.Name())
	enqueue := func(kind, args string) (id string) {
		t.Helper()
		return pgtest.One[string](t, d.Pool,
			"select id::text from ojs.enqueue($1, $2::json, p_queue => $3, p_tenant => 'acme')", kind, args, queue)
	}
	becomes := func(id, state string) {
		t.Helper()
		pgtest.Eventually(t, queue+": job "+id+" is "+state, func() bool {
			return pgtest.One[string](t, d.Pool, "select state::text from ojs.job_info($1::uuid)", id) == state
		})
	}
	greeted, refused, unknown := enqueue("greet", `["Ada \"L\""]`), enqueue("charge", `[-5]`), enqueue("none", `[]`)

	var output bytes.Buffer
	worker := exec.Command(command[0], command[1:]...)
	worker.Env = environment("OJS_URL="+base, "OJS_QUEUES="+queue, fmt.Sprintf("OJS_LEASE_MS=%d", leaseMs))
	worker.Stdout, worker.Stderr = &output, &output
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	t.Cleanup(func() {
		_ = worker.Process.Kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", queue, output.String())
		}
	})

	becomes(greeted, "completed")
	becomes(refused, "discarded")
	becomes(unknown, "retryable")
	for what, sql := range map[string]string{
		greeted + " has its result, letter by letter": `select result ->> 'greeting' = 'hello, Ada "L"' and attempt = 1
			from ojs.job_info($1::uuid)`,
		refused + " is not tried again, by its type": "select attempt = 1 and errors -> 0 ->> 'type' in ('invalid_amount', 'invalid') " +
			"and errors -> 0 ->> 'retryable' = 'false' from ojs.job_info($1::uuid)",
		unknown + " has an error with a type": "select errors -> 0 ->> 'type' > '' and errors -> 0 ->> 'message' like '%none%' " +
			"from ojs.job_info($1::uuid)",
	} {
		if !pgtest.One[bool](t, d.Pool, sql, what[:36]) {
			job := pgtest.One[string](t, d.Pool, "select j::text from ojs.job_info($1::uuid) j", what[:36])
			t.Errorf("%s: not so: job %s: %s", queue, what, job)
		}
	}
	const registered = "select count(*) from ojs.worker where queues = array[$1]"
	if n := pgtest.One[int](t, d.Pool, registered, queue); n != 1 {
		t.Errorf("%d workers are registered for %s", n, queue)
	}

	// What is taken from a worker it stops: it would otherwise not end for ten minutes.
	taken := enqueue("nap", "[600]")
	becomes(taken, "active")
	pgtest.Exec(t, d.Pool, "select ojs.cancel($1::uuid)", taken)

	// Told to stop, it finishes what runs, and keeps it meanwhile.
	last := enqueue("nap", fmt.Sprintf("[%d]", longerNap))
	becomes(last, "active")
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, queue+": the worker ends", ended); err != nil {
		t.Errorf("%s ended with %v", queue, err)
	}
	const end = "select concat_ws(' ', state, attempt) from ojs.job_info($1::uuid)"
	if got := pgtest.One[string](t, d.Pool, end, last); got != "completed 1" {
		t.Errorf("%s: when the worker had ended, its last job was %s", queue, got)
	}
	if n := pgtest.One[int](t, d.Pool, registered, queue); n != 0 {
		t.Errorf("%s did not sign off", queue)
	}
	for _, line := range []string{
		"serving " + queue + " as ", "done greet " + greeted, "failed charge " + refused + ": the amount must be positive",
		"failed none " + unknown + ": no handler for none", "lost nap " + taken, "done nap " + last,
	} {
		if !strings.Contains(output.String(), line) {
			t.Errorf("%s does not print %q, but\n%s", queue, line, output.String())
		}
	}
}

func TestProducers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	base := serve(t, d)
	for _, example := range []struct {
		name, jobs string
		command    []string
	}{
		{"psql", "acme receipt.remind 1, acme receipt.send 2", []string{"psql", "-X", "-q", "-f", "producer/producer.sql", d.URL}},
		{"trigger", "acme welcome.send 2, globex welcome.send 2", []string{"psql", "-X", "-q", "-f", "producer/trigger.sql", d.URL}},
		{"python", "acme receipt.send 2", []string{"python3", "producer/producer.py"}},
		{"node", "acme receipt.send 2, acme receipt.send 2", []string{"node", "producer/producer.mjs"}},
		{"go", "acme receipt.send 2", []string{filepath.Join(bin, "producer")}},
	} {
		if !available(t, example.name, example.command[0]) {
			continue
		}
		t.Run(example.name, func(t *testing.T) {
			producer := exec.Command(example.command[0], example.command[1:]...)
			producer.Env = environment("OJS_URL="+base, "DATABASE_URL="+d.URL)
			if out, err := producer.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := pgtest.One[string](t, d.Pool, `
				select string_agg(concat_ws(' ', tenant_id, type, json_array_length(args)), ', ' order by tenant_id, type)
				from ojs.jobs where queue = 'default' and state = 'available'`); got != example.jobs {
				t.Errorf("it has enqueued %s, want %s", got, example.jobs)
			}
			if available(t, "worker.py", "python3") {
				workOff(t, d, base)
			}
			pgtest.Exec(t, d.Pool, "select ojs.cancel(id) from ojs.jobs where state = 'available'")
		})
	}
}

// workOff has the worker in Python, as it is started without settings, complete the producer's jobs.
func workOff(t *testing.T, d *pgtest.DB, base string) {
	t.Helper()
	worker := exec.Command("python3", "worker/worker.py")
	worker.Env = environment("OJS_URL=" + base)
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	d.Eventually("the worker completes the producer's jobs", `
		select count(*) > 0 and bool_and(state = 'completed') and bool_or(result::text like '%ada@example.com%')
		from ojs.jobs where state <> 'cancelled'`)
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := worker.Wait(); err != nil {
		t.Errorf("the worker ends with %v", err)
	}
}

// A trigger gives nobody rights: the service's login enqueues for all, a tenant's for itself, and others not at all.
func TestTriggerForOthers(t *testing.T) {
	t.Parallel()
	if !available(t, "trigger.sql", "psql") {
		return
	}
	d := pgtest.New(t)
	install := exec.Command("psql", "-X", "-q", "-f", "producer/trigger.sql", d.URL)
	install.Env = environment()
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pgtest.Exec(t, d.Pool, "grant insert on public.signups to public; delete from public.signups")
	for _, c := range []struct {
		who, url string
		refused  bool
	}{
		{"service", d.ServiceURL, false},
		{"producer", d.GroupURL("ojs_producer"), false},
		{"initech", d.TenantURL("initech"), false},
		{"globex", d.TenantURL("globex"), true},
		{"nobody", d.GroupURL(""), true},
	} {
		app, err := pgx.Connect(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		defer app.Close(context.Background())
		_, err = app.Exec(t.Context(), "insert into public.signups (tenant, email) values ('initech', $1)", c.who)
		if c.refused != (err != nil) {
			t.Errorf("%s inserts for initech: %v", c.who, err)
		}
	}
	const signups, jobs = "select email from public.signups order by id", `
		select args ->> 1 from ojs.jobs where tenant_id = 'initech' and type = 'welcome.send' order by (args ->> 0)::int`
	for _, sql := range []string{signups, jobs} {
		if got := fmt.Sprint(pgtest.List[string](t, d.Pool, sql)); got != "[service producer initech]" {
			t.Errorf("%s: %s", pgtest.Short(sql), got)
		}
	}
}

// The ORM is nobody's to install here: what its example sends is run without it, as the driver would send it, in a transaction.
func TestTheStatementOfTheORM(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	source, err := os.ReadFile("producer/django_orders.py")
	if err != nil {
		t.Fatal(err)
	}
	if available(t, "the syntax of django_orders.py", "python3") {
		check := exec.Command("python3", "-c", "import ast, sys; ast.parse(sys.stdin.read())")
		check.Stdin = bytes.NewReader(source)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	m := regexp.MustCompile(`ENQUEUE = "(.*)"`).FindSubmatch(source)
	if m == nil {
		t.Fatal("there is no statement")
	}
	// The driver puts text in the place of %s, without a type.
	sql := string(m[1])
	for _, value := range []string{"receipt.send", `[1, "ada@example.com"]`, "django", "acme"} {
		sql = strings.Replace(sql, "%s", "'"+value+"'", 1)
	}
	for _, end := range []struct {
		how  string
		jobs int
	}{{"rollback", 0}, {"commit", 1}} {
		pgtest.Exec(t, d.Pool, "do $do$ begin perform id from ("+sql+") e; "+end.how+"; end $do$")
		if n := pgtest.One[int](t, d.Pool, "select count(*) from ojs.jobs where queue = 'django' and tenant_id = 'acme'"); n != end.jobs {
			t.Errorf("%d jobs after %s, want %d", n, end.how, end.jobs)
		}
	}
}
