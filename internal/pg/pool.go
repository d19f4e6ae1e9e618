package pg

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// A pool that needs another connection may be refused one: the role has reached its connection
// limit, or other programs use up max_connections. pgxpool then fails the statement, although the
// pool has connections that will soon be free. Pool lets the statement wait for one of these
// connections instead.
//
// pgxpool counts its connections by a semaphore of MaxConns units, and opens a connection whenever
// a unit is free and no connection is. So Pool occupies the free units: each unit is held by a
// connection that is "being opened" and waits in BeforeConnect (hold). Statements then queue for
// the connections that exist, first come, first served. While PostgreSQL opens every connection
// that it is asked for, nothing of this costs anything.

const (
	firstGrowPause = 100 * time.Millisecond // from a refusal until the pool asks for a connection again; it doubles up to growPause
	growPause      = 5 * time.Second
	freePause      = time.Minute            // until any unit is free again, whatever became of the others
	holdTime       = 100 * time.Millisecond // in which a free unit should be occupied
	fullLogged     = time.Minute            // between two log lines about refused connections
)

// Pool is a pgxpool.Pool whose statements wait for a connection of the pool if PostgreSQL refuses
// another one. If the pool has no connection at all, the refusal is the error of the statement.
type Pool struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	held   atomic.Int32  // units that are occupied
	opened atomic.Int64  // connections that were opened; pgxpool counts units, too
	grow   chan struct{} // a message frees one occupied unit

	// mu guards the fields after it. hold keeps it while it occupies units, so that statements that
	// are refused at the same time do not occupy the same units.
	mu       sync.Mutex
	pause    time.Duration // the last pause; 0: a connection was opened since
	askAt    time.Time     // when a unit is free again after that pause
	loggedAt time.Time     // when the log was last told
}

// unit is the value in the context of a connection that only occupies a unit of the pool.
type unit struct {
	occupied chan struct{} // closed once the unit is occupied
	pause    time.Duration // after which the unit is free again
}

type unitKey struct{}

var errUnit = errors.New("the pool must not grow")

// newPool opens a pool. cfg is changed.
func newPool(lifetime context.Context, cfg *pgxpool.Config, log *slog.Logger) (*Pool, error) {
	p := &Pool{log: log, grow: make(chan struct{})}
	cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		u, ok := ctx.Value(unitKey{}).(*unit)
		if !ok {
			return nil
		}
		p.held.Add(1)
		defer p.held.Add(-1)
		close(u.occupied)
		select {
		case <-time.After(u.pause):
		case <-p.grow:
		case <-ctx.Done(): // the pool is closed
		}
		return errUnit
	}
	connected := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		p.opened.Add(1)
		if p.held.Load() > 0 {
			p.mu.Lock()
			p.pause, p.askAt = 0, time.Time{}
			p.mu.Unlock()
			// One more at a time: PostgreSQL counts connections that it is about to refuse, so of
			// several at once it may refuse all.
			select {
			case p.grow <- struct{}{}:
			default:
			}
		}
		return connected(ctx, conn)
	}
	var err error
	p.pool, err = pgxpool.NewWithConfig(lifetime, cfg)
	return p, err
}

// lacking reports whether a connection could not be opened because PostgreSQL lacks a resource:
// connections, locks, memory.
func lacking(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) && sqlstate.InClass(err, sqlstate.ClassResources)
}

// again reports whether a statement that failed to get a connection should try again. It will then
// wait for a connection that the pool has.
func (p *Pool) again(ctx context.Context, err error) bool {
	return err != nil && lacking(err) && ctx.Err() == nil && p.hold(err)
}

// hold occupies the free units of the pool. It returns false if the pool has no connection for
// which a statement could wait. One unit is free again after a pause: the next statement that finds
// no connection free then asks for a new one. Each connection that is opened frees one more unit.
func (p *Pool) hold(refusal error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stat := p.pool.Stat()
	own := stat.AcquiredConns() + stat.IdleConns()
	if own == 0 {
		return false
	}
	now := time.Now()
	if now.Sub(p.loggedAt) >= fullLogged {
		p.loggedAt = now
		p.log.Warn("PostgreSQL refuses further connections: statements share the connections that this server has",
			"connections", own, "max", stat.MaxConns(), "error", refusal)
	}

	// The context ends if a unit was not occupied in time, because a statement was faster. A unit
	// that is occupied by then stays so.
	ctx, cancel := context.WithTimeout(context.Background(), holdTime)
	defer cancel()
	var units sync.WaitGroup
	for range stat.MaxConns() - stat.TotalConns() {
		u := &unit{occupied: make(chan struct{}), pause: freePause}
		if !now.Before(p.askAt) {
			p.pause = min(max(2*p.pause, firstGrowPause), growPause)
			p.askAt, u.pause = now.Add(p.pause), p.pause
		}
		ended := make(chan struct{})
		occupying, stop := context.WithCancel(context.WithValue(context.Background(), unitKey{}, u))
		go func() {
			defer close(ended)
			defer stop()
			if conn, err := p.pool.Acquire(occupying); err == nil {
				conn.Release() // a connection was given back meanwhile: it is for statements
			}
		}()
		units.Go(func() {
			select {
			case <-u.occupied:
			case <-ended:
			case <-ctx.Done():
				stop()
			}
		})
	}
	units.Wait()
	return true
}

// Acquire is pgxpool.Pool.Acquire.
func (p *Pool) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	for {
		conn, err := p.pool.Acquire(ctx)
		if !p.again(ctx, err) {
			return conn, err
		}
	}
}

// Query is pgxpool.Pool.Query.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	for {
		rows, err := p.pool.Query(ctx, sql, args...)
		if !p.again(ctx, err) {
			return rows, err
		}
	}
}

// QueryRow is pgxpool.Pool.QueryRow.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// Exec is pgxpool.Pool.Exec.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	for {
		tag, err := p.pool.Exec(ctx, sql, args...)
		if !p.again(ctx, err) {
			return tag, err
		}
	}
}

// SendBatch is pgxpool.Pool.SendBatch.
func (p *Pool) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return noResults{err}
	}
	return &batchResults{conn.SendBatch(ctx, batch), conn}
}

// Stat is pgxpool.Pool.Stat.
func (p *Pool) Stat() *pgxpool.Stat { return p.pool.Stat() }

// Config is pgxpool.Pool.Config.
func (p *Pool) Config() *pgxpool.Config { return p.pool.Config() }

// Reset is pgxpool.Pool.Reset.
func (p *Pool) Reset() { p.pool.Reset() }

// Close is pgxpool.Pool.Close.
func (p *Pool) Close() { p.pool.Close() }

// batchResults give their connection back when they are closed.
type batchResults struct {
	pgx.BatchResults
	conn *pgxpool.Conn // nil once it was given back
}

func (r *batchResults) Close() error {
	err := r.BatchResults.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
	return err
}

// noResults are the results of a batch that was not sent.
type noResults struct{ err error }

func (r noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, r.err }
func (r noResults) Query() (pgx.Rows, error)         { return nil, r.err }
func (r noResults) QueryRow() pgx.Row                { return oneRow{nil, r.err} }
func (r noResults) Tx() pgx.Tx                       { return nil }
func (r noResults) Close() error                     { return r.err }
