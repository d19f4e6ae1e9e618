package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/conformance/internal/engine"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// server is the one at OJS_CONFORMANCE_URL, or one of our own, put together as the program does it: a login
// role that is only a member of ojs_service, a listener, a clock and a socket.
func server(t *testing.T) engine.Target {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: 2 * time.Minute}
	t.Cleanup(client.CloseIdleConnections)
	if url := os.Getenv("OJS_CONFORMANCE_URL"); url != "" {
		return engine.Target{URL: strings.TrimSuffix(url, "/"), Client: client}
	}

	database := pgtest.New(t)
	db := database.Open()
	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	listener := pg.NewListener(db, log)
	srv := httpapi.New(httpapi.Config{
		DB: db, Listener: listener, Logger: log,
		AllowReset: true,
		Reset:      func(ctx context.Context) error { return reset(ctx, database.Pool) },
	})
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { sched.New(db, log, 0).Run(ctx) })
	running.Go(func() {
		if err := srv.Serve(ctx, socket); err != nil {
			t.Error(err)
		}
	})
	// Before db is closed and its database dropped, whose cleanups were registered earlier.
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return engine.Target{URL: "http://" + socket.Addr().String(), Client: client}
}

// testLog puts what the server complains of into the test's own log.
type testLog struct{ t *testing.T }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("server: %s", strings.TrimSpace(string(line)))
	return len(line), nil
}

// reset removes all that clients have put into the database. What stays belongs to the schema (problems, its
// hash, the lane), to the running servers (who waits for what), or says how far an append-only journal has
// been read, which stays true when the journal is emptied.
func reset(ctx context.Context, superuser *pgxpool.Pool) error {
	empty := func() error {
		_, err := superuser.Exec(ctx, `
		do $$
		declare
			v_tables text;
		begin
			-- No decision is under way while the tables it writes are emptied.
			perform from ojs.lane for update;
			select string_agg(oid::regclass::text, ', ' order by relname) into strict v_tables
			from pg_class
			where relnamespace = 'ojs'::regnamespace and relkind in ('r', 'p') and not relispartition
				and relname not in ('problem', 'schema_hash', 'lane', 'fold', 'tally_mark', 'settings', 'waiter', 'tenant_role');
			execute 'truncate ' || v_tables;
			delete from ojs.settings;
			insert into ojs.settings default values;
		end $$`)
		return err
	}
	// The clock ticks meanwhile, and takes its locks in another order than truncate.
	err := empty()
	for deadlocked := (*pgconn.PgError)(nil); errors.As(err, &deadlocked) && deadlocked.Code == "40P01"; {
		err = empty()
	}
	if err != nil {
		return fmt.Errorf("reset the database: %w", err)
	}
	return nil
}
