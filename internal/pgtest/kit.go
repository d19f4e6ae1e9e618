package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier runs statements: a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Exec runs a statement and returns the number of rows that it changed. The test ends if it fails.
func Exec(t testing.TB, q Querier, sql string, args ...any) int64 {
	t.Helper()
	tag, err := q.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %s", Short(sql), Explain(err))
	}
	return tag.RowsAffected()
}

// One returns the first value of the first row of a query. The test ends if the query fails or
// returns no row.
func One[T any](t testing.TB, q Querier, sql string, args ...any) (value T) {
	t.Helper()
	if err := q.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %s", Short(sql), Explain(err))
	}
	return value
}

// List returns the values of a query that has one column. The test ends if the query fails.
func List[T any](t testing.TB, q Querier, sql string, args ...any) []T {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err == nil {
		var values []T
		if values, err = pgx.CollectRows(rows, pgx.RowTo[T]); err == nil {
			return values
		}
	}
	t.Fatalf("%s: %s", Short(sql), Explain(err))
	return nil
}

const (
	// patience is how long helpers wait before they fail the test. It is long because a loaded machine
	// is slow, and a test that passes never waits so long.
	patience     = time.Minute
	pollInterval = 5 * time.Millisecond
)

// Eventually polls until a condition holds. If it does not within a minute, the test ends with a
// message that contains what, a sentence that says what it waited for.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Receive returns the next value of a channel. If there is none within a minute, the test ends with a
// message that contains what.
func Receive[T any](t testing.TB, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return value
}

// AtRest polls a number until it has not changed for a second, and returns it. It is for events that
// may repeat an unknown number of times.
func AtRest(t testing.TB, what string, number func() int64) int64 {
	t.Helper()
	last, since := number(), time.Now()
	Eventually(t, what, func() bool {
		if now := number(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
	return last
}

// Eventually polls with a query for one boolean, as superuser, until it is true. It fails as the
// function Eventually does.
func (d *DB) Eventually(what, sql string, args ...any) {
	d.t.Helper()
	Eventually(d.t, what, func() bool { return One[bool](d.t, d.Pool, sql, args...) })
}

// Blocked returns when the session with the backend pid waits for a lock. Tests of races use it to
// know that the second session has come to the lock; a pause might be too short on a slow machine.
func (d *DB) Blocked(pid uint32) {
	d.t.Helper()
	Eventually(d.t, fmt.Sprintf("session %d waits for a lock", pid), func() bool { return d.IsBlocked(pid) })
}

// IsBlocked reports whether a session waits for a lock at this moment.
func (d *DB) IsBlocked(pid uint32) bool {
	d.t.Helper()
	return One[bool](d.t, d.Pool, "select cardinality(pg_blocking_pids($1)) > 0", int32(pid))
}

// BlockedSessions returns when at least n sessions of this database wait for locks.
func (d *DB) BlockedSessions(n int) {
	d.t.Helper()
	d.Eventually(fmt.Sprintf("%d sessions wait for locks", n), `
		select count(*) >= $1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`, n)
}

// Explain returns the text of an error, with PostgreSQL's code, detail and context.
func Explain(err error) string {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%s %s %s  %.100s", failure.Code, failure.Message, failure.Detail, failure.Where)
}

// Short returns a statement in one line of about 200 bytes at most, for messages.
func Short(sql string) string {
	sql = strings.Join(strings.Fields(sql), " ")
	if len(sql) > 200 {
		sql = sql[:200] + "..."
	}
	return sql
}
