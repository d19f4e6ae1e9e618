package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
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
	held   bool                        // dispatch, and the log has it
	reset  func(context.Context) error // nil: there is no such switch

	metricTenants int32
	requests      int // of one tenant in flight
	polls         int // of one tenant that wait
	allPolls      int // of all callers that wait
	auth          auth
	tenantHeaders httpapi.TenantHeaders
	scheme        string // of the address: http or https
}

// At the end of the drain, jobs whose answers clients have not read are given back. Statements may then run for cutGrace until they
// are cut off, and their callers have answerGrace to be told so.
const (
	cutGrace    = 500 * time.Millisecond
	answerGrace = 500 * time.Millisecond
)

// minConns are one connection for the upkeep, which may keep it for hours, and one for everything else.
const minConns = 2

// While the schema is of a release that this program may not run with, it is looked at again after so long.
const releasePause = 2 * time.Second

// openDatabase opens one on which a server can work. If the schema is of another release, as in the middle of an upgrade, it says so and
// waits.
func openDatabase(ctx context.Context, config pg.Config, log *slog.Logger) (*pg.DB, error) {
	db, err := pg.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	// pool_max_conns of the URL wins over max-conns.
	if n := db.Pool().Config().MaxConns; n < minConns {
		err = cmdline.Misuse(fmt.Errorf("pool_max_conns in the URL of the database: %d is less than %d", n, minConns))
	} else if err = db.CheckSettings(ctx); err == nil {
		err = migrate.CheckSchema(ctx, db.Pool())
		for errors.Is(err, migrate.ErrRelease) && ctx.Err() == nil {
			log.Warn("waiting for an upgrade", "reason", err)
			select {
			case <-time.After(releasePause):
				err = migrate.CheckSchema(ctx, db.Pool())
			case <-ctx.Done():
			}
		}
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// newServer takes the options of serverFlags; max-conns and listen are in db and socket.
func newServer(c *cli.Command, db *pg.DB, socket net.Listener) (server, error) {
	auth, err := newAuth(c)
	if err != nil {
		return server{}, err
	}
	headers, err := httpapi.ReadTenantHeaders(c.String("tenant-header"))
	if err != nil {
		err = cmdline.Misuse(fmt.Errorf("--tenant-header: %w", err))
	}
	return server{
		db: db, socket: socket, log: cmdline.Logger(c),
		tick: c.Duration("tick"), drain: c.Duration("drain"), delay: c.Duration("drain-delay"),
		metricTenants: c.Int32("metric-tenants"), requests: c.Int("tenant-requests"), polls: c.Int("tenant-polls"), allPolls: c.Int("polls"),
		auth: auth, tenantHeaders: headers, scheme: scheme(c),
	}, err
}

// run serves until ctx ends, then stops in the order in which one part needs the other: no new
// requests, the requests under way, the clock and the listener.
func (s server) run(ctx context.Context) error {
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	listener := notify.New(s.db, s.log)
	running.Go(func() { listener.Run(behind) })
	dispatcher := dispatch.New(s.db, listener, s.log, dispatch.Options{})
	running.Go(func() { dispatcher.Run(behind) })
	clock := sched.New(s.db, listener, s.log, s.tick)
	clock.DispatchHeld = s.held
	running.Go(func() { clock.Run(behind) })
	upkeep := sched.NewUpkeep(s.db, listener, s.log)
	running.Go(func() { clock.Duty.While(behind, upkeep.Run) })

	api := httpapi.New(httpapi.Config{
		DB: s.db, Dispatcher: dispatcher, Logger: s.log, Version: versionText(),
		Metrics: slices.Concat(listener.Metrics(), clock.Metrics()), MetricTenants: s.metricTenants,
		TenantHeaders: s.tenantHeaders, APIKeys: s.auth.keys, Tokens: s.auth.tokens,
		Limits: httpapi.Limits{
			Drain: s.drain + cutGrace + answerGrace, DrainDelay: s.delay, TenantRequests: s.requests, TenantPolls: s.polls, Polls: s.allPolls,
		},
		AllowReset: s.reset != nil, Reset: s.reset,
	})
	// A statement that PostgreSQL has not answered by the end of the drain is cut off, so that its caller gets an answer. The timers
	// outlive this function, because closing the database waits for such statements, too.
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(s.delay+s.drain, api.TakeBack)
		time.AfterFunc(s.delay+s.drain+cutGrace, s.db.Cut)
	})()
	s.auth.prime(ctx, s.log)
	s.log.Info("serving", "address", s.scheme+"://"+s.socket.Addr().String())
	err := api.Serve(ctx, s.socket)
	s.log.Info("stopped serving")
	return err
}

func serverFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{
			Name: "listen", Value: "127.0.0.1:8080", Sources: cli.EnvVars("OJS_LISTEN"),
			Usage: "`ADDRESS` for HTTP",
		},
		&cli.Int32Flag{
			Name: "max-conns", Value: 16, Sources: cli.EnvVars("OJS_MAX_CONNS"),
			Usage: fmt.Sprintf("`NUMBER` of database connections at most, and one to listen; not below %d, "+
				"because the upkeep may keep one for hours", minConns),
			Validator: cmdline.AtLeast[int32](minConns),
		},
		&cli.DurationFlag{
			Name: "tick", Value: sched.Every, Sources: cli.EnvVars("OJS_TICK"),
			Usage:     "`TIME` between two looks for due jobs and expired leases while there are many",
			Validator: cmdline.AtLeast(time.Millisecond),
		},
		&cli.DurationFlag{
			Name: "drain", Value: 20 * time.Second, Sources: cli.EnvVars("OJS_DRAIN"),
			Usage: "`TIME` that requests under way get when the server is told to stop", Validator: cmdline.AtLeast(time.Millisecond),
		},
		&cli.DurationFlag{
			Name: "drain-delay", Value: time.Second, Sources: cli.EnvVars("OJS_DRAIN_DELAY"),
			Usage:     "`TIME` for which a server that is told to stop still answers, no longer ready, before it closes its door",
			Validator: cmdline.AtLeast[time.Duration](0),
		},
		&cli.StringFlag{
			Name: "tenant-header", Value: strings.Join(httpapi.KnownTenantHeaders, ","), Sources: cli.EnvVars("OJS_TENANT_HEADER"),
			Usage: "`NAMES` of the header that names the tenant, the first one and its aliases, separated by commas; none: there is none",
		},
		&cli.IntFlag{
			Name: "tenant-requests", Value: httpapi.TenantRequests, Sources: cli.EnvVars("OJS_TENANT_REQUESTS"),
			Usage:     "`NUMBER` of requests of one tenant in flight; more wait a second for their turn, and are refused then",
			Validator: cmdline.AtLeast(1),
		},
		&cli.IntFlag{
			Name: "tenant-polls", Value: httpapi.TenantPolls, Sources: cli.EnvVars("OJS_TENANT_POLLS"),
			Usage:     "`NUMBER` of requests of one tenant that wait for jobs or results; more are refused",
			Validator: cmdline.AtLeast(1),
		},
		&cli.IntFlag{
			Name: "polls", Value: httpapi.Polls, Sources: cli.EnvVars("OJS_POLLS"),
			Usage:     "`NUMBER` of requests of all callers that wait for jobs or results; more are refused, and one caller may have half",
			Validator: cmdline.AtLeast(2),
		},
		&cli.Int32Flag{
			Name: "metric-tenants", Value: httpapi.MetricTenants, Sources: cli.EnvVars("OJS_METRIC_TENANTS"),
			Usage:     "`NUMBER` of tenants that have metrics of their own; the others have them in sum, as _other",
			Validator: cmdline.AtLeast[int32](1),
		},
	}, append(authFlags(), tlsFlags()...)...)
}

// listen opens the port, for TLS if there is a certificate. Where others than this machine may reach it, somebody has to have said how
// callers are known.
func listen(ctx context.Context, c *cli.Command) (net.Listener, error) {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", c.String("listen"))
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w (choose another address with --listen)", err)
	}
	if address, ok := socket.Addr().(*net.TCPAddr); c.String("auth") == "" && ok && !address.IP.IsLoopback() {
		_ = socket.Close()
		return nil, cmdline.Misuse(fmt.Errorf("others may reach %s: say how callers are known, with --auth api-key (keys are made by "+
			"ojs-pg key create), --auth jwt, or --auth none where a proxy or the network keeps strangers out", address))
	}
	return secured(c, socket)
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
	return "", cmdline.Misuse(errors.New("no database: set DATABASE_URL (or --database-url) to postgres://user:password@host:port/name"))
}
