// Package pg connects to PostgreSQL: it opens the pool of connections, shares them between tenants,
// and turns every error into an *Error that a client may see.
//
// Who imports it: internal/batch puts concurrent calls into one statement, internal/notify hears of
// commits, internal/migrate makes the schema, and the packages that serve requests call generated
// queries (internal/sqlcgen) over Pool, Shared or Brief. What a job is, and which job goes next, is
// SQL (db/code).
package pg

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// Config says which database to open, and how.
type Config struct {
	// URL is a postgres:// address or a keyword/value string; what it leaves out comes
	// from the PG* variables.
	URL string
	// ListenURL, if set, is for the one connection that listens, which must be PostgreSQL's own.
	// URL may then lead through a pooler that gives a session of its own to each transaction only:
	// PgBouncer in transaction mode.
	ListenURL string
	// MaxConns bounds the pool, unless the URL has pool_max_conns; 0 means 16. The listener needs
	// one connection more, and so does Probe once it is called.
	MaxConns int32
	// AppName is what pg_stat_activity shows.
	AppName string
	// Role, if set, is taken by every session (`set role`): a superuser's login then works
	// under row security.
	Role string
	// Log is told when PostgreSQL refuses connections to the pool; nil: nothing is logged.
	Log *slog.Logger

	openTimeout time.Duration // tests shorten it
}

// DB is an open database.
type DB struct {
	problems problems

	cut      context.CancelFunc
	pool     *Pool
	probe    *pgxpool.Pool // of one connection, for Probe: work must not keep it busy
	refusals refusals
	listen   *pgx.ConnConfig
	pooled   bool       // the pool goes through a pooler, where sessions are shared
	shares   connShares // how callers share the pool
	retries  *fair.Gate // statements that WithLockRetry tries again at once
	changing changing
}

const (
	openTimeout  = 30 * time.Second // to read the table of problems, once connected
	checkTimeout = 10 * time.Second // of CheckSettings
)

// Open connects and loads the table ojs.problem. Each host of the URL has its connect_timeout to
// answer, and the table 30 s. A database without our schema opens, too; migrate.CheckSchema
// explains it. Fails with ErrPooler if URL leads to a pooler and ListenURL is empty.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	lifetime, cut := context.WithCancel(context.Background())
	d := &DB{cut: cut, pooled: cfg.ListenURL != "", retries: fair.NewGate(lockRetries, nil)}
	config, err := poolConfig(cfg, lifetime, d.refusals.note)
	if err != nil {
		cut()
		return nil, err
	}
	d.listen, d.shares = config.ConnConfig, newConnShares(config.MaxConns)
	probe := config.Copy()
	probe.MaxConns, probe.MinConns, probe.MinIdleConns, probe.MaxConnIdleTime = 1, 0, 0, time.Minute
	log := cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	// The pool's goroutines live as long as the pool, so they get lifetime and not the context of
	// Open.
	if d.pool, err = newPool(lifetime, config, log); err != nil {
		cut()
		return nil, fmt.Errorf("open the connection pool: %w", err)
	}
	if d.probe, err = pgxpool.NewWithConfig(ctx, probe); err != nil {
		d.Close()
		return nil, fmt.Errorf("open the connection that asks whether the database answers: %w", err)
	}
	if cfg.ListenURL != "" {
		d.listen, err = listenConfig(cfg, lifetime)
	}
	if err == nil {
		err = d.connect(ctx, cmp.Or(cfg.openTimeout, openTimeout))
	}
	if err != nil {
		d.Cut() // a session that hangs must not keep Close waiting
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *DB) connect(ctx context.Context, timeout time.Duration) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", ExplainRefusal(err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !d.pooled {
		err = RefusePooler(ctx, conn.Conn())
	}
	conn.Release()
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	return ExplainRefusal(d.loadProblems(ctx))
}

// poolConfig returns the configuration of a pool. note is called with each error that PostgreSQL
// answers with.
func poolConfig(cfg Config, lifetime context.Context, note func(*pgconn.PgError)) (*pgxpool.Config, error) {
	poolCfg, given, err := parseURL(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if !given["pool_max_conns"] {
		poolCfg.MaxConns = cmp.Or(cfg.MaxConns, 16)
	}
	if !given["pool_max_conn_lifetime"] {
		poolCfg.MaxConnLifetime = time.Hour
	}
	if !given["pool_max_conn_lifetime_jitter"] {
		poolCfg.MaxConnLifetimeJitter = 10 * time.Minute
	}
	if !given["pool_max_conn_idle_time"] {
		poolCfg.MaxConnIdleTime = 10 * time.Minute
	}
	configure(poolCfg.ConnConfig, cfg, lifetime)
	keep := poolCfg.ConnConfig.OnPgError
	poolCfg.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		note(err)
		return keep(conn, err)
	}
	if cfg.ListenURL != "" {
		// The session of the next statement may be another one.
		forPooler(poolCfg.ConnConfig.RuntimeParams)
		if !strings.Contains(cfg.URL, "default_query_exec_mode") {
			poolCfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}

	// Times are read as UTC, whatever the zone of this machine: rows are encoded into answers as
	// they are.
	poolCfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	poolCfg.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		// An idle session sends nothing, except when PostgreSQL ends it. So bytes to read mean that
		// the session has ended. A statement sent over it would fail, and its outcome would be
		// unknown.
		return p.IdleDuration > pingAfter && ctx.Value(unchecked{}) == nil || readable(p.Conn.PgConn().Conn())
	}

	return poolCfg, nil
}

