package pg

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/fair"
)

// Statements that serve many callers at once, and those of the clock, are few, and take a connection of the pool as it comes. Those that a
// single request causes are as many as clients send: they take turns, caller by caller. Together they have three quarters of the
// connections, so that there is always one for the others. Those of one tenant have a quarter, and of these reads have half: a tenant whose
// statements are slow must neither have the next one wait until the first of them ends, nor have most of the database's processors. Reads
// use nothing else, while what is written waits for the disk, too.

type turnKey struct{}

// turn identifies the caller on whose behalf a statement runs.
type turn struct {
	caller string
	reads  bool
}

// As returns ctx for statements that run on behalf of a caller: its tenant, or a name that begins
// with NoTenant. reads says that they change nothing.
func As(ctx context.Context, caller string, reads bool) context.Context {
	return context.WithValue(ctx, turnKey{}, turn{caller, reads})
}

// NoTenant begins the names of callers without a tenant.
const NoTenant = "\x00"

// Stranger is the name of all callers with an unknown credential. To make one up costs nothing, so
// they share one connection.
const Stranger = NoTenant + "stranger"

// IsTenant reports whether a caller's name is that of a tenant.
func IsTenant(caller string) bool { return !strings.HasPrefix(caller, NoTenant) }

// turns divides the connections of the pool among callers.
type turns struct {
	conns *fair.Gate // connections
	reads *fair.Gate // those that only read, too
}

func newTurns(conns int32) turns {
	part := func(most int64) *fair.Gate {
		return fair.NewGate(max(1, int64(conns)*3/4), func(caller string) fair.Bounds {
			switch {
			case caller == Stranger:
				return fair.Bounds{Most: 1}
			case IsTenant(caller):
				return fair.Bounds{Most: max(1, most)}
			}
			return fair.Bounds{}
		})
	}
	return turns{conns: part(int64(conns) / 4), reads: part(int64(conns) / 8)}
}

// enter waits until the caller may use a connection; leave gives it up.
func (t turns) enter(ctx context.Context) (leave func(), err error) {
	of, ok := ctx.Value(turnKey{}).(turn)
	if !ok {
		return func() {}, nil
	}
	gates := []*fair.Gate{t.reads, t.conns}
	if !of.reads {
		gates = gates[1:]
	}
	for n, gate := range gates {
		if err := gate.Enter(ctx, of.caller); err != nil {
			for _, in := range gates[:n] {
				in.Leave(of.caller, 1)
			}
			return nil, err
		}
	}
	return func() {
		for _, gate := range gates {
			gate.Leave(of.caller, 1)
		}
	}, nil
}

// Shared runs the statements of callers, in turn.
type Shared struct{ db *DB }

// Shared is the pool for statements of callers (As).
func (d *DB) Shared() Shared { return Shared{d} }

// Query is as a pool's.
func (s Shared) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	leave, err := s.db.turns.enter(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.pool.Query(ctx, sql, args...)
	if err != nil {
		leave()
		return nil, err
	}
	return &turnRows{rows, leave}, nil
}

// QueryRow is as a pool's.
func (s Shared) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := s.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// Exec is as a pool's.
func (s Shared) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	leave, err := s.db.turns.enter(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer leave()
	return s.db.pool.Exec(ctx, sql, args...)
}

// turnRows gives the connection up when the rows end.
type turnRows struct {
	pgx.Rows
	leave func() // nil: it is given up
}

func (r *turnRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *turnRows) Close() {
	r.Rows.Close()
	if r.leave != nil {
		r.leave()
		r.leave = nil
	}
}
