package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// api is a server on a database of its own, and a client of it. start makes one.
type api struct {
	t    *testing.T
	srv  *Server
	url  string
	pool *pgxpool.Pool // of the superuser, to look at tables and to arrange them
	db   *pgtest.DB
	log  *pgtest.Log
}

// start starts a server on a database of its own. adjust changes its configuration. The end of the test
// stops it, and logs what it has logged if the test failed.
func start(t *testing.T, adjust ...func(*Config)) *api {
	t.Helper()
	db := pgtest.New(t)
	a := &api{t: t, db: db, pool: db.Pool, log: &pgtest.Log{}}
	a.serve(db.Open(), adjust...)
	return a
}

// serve starts a server on a database that is open already.
func (a *api) serve(door *pg.DB, adjust ...func(*Config)) {
	t := a.t
	t.Helper()
	log := slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	listener := notify.New(door, log)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	cfg := Config{DB: door, Dispatcher: dispatch.New(door, listener, log, dispatch.Options{Fallback: time.Hour}), Logger: log}
	for _, f := range adjust {
		f(&cfg)
	}
	running.Go(func() { cfg.Dispatcher.Run(ctx) })
	a.srv = New(cfg)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.url = "http://" + socket.Addr().String()
	serving, end := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- a.srv.Serve(serving, socket) }()
	t.Cleanup(func() {
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
		stop()
		running.Wait()
		if t.Failed() {
			t.Log(a.log.String())
		}
	})
}

// reply is an answer. Its methods check it and return it, so that checks follow each other in a chain.
type reply struct {
	t      *testing.T
	status int
	header http.Header
	body   string
	value  any
}

// do sends a request and returns the answer. A header is given as "Name: value". The test ends if there is
// no answer, or one that is not JSON.
func (a *api) do(method, path, body string, headers ...string) *reply {
	a.t.Helper()
	r, err := a.send(context.Background(), method, path, body, headers...)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

// send is do for a request that may fail or be cancelled.
func (a *api) send(ctx context.Context, method, path, body string, headers ...string) (*reply, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, content)
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", jsonbody.ContentType)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Content-Type" {
			req.Header.Set(name, value)
		} else {
			req.Header.Add(name, value)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	r := &reply{t: a.t, status: res.StatusCode, header: res.Header, body: string(raw)}
	if res.StatusCode == http.StatusNoContent && len(raw) == 0 || path == "/metrics" && res.StatusCode == http.StatusOK {
		return r, nil
	}
	if err := r.parse(); err != nil {
		return nil, fmt.Errorf("%s %s answered %d with no JSON: %q", method, path, res.StatusCode, raw)
	}
	checkContract(a.t, a.srv.handler.(*echo.Echo), req, body, r)
	return r, nil
}

// parse reads the body, which is JSON.
func (r *reply) parse() error {
	dec := json.NewDecoder(strings.NewReader(r.body))
	dec.UseNumber() // float64 cannot hold some of our numbers
	return dec.Decode(&r.value)
}

// want ends the test if the answer has another status.
func (r *reply) want(status int) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	return r
}

// get returns the value at a path such as jobs.0.meta.tenant_id, or nil if there is none.
func (r *reply) get(path string) any {
	v := r.value
	for _, part := range strings.Split(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// text returns the string at a path, or "".
func (r *reply) text(path string) string {
	s, _ := r.get(path).(string)
	return s
}

// is compares values at paths with wanted ones, by their JSON.
func (r *reply) is(want map[string]any) *reply {
	r.t.Helper()
	for path, value := range want {
		got, _ := json.Marshal(r.get(path))
		expected, _ := json.Marshal(value)
		if !bytes.Equal(got, expected) {
			r.t.Errorf("%s = %s, want %s in %s", path, got, expected, r.body)
		}
	}
	return r
}

// present checks that there is a value at each path, and absent that there is none.
func (r *reply) present(paths ...string) *reply {
	r.t.Helper()
	for _, path := range paths {
		if r.get(path) == nil {
			r.t.Errorf("%s is missing in %s", path, r.body)
		}
	}
	return r
}

func (r *reply) absent(paths ...string) *reply {
	r.t.Helper()
	for _, path := range paths {
		if r.get(path) != nil {
			r.t.Errorf("%s is there in %s", path, r.body)
		}
	}
	return r
}

// push enqueues a job, which must succeed, and returns its id.
func (a *api) push(body string, headers ...string) string {
	a.t.Helper()
	return a.do("POST", "/ojs/v1/jobs", body, headers...).want(201).text("job.id")
}

// fetchOne fetches a job of a queue, which must be there, for the worker w1.
func (a *api) fetchOne(queue string, headers ...string) *reply {
	a.t.Helper()
	r := a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["`+queue+`"],"worker_id":"w1"}`, headers...).want(200)
	if r.get("jobs.0.id") == nil {
		a.t.Fatalf("nothing to fetch from %s: %s", queue, r.body)
	}
	return r
}

// count returns the number that a query returns, as superuser.
func (a *api) count(query string, args ...any) int {
	a.t.Helper()
	return pgtest.One[int](a.t, a.pool, query, args...)
}
