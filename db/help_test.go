package db_test

import (
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// onlyServers are the functions that only servers call. ojs.help leaves them out.
const onlyServers = "drop_waiter enqueue_rows fetch_many jobs_floor note_clock note_refusals plan_cron register_waiters release_many " +
	"schema_changing schema_hash stand_down unplanned_crons"

func TestHelpNamesEveryFunction(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	got := list[string](t, d.Pool, "select substr(call, 5) from ojs.help() order by 1")
	want := list[string](t, d.Pool, `
		select distinct proname::text from pg_catalog.pg_proc
		where pronamespace = 'ojs'::regnamespace and proname !~ '^_' and not proname = any (string_to_array($1, ' '))
		order by 1`, onlyServers)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("ojs.help() names\n%s\nwant\n%s", strings.Join(got, " "), strings.Join(want, " "))
	}
	for _, line := range lines(t, d.Pool, "select call, does from ojs.help()") {
		if n := utf8.RuneCountInString(line); n > 130 || n < 20 || strings.ContainsAny(line, "\n") {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
	if got := one[int](t, d.As("acme"), "select count(*) from ojs.help() where call in ('ojs.configure', 'ojs.enqueue')"); got != 1 {
		t.Errorf("a tenant is told of %d of two functions, of which it may call one", got)
	}
}

// PostgreSQL refuses a name that does not exist and cannot say what was meant. Each thing that the table says is one that ojs.enqueue
// takes.
func TestHelpSaysWhatToWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const table = "select * from ojs.help('enqueue')"
	for _, name := range []string{"p_delay", "p_run_at", "p_idempotency_key", "queue"} {
		if !slices.ContainsFunc(lines(t, service, table), func(line string) bool { return strings.Contains(line, name) }) {
			t.Errorf("it says nothing of %s", name)
		}
	}
	for _, write := range list[string](t, service, "select you_write from ojs.help('enqueue') where you_write like 'p\\_%'") {
		exec(t, service, "select ojs.enqueue('a', "+write+")")
	}
	exec(t, service, `select * from ojs.enqueue_once('order-17', '[{"type": "a", "args": []}]')`)
	if n := shownWidth(t, service, table); n > 80 {
		t.Errorf("it takes %d columns", n)
	}
	refused(t, service, "OJ404", "select * from ojs.help('enqueu')")
	if got := lines(t, service, "select * from ojs.help('now')"); len(got) != 1 {
		t.Errorf("of another function it says %q", got)
	}
	// The calls that ojs.help prints for workers' functions and for jobs can be run as they are printed.
	for _, write := range list[string](t, service, "select you_write from ojs.help('fetch') where you_write like 'ojs.%'") {
		exec(t, service, "select "+write)
	}
	for _, function := range []string{"ack", "nack", "cancel", "reprioritize"} {
		table := "select * from ojs.help('" + function + "')"
		if n := shownWidth(t, service, table); n > 80 {
			t.Errorf("%s takes %d columns", table, n)
		}
		for _, write := range list[string](t, service, "select you_write from ojs.help($1) where you_write like 'ojs.%'", function) {
			exec(t, service, "select ojs.enqueue('help', p_queue => 'help')")
			take := "select f.id, f.lease into id, lease from ojs.fetch('{help}') f"
			if function == "reprioritize" { // of a job that waits, and not in a transaction that has fetched
				take = "select j.id into id from ojs.jobs j where j.queue = 'help' and j.state = 'available'"
			}
			exec(t, service, "do $do$ declare id uuid; lease uuid; begin "+take+"; perform "+write+"; end $do$")
			exec(t, service, "select ojs.cancel(id) from ojs.jobs where queue = 'help' and finished_at is null")
		}
	}
}

func TestTheOverviewFitsAScreen(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	long := "a" + strings.Repeat("b", 255)
	enqueueFor(t, service, "default", "acme", 3)
	enqueueFor(t, service, "default", long, 4)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}', 2, p_tenant => 'acme')")
	exec(t, service, "select from ojs.fetch('{default}', 1, p_tenant => 'acme')")
	overview := func() string { return strings.Join(lines(t, service, "select * from ojs.overview"), "; ") }
	const quick = "abbbbbbbbb… 4 0 0 0 % 50 % 0m00s 0 0+0; acme 0 1 2 100 % 50 % - 0 0+0"
	if got := overview(); got != quick {
		t.Errorf("the overview is %s, want %s", got, quick)
	}
	for after, want := range map[time.Duration]string{
		3*time.Hour + 4*time.Minute + 5*time.Second: "abbbbbbbbb… 4 0 0 quiet 50 % 3h04m 0 0+0; acme 0 1 2 quiet 50 % - 0 0+0",
		51 * time.Hour: "abbbbbbbbb… 4 0 0 quiet 50 % 2d 3h 0 0+0; acme 0 1 2 quiet 50 % - 0 0+0",
	} {
		d.SetNow(noon.Add(after))
		if got := overview(); got != want {
			t.Errorf("after %s the overview is %s, want %s", after, got, want)
		}
	}
	if !one[bool](t, service, "select bool_and(available = backlog) and sum(available) = 4 from ojs.tenant_stats") {
		t.Error("ojs.tenant_stats has other numbers under available than under backlog")
	}
	// No job vanishes: one waits for its time, one for its next attempt, two have failed for good.
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme', p_scheduled_at => ojs.now() + interval '1 day')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme', p_max_attempts => n) from unnest('{1,1,5}'::int[]) n")
	exec(t, service, `select ojs.nack(f.id, '{"type": "Boom", "message": "m"}') from ojs.fetch('{default}', 3, p_tenant => 'acme') f`)
	if got, want := overview(), "acme 0 1 2 100 % 50 % - 2 1+1"; !strings.HasSuffix(got, want) {
		t.Errorf("the overview is %s, want %s", got, want)
	}
	d.SetNow(noon.Add(3 * time.Hour))
	for _, view := range []string{"ojs.overview", "ojs.overview_by_queue"} {
		if n := shownWidth(t, service, "select * from "+view); n > 80 {
			t.Errorf("%s takes %d columns", view, n)
		}
	}
	psql, err := osexec.LookPath("psql")
	if err != nil {
		t.Log("there is no psql here to show it")
		return
	}
	show := osexec.Command(psql, "-X", "-d", d.URL, "-c", "select * from ojs.overview")
	show.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "LC_ALL=C.UTF-8", "PAGER=")
	out, err := show.CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") < 5 {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line has %d columns:\n%s", n, out)
		}
	}
}

