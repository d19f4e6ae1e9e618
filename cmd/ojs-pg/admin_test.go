package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// operating runs `ojs-pg admin` on a database of its own, with a few jobs of two tenants.
type operating struct {
	*testing.T
	url      string
	operator func() string
	pool     *pgxpool.Pool
}

func startOperating(t *testing.T) *operating {
	t.Helper()
	d := pgtest.New(t)
	o := &operating{t, d.ServiceURL, d.OperatorURL, d.Pool}
	o.sql(`
		select ojs.enqueue_many('[
			{"type": "a", "args": [], "queue": "mail", "tenant": "acme"},
			{"type": "a", "args": [], "queue": "mail", "tenant": "acme"},
			{"type": "a", "args": [], "queue": "mail", "tenant": "globex"},
			{"type": "b", "args": [], "queue": "dead", "tenant": "globex", "max_attempts": 1,
				"retry": {"on_exhaustion": "dead_letter"}}]')`)
	o.sql(`select ojs.configure_tenant('acme', 3)`)
	return o
}

func (o *operating) sql(query string) {
	o.Helper()
	if _, err := o.pool.Exec(context.Background(), query); err != nil {
		o.Fatal(err)
	}
}

// admin runs a command, which has to end with status, and returns what it wrote: to stdout if status is 0,
// else to stderr.
func (o *operating) admin(status int, args ...string) string {
	o.Helper()
	var stdout, stderr bytes.Buffer
	if got := run(append([]string{"ojs-pg", "admin", "--database-url", o.url}, args...), &stdout, &stderr); got != status {
		o.Fatalf("admin %s ends with %d, want %d:\n%s%s", strings.Join(args, " "), got, status, &stdout, &stderr)
	}
	if status != 0 {
		return stderr.String()
	}
	return stdout.String()
}

// lines wants a table to have these lines, whatever the room between its columns.
func (o *operating) lines(table string, want ...string) {
	o.Helper()
	var got []string
	for line := range strings.Lines(table) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	for _, line := range want {
		found := false
		for _, g := range got {
			found = found || strings.HasPrefix(g, line)
		}
		if !found {
			o.Errorf("no line %q in\n%s", line, table)
		}
	}
}

func TestAdminShowsTenantsAndQueues(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.lines(o.admin(0, "tenants"), "id weight available active discarded oldest share", "acme 3 2 0 0", "globex 1 2 0 0")
	if page := o.admin(0, "tenants", "--limit", "1", "--offset", "1"); strings.Contains(page, "acme") || !strings.Contains(page, "globex") {
		t.Errorf("the second page of one tenant is\n%s", page)
	}
	// No worker has fetched yet, so no tenant has a share.
	o.lines(o.admin(0, "tenant", "acme"), "id acme", "weight 3", "available 2", "effective_share 0")
	o.lines(o.admin(0, "queues"), "name status available", "dead active 1", "mail active 3")
	o.lines(o.admin(0, "--tenant", "acme", "queues"), "mail active 2")
	for _, args := range [][]string{{"queue", "nowhere"}, {"--tenant", "acme", "queue", "nowhere"}} {
		if got := o.admin(1, args...); !strings.Contains(got, "there is no queue nowhere") {
			o.Errorf("%v: %s", args, got)
		}
	}
	o.lines(o.admin(0, "--tenant", "acme", "queue", "dead"), "name dead", "status active", "available 0", "config {}")
	if got := o.admin(1, "tenant", "nobody"); !strings.Contains(got, "not_found: there is no tenant nobody") {
		t.Error(got)
	}

	var rows []map[string]any
	if err := json.Unmarshal([]byte(o.admin(0, "--json", "queues")), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%v: %v", rows, err)
	}
	if row := rows[1]; row["name"] != "mail" || row["available"] != 3.0 || row["depth"] != 3.0 || row["failed_attempts"] != 0.0 {
		t.Errorf("mail is %v", row)
	}
	if got := strings.TrimSpace(o.admin(0, "--json", "--tenant", "nobody", "queues")); got != "[]" {
		t.Errorf("no queues are %s", got)
	}
}

