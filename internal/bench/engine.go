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
)

// engine is what a server runs behind HTTP.
type engine struct {
	db         *pg.DB
	listener   *pg.Listener
	dispatcher *sched.Dispatcher
	log        *slog.Logger
	stop       func()
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
	listener := pg.NewListener(db, d.env.log)
	dispatcher := sched.NewDispatcher(db, listener, d.env.log, sched.Options{})
	behind, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { listener.Run(behind) })
	running.Go(func() { dispatcher.Run(behind) })
	return &engine{db: db, listener: listener, dispatcher: dispatcher, log: d.env.log, stop: sync.OnceFunc(func() {
		cancel()
		running.Wait()
		db.Close()
	})}, nil
}

// clock is what a server does beside its requests.
func (e *engine) clock(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { sched.New(e.db, e.listener, e.log, 0).Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// worker calls the engine as a handler does. Tenants become numbers by tenants.
func (e *engine) worker(queues []string, tenants map[string]int32) worker {
	return engineWorker{d: e.dispatcher, queues: queues, tenants: tenants}
}

type engineWorker struct {
	d       *sched.Dispatcher
	queues  []string
	tenants map[string]int32
}

func (w engineWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	got, err := w.d.Fetch(ctx, sched.Fetch{Queues: w.queues, Count: count, WorkerID: name})
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
	all := make([]sched.Settlement, len(jobs))
	for i := range jobs {
		lease := uuid.UUID(jobs[i].lease).String()
		all[i] = sched.Settlement{ID: uuid.UUID(jobs[i].id).String(), Lease: &lease}
	}
	done, err := w.d.Settle(ctx, all, false)
	if err != nil {
		return err
	}
	for i := range done {
		if done[i].Err != nil {
			return done[i].Err
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
