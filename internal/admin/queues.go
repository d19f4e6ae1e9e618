package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) queueRoutes() []kit.Route {
	return kit.Scoped(kit.Under([]string{v1 + "/queues", v1 + "/admin/queues"}, []kit.Route{
		{Method: http.MethodGet, Scope: kit.Read, Query: kit.Paged, OfTenant: true, Handler: a.listQueues},
		{Method: http.MethodGet, Path: "/:name", Scope: kit.Read, Queues: kit.QueueInPath, OfTenant: true, Handler: a.getQueue},
		{Method: http.MethodGet, Path: "/:name/stats", Scope: kit.Read, Queues: kit.QueueInPath, OfTenant: true, Handler: a.queueStats},
		{Method: http.MethodPost, Path: "/:name/pause", Scope: kit.Admin, Queues: kit.QueueInPath, Handler: a.pauseQueue(Pause)},
		{Method: http.MethodPost, Path: "/:name/resume", Scope: kit.Admin, Queues: kit.QueueInPath, Handler: a.pauseQueue(Resume)},
	}))
}

// queueJSON is a queue as clients read it: some its numbers beside its name, some those of its states under counts.
type queueJSON struct {
	sqlcgen.QueuesRow
	State      string           `json:"state"`
	Counts     map[string]int64 `json:"counts"`
	Throughput map[string]int64 `json:"throughput,omitempty"`
	LatencyMs  map[string]int64 `json:"latency_ms,omitempty"`
}

// shown is a queue with its rates, if they are known.
func shown(q sqlcgen.QueuesRow, rates *sqlcgen.QueueRatesRow) queueJSON {
	shown := queueJSON{QueuesRow: q, State: q.Status, Counts: map[string]int64{
		"scheduled": q.Scheduled, "available": q.Available, "pending": q.Pending, "active": q.Active, "retryable": q.Retryable,
		"completed": q.Completed, "cancelled": q.Cancelled, "discarded": q.Discarded,
	}}
	if rates != nil {
		shown.Throughput = map[string]int64{
			"processed_per_minute": rates.ProcessedPerMinute, "failed_per_minute": rates.FailedPerMinute,
		}
		shown.LatencyMs = map[string]int64{"p50": rates.P50WaitMs, "p95": rates.P95WaitMs, "p99": rates.P99WaitMs}
	}
	return shown
}

// rates are those of queues over all tenants. Of one tenant's part of a queue nothing of the kind is summed up.
func (a *Admin) rates(c echo.Context, names ...string) (map[string]*sqlcgen.QueueRatesRow, error) {
	if kit.Scope(c) != nil {
		return nil, nil
	}
	rows, err := a.SQL.QueueRates(a.Context(c), names)
	rates := make(map[string]*sqlcgen.QueueRatesRow, len(names))
	for _, name := range names {
		rates[name] = &sqlcgen.QueueRatesRow{} // of a queue that has never been used
	}
	for i := range rows {
		rates[rows[i].Name] = &rows[i]
	}
	return rates, err
}

func (a *Admin) listQueues(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := a.Context(c), kit.Scope(c)
	page, err := a.SQL.QueueNames(ctx, sqlcgen.QueueNamesParams{Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	queues, err := a.SQL.Queues(ctx, sqlcgen.QueuesParams{Tenant: tenant, Names: page.Names})
	if err != nil {
		return err
	}
	rates, err := a.rates(c, page.Names...)
	if err != nil {
		return err
	}
	items := make([]queueJSON, len(queues))
	for i := range queues {
		items[i] = shown(queues[i], rates[queues[i].Name])
	}
	return c.JSON(http.StatusOK, listed("queues", items, kit.Pagination(int(page.Total), limit, offset, limit)))
}

// OneQueue reads a queue over all tenants, or the tenant's part of it. Queues need not be created, so a queue without
// a row is empty. exists is false then: it has had no job (of the tenant), and neither a configuration nor a pause.
func OneQueue(ctx context.Context, q *sqlcgen.Queries, name string, tenant *string) (row sqlcgen.QueuesRow, exists bool, err error) {
	rows, err := q.Queues(ctx, sqlcgen.QueuesParams{Tenant: tenant, Names: []string{name}})
	if err != nil {
		return row, false, err
	}
	if len(rows) > 0 {
		return rows[0], true, nil
	}
	pause, err := q.QueuePause(ctx, name)
	paused := len(pause) > 0
	return sqlcgen.QueuesRow{Name: name, Status: statusOf(paused), Paused: paused}, paused, err
}

// oneQueue reads the queue that a path names.
func (a *Admin) oneQueue(c echo.Context) (queue sqlcgen.QueuesRow, exists bool, err error) {
	name := c.Param("name")
	if !names.Queue.MatchString(name) {
		return queue, false, kit.NoSuch("queue", name)
	}
	return OneQueue(a.Context(c), a.SQL, name, kit.Scope(c))
}

func (a *Admin) getQueue(c echo.Context) error {
	queue, exists, err := a.oneQueue(c)
	if err != nil {
		return err
	}
	config, err := QueueConfig(a.Context(c), a.SQL, queue.Name, kit.Scope(c))
	if err != nil {
		return err
	}
	rates, err := a.rates(c, queue.Name)
	if err != nil {
		return err
	}
	all := shown(queue, rates[queue.Name])
	return c.JSON(http.StatusOK, struct {
		Queue  queueJSON `json:"queue"`
		Exists bool      `json:"exists"`
		sqlcgen.QueueConfigRow
		Configuration json.RawMessage   `json:"configuration"`
		Paused        bool              `json:"paused"`
		Counts        map[string]int64  `json:"counts"`
		Stats         sqlcgen.QueuesRow `json:"stats"`
	}{all, exists, config, config.Config, queue.Paused, all.Counts, queue})
}

// hourly is what the statistics of a queue say of the last hour, and of the last minute per second.
type hourly struct {
	CompletedLastHour   int64   `json:"completed_last_hour"`
	FailedLastHour      int64   `json:"failed_last_hour"`
	AvgWaitMs           int64   `json:"avg_wait_ms"`
	ThroughputPerSecond float64 `json:"throughput_per_second"`
}

func lastHour(r *sqlcgen.QueueRatesRow) *hourly {
	if r == nil {
		return nil
	}
	return &hourly{r.CompletedLastHour, r.FailedLastHour, r.AvgWaitMs, r.ThroughputPerSecond}
}

// queueStats has what the clients read: the suite takes queue as an object, some SDKs the flat fields or stats; the Go SDK takes queue
// as a string and is told apart by its version.
func (a *Admin) queueStats(c echo.Context) error {
	row, exists, err := a.oneQueue(c)
	if err != nil {
		return err
	}
	var queue any = row
	if c.Request().Header.Get(kit.VersionHeader) == kit.GoSDKVersion {
		queue = row.Name
	}
	rates, err := a.rates(c, row.Name)
	if err != nil {
		return err
	}
	type numbers struct {
		sqlcgen.QueuesRow
		*hourly
	}
	type named struct {
		Queue string `json:"queue"`
		numbers
	}
	all := numbers{row, lastHour(rates[row.Name])}
	return c.JSON(http.StatusOK, struct {
		Queue  any   `json:"queue"`
		Exists bool  `json:"exists"`
		Stats  named `json:"stats"`
		numbers
		ComputedAt time.Time `json:"computed_at"`
	}{queue, exists, named{row.Name, all}, all, time.Now().UTC()})
}
