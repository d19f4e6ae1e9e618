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

// server is what `serve` and `dev` share: HTTP, the clock and the listener on one database.
type server struct {
	db     *pg.DB
	socket net.Listener
	log    *slog.Logger
	tick   time.Duration
	drain  time.Duration               // for requests under way, when the server stops
	delay  time.Duration               // before that, while it still accepts requests
	held   bool                        // dispatch is held, and the log says so already
	reset  func(context.Context) error // deletes all jobs; nil: HTTP has no such route

	metricTenants int32
	requests      int // most requests of one tenant in flight
	polls         int // most requests of one tenant that wait for jobs or results
	allPolls      int // most requests of all callers that wait for jobs or results
	auth          auth
	tenantHeaders httpapi.TenantHeaders
	scheme        string // of the address: http or https
}

// At the end of the drain the server gives back the jobs whose answers clients have not read.
const (
	// cutGrace is how long statements may run after that, the ones that give jobs back among them.
	// Then the server cuts its connections to PostgreSQL.
	cutGrace = 500 * time.Millisecond
	// answerGrace is how long the callers of statements that were cut have to read their 503.
	answerGrace = 500 * time.Millisecond
)

// minConns is the least number of connections: the upkeep may keep one for hours, and everything
// else needs one, too.
const minConns = 2

// releasePause is how long the server waits before it looks again at a schema of a release that it
// may not run with.
const releasePause = 2 * time.Second

// openDatabase opens a database on which a server can work. If the schema is of another release, as
// in the middle of an upgrade, it logs that and waits until the schema fits or ctx ends. It fails
// with advice if the settings, the schema or the rights of the login do not fit.
func openDatabase(ctx context.Context, config pg.Config, log *slog.Logger) (*pg.DB, error) {
	config.Log = log
	db, err := pg.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	// pool_max_conns in the URL wins over --max-conns, whose validator has not seen it.
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

// newServer returns a server with the options of serverFlags. --max-conns and --listen have been
// used for db and socket already. It fails if the options for callers or tenant headers cannot be
// used.
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
		metricTenants: c.Int32("metric-tenants"), requests: c.Int("tenant-requests"), polls: c.Int("tenant-polls"),
		allPolls: c.Int("polls"),
		auth:     auth, tenantHeaders: headers, scheme: scheme(c),
	}, err
}

// run serves until ctx ends. Then it stops each part before the parts that it needs: first it
// accepts no new requests, then it finishes the requests under way, then it stops the clock, the
// dispatcher and the listener.
func (s server) run(ctx context.Context) error {
	// behind ends after the last request, not with ctx, because requests need the dispatcher.
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
			Drain: s.drain + cutGrace + answerGrace, DrainDelay: s.delay, TenantRequests: s.requests,
			TenantPolls: s.polls, Polls: s.allPolls,
		},
		AllowReset: s.reset != nil, Reset: s.reset,
	})
	// If PostgreSQL has not answered a statement by the end of the drain, its connection is cut, so
	// that its caller gets an answer. The timers outlive this function, because closing the
	// database waits for such statements, too.
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

