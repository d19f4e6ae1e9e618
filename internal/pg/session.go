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
)

// required are the settings of a session that our SQL relies on. A database, a role or a URL may set them otherwise, for other programs:
// each connection sets them for itself.
var required = map[string]string{
	// Decisions read what others have committed meanwhile; ojs.fetch refuses any other level.
	"default_transaction_isolation": "read committed",
	// With another one, a job with characters that it lacks fails each FETCH of its queue, and HTTP's UTF-8 is stored as other characters.
	"client_encoding":             "UTF8",
	"standard_conforming_strings": "on",
	// When it is off, each query that a policy filters is an error.
	"row_security": "on",
	// All our SQL names its schema.
	"search_path": "",
	// Texts and JSON that SQL makes of times, intervals and floats.
	"timezone": "UTC", "datestyle": "ISO, MDY", "intervalstyle": "postgres", "extra_float_digits": "1",
	// The server's transactions end with their call. SQL otherwise judges that by time, which a loaded machine may take to plan a call.
	"ojs.autocommit": "on",
}

// throughPooler are the settings that PgBouncer takes from its clients. It refuses connections with any other one.
var throughPooler = []string{"client_encoding", "standard_conforming_strings", "timezone", "datestyle"}

// require sets what our SQL relies on, in place of what a URL says.
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

// forPooler leaves out the settings that PgBouncer would refuse. The role has to have them: CheckSettings looks.
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

func encodingError(encoding string) error {
	return fmt.Errorf("%w but %s: jobs are JSON, and characters that %[2]s lacks would be refused or changed. "+
		"Create another database: create database NAME encoding 'UTF8' template template0. Then run: ojs-pg migrate up",
		ErrEncoding, encoding)
}

// ErrSetting means that sessions have a setting with which our SQL does not work.
var ErrSetting = errors.New("sessions of the server have a setting that it cannot work with")

// CheckSettings says what is wrong with the database's encoding, with the settings of sessions behind a pooler, for which the server cannot
// set them, or with the connection that is to listen.
func (d *DB) CheckSettings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.checkTimeout)
	defer cancel()
	var encoding, isolation, rowSecurity, user string
	err := d.pool.QueryRow(ctx, `select current_setting('server_encoding'), current_setting('transaction_isolation'),
		current_setting('row_security'), quote_ident(session_user)`).Scan(&encoding, &isolation, &rowSecurity, &user)
	switch {
	case err != nil:
		return fmt.Errorf("read the settings of a session: %w", err)
	case encoding != "UTF8":
		return encodingError(encoding)
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

// checkListening fails if notifications would be lost. A PostgreSQL that cannot be reached now is for the listener, which tries again.
func (d *DB) checkListening(ctx context.Context) error {
	if !d.pooled {
		return nil
	}
	conn, err := pgx.ConnectConfig(ctx, d.listen)
	if err != nil {
		if err = explainRefusal(err); errors.Is(err, ErrPooler) {
			return fmt.Errorf("connect to the direct URL: %w", err)
		}
		return nil
	}
	defer closeSoon(ctx, conn)
	if err := refusePooler(ctx, conn); err != nil {
		return fmt.Errorf("connect to the direct URL: %w", err)
	}
	return nil
}

// ErrPooler means that a connection has no session of its own.
var ErrPooler = errors.New("the URL leads to a pooler that shares sessions, such as PgBouncer in transaction mode, " +
	"where notifications and prepared statements are lost. Give an address of PostgreSQL itself. " +
	"`ojs-pg serve` needs it for one connection only: --direct-url, or OJS_DIRECT_URL (docs/operate/configuration.md#pgbouncer)")

// explainRefusal recognizes the answer of PgBouncer to settings that it does not know.
func explainRefusal(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == protocolViolation && strings.Contains(pgErr.Message, "startup parameter") {
		return fmt.Errorf("%w (%s)", ErrPooler, pgErr.Message)
	}
	return err
}

const (
	poolerTries   = 3 // several processes of a pooler may share one address, and each shares sessions among its own clients only
	poolerTimeout = 2 * time.Second
)

// refusePooler fails with ErrPooler if another connection gets the session of this one, or this one gets another session.
func refusePooler(ctx context.Context, conn *pgx.Conn) error {
	backend, err := backendOf(ctx, conn.PgConn())
	if err != nil {
		return err
	}
	// PostgreSQL tells at the start which process serves a connection. A pooler has told a number of its own.
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
			return nil // it has no second session at all, for now: nothing is shared
		}
	}
	return nil
}

// sharesSession opens a second connection, which keeps its session for a moment by a transaction.
func sharesSession(ctx context.Context, conn *pgx.Conn, backend uint32) (bool, error) {
	trying, cancel := context.WithTimeout(ctx, poolerTimeout)
	defer cancel()
	other, err := pgx.ConnectConfig(trying, conn.Config())
	if err != nil {
		return false, err
	}
	defer closeSoon(ctx, other)
	if err := other.PgConn().Exec(trying, "begin").Close(); err != nil {
		return false, err
	}
	if taken, err := backendOf(trying, other.PgConn()); err != nil || taken == backend {
		return err == nil, err
	}
	again, err := backendOf(trying, conn.PgConn())
	return err == nil && again != backend, err
}

// backendOf asks for the process that serves the current transaction, by the simple protocol: it prepares nothing.
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