func TestAdminShowsScheduling(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.sql("select ojs.fetch('{mail}', 2, p_tenant => 'acme')")
	o.lines(o.admin(0, "scheduling"), "name waiting active oldest last min of all waited",
		"dead 1 0", "mail 1 2")
	o.lines(o.admin(0, "scheduling", "tenants"), "id weight waiting active last min share ideal waited",
		"acme 3 0 2 2 100.0% 75.0%", "globex 1 2 0 0 0.0% 25.0% -")
	o.lines(o.admin(0, "--tenant", "acme", "scheduling", "tenants"), "acme 3 0 2 2 100.0% 75.0%")
	if page := o.admin(0, "scheduling", "--limit", "1"); strings.Contains(page, "mail") {
		t.Errorf("a page of one queue is\n%s", page)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(o.admin(0, "--json", "scheduling")), &rows); err != nil || len(rows) != 2 ||
		rows[1]["name"] != "mail" || rows[1]["dispatch_count_5m"] != 2.0 || rows[1]["dispatch_ratio_1h"] != 1.0 {
		t.Fatalf("%v: %v", rows, err)
	}
}

func TestAdminSteers(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.lines(o.admin(0, "pause", "mail"), "queue mail is paused: 3 jobs of 2 tenants wait")
	o.lines(o.admin(0, "queue", "mail"), "status paused")
	o.lines(o.admin(0, "resume", "mail"), "queue mail is not paused: 3 jobs of 2 tenants wait")
	o.lines(o.admin(0, "queue", "mail"), "status active")
	o.lines(o.admin(0, "pause", "*"), "everything is paused: 4 jobs of 2 tenants wait")
	o.lines(o.admin(0, "resume", "*"), "everything is not paused: 4 jobs of 2 tenants wait")
	o.lines(o.admin(0, "--tenant", "acme", "pause", "mail"), "tenant acme in queue mail is paused: 2 jobs of 1 tenants wait")
	o.lines(o.admin(0, "--tenant", "acme", "limit", "3"), "tenant acme runs at most 3 jobs at once: 2 jobs of 1 tenants wait")
	if got := o.admin(0, "--json", "--tenant", "acme", "limit", "3"); !strings.Contains(got, `"max_concurrency": 3`) ||
		strings.Contains(got, "xid") {
		t.Error(got)
	}
	if got := o.admin(0, "rules"); strings.Count(got, "acme") != 2 {
		t.Error(got)
	}
	o.lines(o.admin(0, "--tenant", "acme", "limit", "none"), "tenant acme has no limit: ")
	o.admin(0, "--tenant", "acme", "resume", "mail")
	o.lines(o.admin(0, "--tenant", "acme", "weigh", "0.5"), "id acme", "weight 0.5")
	o.lines(o.admin(0, "--tenant", "acme", "weigh", "7", "--queue", "mail"), `config {"tenant_fairness": {"weights": {"acme": 7}}}`)
	o.lines(o.admin(0, "--tenant", "acme", "weigh", "none", "--queue", "mail"), "name mail", "config {}")
	o.lines(o.admin(0, "fairness", `{"strategy": "round-robin", "weights": {"tenant:acme": 2}}`, "--queue", "mail"),
		`config {"tenant_fairness": {"weights": {"tenant:acme": 2}, "strategy": "round-robin"}}`)
	o.lines(o.admin(0, "--tenant", "acme", "queue", "mail"), `config {"tenant_fairness": {"strategy": "round-robin"}}`)
	o.lines(o.admin(0, "fairness", "null", "--queue", "mail"), "config {}")
	o.lines(o.admin(0, "--tenant", "acme", "max-priority", "10", "--clamp"), "tenant_id acme", "max_priority 10", "over_priority clamp")
	o.lines(o.admin(0, "--tenant", "acme", "max-priority", "100"), "max_priority 100", "over_priority refuse")
	if got := o.admin(1, "fairness", `{"enabled": "no"}`, "--queue", "mail"); !strings.Contains(got, "tenant_fairness.enabled") {
		t.Error(got)
	}
	// The whole deployment, and as the standard prints it.
	o.lines(o.admin(0, "fairness", `{"strategy": "round-robin", "weights": {"acme": 2}}`), `tenant_fairness {"strategy": "round-robin"}`)
	o.lines(o.admin(0, "fairness", `{"tenant_fairness": {"enabled": true, "strategy": "fair-share", "weights": {"tenant:acme": 5},
		"default_weight": 1}}`), `tenant_fairness {"enabled": true, "strategy": "fair-share", "default_weight": 1}`)
	o.lines(o.admin(0, "settings"), "default_tenant _default", "retention P7D")
	o.lines(o.admin(0, "settings", `{"default_tenant": "house"}`), "default_tenant house", "retention P7D")
	if got := o.admin(1, "settings", `{"default_tennant": "house"}`); !strings.Contains(got, "default_tenant is probably meant") {
		t.Error(got)
	}
	for _, command := range []string{
		"pause", "limit 3", "limit many --queue mail", "limit --queue mail",
		"weigh 3", "--tenant acme weigh much", "--tenant acme weigh none",
		"max-priority 3", "--tenant acme max-priority high", "fairness {", "--tenant acme fairness {}",
		"settings {", "--tenant acme settings",
	} {
		o.admin(2, strings.Fields(command)...)
	}
	for _, command := range []string{"dispatch", "dispatch hold", "dispatch resume", "tenants", "tenant acme", "scheduling"} {
		if got := o.admin(2, strings.Fields("--tenant acme "+command)...); !strings.Contains(got, "leave out --tenant") {
			t.Error(got)
		}
	}
	if got := o.admin(1, "pause", "NOT A QUEUE"); !strings.Contains(got, "queue") {
		t.Error(got)
	}

	o.lines(o.admin(0, "dispatch"), "held false", "available 4")
	o.lines(o.admin(0, "dispatch", "hold"), "held true")
	o.lines(o.admin(0, "dispatch", "resume"), "held false")

	o.sql("select ojs.fetch('{mail}', 1, 'w1')")
	o.sql("select ojs.beat('w1', array(select id from ojs.jobs where worker_id = 'w1'), p_hostname => 'here', p_queues => '{mail}')")
	o.lines(o.admin(0, "workers"), "id tenant state", "w1 running mail 1")
	o.lines(o.admin(0, "worker", "w1"), "worker_id w1", "state running", "id tenant queue attempt runs type")
	o.lines(o.admin(0, "direct", "quiet", "--worker", "w1"), "directive quiet", "workers 1")
	o.lines(o.admin(0, "worker", "w1"), "directive quiet")
	o.admin(2, "direct", "running")
	o.admin(2, "direct", "running", "--all", "--worker", "w1")
	o.lines(o.admin(0, "direct", "running", "--all"), "directive running", "workers 1")
	if got := o.admin(1, "remove-worker", "w1"); !strings.Contains(got, "w1 sends heartbeats") || !strings.Contains(got, "15 s") {
		t.Error(got)
	}
	o.lines(o.admin(0, "direct", "terminate", "--all"), "directive terminate", "workers 1", "note terminate is final")
	if got := o.admin(1, "direct", "running", "--all"); !strings.Contains(got, "1 workers are ending: restart them") {
		t.Error(got)
	}
	o.sql("select ojs.register_worker('w2')")
	o.lines(o.admin(0, "direct", "running", "--all"), "workers 1", "note 1 workers are ending: restart them")
	o.sql("update ojs.worker_beat set seen_at = seen_at - interval '20 seconds' where worker_id = 'w1'")
	o.lines(o.admin(0, "remove-worker", "w1"), "worker_id w1", "jobs_taken_back 1")
	for _, args := range [][]string{{"direct", "dance", "--all"}, {"worker", "w3"}, {"remove-worker", "w3"}} {
		if got := o.admin(1, args...); !strings.HasPrefix(got, "ojs-pg: ") {
			t.Error(got)
		}
	}
}

