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

// A statement that waits for the lock of another transaction occupies a connection meanwhile; a few
// such statements would occupy all of them. So a statement that may meet such a lock waits for at
// most 20 ms, is rolled back, and is tried again after a pause. The pauses grow, and no connection
// is occupied during a pause.

const (
	lockTimeout    = "20ms"
	firstLockPause = 5 * time.Millisecond
	maxLockPause   = 100 * time.Millisecond
	lockSetting    = "lock_timeout"
	lockRetries    = 4 // statements tried again at once; tenants share this number fairly
)

// Locked reports whether the error says that another transaction's lock was in the way.
func Locked(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.SQLState == sqlstate.LockNotAvailable || sqlstate.In(err, sqlstate.LockNotAvailable)
}

// RetryLocked calls try until it returns false, or ctx ends. The pauses between the calls grow from
// 5 to 100 ms and are random, so that two transactions that blocked each other do not meet again.
func RetryLocked(ctx context.Context, try func() (locked bool)) {
	for pause := firstLockPause; try(); pause = min(2*pause, maxLockPause) {
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return
		}
	}
}

// WithLockRetry calls do, which runs one statement through the Brief that it gets, and calls it
// again while a lock is in the way, for at most timeout. tenant is the tenant that the statement
// acts for; nil: none. When ctx ends, do is not called again; a statement in flight goes on,
// because to break it off would cost its connection and leave its outcome unknown. The error is
// that of the last call.
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

// Brief runs statements that PostgreSQL ends after a time: one that waits for a lock (DB.Brief), or
// one that runs (DB.Within). Each statement is a transaction of its own and takes one round trip. A
// Brief is a value without state of its own: any goroutine may use it.
type Brief struct {
	db            *DB
	setting, time string
	actor, reason string // for the audit trail; empty: the session's own
}

// As returns b for changes that the audit trail records with an actor and a reason. The audit trail
// accepts an actor only from a member of ojs_service.
func (b Brief) As(actor, reason string) Brief {
	b.actor, b.reason = actor, reason
	return b
}

// Brief returns a Brief whose statements fail after 20 ms of waiting for a lock; WithLockRetry and
// RetryLocked try them again.
func (d *DB) Brief() Brief { return Brief{db: d, setting: lockSetting, time: lockTimeout} }

// Within returns a Brief whose statements PostgreSQL cancels after limit. The connection survives
// that, unlike the end of a context.
func (d *DB) Within(limit time.Duration) Brief {
	return Brief{db: d, setting: "statement_timeout", time: strconv.FormatInt(limit.Milliseconds(), 10) + "ms"}
}

// Query is pgxpool.Pool.Query.
func (b Brief) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	batch := &pgx.Batch{}
	before := 1
	batch.Queue("select set_config('" + b.setting + "', '" + b.time + "', true)")
	if b.actor != "" || b.reason != "" {
		before++
		batch.Queue("select set_config('ojs.actor', $1, true), set_config('ojs.reason', $2, true)", b.actor, b.reason)
	}
	batch.Queue(sql, args...)
	// The bound ends before the commit: transactions that notify wait for each other there, which
	// is no lock of a job.
	batch.Queue("select set_config('" + b.setting + "', '0', true)")
	leave, err := b.db.shares.enter(ctx)
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

// explain corrects an error of PostgreSQL: if lock_timeout ends in the instant in which the lock is
// granted, the statement is cancelled at its next wait and reported as cancelled by a user (57014).
// It was the lock (55P03), and the statement is to be tried again.
func (b Brief) explain(err error) error {
	var pgErr *pgconn.PgError
	if b.setting != lockSetting || !errors.As(err, &pgErr) || pgErr.Code != sqlstate.QueryCanceled {
		return err
	}
	lock := *pgErr
	lock.Code = sqlstate.LockNotAvailable
	return &lock
}

// QueryRow is pgxpool.Pool.QueryRow.
func (b Brief) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := b.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// Exec is pgxpool.Pool.Exec.
func (b Brief) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := b.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// lastRows are the rows of a batch's last statement. Their end is also the end of the transaction,
// which may still fail then.
type lastRows struct {
	pgx.Rows
	sent    pgx.BatchResults // nil once closed: the connection belongs to another caller then
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

// oneRow is the first of some rows, or the error of the query.
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
