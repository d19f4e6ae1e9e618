package conformance

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/conformance/internal/engine"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// givenServer is the environment variable with the URL of a server that runs already.
const givenServer = "OJS_CONFORMANCE_URL"

// server returns the server at OJS_CONFORMANCE_URL. If it is not set, it starts one as the program does:
// with a login role that is only a member of ojs_service, a listener, a clock and a socket.
func server(t *testing.T) engine.Target {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: 2 * time.Minute}
	t.Cleanup(client.CloseIdleConnections)
	if url := os.Getenv(givenServer); url != "" {
		return engine.Target{URL: strings.TrimSuffix(url, "/"), Client: client}
	}

	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, "select ojs.configure(p_unsupported => 'carry')")
	db := database.Open()
	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	listener := notify.New(db, log)
	dispatcher := dispatch.New(db, listener, log, dispatch.Options{})
	srv := httpapi.New(httpapi.Config{
		DB: db, Dispatcher: dispatcher, Logger: log,
		AllowReset: true,
		// A case of level 0 enqueues a job with a uniqueness policy, which belongs to level 4, and expects that
		// the policy is kept.
		Reset: func(ctx context.Context) error {
			if err := setup.Reset(ctx, database.URL); err != nil {
				return err
			}
			_, err := database.Pool.Exec(ctx, "select ojs.configure(p_unsupported => 'carry')")
			return err
		},
	})
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { dispatcher.Run(ctx) })
	running.Go(func() { sched.New(db, listener, log, 0).Run(ctx) })
	running.Go(func() {
		if err := srv.Serve(ctx, socket); err != nil {
			t.Error(err)
		}
	})
	// Registered last, so it runs first: before db is closed and its database dropped.
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return engine.Target{URL: "http://" + socket.Addr().String(), Client: client}
}

// testLog writes the server's warnings into the log of the test.
type testLog struct{ t *testing.T }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("server: %s", strings.TrimSpace(string(line)))
	return len(line), nil
}
