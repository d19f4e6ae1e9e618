package pg

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

const (
	probeTimeout = 2 * time.Second
	// refusedFor is how long a database counts as one that refuses writes after its last refusal.
	// Statements of the server itself write at least that often while there are jobs.
	refusedFor = 10 * time.Second
)

// Unable is the error of a database that answers, and that refuses the writes of a server. Its text
// is the reason, which any caller may read.
type Unable string

func (u Unable) Error() string { return string(u) }

// Reasons why a database refuses writes.
const (
	UnableStandby    Unable = "the database is a standby, which accepts no writes"
	UnableReadOnly   Unable = "the database accepts reads only"
	UnableDiskFull   Unable = "the disk of the database is full"
	UnableWraparound Unable = "the database accepts no writes until it is vacuumed, because it runs out of transaction ids"
)

// refusals remember what PostgreSQL has refused lately.
type refusals struct {
	diskFull, wraparound atomic.Int64 // the last times, in nanoseconds; 0: never
	readOnly             atomic.Bool  // a write was refused since the last probe, whose session is perhaps out of date
}

// note remembers an error that concerns all writes.
func (r *refusals) note(err *pgconn.PgError) {
	now := time.Now().UnixNano()
	switch {
	case err.Code == sqlstate.DiskFull:
		r.diskFull.Store(now)
	case err.Code == sqlstate.ReadOnlyTransaction:
		r.readOnly.Store(true)
	case limitOf(err) == limitWraparound:
		r.wraparound.Store(now)
	}
}

// Probe returns nil if the database answers within 2 s and accepts writes, and Unable if it refuses
// writes. It has a connection of its own, so that it does not wait for work that keeps all other
// connections busy. If PostgreSQL refuses that connection, Probe asks over the pool: a server that
// works must not be taken for one that does not. Probe does not end with ctx, because a caller that
// hangs up would cost the connection.
func (d *DB) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	if d.refusals.readOnly.Swap(false) {
		d.probe.Reset()
	}
	err := askWrites(ctx, d.probe)
	if lacking(err) {
		err = askWrites(ctx, d.pool)
	}
	if errors.As(err, new(Unable)) {
		// The next probe gets a new session: the default of the database, or the host that its name
		// stands for, may change, which a session does not notice.
		d.probe.Reset()
	}
	if err != nil {
		return err
	}
	since := time.Now().Add(-refusedFor).UnixNano()
	switch {
	case d.refusals.wraparound.Load() > since:
		return UnableWraparound
	case d.refusals.diskFull.Load() > since:
		return UnableDiskFull
	}
	return nil
}

// askWrites returns nil if the transactions of a session may write. It sends one statement, by the
// simple protocol: one round trip, through any pooler.
func askWrites(ctx context.Context, on interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) error {
	var standby, readOnly bool
	err := on.QueryRow(ctx, "select pg_is_in_recovery(), current_setting('transaction_read_only')::bool",
		pgx.QueryExecModeSimpleProtocol).Scan(&standby, &readOnly)
	switch {
	case err != nil:
		return err
	case standby:
		return UnableStandby
	case readOnly:
		return UnableReadOnly
	}
	return nil
}

// limit is the cause of a program_limit_exceeded (54000).
type limit int

const (
	limitNone       limit = iota // another SQLSTATE, or the size of a value, which its sender can mend
	limitNotify                  // the queue of notifications is full
	limitWraparound              // ids of transactions are used up until somebody vacuums
	limitOther                   // another limit of the server: of a transaction, or of a table
)

// limitOf returns the cause of an error. The name of PostgreSQL's source file tells it, because a
// message may be in any language. The messages are for errors that were raised again.
func limitOf(err *pgconn.PgError) limit {
	if err.Code != sqlstate.ProgramLimitExceeded {
		return limitNone
	}
	switch {
	case err.File == "async.c" || strings.Contains(err.Message, "NOTIFY queue"):
		return limitNotify
	case err.File == "varsup.c" || err.File == "multixact.c" || strings.Contains(err.Message, "wraparound data loss"):
		return limitWraparound
	case err.File == "xact.c" || err.File == "md.c":
		return limitOther
	}
	return limitNone
}