func TestAdminLimits(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.lines(o.admin(0, "limits"), "tenant queue resource limit current")
	o.lines(o.admin(0, "--tenant", "acme", "--reason", "unpaid", "limits",
		`{"max_queue_depth": 4, "max_enqueue_rate": {"limit": 100, "period": "PT1M"}, "max_concurrency": 9}`),
		"tenant queue resource limit current used reason",
		"acme max_concurrency 9 0 0.0% unpaid", "acme max_enqueue_rate 100/1m 0 0.0% unpaid", "acme max_queue_depth 4 2 50.0% unpaid")
	o.lines(o.admin(0, "--tenant", "acme", "limits", "--queue", "mail", `{"max_queue_depth": 3}`),
		"acme mail max_queue_depth 3 2 66.7%")
	o.admin(0, "--tenant", "acme", "limits", `{"max_enqueue_rate": null}`)
	if got := o.admin(0, "limits"); strings.Count(got, "acme") != 3 || strings.Contains(got, "rate") {
		t.Error(got)
	}
	if got := o.admin(1, "--tenant", "acme", "limits", `{"max_queue_depth": -1}`); !strings.Contains(got, "max_queue_depth.limit") {
		t.Error(got)
	}
	o.admin(2, "limits", `{"max_queue_depth": 3}`)
	o.admin(2, "--tenant", "acme", "limits", `{"max_queue_depth": 3`)
}

