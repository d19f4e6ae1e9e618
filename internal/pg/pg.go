// Package pg is the one door to Postgres: it opens the connection pool, turns every error
// into an *Error, applies the migrations, and keeps the one connection per server on which
// commits are heard.
//
// It knows pools, SQLSTATEs and notifications, and nothing of jobs: what a job is and who is
// next is SQL (db/migrations), called through internal/sqlcgen by those who import this package.
package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/db"
)

// Config says which database to open, and how.
type Config struct {
	// URL is a postgres:// address or a keyword/value string; what it leaves out comes
	// from the PG* variables.
	URL string
	// ListenURL, if set, is for the one connection that listens, which must be PostgreSQL's own. URL may then lead through
	// a pooler that gives a session of its own to each transaction only: PgBouncer in transaction mode.
	ListenURL string
	// MaxConns bounds the pool; 0 means 16. The listener needs one connection more.
	MaxConns int32
	// AppName is what pg_stat_activity shows.
	AppName string
	// Role, if set, is taken by every session (`set role`): a superuser's login then works
	// under row security.
	Role string
}

// DB is an open database.
type DB struct {
	// Problems are the rows of ojs.problem by SQLSTATE, or by its class of two characters.
	Problems map[string]Problem

	cut     context.CancelFunc
	pool    *pgxpool.Pool
	listen  *pgx.ConnConfig
	retries turns // of those that Patiently has under way
}

// Open connects and loads the table of problems. A database without our schema opens too,
// for CheckSchema to explain.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	whole, cut := context.WithCancel(context.Background())
	pool, err := openPool(ctx, cfg, whole)
	if err != nil {
		cut()
		return nil, err
	}
	d := &DB{cut: cut, pool: pool, listen: pool.Config().ConnConfig, retries: turns{free: patientRetries}}
	if cfg.ListenURL != "" {
		d.listen, err = listenConfig(cfg, whole)
	}
	if err == nil {
		err = d.loadProblems(ctx)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func openPool(ctx context.Context, cfg Config, whole context.Context) (*pgxpool.Pool, error) {
	poolCfg, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	poolCfg.MaxConns = cfg.MaxConns
	if poolCfg.MaxConns == 0 {
		poolCfg.MaxConns = 16
	}
	poolCfg.MaxConnLifetime = time.Hour
	poolCfg.MaxConnLifetimeJitter = 10 * time.Minute
	poolCfg.MaxConnIdleTime = 10 * time.Minute
	configure(poolCfg.ConnConfig, cfg, whole)
	if cfg.ListenURL != "" {
		// The session of the next statement may be another one. PgBouncer takes no settings that it does not know.
		delete(poolCfg.ConnConfig.RuntimeParams, "search_path")
		if !strings.Contains(cfg.URL, "default_query_exec_mode") {
			poolCfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}

	poolCfg.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > pingAfter && ctx.Value(unchecked{}) == nil
	}

	pool, err := pgxpool.NewWithConfig(ctx, poolCfg)
	if err != nil {
		return nil, fmt.Errorf("open the connection pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return pool, nil
}

func listenConfig(cfg Config, whole context.Context) (*pgx.ConnConfig, error) {
	listen, err := pgx.ParseConfig(cfg.ListenURL)
	if err != nil {
		return nil, fmt.Errorf("read the URL to listen at: %w", err)
	}
	configure(listen, cfg, whole)
	return listen, nil
}

// configure completes what a URL says. Connections end with whole.
func configure(conn *pgx.ConnConfig, cfg Config, whole context.Context) {
	survive(&conn.Config)
	conn.DialFunc = until(whole, conn.DialFunc)
	// All our SQL names its schema, and times leave as instants.
	params := map[string]string{"search_path": "", "timezone": "UTC"}
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
	connectLimit = 5 * time.Second // for each host, unless the URL has connect_timeout
	silence      = 5 * time.Second // after which a host that confirms nothing is taken for dead
)

// survive makes connections that notice when their database is gone or no longer the one to write to.
func survive(cfg *pgconn.Config) {
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectLimit
	}
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
		Control:         giveUp,
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

// Unchecked is for statements that an idle server runs from time to time, and that whoever runs them tries
// again after an error: with it, the connection is not asked first, which would be one more round trip.
func Unchecked(ctx context.Context) context.Context { return context.WithValue(ctx, unchecked{}, true) }

// Pool is for those who run generated queries; errors go through Err.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Close waits for connections in use, then closes all; Cut spares it that.
func (d *DB) Close() {
	d.pool.Close()
	d.cut()
}

func (d *DB) loadProblems(ctx context.Context) error {
	rows, err := d.pool.Query(ctx, "select sqlstate, code, http_status, retryable, title, hint from ojs.problem")
	if err != nil {
		return ignoreMissing(err)
	}
	defer rows.Close()
	problems := map[string]Problem{}
	for rows.Next() {
		var p Problem
		if err := rows.Scan(&p.SQLState, &p.Code, &p.Status, &p.Retryable, &p.Title, &p.Hint); err != nil {
			return fmt.Errorf("read ojs.problem: %w", err)
		}
		problems[p.SQLState] = p
	}
	d.Problems = problems
	return ignoreMissing(rows.Err())
}

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

// CheckSchema compares the schema with the one compiled in; its error says what to do. One that later migrations have been applied to is
// accepted: they keep what the programs before them call.
func (d *DB) CheckSchema(ctx context.Context) error {
	var stored, ours *string
	err := d.pool.QueryRow(ctx, "select ojs.schema_hash(), ojs.schema_hash($1)", db.Version()).Scan(&stored, &ours)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case invalidSchemaName, undefinedFunction:
			return fmt.Errorf("%w: there is none yet. Run: ojs-pg migrate up", ErrSchema)
		case insufficientPrivilege:
			return fmt.Errorf("%w, or its role may not use it: grant ojs_service to the role in DATABASE_URL (%s)", ErrSchema, pgErr.Message)
		}
	}
	if err != nil {
		return fmt.Errorf("read the schema's hash: %w", err)
	}
	switch {
	case stored == nil:
		return fmt.Errorf("%w: a migration was interrupted. Run: ojs-pg migrate up", ErrSchema)
	case ours != nil && *ours == db.Hash():
		return nil
	}
	return fmt.Errorf("%w: %s", ErrSchema, recreateAdvice)
}

const recreateAdvice = "it was made by another pre-release, or is not migrated to the end. Try: ojs-pg migrate up. " +
	"Before 0.1.0 migrations change in place, so if that refuses, recreate the schema (this deletes all jobs): " +
	`psql -c "drop schema ojs cascade; drop table public.ojs_goose_version", then: ojs-pg migrate up`
