package db_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// update is set by -update: tests rewrite the files that they compare with (testdata, schema.sql,
// docs/reference/sql-api.md).
var update = flag.Bool("update", false, "rewrite golden and generated files")

// seed is set by -seed and repeats a random test. Each random test prints its own seed.
var seed = flag.Uint64("seed", 0, "seed of random walks; 0: another one each time")

// newSeed returns the seed of -seed, or a random one.
func newSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return rand.Uint64()
}

type querier = pgtest.Querier

// exec, one and list are Exec, One and List of pgtest, under short names that leave the line to the SQL.

func exec(t testing.TB, q querier, sql string, args ...any) int64 {
	t.Helper()
	return pgtest.Exec(t, q, sql, args...)
}

func one[T any](t testing.TB, q querier, sql string, args ...any) T {
	t.Helper()
	return pgtest.One[T](t, q, sql, args...)
}

func list[T any](t testing.TB, q querier, sql string, args ...any) []T {
	t.Helper()
	return pgtest.List[T](t, q, sql, args...)
}

// lines returns the rows of a query as texts, with columns separated by a space and null shown as -.
func lines(t testing.TB, q querier, sql string, args ...any) []string {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		if err != nil {
			return "", err
		}
		words := make([]string, len(values))
		for i, value := range values {
			words[i] = "-"
			if value != nil {
				words[i] = fmt.Sprint(value)
			}
		}
		return strings.Join(words, " "), nil
	})
	if err != nil {
		t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	}
	return all
}

// refused returns the error of a statement. The test fails if the statement succeeds or fails with an
// SQLSTATE that is not among states, a list separated by spaces.
func refused(t testing.TB, q querier, states string, sql string, args ...any) *pgconn.PgError {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err == nil {
		for rows.Next() {
			if values, verr := rows.Values(); verr == nil {
				t.Logf("a row: %v", values)
			}
		}
		err = rows.Err()
	}
	return sqlstate(t, err, states, pgtest.Short(sql))
}

// sqlstate returns err as an error of PostgreSQL. The test fails if its SQLSTATE is not among states.
func sqlstate(t testing.TB, err error, states, what string) *pgconn.PgError {
	t.Helper()
	var failure *pgconn.PgError
	switch {
	case err == nil:
		t.Errorf("%s: succeeded, want %s", what, states)
	case !errors.As(err, &failure):
		t.Errorf("%s: %v, want %s", what, err, states)
	case !strings.Contains(states, failure.Code):
		t.Errorf("%s: %s, want %s", what, pgtest.Explain(err), states)
	default:
		return failure
	}
	return &pgconn.PgError{}
}

// detail returns the JSON object in the detail of an error of class OJ.
func detail(t testing.TB, failure *pgconn.PgError) map[string]any {
	t.Helper()
	fields := map[string]any{}
	if strings.HasPrefix(failure.Code, "OJ") && failure.Detail != "" {
		if err := json.Unmarshal([]byte(failure.Detail), &fields); err != nil {
			t.Errorf("the detail of %q is no JSON object: %s", failure.Message, failure.Detail)
		}
	}
	return fields
}

// job holds the columns of ojs.job that most tests look at.
type job struct {
	ID, Tenant, Queue, State string
	Attempt                  int
	Lease                    *string
	WorkerID                 *string
}

// jobs returns the jobs of a call such as ojs.fetch('{default}'), or of another expression after "from".
func jobs(t testing.TB, q querier, from string, args ...any) []job {
	t.Helper()
	sql := "select id::text, tenant_id, queue, state::text, attempt, lease::text, worker_id from " + from
	rows, err := q.Query(t.Context(), sql, args...)
	if err == nil {
		var all []job
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[job]); err == nil {
			return all
		}
	}
	t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	return nil
}

// oneJob is jobs for an expression that has to give one job.
func oneJob(t testing.TB, q querier, from string, args ...any) job {
	t.Helper()
	all := jobs(t, q, from, args...)
	if len(all) != 1 {
		t.Fatalf("%s: %d jobs, want 1", pgtest.Short(from), len(all))
	}
	return all[0]
}

// begin opens a transaction in a session of its own. If the test does not end it, it is rolled back at the
// end of the test.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// commit ends a transaction, which must succeed. So does rollback.
func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatalf("commit: %s", pgtest.Explain(err))
	}
}

func rollback(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatalf("rollback: %s", pgtest.Explain(err))
	}
}