func TestAdminTiers(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	const free = `{"free": {"limits": {"max_concurrency": 2, "max_queue_depth": 1000}, "fairness_weight": 1},
		"standard": {"fairness_weight": 5}}`
	o.lines(o.admin(0, "--reason", "May", "tiers", "set", free), "name tenants due config reason",
		`free 0 0 {"limits": {"max_concurrency": 2, "max_queue_... May`,
		`standard 0 0 {"fairness_weight": 5} May`)
	o.lines(o.admin(0, "--tenant", "acme", "tier", "give", "free"), "acme max_concurrency 2 0 0.0% May",
		"acme max_queue_depth 1000 2 0.2% May")
	o.lines(o.admin(0, "tenant", "acme"), "weight 1")
	file := filepath.Join(t.TempDir(), "tiers.json")
	if err := os.WriteFile(file, []byte(`{"free": {"fairness_weight": 2}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	o.lines(o.admin(0, "tiers", "set", file), `free 1 0 {"fairness_weight": 2}`)
	o.lines(o.admin(0, "tenant", "acme"), "weight 2")
	if got := o.admin(1, "tiers", "delete", "free"); !strings.Contains(got, "1 tenants have tier free") {
		t.Error(got)
	}
	o.admin(0, "tiers", "delete", "free", "--yes")
	o.admin(0, "--tenant", "acme", "tiers", "give", "standard")
	o.admin(0, "--tenant", "acme", "tiers", "give", "none")
	o.admin(0, "tiers", "delete", "standard")
	o.lines(o.admin(0, "tenant", "acme"), "weight 5")
	for _, command := range []string{"tiers give free", "--tenant acme tiers", "--tenant acme tiers set {}", "tiers set", "tiers delete"} {
		o.admin(2, strings.Fields(command)...)
	}
	o.admin(1, "tiers", "set", "{")
	o.admin(1, "--tenant", "acme", "tiers", "give", "gold")
}

func TestAdminEndsTenants(t *testing.T) {
	o := startOperating(t)
	o.lines(o.admin(0, "--reason", "unpaid", "suspend", "acme"), "tenant_id acme", "reason unpaid")
	o.lines(o.admin(0, "tenant", "acme"), "state suspended")
	o.lines(o.admin(0, "--reason", "paid", "resume-tenant", "acme"), "was_suspended true")
	o.admin(1, "deregister", "acme")
	for _, wrong := range []string{"erase", "--reason r erase", "--tenant acme erase", "--reason r erase --type a --since yesterday"} {
		o.admin(2, strings.Fields(wrong)...)
	}
	o.lines(o.admin(0, "--reason", "asked", "--tenant", "acme", "erase", "--type", "none"), "jobs 0")
	o.lines(o.admin(0, "deregister", "--confirm", "acme", "--erase-after", "P30D", "acme"), "tenant_id acme", "jobs 2")
	o.lines(o.admin(0, "--reason", "asked", "--tenant", "acme", "erase"), "jobs 2")
	o.admin(2, "--tenant", "acme", "suspend", "acme")
	o.lines(o.admin(0, "--tenant", "acme", "audit", "--action", "resumed"), "n age actor tenant kind")
	if got := o.admin(0, "--json", "audit", "--action", "resumed"); !strings.Contains(got, `"reason": "paid"`) {
		t.Errorf("the audit trail is %s", got)
	}
	// Pauses and limits of concurrency are rules; limits on enqueueing are another kind, with other actions.
	o.admin(0, "--tenant", "globex", "limits", `{"max_queue_depth": 4}`)
	o.admin(0, "--tenant", "globex", "limits", `{"max_queue_depth": 7}`)
	got := o.admin(0, "audit", "--kind", "limit", "--since", "P1D")
	if !strings.Contains(got, " 4 -> 7") || strings.Contains(got, "acme") {
		t.Errorf("the audit trail of limits is %s", got)
	}
	if got := o.admin(0, "--json", "audit", "--since", "2099-01-01T00:00:00Z"); strings.TrimSpace(got) != "[]" {
		t.Errorf("changes of the future are %s", got)
	}
}

func TestAdminDeadLetters(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	count := func(want int, args ...string) {
		t.Helper()
		o.lines(o.admin(0, append([]string{"dead-letters"}, args...)...), fmt.Sprintf("jobs %d", want))
	}
	count(0)
	o.sql(`select ojs.nack(f.id, '{"code": "boom", "message": "no"}') from ojs.fetch('{dead}') f`)
	count(1)
	count(1, "--queue", "dead")
	count(0, "--queue", "mail")
	count(0, "--older-than", "PT1H")
	if got := o.admin(2, "dead-letters", "retry"); !strings.Contains(got,
		"1 jobs pass the filter, and at most 1000 would be retried: add --yes") {
		t.Error(got)
	}
	if got := o.admin(2, "dead-letters", "--older-than", "yesterday"); !strings.Contains(got, "nor an age such as 12h") {
		t.Error(got)
	}
	count(1)
	id := pgtest.One[string](t, o.pool, "select id::text from ojs.jobs where state = 'discarded'")
	o.lines(o.admin(0, "dead-letters", "list"), "id tenant queue age error", id+" globex dead")
	if got := o.admin(0, "--wide", "dead-letters", "list"); !strings.Contains(got, "boom: no") {
		t.Error(got)
	}
	o.admin(2, "dead-letters", "retry", id, "--queue", "dead")
	o.admin(2, "dead-letters", "retry", "7")
	o.admin(1, "--tenant", "acme", "dead-letters", "retry", id)
	o.lines(o.admin(0, "dead-letters", "retry", id), "id "+id, "tenant_id globex", "queue dead", "state available")
	count(0)
	o.sql(`select ojs.nack(f.id, '{"code": "boom", "message": "no"}') from ojs.fetch('{dead}') f`)
	o.lines(o.admin(0, "dead-letters", "retry", "--queue", "dead", "--yes"), "what retried", "jobs 1", "remaining 0")
	o.sql(`select ojs.nack(f.id, '{"code": "boom", "message": "no"}') from ojs.fetch('{dead}') f`)
	o.lines(o.admin(0, "dead-letters", "purge", "--limit", "10", "--yes"), "what deleted", "jobs 1", "remaining 0")
}

// docs/operate/configuration.md lists every command of `ojs-pg admin`, and every option that these have.
func TestAdminIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operate/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## Admin\n")
	page, _, _ = strings.Cut(page, "\n## ")
	named := func(pattern string) {
		t.Helper()
		if !regexp.MustCompile(pattern).MatchString(page) {
			t.Errorf("there is no %s", pattern)
		}
	}
	options := func(flags []cli.Flag) {
		t.Helper()
		for _, flag := range flags {
			if name := flag.Names()[0]; name != "database-url" && name != "help" {
				named("`--" + name + "[ `]")
			}
		}
	}
	options(adminCommand().Flags)
	for _, c := range adminCommand().Commands {
		named("`admin " + c.Name + "[ `]")
		options(c.Flags)
		for _, sub := range c.Commands {
			named(`(?m)^.*admin ` + c.Name + `.*(\.\.\.|admin ` + c.Name + ") " + sub.Name + "[ `]")
			options(sub.Flags)
		}
	}
}

func TestAdminMistakes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"tenants", "set DATABASE_URL"},
		{"queue", "needs NAME"},
		{"queue a b", `takes no argument "b"`},
		{"tenants --limit 0", "0 is not between 1 and 1000"},
		{"sideways", `ojs-pg admin has no command "sideways"`},
		{"--queue mail blocked", "write it after the command: ojs-pg admin blocked --queue"},
		{"--sideways blocked", "flag provided but not defined"},
		{"queus", `did you mean "ojs-pg admin queues"?`},
		{"dead-letters rety", `did you mean "ojs-pg admin dead-letters retry"?`},
	} {
		status, output := finish(t, nil, strings.Fields("admin "+tc.args)...)
		if status != 2 || !strings.Contains(output, tc.want) {
			t.Errorf("admin %s ends with %d, want 2 and %q in:\n%s", tc.args, status, tc.want, output)
		}
	}
}

