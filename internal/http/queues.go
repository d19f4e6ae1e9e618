package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// countsJSON are the jobs of a queue or tenant by state.
type countsJSON struct {
	Depth     int64 `json:"depth"`
	Available int64 `json:"available"`
	Active    int64 `json:"active"`
	Scheduled int64 `json:"scheduled"`
	Pending   int64 `json:"pending"`
	Retryable int64 `json:"retryable"`
	Completed int64 `json:"completed"`
	Cancelled int64 `json:"cancelled"`
	Discarded int64 `json:"discarded"`
	Failed    int64 `json:"failed_attempts"`
}

func countsOf(c admin.Counts) countsJSON {
	return countsJSON{
		Depth: c.Depth(), Available: c.Available, Active: c.Active, Scheduled: c.Scheduled, Pending: c.Pending, Retryable: c.Retryable,
		Completed: c.Completed, Cancelled: c.Cancelled, Discarded: c.Discarded, Failed: c.Failed,
	}
}

type queueJSON struct {
	Name         string `json:"name"`
	Status       string `json:"status"`
	Paused       bool   `json:"paused"`
	TotalJobs    int64  `json:"total_jobs"`
	OldestWaitMs int64  `json:"oldest_wait_ms"`
	countsJSON
}

func queueOf(q admin.Queue) queueJSON {
	status := "active"
	if q.Paused {
		status = "paused"
	}
	return queueJSON{
		Name: q.Name, Status: status, Paused: q.Paused, TotalJobs: q.Total,
		OldestWaitMs: q.OldestWait.Milliseconds(), countsJSON: countsOf(q.Counts),
	}
}

func (s *Server) listQueues(c echo.Context) error {
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	queues, err := admin.Queues(ctx, s.q, scope, nil)
	if err != nil {
		return err
	}
	queues, pagination, err := kit.Page(c, queues)
	if err != nil {
		return err
	}
	items := make([]queueJSON, len(queues))
	for i, q := range queues {
		items[i] = queueOf(q)
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"queues": items, "items": items, "pagination": pagination})
}

// queueName is what SQL accepts as one; a path with another names no queue.
var queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)

// oneQueue reads the queue a path names. Queues need not be created, so one that holds nothing
// is empty, not unknown.
func (s *Server) oneQueue(c echo.Context) (admin.Queue, error) {
	name := c.Param("name")
	if !queueName.MatchString(name) {
		return admin.Queue{}, kit.NoSuch("queue", name)
	}
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return admin.Queue{}, err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	queues, err := admin.Queues(ctx, s.q, scope, &name)
	if err != nil {
		return admin.Queue{}, err
	}
	if len(queues) == 0 {
		return admin.Queue{Name: name}, nil
	}
	return queues[0], nil
}

func (s *Server) getQueue(c echo.Context) error {
	q, err := s.oneQueue(c)
	if err != nil {
		return err
	}
	configured, err := s.configuration(c, q.Name)
	if err != nil {
		return err
	}
	shown := queueOf(q)
	return kit.Encode(c, http.StatusOK, struct {
		Queue queueJSON `json:"queue"`
		configuredJSON
		Stats countsJSON `json:"stats"`
	}{shown, configured, shown.countsJSON})
}

// queueStats merges what the clients read: the suite takes queue as an object, some SDKs the
// flat fields or stats; the Go SDK takes queue as a string and is told apart by its version.
func (s *Server) queueStats(c echo.Context) error {
	q, err := s.oneQueue(c)
	if err != nil {
		return err
	}
	shown := queueOf(q)
	var queue any = shown
	if c.Request().Header.Get(kit.VersionHeader) == goSDKVersion {
		queue = q.Name
	}
	return kit.Encode(c, http.StatusOK, struct {
		Queue any `json:"queue"`
		Stats any `json:"stats"`
		queueJSON
		ComputedAt kit.Stamp `json:"computed_at"`
	}{
		Queue: queue,
		Stats: struct {
			Queue string `json:"queue"`
			countsJSON
		}{q.Name, shown.countsJSON},
		queueJSON:  shown,
		ComputedAt: kit.Stamp(time.Now()),
	})
}

func (s *Server) pauseQueue(c echo.Context) error {
	return s.setPaused(c, (*sqlcgen.Queries).PauseQueue)
}

func (s *Server) resumeQueue(c echo.Context) error {
	return s.setPaused(c, (*sqlcgen.Queries).ResumeQueue)
}

// setPaused stops or resumes a queue, for all tenants: there is no such switch for one.
func (s *Server) setPaused(c echo.Context, do func(*sqlcgen.Queries, context.Context, string) (sqlcgen.OjsQueue, error)) error {
	name := c.Param("name")
	if !queueName.MatchString(name) {
		return kit.NoSuch("queue", name)
	}
	if err := forAllTenants(c, "a queue cannot be paused"); err != nil {
		return err
	}
	queue, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsQueue, error) { return do(q, ctx, name) })
	if err != nil {
		return err
	}
	shown := queueOf(admin.Queue{Name: queue.Queue, Paused: queue.Paused})
	return kit.Encode(c, http.StatusOK, map[string]any{
		"queue": map[string]any{"name": shown.Name, "status": shown.Status, "paused": shown.Paused}, "paused": shown.Paused,
	})
}

type eventJSON struct {
	Specversion string          `json:"specversion"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Time        kit.Stamp       `json:"time"`
	Subject     string          `json:"subject"`
	TenantID    string          `json:"tenant_id"`
	Data        json.RawMessage `json:"data"`
}

// listEvents shows the latest events, newest first.
func (s *Server) listEvents(c echo.Context) error {
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	limit, err := kit.QueryInteger(c, "limit", 50, 1, 1000)
	if err != nil {
		return err
	}
	types, err := kit.CommaList(c, "types", maxFetchQueues)
	if err != nil {
		return err
	}
	queues, err := kit.CommaList(c, "queues", maxFetchQueues)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	// One more than asked tells whether there are more.
	rows, err := s.q.Events(ctx, sqlcgen.EventsParams{Types: types, Queues: queues, MaxRows: int32(limit + 1), Tenant: scope})
	if err != nil {
		return err
	}
	more := len(rows) > limit
	rows = rows[:min(len(rows), limit)]
	events := make([]eventJSON, len(rows))
	for i, r := range rows {
		events[i] = eventJSON{
			Specversion: kit.SpecVersion, ID: r.ID, Type: r.Type, Source: "ojs://ojs-pg/queues/" + r.Queue, Time: kit.Stamp(r.At),
			Subject: r.Subject, TenantID: r.TenantID, Data: r.Data,
		}
	}
	return kit.Encode(c, http.StatusOK, map[string]any{
		"events": events, "items": events, "pagination": map[string]any{"limit": limit, "has_more": more},
	})
}
