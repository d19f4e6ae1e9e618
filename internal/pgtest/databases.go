package pgtest

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
)

// exec runs a statement as superuser in the maintenance database, which belongs to no test.
func (s *server) exec(t testing.TB, sql string) {
	t.Helper()
	if _, err := s.admin.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// url returns the address of a database on the server, for a user or, if that is "", for the
// superuser.
func (s *server) url(database, user, password string) string {
	u := *s.address
	u.Path = "/" + database
	// While other tests use the few processors, PostgreSQL may take longer to answer than the default
	// timeout of its clients.
	query := u.Query()
	query.Set("connect_timeout", "60")
	u.RawQuery = query.Encode()
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// templateLock is the key of the advisory lock under which a template is made. A number that no other
// program on the server is likely to use.
const templateLock = 0x6f6a735f74657374

// prepareTemplate makes the migrated template database if the server has none. Its name holds a hash
// of migrations and code, so that each version of the schema has a template of its own. It holds an
// advisory lock, because several test processes may share the server, and makes a template anew that
// a process which died has left half made.
func (s *server) prepareTemplate(ctx context.Context) error {
	s.template = "ojs_template_" + db.Hash()[:6] + db.OwnCodeHash()[:6]
	conn, err := s.admin.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", int64(templateLock)); err != nil {
		return err
	}
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "select pg_advisory_unlock($1)", int64(templateLock))
	}()

	var complete bool
	err = conn.QueryRow(ctx, "select datistemplate from pg_database where datname = $1", s.template).Scan(&complete)
	switch {
	case complete:
		return nil
	case err == nil:
		if _, err := conn.Exec(ctx, "drop database "+s.template+" with (force)"); err != nil {
			return err
		}
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if _, err := conn.Exec(ctx, "create database "+s.template+" template template0 encoding 'UTF8'"); err != nil {
		return err
	}
	if err := migrate.Run(ctx, s.url(s.template, "", ""), migrate.Up, nil); err != nil {
		return err
	}
	// is_template marks it as complete. Connections are refused, because PostgreSQL cannot clone a
	// database that is in use.
	_, err = conn.Exec(ctx, "alter database "+s.template+" is_template true allow_connections false")
	return err
}

// clone makes a database as a copy of the template.
func (s *server) clone(ctx context.Context, name string) error {
	// On a server that does not sync, copying files (file_copy) is faster for a database of this size
	// than writing its pages to the log (wal_log).
	if _, err := s.admin.Exec(ctx, "create database "+name+" template "+s.template+" strategy "+s.strategy); err != nil {
		return err
	}
	// With an empty search_path a statement that does not name the schema fails, for every role.
	_, err := s.admin.Exec(ctx, "alter database "+name+" set search_path = ''")
	return err
}

// drop removes a database and the roles named after it.
func (s *server) drop(ctx context.Context, name string) error {
	if _, err := s.admin.Exec(ctx, "drop database if exists "+name+" with (force)"); err != nil {
		return err
	}
	rows, err := s.admin.Query(ctx, `select rolname from pg_roles where rolname like '%\_' || $1`, name)
	if err != nil {
		return err
	}
	roles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, role := range roles {
		name := pgx.Identifier{role}.Sanitize()
		// The database is gone, but the role may have granted memberships. They would keep it from being
		// dropped.
		if _, err := s.admin.Exec(ctx, "drop owned by "+name); err != nil {
			return err
		}
		if _, err := s.admin.Exec(ctx, "drop role "+name); err != nil {
			return err
		}
	}
	return nil
}