// An option that is empty, an argument that is empty, and an option that is given twice act on nothing:
// the command would act on everything, or pass over one of the two values.
func TestAdminGuessesNoScope(t *testing.T) {
	o := startOperating(t)
	o.sql(`select ojs.nack(f.id, '{"code": "boom", "message": "no"}') from ojs.fetch('{dead}') f`)
	o.sql(`select ojs.register_worker('w1')`)
	for _, c := range []struct{ args, says string }{
		{"--tenant= pause mail", "--tenant is empty"},
		{"pause mail --tenant=", "--tenant is empty"},
		{"--tenant acme pause ", "the argument of ojs-pg admin pause is empty"},
		{"direct --worker= terminate", "--worker is empty"},
		{"--tenant= direct terminate", "--tenant is empty"},
		{"dispatch hold --tenant=", "--tenant is empty"},
		{"--tenant acme weigh --queue= 5", "--queue is empty"},
		{`--tenant acme limits --queue= {"max_queue_depth":5}`, "--queue is empty"},
		{"dead-letters purge --yes --queue=", "--queue is empty"},
		{"dead-letters --queue= purge --yes", "--queue is empty"},
		{"dead-letters purge --yes --type=", "--type is empty"},
		{"dead-letters purge --yes --error-type=", "--error-type is empty"},
		{"dead-letters retry --yes --older-than=", "--older-than is empty"},
		{"dead-letters purge --yes --queue mail --queue dead", "--queue is given more than once"},
		{"--tenant acme dead-letters purge --yes --tenant globex", "--tenant is given more than once"},
		{"jobs ", "the argument of ojs-pg admin jobs is empty"},
	} {
		if got := o.admin(2, strings.Split(c.args, " ")...); !strings.Contains(got, c.says) {
			t.Errorf("%q: %s, want %s", c.args, got, c.says)
		}
	}
	t.Setenv("OJS_ADMIN_TENANT", "")
	if got := o.admin(2, "pause", "mail"); !strings.Contains(got, "--tenant is empty") {
		t.Error(got)
	}
	if n := pgtest.One[int](t, o.pool, `select count(*)::int from ojs.dead_letter`); n != 1 {
		t.Errorf("there are %d dead letters, want 1", n)
	}
	if n := pgtest.One[int](t, o.pool, `select ((select count(*) from ojs.rule)
			+ (select count(*) from ojs.workers where directive is not null))::int`); n != 0 {
		t.Errorf("%d rules and directives, want none", n)
	}
}

