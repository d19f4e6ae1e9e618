//go:build unix

package bench

import (
	"context"
	"log/slog"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// engine is what a server runs behind HTTP.
type engine struct {
	db   *pg.DB
	log  *slog.Logger
	stop func()
}

// engine opens the database as a server does. places learns where each request was in its decision; nil: nobody asks.
func (d *database) engine(ctx context.Context, maxConns int, places *places) (*engine, error) {
	cfg := pg.Config{URL: d.service, Role: d.role, MaxConns: int32(maxConns), AppName: "ojs-pg bench"}
	if places != nil {
		cfg.Tracer = places
	}
	db, err := pg.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &engine{db: db, log: d.env.log, stop: db.Close}, nil
}

// clock is what a server does beside its requests.
func (e *engine) clock(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { sched.New(e.db, e.log, 0).Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// worker calls the engine as a handler does. Tenants become numbers by tenants.
func (e *engine) worker(queues []string, tenants map[string]int32) worker {
	return engineWorker{q: sqlcgen.New(e.db.Pool()), queues: queues, tenants: tenants}
}

type engineWorker struct {
	q       *sqlcgen.Queries
	queues  []string
	tenants map[string]int32
}

func (w engineWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	got, err := w.q.Fetch(ctx, sqlcgen.FetchParams{Queues: w.queues, Count: int32(count), WorkerID: &name})
	if err != nil {
		return nil, err
	}
	jobs := make([]job, len(got))
	for i := range got {
		jobs[i] = job{id: uuid.MustParse(got[i].ID), lease: uuid.MustParse(*got[i].Lease), args: got[i].Args, tenant: w.tenants[got[i].TenantID], at: got[i].StartedAt.UnixMicro()}
	}
	return jobs, nil
}

func (w engineWorker) ack(ctx context.Context, jobs []job) error {
	for i := range jobs {
		lease := uuid.UUID(jobs[i].lease).String()
		if _, err := w.q.Ack(ctx, sqlcgen.AckParams{ID: uuid.UUID(jobs[i].id).String(), Lease: &lease}); err != nil {
			return err
		}
	}
	return nil
}

func (w engineWorker) close() {}

// places remembers which place each request had in the decision that answered it: the one that it has among the arguments of ojs.fetch_many, whose first
// rows are the first request's. It reads them off the statement, so that nothing in the engine has to know of benchmarks.
type places struct {
	mu sync.Mutex
	at map[string]int
}

// TraceQueryStart sees each statement before it is sent.
func (p *places) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if len(data.Args) < 3 {
		return ctx
	}
	names, ok := data.Args[2].([]string)
	if !ok || len(names) == 1 {
		return ctx
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, name := range names {
		p.at[name] = i
	}
	return ctx
}

// TraceQueryEnd has nothing to add.
func (p *places) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (p *places) take(name string) int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.at[name]
	delete(p.at, name)
	return at
}
