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
const onlyServers = "drop_waiter enqueue_rows fetch_many jobs_floor note_refusals plan_cron register_waiters release_many " +
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
	for after, want := range map[time.Duration]string{
		3*time.Hour + 4*time.Minute + 5*time.Second: "abbbbbbbbbbbbbbbb… 4 0 0 - 50 % 03:04:05; acme 0 1 2 - 50 % -",
		51 * time.Hour: "abbbbbbbbbbbbbbbb… 4 0 0 - 50 % 2d 3h; acme 0 1 2 - 50 % -",
	} {
		d.SetNow(noon.Add(after))
		if got := strings.Join(lines(t, service, "select * from ojs.overview"), "; "); got != want {
			t.Errorf("after %s the overview is %s, want %s", after, got, want)
		}
	}
	d.SetNow(noon.Add(3 * time.Hour))
	if n := shownWidth(t, service, "select * from ojs.overview"); n > 80 {
		t.Errorf("it takes %d columns", n)
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