// Over all queues a tenant that is alone in one queue seems to get more than its share.
func TestTheOverviewByQueueHasTheSharesOfEachQueue(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	for _, tenant := range []string{"acme", "globex"} {
		enqueueFor(t, service, "mail", tenant, 20)
	}
	enqueueFor(t, service, "reports", "globex", 20)
	enqueueFor(t, service, "rest", "acme", 1)
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', 3, p_queue => 'mail')")
	exec(t, service, "select ojs.fetch('{mail}', 12), ojs.fetch('{reports}', 4)")
	want := []string{
		"mail globex 17 3 25 % 25 % 0 0+0", "mail acme 11 9 75 % 75 % 0 0+0", "reports globex 16 4 100 % 100 % 0 0+0",
		"rest acme 1 0 quiet 100 % 0 0+0",
	}
	if got := lines(t, service, "select * from ojs.overview_by_queue"); !slices.Equal(got, want) {
		t.Errorf("it shows %q, want %q", got, want)
	}
	want = []string{"mail acme 11 9 - - 0 0+0", "rest acme 1 0 - - 0 0+0"}
	if got := lines(t, d.As("acme"), "select * from ojs.overview_by_queue"); !slices.Equal(got, want) {
		t.Errorf("to a tenant it shows %q, want %q", got, want)
	}
}

// shownWidth returns the width of a table in psql: of each column the widest text, a blank on both sides
// and a bar between.
func shownWidth(t *testing.T, q querier, sql string) int {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var widths []int
	for _, column := range rows.FieldDescriptions() {
		widths = append(widths, len(column.Name))
	}
	for rows.Next() {
		for i, text := range rows.RawValues() {
			widths[i] = max(widths[i], utf8.RuneCount(text))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	sum := len(widths) - 1
	for _, width := range widths {
		sum += width + 2
	}
	return sum
}
