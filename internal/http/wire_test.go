package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// While the default tenant cannot be read, answers wait for one attempt in a second, and not each for its own.
func TestTheDefaultTenantIsAskedForOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, away := 0, true
		d := defaultTenant{log: slog.New(slog.DiscardHandler), read: func(ctx context.Context) (string, error) {
			asked++
			if away {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return "house", nil
		}}
		is := func(name string, attempts int) {
			t.Helper()
			for range 10 {
				if got := d.name(); got != name {
					t.Errorf("the default tenant is %q, want %q", got, name)
				}
			}
			if asked != attempts {
				t.Errorf("asked %d times, want %d", asked, attempts)
			}
		}
		is("", 1)
		time.Sleep(time.Second)
		is("", 1)
		time.Sleep(time.Millisecond)
		is("", 2)
		away = false
		time.Sleep(2 * time.Second)
		is("house", 3)
		time.Sleep(time.Minute)
		is("house", 3)
	})
}

// An answer of many jobs waits for the default tenant once at most, however long the client takes to read it.
func TestAnAnswerAsksForTheDefaultTenantOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	for i := range 4 {
		a.push(fmt.Sprintf(`{"type":"a","args":[%d,"%s"]}`, i, strings.Repeat("x", 700_000)))
	}
	// No other request comes: the server has no socket.
	srv, asked := New(Config{DB: a.srv.db, Dispatcher: a.srv.dispatch, Logger: a.srv.log}), 0
	srv.defaultTenant.read = func(context.Context) (string, error) { asked++; return "", errors.New("away") }
	req := httptest.NewRequest("POST", "/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["default"],"count":4}`))
	w := &slowReader{httptest.NewRecorder(), func() { srv.defaultTenant.failedAt = time.Time{} }}
	srv.Handler().ServeHTTP(w, req)
	if w.Code != 200 || strings.Count(w.Body.String(), `"meta":{"tenant_id":"_default"}`) != 4 {
		t.Errorf("%d %.300s", w.Code, w.Body)
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// slowReader lets time pass with each write.
type slowReader struct {
	*httptest.ResponseRecorder
	pass func()
}

func (w *slowReader) Write(b []byte) (int, error) {
	w.pass()
	return w.ResponseRecorder.Write(b)
}
