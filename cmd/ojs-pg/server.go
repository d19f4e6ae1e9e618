package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// server is what `serve` and `dev` have in common: HTTP, the clock and the listener on one database.
type server struct {
	db     *pg.DB
	socket net.Listener
	log    *slog.Logger
	tick   time.Duration
	drain  time.Duration
	delay  time.Duration
	reset  func(context.Context) error // nil: there is no such switch
}

// So long after the drain, at the end of which jobs that clients have not read are given back, all statements are cut off; and so long after that those
// whose statement it was have to be told.
const (
	lastDeeds = 500 * time.Millisecond
	lastWords = 500 * time.Millisecond
)

// run serves until ctx ends, then stops in the order in which one part needs the other: no new
// requests, the requests under way, the clock and the listener.
func (s server) run(ctx context.Context) error {
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	listener := pg.NewListener(s.db, s.log)
	running.Go(func() { listener.Run(behind) })
	dispatcher := dispatch.New(s.db, listener, s.log, dispatch.Options{})
	running.Go(func() { dispatcher.Run(behind) })
	clock := sched.New(s.db, listener, s.log, s.tick)
	running.Go(func() { clock.Run(behind) })
	upkeep := sched.NewUpkeep(s.db, listener, s.log)
	running.Go(func() { clock.Duty.While(behind, upkeep.Run) })

	api := httpapi.New(httpapi.Config{
		DB: s.db, Dispatcher: dispatcher, Logger: s.log, Version: versionText(),
		Limits:     httpapi.Limits{Drain: s.drain + lastDeeds + lastWords, DrainDelay: s.delay},
		AllowReset: s.reset != nil, Reset: s.reset,
	})
	// Whom PostgreSQL has not answered when the drain is over it will hardly answer, and is told so. This outlives us, because closing the database would
	// wait for it, too.
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(s.delay+s.drain, api.TakeBack)
		time.AfterFunc(s.delay+s.drain+lastDeeds, s.db.Cut)
	})()
	s.log.Info("serving", "address", "http://"+s.socket.Addr().String())
	err := api.Serve(ctx, s.socket)
	s.log.Info("stopped serving")
	return err
}

func serverFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "listen", Value: "127.0.0.1:8080", Sources: cli.EnvVars("OJS_LISTEN"),
			Usage: "`ADDRESS` for HTTP; callers are not authenticated, so keep it private",
		},
		&cli.Int32Flag{
			Name: "max-conns", Value: 16, Sources: cli.EnvVars("OJS_MAX_CONNS"),
			Usage: "`NUMBER` of database connections at most, and one to listen", Validator: positive[int32],
		},
		&cli.DurationFlag{
			Name: "tick", Value: sched.Every, Sources: cli.EnvVars("OJS_TICK"),
			Usage: "`TIME` between two looks for due jobs and expired leases while there are many", Validator: positive[time.Duration],
		},
		&cli.DurationFlag{
			Name: "drain", Value: 20 * time.Second, Sources: cli.EnvVars("OJS_DRAIN"),
			Usage: "`TIME` that requests under way get when the server is told to stop", Validator: positive[time.Duration],
		},
		&cli.DurationFlag{
			Name: "drain-delay", Value: time.Second, Sources: cli.EnvVars("OJS_DRAIN_DELAY"),
			Usage: "`TIME` for which a server that is told to stop still answers, no longer ready, before it closes its door", Validator: notNegative,
		},
	}
}

func positive[T int32 | time.Duration](v T) error {
	if v <= 0 {
		return fmt.Errorf("%v is not above zero", v)
	}
	return nil
}

func notNegative(v time.Duration) error {
	if v < 0 {
		return fmt.Errorf("%v is below zero", v)
	}
	return nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w (choose another address with --listen)", err)
	}
	return socket, nil
}

func databaseFlag(needed bool) cli.Flag {
	usage := "`URL` of the database, postgres://user:password@host:port/name; what it leaves out comes from the PG* variables"
	if !needed {
		usage += ". Without it a PostgreSQL of its own is started"
	}
	return &cli.StringFlag{Name: "database-url", Sources: cli.EnvVars("DATABASE_URL"), Usage: usage}
}

func databaseURL(c *cli.Command) (string, error) {
	if url := c.String("database-url"); url != "" {
		return url, nil
	}
	return "", usageError{errors.New("no database: set DATABASE_URL (or --database-url) to postgres://user:password@host:port/name")}
}
