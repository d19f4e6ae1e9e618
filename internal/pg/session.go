package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// required are the settings of a session that our SQL relies on. A database, a role or a URL may
// have other values, meant for other programs, so each connection sets these for itself.
var required = map[string]string{
	// A decision must read what other transactions have committed since it began; ojs.fetch refuses
	// any other level.
	"default_transaction_isolation": "read committed",
	// In another encoding, HTTP's UTF-8 would be stored as other characters, and a job with a
	// character that the encoding lacks would fail each FETCH of its queue.
	"client_encoding":             "UTF8",
	"standard_conforming_strings": "on",
	// With "off", each query that a policy filters is an error.
	"row_security": "on",
	// All our SQL names its schema.
	"search_path": "",
	// These decide how SQL writes times, intervals and floats into texts and JSON.
	"timezone": "UTC", "datestyle": "ISO, MDY", "intervalstyle": "postgres", "extra_float_digits": "1",
	// It says that each transaction of this session ends with its call. Without it SQL guesses that
	// from the time that has passed, and on a loaded machine planning a call may take that time.
	"ojs.autocommit": "on",
}

// throughPooler are the settings that PgBouncer accepts from its clients. It refuses a connection
// with any other setting.
var throughPooler = []string{"client_encoding", "standard_conforming_strings", "timezone", "datestyle"}

// require replaces the settings that a URL has by those that our SQL relies on.
func require(params map[string]string) {
	for name := range params {
		if _, is := required[strings.ToLower(name)]; is {
			delete(params, name)
		}
	}
	for name, value := range required {
		params[name] = value
	}
}

// forPooler removes the settings that PgBouncer would refuse. The role must have them instead;
// CheckSettings looks whether it does.
func forPooler(params map[string]string) {
	kept := map[string]string{}
	for _, name := range throughPooler {
		kept[name] = params[name]
	}
	for name := range required {
		delete(params, name)
	}
	for name, value := range kept {
		params[name] = value
	}
	delete(params, "jit")
}

// ErrEncoding means that the database cannot hold all characters that a job may have.
var ErrEncoding = errors.New("the encoding of the database is not UTF8")

// CheckEncoding returns an ErrEncoding, which says what to do, unless a database's encoding is
// UTF8.
func CheckEncoding(encoding string) error {
	if encoding == "UTF8" {
		return nil
	}
	return fmt.Errorf("%w but %s: jobs are JSON, and characters that %[2]s lacks would be refused or changed. "+
		"Create another database: create database NAME encoding 'UTF8' template template0. Then run: ojs-pg migrate up",
		ErrEncoding, encoding)
}

// ErrSetting means that sessions have a setting with which our SQL does not work.
var ErrSetting = errors.New("sessions of the server have a setting that it cannot work with")

// CheckSettings returns an error that says what to do if a server cannot work with this database:
// its encoding is not UTF8 (ErrEncoding), sessions behind a pooler, where a server cannot set them,
// have other settings (ErrSetting), or the listening URL leads to a pooler, too (ErrPooler).
func (d *DB) CheckSettings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var encoding, isolation, rowSecurity, user string
	err := d.pool.QueryRow(ctx, `select current_setting('server_encoding'), current_setting('transaction_isolation'),
		current_setting('row_security'), quote_ident(session_user)`).Scan(&encoding, &isolation, &rowSecurity, &user)
	if err != nil {
		return fmt.Errorf("read the settings of a session: %w", err)
	}
	if err := CheckEncoding(encoding); err != nil {
		return err
	}
	switch {
	case isolation != "read committed":
		return settingError("default_transaction_isolation", isolation, "read committed", user)
	case rowSecurity != "on":
		return settingError("row_security", rowSecurity, "on", user)
	}
	return d.checkListening(ctx)
}

func settingError(name, value, want, user string) error {
	return fmt.Errorf("%w: %s is %q, and through a pooler the server cannot set it. Run: alter role %s set %[2]s = '%[5]s', and reconnect "+
		"the pooler", ErrSetting, name, value, user, want)
}

