package main

import (
	"bytes"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// backup is a database with jobs in several states, and another cluster into which it is restored
// (docs/runbooks/backup-and-restore.md).
type backup struct {
	*testing.T
	from *pgtest.DB
	to   *pgtest.Private
	bin  string
}

const further = `do $$ begin for i in 1..20000 loop perform pg_catalog.pg_current_xact_id(); commit; end loop; end $$`

// newBackup makes the database. to is the other cluster, which is migrated or has never had our roles.
// With ahead, the transaction ids of the database are higher than those of the cluster, else lower.
func newBackup(t *testing.T, to *pgtest.Private, ahead bool) *backup {
	t.Helper()
	b := &backup{T: t, from: pgtest.New(t), to: to}
	found, err := embedpg.Find(os.Getenv("OJS_TEST_PG_BIN")) // the newest first, on which the servers run
	if err != nil {
		t.Fatal(err)
	}
	b.bin = found[0].Dir
	pgtest.Exec(t, b.from.Pool, `insert into ojs.jobs (tenant_id, type, queue)
		select unnest('{acme,globex}'::text[]), 'a', 'mail' from generate_series(1, 20)`)
	pgtest.Exec(t, b.from.Pool, "select ojs.enqueue('late', p_queue => 'mail', p_scheduled_at => ojs.now() + interval '1 day')")
	pgtest.Exec(t, b.from.Pool, "select ojs.ack(f.id, f.lease) from ojs.fetch('{mail}', 6) f")
	pgtest.Exec(t, b.from.Pool, "select ojs.tick()")
	pgtest.Exec(t, b.from.Pool, "select ojs.fetch('{mail}', 4, 'w', 3600000)") // not rolled up yet
	if ahead {
		pgtest.Exec(t, b.from.Pool, further)
	} else {
		b.to.Exec(further)
	}
	pgtest.Exec(t, b.from.Pool, "select ojs.enqueue('a', p_queue => 'mail', p_tenant => 'acme')")
	pgtest.Exec(t, b.from.Pool, "select ojs.fetch('{mail,other}', 1, null, 3600000)")
	pgtest.Exec(t, b.from.Pool, "select ojs.tick()")
	return b
}

// restore dumps the database and restores the dump to one of that name; more are options of pg_dump.
func (b *backup) restore(name string, more ...string) (address string, db *pgxpool.Pool) {
	b.Helper()
	b.to.Exec("create database " + name + " encoding 'UTF8' template template0")
	address = withPath(b.T, b.to.URL, name)
	b.transfer(address, more, []string{"--exit-on-error"})
	return address, connected(b.T, address)
}

// transfer dumps the database and restores it, each with options. What pg_restore says counts only where it is to exit on an error.
func (b *backup) transfer(address string, dumping, restoring []string) {
	b.Helper()
	dump := filepath.Join(b.TempDir(), "dump")
	for _, command := range [][]string{
		append([]string{"pg_dump", "-Fc", "-f", dump, "-d", b.from.URL}, dumping...),
		append([]string{"pg_restore", "-d", address, dump}, restoring...),
	} {
		out, err := exec.CommandContext(b.Context(), filepath.Join(b.bin, command[0]), command[1:]...).CombinedOutput()
		if err != nil && !(command[0] == "pg_restore" && !slices.Contains(restoring, "--exit-on-error")) {
			b.Fatalf("%q: %v\n%s", command, err, out)
		}
	}
}

// withPath is a URL of another database of the same server.
func withPath(t *testing.T, address, database string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + database
	return u.String()
}

// does runs a command of the program, and returns what it says and how it ends.
func (b *backup) does(address string, args ...string) (string, int) {
	var stdout, stderr bytes.Buffer
	ended := run(append(append([]string{"ojs-pg"}, args...), "--database-url", address), &stdout, &stderr)
	return stdout.String() + stderr.String(), ended
}

// A dump that is restored to another cluster is complete: after a tick the jobs go on, and are counted as they are.
func TestADumpIsRestored(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]bool{"with ids from later": true, "with ids from before": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); testDump(t, newBackup(t, pgtest.NewPrivate(t, nil), ahead)) })
	}
}

func testDump(t *testing.T, b *backup) {
	address, db := b.restore("restored")
	if text, ended := b.does(address, "migrate", "up"); ended != 0 || !strings.HasPrefix(text, "nothing to do") {
		t.Errorf("migrate up ends with %d: %s", ended, text)
	}
	const restored = "The database was restored from another cluster"
	if text, ended := b.does(address, "doctor"); ended != foundErrors || !strings.Contains(text, restored) {
		t.Errorf("doctor ends with %d: %s", ended, text)
	}
	if _, err := db.Exec(t.Context(), "select ojs.fetch('{mail}', 1)"); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("a fetch before the first tick: %v", err)
	}
	pgtest.Exec(t, db, "select ojs.tick()")
	if text, ended := b.does(address, "doctor"); strings.Contains(text, restored) {
		t.Errorf("after a tick doctor ends with %d: %s", ended, text)
	}
	const counted = "select format('%s %s %s %s', sum(available), sum(active), sum(scheduled), sum(completed)) from ojs.queue_stats"
	if got := pgtest.One[string](t, db, counted); got != "30 5 1 6" {
		t.Errorf("jobs available, active, scheduled and completed: %s", got)
	}
	// Those that were active are their workers' still; the others are handed out, each once.
	for _, c := range []struct {
		sql  string
		want int
	}{
		{"select count(*)::int from (select ojs.ack(j.id, j.lease) from ojs.job j where j.state = 'active') a", 5},
		{"select count(distinct id)::int from ojs.fetch('{mail}', 100)", 30},
		{"select count(*)::int from (select ojs.ack(j.id, j.lease) from ojs.job j where j.state = 'active') a", 30},
		{"select count(*)::int from (select ojs.enqueue('a', p_queue => 'mail') from generate_series(1, 3)) a", 3},
		{"select count(distinct id)::int from ojs.fetch('{mail}', 100)", 3},
	} {
		if got := pgtest.One[int](t, db, c.sql); got != c.want {
			t.Errorf("%s: %d, want %d", c.sql, got, c.want)
		}
	}
	pgtest.Exec(t, db, "select ojs.tick()")
	if got := pgtest.One[string](t, db, counted); got != "0 3 1 41" {
		t.Errorf("afterwards: %s", got)
	}
}

// The schema alone lacks rows that belong to it, so the program does not take it for a working database.
func TestADumpOfTheSchemaAloneIsRefused(t *testing.T) {
	t.Parallel()
	b := newBackup(t, pgtest.NewPrivate(t, nil), true)
	address, _ := b.restore("empty", "-s")
	if text, ended := b.does(address, "doctor"); ended != foundErrors || !strings.HasPrefix(text, "error: schema: ") {
		t.Errorf("doctor ends with %d: %s", ended, text)
	}
	if text, ended := b.does(address, "serve"); ended != 1 {
		t.Errorf("serve ends with %d: %s", ended, text)
	}
	if text, ended := b.does(address, "migrate", "up"); ended != 1 || !strings.Contains(text, "without the rows that belong to it") {
		t.Errorf("migrate up ends with %d: %s", ended, text)
	}
}
