package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// Shortage is memory that all sessions of PostgreSQL share and that runs out.
type Shortage struct {
	What    string // a sentence, for everybody; "" if nothing runs out
	Holders string // the sessions that hold it, or where they are named, for operators; "" if nothing runs out
}

const (
	// fullQueue is the part of the NOTIFY queue above which nothing is notified (ojs._notify_full), and
	// fullTable that of the lock table above which ojs.doctor reports it.
	fullQueue = 0.5
	fullTable = 0.8
	// shortageTimeout bounds each of the two statements of Shortage.
	shortageTimeout = 2 * time.Second
)

// Shortage asks PostgreSQL whether its NOTIFY queue or its lock table is nearly full. It uses
// connections that are open already if it can: while the lock table is full, PostgreSQL refuses new
// ones.
func (d *DB) Shortage(ctx context.Context) (Shortage, error) {
	ctx = context.WithoutCancel(ctx) // a caller that hangs up would cost the connection
	row, err := sharedMemory(ctx, sqlcgen.New(d.probe))
	if err != nil {
		row, err = sharedMemory(ctx, sqlcgen.New(d.pool))
	}
	switch {
	case sqlstate.In(err, sqlstate.OutOfMemory):
		return Shortage{What: "PostgreSQL's lock table is full.", Holders: "not known"}, nil
	case err != nil:
		return Shortage{}, fmt.Errorf("ask how full the NOTIFY queue and the lock table are: %w", err)
	}
	return shortageOf(&row), nil
}

// shortageOf returns which of the two runs out. If both do, it is the lock table.
func shortageOf(row *sqlcgen.SharedMemoryRow) Shortage {
	switch {
	case float64(row.Locks) > fullTable*float64(row.LockTable):
		return Shortage{
			What:    fmt.Sprintf("PostgreSQL's lock table is nearly full: %d locks, and it is made for %d.", row.Locks, row.LockTable),
			Holders: row.Holders,
		}
	case row.NotifyQueue > fullQueue:
		// The server's login does not see for how long transactions of other roles have been open.
		return Shortage{
			What:    fmt.Sprintf("PostgreSQL's NOTIFY queue is %.0f %% full.", 100*row.NotifyQueue),
			Holders: "ojs-pg doctor and PostgreSQL's log name the process",
		}
	}
	return Shortage{}
}

func sharedMemory(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.SharedMemoryRow, error) {
	ctx, cancel := context.WithTimeout(ctx, shortageTimeout)
	defer cancel()
	return q.SharedMemory(ctx)
}