// checkListening returns ErrPooler if notifications would be lost. It ignores a PostgreSQL that
// cannot be reached now, because the listener tries again.
func (d *DB) checkListening(ctx context.Context) error {
	if !d.pooled {
		return nil
	}
	conn, err := pgx.ConnectConfig(ctx, d.listen)
	if err != nil {
		if err = ExplainRefusal(err); errors.Is(err, ErrPooler) {
			return fmt.Errorf("connect to the direct URL: %w", err)
		}
		return nil
	}
	defer HangUp(ctx, conn)
	if err := RefusePooler(ctx, conn); err != nil {
		return fmt.Errorf("connect to the direct URL: %w", err)
	}
	return nil
}

// ErrPooler means that a connection has no session of its own.
var ErrPooler = errors.New("the URL leads to a pooler that shares sessions, such as PgBouncer in transaction mode, " +
	"where notifications and prepared statements are lost. Give an address of PostgreSQL itself. " +
	"`ojs-pg serve` needs it for one connection only: --direct-url, or OJS_DIRECT_URL (docs/operate/configuration.md#pgbouncer)")

// ExplainRefusal returns an ErrPooler if only a pooler explains err, and else err: PgBouncer does
// not know one of our settings, or the session has not the statement that this connection prepared.
func ExplainRefusal(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	setting := pgErr.Code == sqlstate.ProtocolViolation && strings.Contains(pgErr.Message, "startup parameter")
	if setting || sqlstate.In(err, sqlstate.InvalidStatementName, sqlstate.DuplicateStatement) {
		return fmt.Errorf("%w (%s)", ErrPooler, pgErr.Message)
	}
	return err
}

const (
	poolerTries   = 3 // a pooler may have several processes, each of which shares sessions among its own clients only
	poolerTimeout = 2 * time.Second
)

// RefusePooler returns ErrPooler if a connection shares its session with other connections: another
// connection gets the session of this one, or this one gets another session.
func RefusePooler(ctx context.Context, conn *pgx.Conn) error {
	backend, err := backendOf(ctx, conn.PgConn())
	if err != nil {
		return err
	}
	// PostgreSQL names, when a connection begins, the process that serves it. A pooler names a
	// number of its own.
	if backend == conn.PgConn().PID() {
		return nil
	}
	for range poolerTries {
		shared, err := sharesSession(ctx, conn, backend)
		switch {
		case shared:
			return ErrPooler
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("ask whether there is a pooler: %w", err)
		case err != nil:
			return nil // there is no second session, so no session is shared
		}
	}
	return nil
}

// sharesSession opens a second connection and reports whether the first one got its session, or
// another session than before. It asks the first connection while a transaction of the second one
// occupies a session, and twice after that transaction. A pooler that hands out sessions in turns,
// and has two of them, changes the session at the second question only.
func sharesSession(ctx context.Context, conn *pgx.Conn, backend uint32) (bool, error) {
	trying, cancel := context.WithTimeout(ctx, poolerTimeout)
	defer cancel()
	other, err := pgx.ConnectConfig(trying, conn.Config())
	if err != nil {
		return false, err
	}
	defer HangUp(ctx, other)
	if err := other.PgConn().Exec(trying, "begin").Close(); err != nil {
		return false, err
	}
	if taken, err := backendOf(trying, other.PgConn()); err != nil || taken == backend {
		return err == nil, err
	}
	for try := range 3 {
		if try == 1 {
			if err := other.PgConn().Exec(trying, "rollback").Close(); err != nil {
				return false, err
			}
		}
		if again, err := backendOf(trying, conn.PgConn()); err != nil || again != backend {
			return err == nil, err
		}
	}
	return false, nil
}

// backendOf returns the process id of the session that serves a connection now. It uses the simple
// protocol, which works through any pooler.
func backendOf(ctx context.Context, conn *pgconn.PgConn) (uint32, error) {
	results, err := conn.Exec(ctx, "select pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, fmt.Errorf("ask for the process that serves the connection: %w", err)
	}
	pid, err := strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read the number of the process that serves the connection: %w", err)
	}
	return uint32(pid), nil
}
