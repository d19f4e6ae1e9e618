package pg_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A statement that takes too long is broken off, and the connection is as it was.
func TestWithin(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := conn.Conn().PgConn().PID()
	conn.Release()
	brief := db.Within(10 * time.Millisecond)
	var late *pgconn.PgError
	if _, err := brief.Exec(t.Context(), "select pg_sleep(3600)"); !errors.As(err, &late) || late.Code != "57014" {
		t.Errorf("a statement without an end: %v", err)
	}
	for _, limit := range []pg.Brief{brief, db.Within(time.Hour)} {
		var setting string
		if err := limit.QueryRow(t.Context(), "select current_setting('statement_timeout')").Scan(&setting); err != nil || setting == "0" {
			t.Errorf("the limit is %q, %v", setting, err)
		}
	}
	var setting string
	var same uint32
	err = db.Pool().QueryRow(t.Context(), "select current_setting('statement_timeout'), pg_backend_pid()").Scan(&setting, &same)
	if err != nil || setting != "0" || same != pid {
		t.Errorf("afterwards the limit is %q, %v; the session is %d, and was %d", setting, err, same, pid)
	}
}
