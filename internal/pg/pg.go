// Package pg is the one door to PostgreSQL: it opens the connection pool, turns every error into an *Error, applies the migrations, and
// keeps the one connection per server on which commits are heard. It knows pools, SQLSTATEs, notifications, what may be tried again, how
// concurrent calls share a statement (Batcher), and how the row of a job is encoded (JobRows).
//
// It does not know what a job is for and who is next: that is SQL (db/migrations), called through internal/sqlcgen by the packages that
// import this one.
package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Config says which database to open, and how.
type Config struct {
	// URL is a postgres:// address or a keyword/value string; what it leaves out comes
	// from the PG* variables.
	URL string
	// ListenURL, if set, is for the one connection that listens, which must be PostgreSQL's own. URL may then lead through
	// a pooler that gives a session of its own to each transaction only: PgBouncer in transaction mode.
	ListenURL string
	// MaxConns bounds the pool, unless the URL has pool_max_conns; 0 means 16. The listener needs one connection more,
	// and so does Probe once it is called.
	MaxConns int32
	// AppName is what pg_stat_activity shows.
	AppName string
	// Role, if set, is taken by every session (`set role`): a superuser's login then works
	// under row security.
	Role string

	openTimeout time.Duration // tests shorten it
}

// DB is an open database.
type DB struct {
	problems problems

	cut      context.CancelFunc
	pool     *pgxpool.Pool
	probe    *pgxpool.Pool // of one connection, which no work can occupy
	listen   *pgx.ConnConfig
	pooled   bool // the pool's connections may share sessions, through PgBouncer
	turns    turns
	retries  *fair.Gate // of WithLockRetry
	changing changing

	checkTimeout time.Duration // tests shorten it
}

const (
	openTimeout  = 30 * time.Second // to read the table of problems, once connected
	checkTimeout = 10 * time.Second // to read the schema's hash
)

// Open connects, for which each host of the URL has its connect_timeout, and loads the table of problems within 30 s. A database without
// our schema opens too, for CheckSchema to explain. Fails with ErrPooler if URL leads to a pooler and ListenURL is empty.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	lifetime, cut := context.WithCancel(context.Background())
	pool, err := openPool(cfg, lifetime)
	if err != nil {
		cut()
		return nil, err
	}
	d := &DB{
		cut: cut, pool: pool, listen: pool.Config().ConnConfig, pooled: cfg.ListenURL != "",
		turns:   newTurns(pool.Config().MaxConns),
		retries: fair.NewGate(lockRetries, nil), checkTimeout: checkTimeout,
	}
	probe := pool.Config()
	probe.MaxConns, probe.MinConns, probe.MinIdleConns, probe.MaxConnIdleTime = 1, 0, 0, time.Minute
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
		return fmt.Errorf("connect to the database: %w", explainRefusal(err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !d.pooled {
		err = refusePooler(ctx, conn.Conn())
	}
	conn.Release()
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	return d.loadProblems(ctx)
}

func openPool(cfg Config, lifetime context.Context) (*pgxpool.Pool, error) {
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
	if cfg.ListenURL != "" {
		// The session of the next statement may be another one.
		forPooler(poolCfg.ConnConfig.RuntimeParams)
		if !strings.Contains(cfg.URL, "default_query_exec_mode") {
			poolCfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}

	// Times leave as instants, wherever the server stands: rows are answers as they are.
	poolCfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	poolCfg.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		// PostgreSQL says nothing unasked, unless it ends the session. A crash ends all of them at once, and each statement sent over one
		// would fail without anybody knowing whether it was carried out.
		return p.IdleDuration > pingAfter && ctx.Value(unchecked{}) == nil || readable(p.Conn.PgConn().Conn())
	}

	// Not ctx, which ends with Open, and the pool's own goroutines must not.
	pool, err := pgxpool.NewWithConfig(lifetime, poolCfg)
	if err != nil {
		return nil, fmt.Errorf("open the connection pool: %w", err)
	}
	return pool, nil
}

// parseURL reads a URL, which may have settings of a pool, and says which of these it has. Sessions will have the required settings.
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
	// The planner overrates queries of tables without statistics, and compiling one takes half a second.
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
	userTimeout    = 5 * time.Second // after which a host that confirms nothing is taken for dead
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
		// Of several hosts only one can be meant.
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	report := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// A standby, or a primary that is one no more: the next connection may find the right one.
		return report(conn, err) && err.Code != readOnly
	}
}

