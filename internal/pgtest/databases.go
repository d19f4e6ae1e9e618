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

// exec runs a statement as superuser outside of any test's database.
func (s *server) exec(t testing.TB, sql string) {
	t.Helper()
	if _, err := s.admin.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// url addresses a database on the server; without a user, as the superuser.
func (s *server) url(database, user, password string) string {
	u := *s.address
	u.Path = "/" + database
	// Beside other tests on few processors PostgreSQL may take longer to answer than what uses it waits by itself.
	query := u.Query()
	query.Set("connect_timeout", "60")
	u.RawQuery = query.Encode()
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// templateLock guards the making of templates; other programs on the server have theirs.
const templateLock = 0x6f6a735f74657374

// prepareTemplate makes sure that the migrated template exists, once per server: several test
// processes may come at once, and an earlier one may have died half-way.
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
	// A mark of completion, and no connections: a template in use cannot be cloned.
	_, err = conn.Exec(ctx, "alter database "+s.template+" is_template true allow_connections false")
	return err
}

func (s *server) clone(ctx context.Context, name string) error {
	// Copying files beats logging pages for a database of this size once nothing is synced.
	if _, err := s.admin.Exec(ctx, "create database "+name+" template "+s.template+" strategy "+s.strategy); err != nil {
		return err
	}
	// A statement without the schema's name fails here, whatever role runs the test.
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
		// What is left of a role are memberships that it granted.
		if _, err := s.admin.Exec(ctx, "drop owned by "+name); err != nil {
			return err
		}
		if _, err := s.admin.Exec(ctx, "drop role "+name); err != nil {
			return err
		}
	}
	return nil
}
