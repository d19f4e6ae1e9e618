package pg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

const statementTries = 3

// WithRetry calls run, which sends a statement, and calls it up to twice more if the statement has
// certainly changed nothing and may succeed now. timeout bounds each call. A panic of run becomes
// an error, which is not tried again. The context of run does not end with a caller, because
// several callers may share the statement.
func WithRetry(timeout time.Duration, run func(context.Context) error) error {
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := guard.Call(func() error { return run(ctx) })
		cancel()
		if err == nil || try == statementTries || !safeToRetry(err) {
			return err
		}
	}
}

// safeToRetry reports whether a failed statement has changed nothing and may succeed now: it was
// never sent, it was prepared for another schema, or its transaction was rolled back in favour of
// another one (serialization failure, deadlock).
func safeToRetry(err error) bool {
	if sqlstate.Of(err) != "" {
		return sqlstate.In(err, sqlstate.SerializationFailure, sqlstate.DeadlockDetected) || Outdated(err)
	}
	return pgconn.SafeToRetry(err) && !errors.Is(err, context.DeadlineExceeded)
}

// ItemFault reports whether a single item of a statement may have caused its error, so that the
// other items may succeed without that item. It is false for classes of errors that concern the
// whole statement: PostgreSQL is unreachable, stops, lacks a resource, or has reached a limit of its own. It is false for a lock,
// too, because each part of the statement would wait for the lock again.
func ItemFault(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code == "" || limitOf(pgErr) != limitNone {
		return false
	}
	state := pgErr.Code
	switch state[:min(2, len(state))] {
	case "08", "25", "28", "53", "55", "57", "58", "XX":
		return false
	}
	return true
}
