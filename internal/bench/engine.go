//go:build unix

package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// engine holds the parts of a server that `ojs-pg serve` runs, in this process.
type engine struct {
	db       *pg.DB
	log      *slog.Logger
	listener *notify.Listener
	dispatch *dispatch.Dispatcher
	address  string // of HTTP; empty: none
	stop     func() error
}

// engine opens the database as a server does, and makes its listener and Dispatcher. If canned is not
// nil, the Dispatcher hands out the jobs that it returns instead of asking the database.
func (d *database) engine(ctx context.Context, maxConns int, canned func(count int) []sqlcgen.OjsJob) (*engine, error) {
	db, err := pg.Open(ctx, pg.Config{URL: d.service, Role: d.role, MaxConns: int32(maxConns), AppName: "ojs-bench"})
	if err != nil {
		return nil, err
	}
	behind, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	e := &engine{db: db, log: d.env.log, listener: notify.New(db, d.env.log)}
	running.Go(func() { e.listener.Run(behind) })
	e.dispatch = dispatch.New(db, e.listener, d.env.log, dispatch.Options{})
	if canned != nil {
		e.dispatch.Can(canned)
	}
	running.Go(func() { e.dispatch.Run(behind) })
	e.stop = sync.OnceValue(func() error {
		cancel()
		running.Wait()
		db.Close()
		return nil
	})
	return e, nil
}

// stopQuietly stops the engine and logs an error, for callers whose figures do not depend on its end.
func (e *engine) stopQuietly() {
	if err := e.stop(); err != nil {
		e.log.Warn("the server did not stop in good order", "error", err)
	}
}

// clock runs the server's clock until stop is called.
func (e *engine) clock(ctx context.Context) (stop func()) {
	return beside(ctx, sched.New(e.db, e.listener, e.log, 0).Run)
}

// upkeep runs the server's upkeep, which drops finished jobs after their retention, until stop is
// called.
func (e *engine) upkeep(ctx context.Context) (stop func()) {
	return beside(ctx, sched.NewUpkeep(e.db, e.listener, e.log).Run)
}

// beside runs a function in a goroutine. stop ends its context and waits until it has returned.
func beside(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// serve starts to answer HTTP on the loopback interface. keys says that it asks for API keys.
func (e *engine) serve(ctx context.Context, keys bool) error {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	e.address = socket.Addr().String()
	api := httpapi.New(httpapi.Config{DB: e.db, Dispatcher: e.dispatch, Logger: e.log, Version: "bench", APIKeys: keys})
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- api.Serve(serving, socket) }()
	stop := e.stop
	e.stop = sync.OnceValue(func() error {
		end()
		err := <-served
		_ = stop()
		return err
	})
	return nil
}

// worker returns a worker that calls the Dispatcher as a handler does. tenants maps the tenant of a job
// to its number.
func (e *engine) worker(queues []string, tenants map[string]int32) worker {
	return &engineWorker{dispatch: e.dispatch, queues: queues, tenants: tenants}
}

type engineWorker struct {
	dispatch *dispatch.Dispatcher
	queues   []string
	tenants  map[string]int32
	wait     time.Duration
	end      []dispatch.Settlement
}

func (w *engineWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	got, err := w.dispatch.Fetch(ctx, dispatch.Fetch{Queues: w.queues, Count: count, WorkerID: name, Wait: w.wait})
	if err != nil {
		return nil, err
	}
	w.end = w.end[:0]
	jobs := make([]job, len(got))
	for i := range got {
		id, err := uuid.Parse(got[i].ID)
		if err != nil {
			return nil, fmt.Errorf("the id of a job: %w", err)
		}
		jobs[i] = job{id: id, args: got[i].Args, tenant: w.tenants[got[i].TenantID]}
		w.end = append(w.end, dispatch.Settlement{ID: got[i].ID, Lease: got[i].Lease})
	}
	return jobs, nil
}

// ack acknowledges the jobs of the last fetch.
func (w *engineWorker) ack(ctx context.Context, jobs []job) error {
	done := w.dispatch.Settle(ctx, w.end, false)
	for i := range done {
		if done[i].Err != nil {
			return done[i].Err
		}
	}
	if len(done) != len(jobs) {
		return fmt.Errorf("acknowledged %d of %d jobs", len(done), len(jobs))
	}
	return nil
}

func (w *engineWorker) close() {}

// cannedOf returns canned(argsBytes), or nil if argsBytes is 0.
func cannedOf(argsBytes int) func(count int) []sqlcgen.OjsJob {
	if argsBytes == 0 {
		return nil
	}
	return canned(argsBytes)
}

// canned returns a function that makes jobs like those that a benchmark loads, for a server without a
// database. It returns the same jobs each time.
func canned(argsBytes int) func(count int) []sqlcgen.OjsJob {
	args := makeArgs(argsBytes)
	at := time.Now().UTC()
	worker, lease := "w", uuid.NewString()
	jobs := make([]sqlcgen.OjsJob, 20_000)
	for i := range jobs {
		seq := int64(i)
		jobs[i] = sqlcgen.OjsJob{
			State: "active", Attempt: 1, Lease: &lease, StartedAt: &at, LeaseExpiresAt: &at, EnqueuedAt: at, WorkerID: &worker, Seq: &seq,
			TenantID: "t0", ID: uuid.NewString(), Queue: queue, Type: "bench.job", MaxAttempts: 3, CreatedAt: at,
			Args: []byte(args[i%len(args)]), Meta: []byte("{}"),
		}
	}
	return func(count int) []sqlcgen.OjsJob { return jobs[:min(count, len(jobs))] }
}