// connect opens a session of its own, for tests of settings, locks and notifications of a session.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// backendPID returns the process id of the session of a transaction, for pgtest's Blocked.
func backendPID(tx pgx.Tx) uint32 { return tx.Conn().PgConn().PID() }

// idleForLong makes levels of priority without work look as if they had been without for a day.
func idleForLong(t testing.TB, d *pgtest.DB) {
	t.Helper()
	exec(t, d.Pool, `
		update ojs.dispatch_state set idle_at = idle_at - interval '1 day', levels = array(
			select row(l.priority, l.low, l.joined, l.ready, l.at_limit, l.idle_at - interval '1 day')::ojs.level
			from unnest(levels) with ordinality l order by l.ordinality)`)
}

// ackActive acknowledges all active jobs.
func ackActive(t testing.TB, q querier) {
	t.Helper()
	exec(t, q, "select ojs.ack_many(array(select id from ojs.job where state = 'active'))")
}

// waitForLane makes sessions wait for the lane for a number of milliseconds, instead of 100.
func waitForLane(t *testing.T, d *pgtest.DB, patience int) {
	t.Helper()
	body := one[string](t, d.Pool, "select pg_get_functiondef('ojs._wait_for_lane'::regproc)")
	const real = "c_patience_ms constant int := 100;"
	if !strings.Contains(body, real) {
		t.Fatalf("a FETCH waits otherwise: %s", body)
	}
	exec(t, d.Pool, strings.Replace(body, real, fmt.Sprintf("c_patience_ms constant int := %d;", patience), 1))
}

// fetchLater fetches jobs of a queue in the background, in a session of its own, and returns when that
// session waits for the session that holds the lane. It waits for a minute or, with inVain, for five
// seconds, after which the FETCH goes on without the lane. The usual 100 ms would be over before a loaded
// machine has come to the next step of the test.
func fetchLater(t *testing.T, d *pgtest.DB, queue string, count int, inVain bool) (jobs <-chan int) {
	t.Helper()
	patience := 60_000
	if inVain {
		patience = 5_000
	}
	waitForLane(t, d, patience)
	conn := connect(t, d.ServiceURL)
	got := make(chan int, 1)
	go func() {
		n := -1
		// The simple protocol begins the transaction with the call. The extended one plans the call first; if
		// that takes more than 20 ms, the call does not wait.
		const fetch = "select count(*) from ojs.fetch(array[$1], $2)"
		if err := conn.QueryRow(t.Context(), fetch, pgx.QueryExecModeSimpleProtocol, queue, count).Scan(&n); err != nil {
			t.Error(err)
		}
		got <- n
	}()
	d.Blocked(conn.PgConn().PID())
	return got
}

// stored returns the numbers of rows in private tables, to compare with nothing.
func stored(t testing.TB, d *pgtest.DB) string {
	t.Helper()
	return one[string](t, d.Pool, `select format('%s jobs, %s wakes, %s timers, %s leases, %s releases',
		(select count(*) from ojs.job), (select count(*) from ojs.journal), (select count(*) from ojs.timer),
		(select count(*) from ojs.lease), (select count(*) from ojs.release))`)
}

const nothing = "0 jobs, 0 wakes, 0 timers, 0 leases, 0 releases"

// answers returns the error with which the server would answer.
func answers(t testing.TB, db *pg.DB, failure *pgconn.PgError) *pg.Error {
	t.Helper()
	var known *pg.Error
	if !errors.As(db.Err(failure), &known) {
		t.Fatalf("%v is not turned into an answer", failure)
	}
	return known
}

// golden compares a text with a file or, with -update, writes the file. The name of a test that uses it
// begins with TestGolden: make golden runs the tests with such names.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestGolden") {
		t.Fatal("make golden does not find this test: its name has to begin with TestGolden")
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := readFile(t, path); got != want {
		t.Errorf("%s is not what the database says any more; go test ./db -update rewrites it.\n%s", path, firstDifference(want, got))
	}
}

// readFile returns the content of a golden or generated file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./db -update writes it", err)
	}
	return string(raw)
}

// firstDifference returns a message with the first line in which two texts differ.
func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		var left, right string
		if i < len(a) {
			left = a[i]
		}
		if i < len(b) {
			right = b[i]
		}
		if left != right {
			return fmt.Sprintf("line %d\n  file:     %s\n  database: %s", i+1, left, right)
		}
	}
	return ""
}