// A connection that was idle for longer is asked whether it is still there before it is used.
const pingAfter = time.Second

type unchecked struct{}

// Unchecked is for statements that an idle server runs from time to time, and that are tried again after an error: with it, a connection
// is not asked first, which would be one more round trip, unless it is known to have ended.
func Unchecked(ctx context.Context) context.Context { return context.WithValue(ctx, unchecked{}, true) }

// Pool runs generated queries; their errors go through Err.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Probe asks whether the database answers within 2 s, on a connection of its own, so that it does not wait for work that keeps all
// others busy. It does not end with ctx: a caller that hangs up would cost the connection.
func (d *DB) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return d.probe.Ping(ctx)
}

// Close waits for connections in use, then closes all; Cut spares it that.
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
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case undefinedTable, invalidSchemaName, insufficientPrivilege:
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("read ojs.problem: %w", err)
	}
	return nil
}

// ErrSchema means that the database does not hold the schema this program was built for.
var ErrSchema = errors.New("the database does not have this program's schema")

// ErrRelease is an ErrSchema that goes by itself when the other half of an upgrade is done: the schema is of a release that this program
// may not run with.
var ErrRelease = fmt.Errorf("%w", ErrSchema)

// CheckSchema compares the schema with the one compiled in, within 10 s; its error says what to do. A schema of a later release is accepted
// if it says that servers of this one may run with it.
func (d *DB) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.checkTimeout)
	defer cancel()
	queries := sqlcgen.New(d.pool)
	hash, err := queries.SchemaHashes(ctx, db.Version())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case invalidSchemaName, undefinedFunction:
			return fmt.Errorf("%w: there is none yet. Run: ojs-pg migrate up", ErrSchema)
		case insufficientPrivilege:
			return d.denied(ctx, pgErr)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("read the schema's hash: %w", err)
	case hash.Stored == "":
		return fmt.Errorf("%w: %s", ErrSchema, emptyAdvice)
	case hash.AtVersion == "":
		return fmt.Errorf("%w: it lacks the latest migrations. Run: ojs-pg migrate up", ErrRelease)
	case hash.AtVersion != db.Hash():
		return fmt.Errorf("%w: %s", ErrSchema, recreateAdvice)
	}
	if err := fits(queries.SchemaRelease(ctx)); err != nil {
		return err
	}
	return d.checkFit(ctx)
}

// fits says whether this program's servers may run with the functions that the database has.
func fits(has sqlcgen.SchemaReleaseRow, err error) error {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: it lacks its functions. Run: ojs-pg migrate up", ErrRelease)
	case err != nil:
		return fmt.Errorf("read the schema's release: %w", err)
	case db.CompareReleases(db.Release, has.NeedsServer) < 0:
		return fmt.Errorf("%w: it is of release %s, which needs servers of release %s or later, and this one is of %s. Start a later one",
			ErrRelease, has.Release, has.NeedsServer, db.Release)
	case db.CompareReleases(has.Release, db.Release) < 0:
		return fmt.Errorf("%w: it is of release %s, and this program of %s. Run: ojs-pg migrate up", ErrRelease, has.Release, db.Release)
	case has.Release == db.Release && has.CodeHash != db.OwnCodeHash():
		return fmt.Errorf("%w: its functions are of another build of release %s. Run: ojs-pg migrate up", ErrRelease, db.Release)
	}
	return nil
}

const recreateAdvice = "its tables were made by a build before the first release. " +
	"Its jobs can be carried over (docs/operate/upgrade.md). " +
	`To begin anew, which deletes all jobs: psql -c "drop schema ojs cascade", then: ojs-pg migrate up`

const emptyAdvice = "there is a schema ojs without the rows that belong to it, as a dump of the schema alone makes it (pg_dump -s). " +
	`Take an empty database, or drop the schema: psql -c "drop schema ojs cascade". Then: ojs-pg migrate up`
