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

// WithRetry runs a statement, and up to twice more if it certainly did nothing and may well succeed now. timeout bounds each run. A panic
// of run is an error, which is not tried again. The statement does not end with its caller: others may share it.
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

// safeToRetry reports whether a statement did nothing and may succeed now: it was never sent, or was prepared for another schema, or its
// transaction lost against another one and was rolled back.
func safeToRetry(err error) bool {
	if sqlstate.Of(err) != "" {
		return sqlstate.In(err, sqlstate.SerializationFailure, sqlstate.DeadlockDetected) || Outdated(err)
	}
	return pgconn.SafeToRetry(err) && !errors.Is(err, context.DeadlineExceeded)
}

// ItemFault reports whether PostgreSQL answered with an error that a single item of a statement may have caused, so that the others may
// succeed without it. Classes of errors that concern the whole statement are not: PostgreSQL is unreachable, stops, or lacks something. A
// lock is not either, because every part of the statement would wait for it again.
func ItemFault(err error) bool {
	state := sqlstate.Of(err)
	if state == "" {
		return false
	}
	switch state[:min(2, len(state))] {
	case "08", "25", "28", "53", "55", "57", "58", "XX":
		return false
	}
	return true
}
