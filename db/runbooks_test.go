package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// more matches the words by which a page says that a block needs more privileges than ojs_operator.
var more = regexp.MustCompile(`(?i)superuser|owner of the database|pg_read_all_stats|pg_signal_backend|pg_monitor`)

// A night on call: three tenants with 150,000 jobs, a queue without workers, a worker that is dead and a transaction that stays open. The
// doctor names the pages, and what these say works for a member of ojs_operator, unless the page says that it takes more.
func TestRunbooksAtNight(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, tenant := range []string{"acme", "globex", "initech"} {
		for _, queue := range []string{"mail", "mail", "mail", "mail", "reports"} {
			exec(t, service, `
				select ojs.enqueue_bulk('a', array_fill('[]'::json, array[10000]), p_queue => $2, p_tenant => $1)`, tenant, queue)
		}
	}
	// Else autovacuum does it when it likes, for longer than what changes the table of jobs waits for others.
	exec(t, d.Pool, "vacuum (analyze) ojs.job")
	exec(t, service, "select ojs.register_worker('lost', p_queues => '{mail}')")
	handedOut(t, service, "{mail}", 3)
	exec(t, service, "select ojs.ack_many(array(select id from ojs.job where state = 'active' limit 2))")
	exec(t, service, "select ojs.fetch('{mail}', 20, 'lost')")
	exec(t, service, "select ojs.tick()")
	open := begin(t, d.Pool)
	exec(t, open, "select ojs.enqueue('a', p_queue => 'mail', p_tenant => 'acme')")
	d.SetNow(time.Now().Add(30 * time.Minute))
	exec(t, service, "select ojs.fetch('{mail}', 1, 'alive')")

	operator := connect(t, d.OperatorURL())
	for _, want := range []string{"queue-stuck.md", "worker-died.md", "lost-server.md"} {
		if one[int](t, operator, "select count(*) from ojs.doctor() where runbook = $1", want) == 0 {
			t.Errorf("the doctor does not name %s", want)
		}
	}
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil || len(pages) < 16 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	super := connect(t, d.URL)
	night := backendPID(open)
	for _, page := range pages {
		if filepath.Base(page) > "long-transaction.md" {
			// What this page does about it. Later pages change what the table of jobs checks, which they say is refused until then.
			exec(t, super, "select pg_terminate_backend($1, 60000)", night)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		asWritten(t, filepath.Base(page), text, operator, super)
	}
}

// What a page looks at, which are its blocks before "What to do" (docs/runbooks/README.md has them as a script), changes nothing, and
// needs no more than membership in ojs_operator, unless the page says so.
func TestRunbooksLookWithoutChangingAnything(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator, super := connect(t, d.OperatorURL()), connect(t, d.URL)
	exec(t, operator, "set default_transaction_read_only = on")
	exec(t, super, "set default_transaction_read_only = on")
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil || len(pages) < 16 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		looks, _, found := bytes.Cut(text, []byte("\n## What to do\n"))
		if !found && filepath.Base(page) != "README.md" {
			t.Errorf("%s does not say what to do", filepath.Base(page))
		}
		asWritten(t, filepath.Base(page), looks, operator, super)
	}
}

// docs/runbooks/sql has what each page looks at, to be read by psql.
func TestGoldenRunbookScripts(t *testing.T) {
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		looks, _, does := bytes.Cut(text, []byte("\n## What to do\n"))
		blocks := sqlBlock.FindAllSubmatch(looks, -1)
		if !does || blocks == nil {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		script := fmt.Sprintf("-- Made from docs/runbooks/%s.md, which says how to read it. Changes nothing. In psql:\n"+
			"-- \\i docs/runbooks/sql/%[1]s.sql\n", name)
		for _, block := range blocks {
			script += "\n" + string(block[1])
		}
		golden(t, "../docs/runbooks/sql/"+name+".sql", script)
		scripts++
	}
	if kept, err := filepath.Glob("../docs/runbooks/sql/*.sql"); err != nil || len(kept) != scripts {
		t.Errorf("there are %d scripts for %d pages: %v", len(kept), scripts, err)
	}
}

// A flood is seen wherever it lies: not only in the queue in which the tenant's first job waits the longest.
func TestTheFloodIsSeen(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	enqueueFor(t, d.Service(), "typo", "acme", 1)
	d.SetNow(noon.Add(time.Second))
	enqueueFor(t, d.Service(), "default", "acme", 50)
	enqueueFor(t, d.Service(), "default", "globex", 2)
	text, err := os.ReadFile("../docs/runbooks/tenant-flooding.md")
	if err != nil {
		t.Fatal(err)
	}
	looks := strings.Split(string(sqlBlock.FindSubmatch(text)[1]), ";")
	for i, want := range []string{"acme 51 0 00:00:01 2, globex 2 0 00:00:00 1", "acme default 50 0, globex default 2 0, acme typo 1 0"} {
		columns := []string{"tenant_id, available::int, active::int, oldest_wait::text, queues", "tenant_id, queue, available, active"}[i]
		got := strings.Join(lines(t, d.Operator(), "select "+columns+" from ("+looks[i]+") look"), ", ")
		if got != want {
			t.Errorf("it shows %s, want %s", got, want)
		}
	}
}

// asWritten runs the blocks of a page as an operator, and blocks that need more privileges, as the page has
// to say, as a superuser.
func asWritten(t *testing.T, page string, text []byte, operator, super *pgx.Conn) {
	t.Helper()
	said := 0
	for _, at := range sqlBlock.FindAllSubmatchIndex(text, -1) {
		before, block := text[said:at[0]], string(text[at[2]:at[3]])
		said = at[1]
		err := typed(t, operator, block)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "42501" && more.Match(before) {
			err = typed(t, super, block)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", page, err, block)
		}
	}
}

// typed runs a block as psql does: several statements at once, also with transactions. It rolls back a
// transaction that failed.
func typed(t *testing.T, conn *pgx.Conn, block string) error {
	t.Helper()
	_, err := conn.PgConn().Exec(t.Context(), block).ReadAll()
	if conn.PgConn().TxStatus() != 'I' {
		exec(t, conn, "rollback", pgx.QueryExecModeSimpleProtocol)
	}
	return err
}
