package db_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/notify"
)

// Each step goes by SQL or by HTTP, as it happens: the rules are the same whichever way jobs come, go and end.
func TestDispatchByTwoDoorsFollowsTheModel(t *testing.T) {
	schedules(t, 3, (*model).twoDoors)
}

// And so they are for several fetchers at once.
func TestConcurrentDispatchByTwoDoorsFollowsTheModel(t *testing.T) {
	schedules(t, 3, (*model).crowdAtDoors)
}

func (m *model) twoDoors() {
	m.openDoors()
	m.tight()
}

func (m *model) crowdAtDoors() {
	m.openDoors()
	m.prepare()
	m.crowd(2+m.r.IntN(5), 20)
	m.drain()
}

// door is an interface by which the programs of users reach the database: SQL or HTTP.
type door interface {
	enqueue(ctx context.Context, a arrival) (ids []string, err error)
	fetch(ctx context.Context, a ask) (jobs []handedJob, again bool, err error)
	end(ctx context.Context, way modelEnd, id, lease string) error
}

// openDoors makes the next steps use SQL or HTTP, at random.
func (m *model) openDoors() { m.doors = []door{sqlDoor{m.service}, m.serve()} }

// door returns the door for the next call.
func (m *model) door() door {
	if m.doors == nil {
		return sqlDoor{m.service}
	}
	return m.doors[m.r.IntN(len(m.doors))]
}

// arrival holds jobs that are enqueued together.
type arrival struct {
	tenant, queue string
	priority, n   int
	way           arriving
}

type arriving int

const (
	byCall arriving = iota // one job only
	inBulk
	byInsert
	forLater // the jobs are scheduled
)

type sqlDoor struct{ pool *pgxpool.Pool }

func (d sqlDoor) enqueue(ctx context.Context, a arrival) ([]string, error) {
	sql := map[arriving]string{
		byCall: `select id::text from ojs.enqueue('x', p_queue => $1, p_priority => $2, p_tenant => $3) where $4 = 1`,
		inBulk: `select i::text from ojs.enqueue_bulk('x', array_fill('[]'::json, array[$4::int]), p_queue => $1,
			p_priority => $2, p_tenant => $3) i`,
		byInsert: `insert into ojs.jobs (tenant_id, type, queue, priority) select $3, 'x', $1, $2 from generate_series(1, $4)
			returning id::text`,
		forLater: `select i::text from ojs.enqueue_bulk('x', array_fill('[]'::json, array[$4::int]), p_queue => $1,
			p_priority => $2, p_tenant => $3, p_scheduled_at => now() + interval '1 day') i`,
	}[a.way]
	rows, err := d.pool.Query(ctx, sql, a.queue, a.priority, a.tenant, a.n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (d sqlDoor) fetch(ctx context.Context, a ask) ([]handedJob, bool, error) {
	return a.send(ctx, d.pool)
}

func (d sqlDoor) end(ctx context.Context, way modelEnd, id, lease string) error {
	_, err := d.pool.Exec(ctx, way.sql, id, lease)
	return err
}

// httpDoor is a server. Calls for which it has no route use SQL.
type httpDoor struct {
	sqlDoor
	url    string
	client *http.Client
}

// serve starts a server on the model's database. The end of the test stops it.
func (m *model) serve() httpDoor {
	opened, log := m.d.Open(), slog.New(slog.DiscardHandler)
	listener := notify.New(opened, log)
	dispatcher := dispatch.New(opened, listener, log, dispatch.Options{})
	server := httpapi.New(httpapi.Config{DB: opened, Dispatcher: dispatcher, Logger: log})
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: time.Minute}
	ctx, stop := context.WithCancel(context.WithoutCancel(m.ctx))
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { dispatcher.Run(ctx) })
	running.Go(func() {
		if err := server.Serve(ctx, socket); err != nil {
			m.t.Error(err)
		}
	})
	m.t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		running.Wait()
	})
	return httpDoor{sqlDoor{m.service}, "http://" + socket.Addr().String() + "/ojs/v1/", client}
}

// httpJobs holds the jobs in an answer.
type httpJobs struct {
	Jobs []struct {
		ID, Queue, Lease  string
		Priority, Attempt int
		Meta              struct {
			Tenant string `json:"tenant_id"`
		}
	}
}

// post sends a request. It returns an error of the server as the error that SQL would raise.
func (d httpDoor) post(ctx context.Context, path, tenant string, body any) (answer httpJobs, err error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+path, bytes.NewReader(sent))
	if err != nil {
		return answer, err
	}
	request.Header.Set("Content-Type", "application/json")
	if tenant != "" {
		request.Header.Set("X-OJS-Tenant", tenant)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return answer, err
	}
	if response.StatusCode >= 300 {
		return answer, &pgconn.PgError{Code: fmt.Sprint("OJ", response.StatusCode), Message: fmt.Sprintf("POST %s %s: %s", path, sent, got)}
	}
	return answer, json.Unmarshal(got, &answer)
}

func (d httpDoor) enqueue(ctx context.Context, a arrival) (ids []string, err error) {
	options := map[string]any{"queue": a.queue, "priority": a.priority}
	if a.way == forLater {
		options["scheduled_at"] = time.Now().Add(24 * time.Hour)
	}
	jobs := make([]any, a.n)
	for i := range jobs {
		jobs[i] = map[string]any{"type": "x", "args": []any{}, "options": options}
	}
	answer, err := d.post(ctx, "jobs/batch", a.tenant, map[string]any{"jobs": jobs})
	for _, j := range answer.Jobs {
		ids = append(ids, j.ID)
	}
	return ids, err
}

func (d httpDoor) fetch(ctx context.Context, a ask) (jobs []handedJob, again bool, err error) {
	body := map[string]any{"queues": a.queues, "count": a.count(), "visibility_timeout_ms": 600000, "wait_ms": a.wait}
	if a.pool != "" {
		body["pool"] = a.pool
	}
	if a.strategy != "" {
		body["strategy"] = a.strategy
	}
	if weights, ok := a.weights.(string); ok {
		body["weights"] = json.RawMessage(weights)
	}
	answer, err := d.post(ctx, "workers/fetch", a.tenant, body)
	for _, j := range answer.Jobs {
		jobs = append(jobs, handedJob{
			ID: j.ID, Tenant: j.Meta.Tenant, Queue: j.Queue, Priority: j.Priority, Attempt: j.Attempt, Lease: j.Lease,
		})
	}
	return jobs, false, err
}

func (d httpDoor) end(ctx context.Context, way modelEnd, id, lease string) error {
	if way.route == "" {
		return d.sqlDoor.end(ctx, way, id, lease)
	}
	body := map[string]any{"job_id": id, "lease": lease}
	if way.route == "workers/nack" {
		body["error"], body["requeue"] = map[string]any{"message": "no"}, way.requeue
	}
	_, err := d.post(ctx, way.route, "", body)
	return err
}
