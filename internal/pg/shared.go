package pg

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/fair"
)

// How callers share the connections of the pool:
//
//	statements of the server itself, and those that serve many callers at once   any free connection
//	statements of single requests, of all callers together                       3/4 of the connections
//	statements of one tenant                                                     1/4
//	statements of one tenant that only read                                      1/8
//	statements of all requests with an unknown credential                        1
//
// Clients send as many requests as they like, so the server's own statements keep a quarter to
// themselves. A tenant whose statements are slow must not delay the statements of other tenants,
// nor use most of the database's processors. Reads have the smaller bound because they use a
// processor all the time, while a write also waits for the disk.

type callerKey struct{}

// caller identifies on whose behalf a statement runs.
type caller struct {
	name  string
	reads bool // the statement changes nothing
}

// As returns ctx for statements that run on behalf of a caller: its tenant, or a name that begins
// with NoTenant. reads says that they change nothing. Without As a statement counts as the server's
// own.
func As(ctx context.Context, name string, reads bool) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{name, reads})
}

// NoTenant begins the names of callers without a tenant.
const NoTenant = "\x00"

// Stranger is the name of all callers with an unknown credential. Anybody can make credentials up,
// so these callers share one connection.
const Stranger = NoTenant + "stranger"

// IsTenant reports whether a caller's name is that of a tenant.
func IsTenant(caller string) bool { return !strings.HasPrefix(caller, NoTenant) }

// connShares divides the connections of the pool among callers.
type connShares struct {
	conns *fair.Gate // one unit for each connection that callers may use
	reads *fair.Gate // the same, for statements that only read; they need a unit of both
}

func newConnShares(conns int32) connShares {
	gate := func(ofTenant int64) *fair.Gate {
		return fair.NewGate(max(1, int64(conns)*3/4), func(name string) fair.Bounds {
			switch {
			case name == Stranger:
				return fair.Bounds{Most: 1}
			case IsTenant(name):
				return fair.Bounds{Most: max(1, ofTenant)}
			}
			return fair.Bounds{}
		})
	}
	return connShares{conns: gate(int64(conns) / 4), reads: gate(int64(conns) / 8)}
}

// enter waits until the caller in ctx may use a connection. The caller must call leave when its
// statement has ended. Fails when ctx ends.
func (s connShares) enter(ctx context.Context) (leave func(), err error) {
	of, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return func() {}, nil
	}
	gates := []*fair.Gate{s.reads, s.conns}
	if !of.reads {
		gates = gates[1:]
	}
	for n, gate := range gates {
		if err := gate.Enter(ctx, of.name); err != nil {
			for _, in := range gates[:n] {
				in.Leave(of.name, 1)
			}
			return nil, err
		}
	}
	return func() {
		for _, gate := range gates {
			gate.Leave(of.name, 1)
		}
	}, nil
}

// Shared runs statements of callers (As) over the pool. A statement waits while its caller has its
// share of the connections.
type Shared struct{ db *DB }

// Shared returns the pool for statements of callers.
func (d *DB) Shared() Shared { return Shared{d} }

// Query is pgxpool.Pool.Query. The caller's connection is free again when the rows are closed or
// read to their end.
func (s Shared) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	leave, err := s.db.shares.enter(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.pool.Query(ctx, sql, args...)
	if err != nil {
		leave()
		return nil, err
	}
	return &sharedRows{rows, leave}, nil
}

// QueryRow is pgxpool.Pool.QueryRow.
func (s Shared) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := s.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// Exec is pgxpool.Pool.Exec.
func (s Shared) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	leave, err := s.db.shares.enter(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer leave()
	return s.db.pool.Exec(ctx, sql, args...)
}

// sharedRows are rows whose end gives the caller's share of the connections back.
type sharedRows struct {
	pgx.Rows
	leave func() // nil once it was called
}

func (r *sharedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *sharedRows) Close() {
	r.Rows.Close()
	if r.leave != nil {
		r.leave()
		r.leave = nil
	}
}
