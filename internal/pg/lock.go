package pg

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// A statement that waits for another transaction's lock keeps a connection meanwhile, and a few such statements keep all. So statements
// that may meet such a lock wait for 20 ms only, are rolled back then, and are tried again after growing pauses in which they keep
// nothing.

const (
	lockTimeout    = "20ms"
	firstLockPause = 5 * time.Millisecond
	maxLockPause   = 100 * time.Millisecond
	lockSetting    = "lock_timeout"
	lockRetries    = 4 // at once, of all connections; tenants take turns
)

// Locked reports whether the error says that another transaction's lock was in the way.
func Locked(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.SQLState == sqlstate.LockNotAvailable || sqlstate.In(err, sqlstate.LockNotAvailable)
}

// RetryLocked calls try until it returns false, or ctx ends. It pauses between the calls, at
// random, so that two transactions that were in each other's way do not meet again.
func RetryLocked(ctx context.Context, try func() (locked bool)) {
	for pause := firstLockPause; try(); pause = min(2*pause, maxLockPause) {
		select {
		// At random, because two that were in each other's way must not come back together.
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return
		}
	}
}

// WithLockRetry has do run one statement for a tenant, or for none, through Brief, until no lock is in its way, for at most timeout. When
// the caller leaves, it is not tried again; a statement in flight goes on, because its outcome would be unknown and its connection lost.
// The error is the last statement's.
func (d *DB) WithLockRetry(ctx context.Context, tenant *string, timeout time.Duration, do func(context.Context, Brief) error) (err error) {
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	name := ""
	if tenant != nil {
		name = *tenant
	}
	first := true
	RetryLocked(waiting, func() (locked bool) {
		if !first {
			if d.retries.Enter(waiting, name) != nil {
				return false
			}
			defer d.retries.Leave(name, 1)
		}
		first = false
		err = do(running, d.Brief())
		return Locked(err)
	})
	return err
}

// Brief runs statements, each in a transaction of its own and in one round trip, that fail instead of waiting for a lock, or running, for
// longer than so much.
type Brief struct {
	db            *DB
	setting, time string
	actor, reason string // for the audit trail; empty: as the login and the session say
}

// As is b for statements that the audit trail is to show with an actor, whom it believes of the service's login only, and a reason.
func (b Brief) As(actor, reason string) Brief {
	b.actor, b.reason = actor, reason
	return b
}

// Brief is for statements that wait for a lock for at most 20 ms and are tried again: see WithLockRetry and RetryLocked.
func (d *DB) Brief() Brief { return Brief{db: d, setting: lockSetting, time: lockTimeout} }

// Within is for statements that PostgreSQL breaks off after so long. A context that ends breaks the connection off, too.
func (d *DB) Within(limit time.Duration) Brief {
	return Brief{db: d, setting: "statement_timeout", time: strconv.FormatInt(limit.Milliseconds(), 10) + "ms"}
}

// Query is as a pool's.
func (b Brief) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	batch := &pgx.Batch{}
	before := 1
	batch.Queue("select set_config('" + b.setting + "', '" + b.time + "', true)")
	if b.actor != "" || b.reason != "" {
		before++
		batch.Queue("select set_config('ojs.actor', $1, true), set_config('ojs.reason', $2, true)", b.actor, b.reason)
	}
	batch.Queue(sql, args...)
	// Transactions that notify queue up for a lock when they commit, which says nothing about the jobs' locks.
	batch.Queue("select set_config('" + b.setting + "', '0', true)")
	leave, err := b.db.turns.enter(ctx)
	if err != nil {
		return nil, err
	}
	sent := b.db.pool.SendBatch(ctx, batch)
	for range before {
		if _, err := sent.Exec(); err != nil {
			_ = sent.Close() // the same error
			leave()
			return nil, b.explain(err)
		}
	}
	rows, err := sent.Query()
	if err != nil {
		_ = sent.Close() // the same error
		leave()
		return nil, b.explain(err)
	}
	return &lastRows{Rows: rows, sent: sent, leave: leave, explain: b.explain}, nil
}

// explain calls a lock what PostgreSQL calls a query that a user cancelled: where lock_timeout ends at the moment at which the lock is had,
// the statement is broken off at its next wait, and the reason is forgotten.
func (b Brief) explain(err error) error {
	var pgErr *pgconn.PgError
	if b.setting != lockSetting || !errors.As(err, &pgErr) || pgErr.Code != sqlstate.QueryCanceled {
		return err
	}
	lock := *pgErr
	lock.Code = sqlstate.LockNotAvailable
	return &lock
}

// QueryRow is as a pool's.
func (b Brief) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := b.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// Exec is as a pool's.
func (b Brief) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := b.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// lastRows are those of a batch's last statement: their end is the end of the transaction, which may still fail.
type lastRows struct {
	pgx.Rows
	sent    pgx.BatchResults // nil: closed, and the connection is another's
	leave   func()
	end     error
	explain func(error) error
}

func (r *lastRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *lastRows) Close() {
	r.Rows.Close()
	if r.sent != nil {
		r.end, r.sent = r.sent.Close(), nil
		r.leave()
	}
}

func (r *lastRows) Err() error { return r.explain(cmp.Or(r.Rows.Err(), r.end)) }

type oneRow struct {
	rows pgx.Rows
	err  error
}

func (r oneRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
