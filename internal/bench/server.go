//go:build unix

package bench

import (
	"context"
	"fmt"
	"net"
	"sync"

	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// service is what `ojs-pg serve` runs, in this process: HTTP on the loopback interface, the clock and the listener.
type service struct {
	address string
	db      *pg.DB
	stop    func() error
}

func (d *database) serve(ctx context.Context, maxConns int) (*service, error) {
	db, err := d.open(ctx, maxConns)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	behind, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	listener := pg.NewListener(db, d.env.log)
	running.Go(func() { listener.Run(behind) })
	dispatcher := sched.NewDispatcher(db, listener, d.env.log, sched.Options{})
	running.Go(func() { dispatcher.Run(behind) })
	clock := sched.New(db, listener, d.env.log, 0)
	running.Go(func() { clock.Run(behind) })
	api := httpapi.New(httpapi.Config{DB: db, Dispatcher: dispatcher, Logger: d.env.log, Version: "bench"})
	serving, end := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- api.Serve(serving, socket) }()
	return &service{
		address: socket.Addr().String(), db: db,
		stop: sync.OnceValue(func() error {
			end()
			err := <-served
			cancel()
			running.Wait()
			db.Close()
			return err
		}),
	}, nil
}