// A filter may stand before or after the command that it is for.
func TestAdminFiltersDeadLettersOnBothSides(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.sql(`select ojs.nack(f.id, '{"code": "boom", "message": "no"}') from ojs.fetch('{dead}') f`)
	for _, c := range []string{"--queue mail %s --yes", "%s --queue mail --yes", "--type a %s --yes", "--error-type x %s --yes"} {
		for _, does := range []string{"retry", "purge"} {
			args := strings.Fields("dead-letters " + fmt.Sprintf(c, does))
			if got := o.admin(0, args...); !strings.Contains(got, "jobs       0") {
				t.Errorf("%v: %s", args, got)
			}
		}
	}
	o.lines(o.admin(0, "dead-letters", "--queue", "dead", "purge", "--yes"), "what deleted", "jobs 1", "remaining 0")
}

// No command has an option of the same name as a command above it: what was given to the one above
// would be passed over.
func TestNoOptionHidesAnother(t *testing.T) {
	t.Parallel()
	var look func(c *cli.Command, above []string)
	look = func(c *cli.Command, above []string) {
		for _, flag := range c.Flags {
			for _, name := range flag.Names() {
				if slices.Contains(above, name) {
					t.Errorf("%s has --%s, which a command above it has, too", c.Name, name)
				}
				above = append(above[:len(above):len(above)], name)
			}
		}
		for _, sub := range c.Commands {
			look(sub, above)
		}
	}
	look(command(), nil)
}
