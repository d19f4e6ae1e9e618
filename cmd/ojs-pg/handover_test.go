package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// brittle panics where the first bytes of an answer are written. It stands for a mistake in the part of the server that writes it.
type brittle struct {
	http.ResponseWriter
	panicked bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if !b.panicked {
		b.panicked = true
		panic("a mistake in an answer")
	}
	return b.ResponseWriter.Write(p)
}

// Jobs whose answer panics are available at once, and their attempts do not count. Their leases would last an hour.
func TestAPanicDuringAnAnswerGivesItsJobsBack(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"an answer in one piece": "'[]'", "an answer in several pieces": "to_json(array[repeat('x', 600000)])",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			door, log := db.Open(), slog.New(slog.DiscardHandler)
			dispatcher := dispatch.New(door, nil, log, dispatch.Options{})
			ctx, stop := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { dispatcher.Run(ctx) })
			t.Cleanup(func() {
				stop()
				running.Wait()
			})
			pgtest.Exec(t, db.Pool, "select ojs.enqueue('a', "+args+", p_visibility_timeout_ms => 3600000) from generate_series(1, 3)")
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/ojs/v1/workers/fetch",
				strings.NewReader(`{"queues": ["default"], "count": 3}`))
			r.Header.Set("Content-Type", "application/json")
			w := &brittle{ResponseWriter: httptest.NewRecorder()}
			httpapi.New(httpapi.Config{DB: door, Dispatcher: dispatcher, Logger: log}).Handler().ServeHTTP(w, r)
			if !w.panicked {
				t.Error("nothing was written")
			}
			db.Eventually("the jobs are given back", "select count(*) = 3 from ojs.release where to_state = 'available'")
			if n := pgtest.One[int](t, db.Pool, "select count(*) from ojs.job where state = 'available' and attempt = 0"); n != 3 {
				t.Errorf("%d jobs are available", n)
			}
		})
	}
}