// parseURL reads a URL, which may have settings of a pool, and says which of these it has. Sessions
// will have the required settings.
func parseURL(url string) (cfg *pgxpool.Config, given map[string]bool, err error) {
	conn, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	if cfg, err = pgxpool.ParseConfig(url); err != nil {
		return nil, nil, err
	}
	given = map[string]bool{}
	for name := range conn.RuntimeParams {
		given[name] = true
	}
	require(cfg.ConnConfig.RuntimeParams)
	return cfg, given, nil
}

// ConnConfig reads the URL of a single connection, outside of any pool. The URL may be a server's,
// with settings of a pool. The connection has the settings that our SQL relies on, and notices when
// its database is gone.
func ConnConfig(url string) (*pgx.ConnConfig, error) {
	cfg, _, err := parseURL(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	detectLoss(&cfg.ConnConfig.Config)
	return cfg.ConnConfig, nil
}

// Connect opens a single connection (ConnConfig).
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := ConnConfig(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

const hangUpTimeout = 2 * time.Second

// HangUp closes a connection within 2 s, also after ctx has ended: the goodbye to a server that is
// gone would not return.
func HangUp(ctx context.Context, conn *pgx.Conn) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTimeout)
	defer cancel()
	_ = conn.Close(closing)
}

func listenConfig(cfg Config, lifetime context.Context) (*pgx.ConnConfig, error) {
	listen, _, err := parseURL(cfg.ListenURL)
	if err != nil {
		return nil, fmt.Errorf("read the URL to listen at: %w", err)
	}
	configure(listen.ConnConfig, cfg, lifetime)
	return listen.ConnConfig, nil
}

// configure completes what a URL says. Connections end with lifetime.
func configure(conn *pgx.ConnConfig, cfg Config, lifetime context.Context) {
	detectLoss(&conn.Config)
	conn.DialFunc = dialUntil(lifetime, conn.DialFunc)
	// The planner overestimates queries of tables without statistics, and compiling such a query
	// takes half a second.
	params := map[string]string{"jit": "off"}
	if cfg.AppName != "" {
		params["application_name"] = cfg.AppName
	}
	if cfg.Role != "" {
		params["role"] = cfg.Role
	}
	for name, value := range conn.RuntimeParams {
		if name != "role" || cfg.Role == "" {
			params[name] = value
		}
	}
	conn.RuntimeParams = params
}

const (
	connectTimeout = 5 * time.Second // for each host, unless the URL has connect_timeout
	userTimeout    = 5 * time.Second // a host that confirms no data for so long counts as dead
)

// detectLoss makes connections notice when their database is gone or no longer the one to write to.
func detectLoss(cfg *pgconn.Config) {
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
		Control:         setUserTimeout,
	}
	cfg.DialFunc = dialer.DialContext
	elsewhere := func(f *pgconn.FallbackConfig) bool { return f.Host != cfg.Host || f.Port != cfg.Port }
	if cfg.ValidateConnect == nil && slices.ContainsFunc(cfg.Fallbacks, elsewhere) {
		// The URL names several hosts: the one that accepts writes is the right one.
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	report := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// The host is a standby, or was a primary and is none now. Close the connection: the next
		// one may find the right host.
		return report(conn, err) && err.Code != sqlstate.ReadOnlyTransaction
	}
}

// A connection that was idle for longer is asked whether it is still there before it is used.
const pingAfter = time.Second

type unchecked struct{}

// Unchecked returns ctx for statements that are tried again after an error anyway. Their connection
// is not pinged first, which saves an idle server a round trip for each of its regular statements.
func Unchecked(ctx context.Context) context.Context { return context.WithValue(ctx, unchecked{}, true) }

// ListenConfig returns the configuration of a connection that listens for notifications: to
// PostgreSQL itself, even where the pool goes through a pooler. The caller may change it.
func (d *DB) ListenConfig() *pgx.ConnConfig { return d.listen.Copy() }

// Pool returns the pool of connections, for generated queries of the server itself. Their errors go
// through Err.
func (d *DB) Pool() *Pool { return d.pool }

// Close waits until no connection is in use, then closes all. After Cut it does not have to wait.
func (d *DB) Close() {
	d.pool.Close()
	if d.probe != nil {
		d.probe.Close()
	}
	d.cut()
}

func (d *DB) loadProblems(ctx context.Context) error {
	rows, err := sqlcgen.New(d.pool).Problems(ctx)
	if err != nil {
		return ignoreMissing(err)
	}
	known := make(map[string]Problem, len(rows))
	for _, r := range rows {
		known[r.Sqlstate] = Problem{
			SQLState: r.Sqlstate, Code: r.Code, Status: int(r.HttpStatus), Retryable: r.Retryable, Title: r.Title, Hint: r.Hint,
		}
	}
	d.problems.known.Store(&known)
	return nil
}

// ignoreMissing lets a database open that does not have our schema, or not for us.
func ignoreMissing(err error) error {
	if sqlstate.In(err, sqlstate.UndefinedTable, sqlstate.InvalidSchemaName, sqlstate.InsufficientPrivilege) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read ojs.problem: %w", err)
	}
	return nil
}