// serverFlags are the options that serve and dev share.
func serverFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{
			Name: "listen", Value: "127.0.0.1:8080", Sources: cli.EnvVars("OJS_LISTEN"),
			Usage: "`ADDRESS`, as host:port, on which HTTP requests are accepted",
		},
		&cli.Int32Flag{
			Name: "max-conns", Value: 16, Sources: cli.EnvVars("OJS_MAX_CONNS"),
			Usage: fmt.Sprintf("most `CONNECTIONS` to the database, besides the one that listens; at least %d, "+
				"because the upkeep may keep one for hours", minConns),
			Validator: cmdline.AtLeast[int32](minConns),
		},
		&durationFlag{
			Name: "tick", Value: sched.Every, Sources: cli.EnvVars("OJS_TICK"),
			Usage:     "`TIME` between two searches for due jobs and expired leases while there are many",
			Validator: cmdline.AtLeast(time.Millisecond),
		},
		&durationFlag{
			Name: "drain", Value: 20 * time.Second, Sources: cli.EnvVars("OJS_DRAIN"),
			Usage: "`TIME` for requests under way to finish when the server stops", Validator: cmdline.AtLeast(time.Millisecond),
		},
		&durationFlag{
			Name: "drain-delay", Value: time.Second, Sources: cli.EnvVars("OJS_DRAIN_DELAY"),
			Usage:     "`TIME` for which a server that stops still accepts requests, while /ojs/v1/ready answers 503",
			Validator: cmdline.AtLeast[time.Duration](0),
		},
		&cli.StringFlag{
			Name: "tenant-header", Value: strings.Join(httpapi.KnownTenantHeaders, ","), Sources: cli.EnvVars("OJS_TENANT_HEADER"),

			Usage: "`NAMES` of the header with the tenant and of its aliases, separated by commas; none: there is no header",
		},
		&cli.IntFlag{
			Name: "tenant-requests", Value: httpapi.TenantRequests, Sources: cli.EnvVars("OJS_TENANT_REQUESTS"),
			Usage:     "most `REQUESTS` of one tenant in flight; further ones wait for a second and are refused then",
			Validator: cmdline.AtLeast(1),
		},
		&cli.IntFlag{
			Name: "tenant-polls", Value: httpapi.TenantPolls, Sources: cli.EnvVars("OJS_TENANT_POLLS"),
			Usage:     "most `REQUESTS` of one tenant that wait for jobs or results; further ones are refused",
			Validator: cmdline.AtLeast(1),
		},
		&cli.IntFlag{
			Name: "polls", Value: httpapi.Polls, Sources: cli.EnvVars("OJS_POLLS"),
			Usage:     "`NUMBER` of requests of all callers that wait for jobs or results; more are refused, and one caller may have half",
			Validator: cmdline.AtLeast(2),
		},
		&cli.Int32Flag{
			Name: "metric-tenants", Value: httpapi.MetricTenants, Sources: cli.EnvVars("OJS_METRIC_TENANTS"),
			Usage:     "`NUMBER` of tenants with metrics of their own; the metrics of all others are summed up as _other",
			Validator: cmdline.AtLeast[int32](1),
		},
	}, append(authFlags(), tlsFlags()...)...)
}

// listen opens the port, with TLS if there is a certificate. It fails if other machines can reach
// the address and --auth is left out: without it every caller may do anything, which nobody should
// get by forgetting an option.
func listen(ctx context.Context, c *cli.Command) (net.Listener, error) {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", c.String("listen"))
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w (choose another address with --listen)", err)
	}
	if address, ok := socket.Addr().(*net.TCPAddr); c.String("auth") == "" && ok && !address.IP.IsLoopback() {
		_ = socket.Close()
		return nil, cmdline.Misuse(fmt.Errorf("other machines can reach %s: say how callers are verified, with --auth api-key (ojs-pg key "+
			"create makes keys), --auth jwt, or --auth none if a proxy or the network admits trusted callers only", address))
	}
	return secured(c, socket)
}

// databaseFlag is the option that names the database. needed is false for dev, which has its own.
func databaseFlag(needed bool) cli.Flag {
	usage := "`URL` of the database, postgres://user:password@host:port/name; what it leaves out comes from the PG* variables"
	if !needed {
		usage += "; without it dev starts a PostgreSQL of its own"
	}
	return &cli.StringFlag{Name: "database-url", Sources: cli.EnvVars("DATABASE_URL"), Usage: usage}
}

// databaseURL returns the URL of the database. It fails if neither the option nor DATABASE_URL is
// set.
func databaseURL(c *cli.Command) (string, error) {
	if url := c.String("database-url"); url != "" {
		return url, nil
	}
	return "", cmdline.Misuse(errors.New("no database: set DATABASE_URL (or --database-url) to postgres://user:password@host:port/name"))
}
