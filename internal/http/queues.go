package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) queueRoutes() []route {
	return scoped(append(
		[]route{
			{Method: http.MethodPost, Path: v1 + "/queues", Scope: scopeAdmin, Handler: s.createQueue},
			{
				Method: http.MethodDelete, Path: v1 + "/queues/:name", Scope: scopeAdmin, Queues: queueInPath, Query: "strategy",
				Handler: s.deleteQueue,
			},
		},
		underPrefixes([]string{v1 + "/queues", v1 + "/admin/queues"}, []route{
			{Method: http.MethodGet, Scope: scopeRead, Query: paged, OfTenant: true, Handler: s.listQueues},
			{Method: http.MethodGet, Path: "/:name", Scope: scopeRead, Queues: queueInPath, OfTenant: true, Handler: s.getQueue},
			{Method: http.MethodGet, Path: "/:name/stats", Scope: scopeRead, Queues: queueInPath, OfTenant: true, Handler: s.queueStats},
			{Method: http.MethodPost, Path: "/:name/pause", Scope: scopeAdmin, Queues: queueInPath, Handler: s.pauseQueue(admin.Pause)},
			{Method: http.MethodPost, Path: "/:name/resume", Scope: scopeAdmin, Queues: queueInPath, Handler: s.pauseQueue(admin.Resume)},
			{Method: http.MethodGet, Path: "/:name/config", Scope: scopeRead, Queues: queueInPath, Handler: s.getQueueConfig},
			{Method: http.MethodPut, Path: "/:name/config", Scope: scopeAdmin, Queues: queueInPath, Handler: s.putQueueConfig},
			{Method: http.MethodPatch, Path: "/:name/config", Scope: scopeAdmin, Queues: queueInPath, Handler: s.putQueueConfig},
		})...))
}

// queueJSON is a queue as clients read it. Some read its numbers next to its name, others read the
// numbers of jobs by state under counts.
type queueJSON struct {
	sqlcgen.QueuesRow
	State      string           `json:"state"`
	Counts     map[string]int64 `json:"counts"`
	Throughput map[string]int64 `json:"throughput,omitempty"`
	LatencyMs  map[string]int64 `json:"latency_ms,omitempty"`
}

// shown returns a queue for an answer, with its rates if they are known.
func shown(q sqlcgen.QueuesRow, rates *sqlcgen.QueueRatesRow) queueJSON {
	shown := queueJSON{QueuesRow: q, State: q.Status, Counts: map[string]int64{
		"scheduled": q.Scheduled, "available": q.Available, "pending": q.Pending, "active": q.Active, "retryable": q.Retryable,
		"completed": q.Completed, "cancelled": q.Cancelled, "discarded": q.Discarded,
	}}
	if rates != nil {
		shown.Throughput = map[string]int64{
			"processed_per_minute": rates.ProcessedPerMinute, "failed_per_minute": rates.FailedPerMinute,
			"attempts_failed_per_minute": rates.AttemptsFailedPerMinute,
		}
		shown.LatencyMs = map[string]int64{"p50": rates.P50WaitMs, "p95": rates.P95WaitMs, "p99": rates.P99WaitMs}
	}
	return shown
}

// rates returns the rates of queues over all tenants, by name. For a request that names a tenant it
// returns nil, because rates are not counted by tenant.
func (s *Server) rates(c echo.Context, names ...string) (map[string]*sqlcgen.QueueRatesRow, error) {
	if requestTenant(c) != nil {
		return nil, nil
	}
	rows, err := s.q.QueueRates(s.queryContext(c), names)
	rates := make(map[string]*sqlcgen.QueueRatesRow, len(names))
	for _, name := range names {
		rates[name] = &sqlcgen.QueueRatesRow{} // zeros, for a queue that has never been used
	}
	for i := range rows {
		rates[rows[i].Name] = &rows[i]
	}
	return rates, err
}

func (s *Server) listQueues(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := s.queryContext(c), requestTenant(c)
	page, err := s.q.QueueNames(ctx, sqlcgen.QueueNamesParams{Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	queues, err := s.q.Queues(ctx, sqlcgen.QueuesParams{Tenant: tenant, Names: page.Names})
	if err != nil {
		return err
	}
	rates, err := s.rates(c, page.Names...)
	if err != nil {
		return err
	}
	items := make([]queueJSON, len(queues))
	for i := range queues {
		items[i] = shown(queues[i], rates[queues[i].Name])
	}
	return c.JSON(http.StatusOK, listed("queues", items, pagination(int(page.Total), limit, offset, limit)))
}

// oneQueue reads the queue that a path names; exists is as in admin.OneQueue.
func (s *Server) oneQueue(c echo.Context) (queue sqlcgen.QueuesRow, exists bool, err error) {
	name := c.Param("name")
	if !names.Queue.MatchString(name) {
		return queue, false, problems.NoSuch("queue", name)
	}
	return admin.OneQueue(s.queryContext(c), s.q, name, requestTenant(c))
}

func (s *Server) getQueue(c echo.Context) error {
	queue, exists, err := s.oneQueue(c)
	if err != nil {
		return err
	}
	config, err := admin.QueueConfig(s.queryContext(c), s.q, queue.Name, requestTenant(c))
	if err != nil {
		return err
	}
	rates, err := s.rates(c, queue.Name)
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

// hourly holds statistics of a queue: of the last hour, and its throughput in the last minute.
type hourly struct {
	CompletedLastHour   int64   `json:"completed_last_hour"`
	FailedLastHour      int64   `json:"failed_last_hour"`
	AttemptsFailed      int64   `json:"attempts_failed_last_hour"`
	AvgWaitMs           int64   `json:"avg_wait_ms"`
	ThroughputPerSecond float64 `json:"throughput_per_second"`
}

// lastHour returns these statistics, and nil for nil.
func lastHour(r *sqlcgen.QueueRatesRow) *hourly {
	if r == nil {
		return nil
	}
	return &hourly{r.CompletedLastHour, r.FailedLastHour, r.AttemptsFailedLastHour, r.AvgWaitMs, r.ThroughputPerSecond}
}

// queueStats answers in all shapes that clients read. The conformance suite reads queue as an
// object, and some SDKs read the flat fields or stats. The Go SDK reads queue as a string; it is
// recognized by its version.
func (s *Server) queueStats(c echo.Context) error {
	row, exists, err := s.oneQueue(c)
	if err != nil {
		return err
	}
	var queue any = row
	if c.Request().Header.Get(versionHeader) == goSDKVersion {
		queue = row.Name
	}
	rates, err := s.rates(c, row.Name)
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

// configurable returns the name of the queue in the path. It fails if no queue can have that name.
// A request for a change must not name a tenant, because a queue has one configuration for all
// tenants.
func configurable(c echo.Context) (name string, err error) {
	name = c.Param("name")
	if name == "_default" {
		return "", problems.Refuse(problems.CodeUnsupported, "name", "a policy for all queues is not supported; configure each of them")
	}
	if !names.Queue.MatchString(name) {
		return "", problems.NoSuch("queue", name)
	}
	if c.Request().Method == http.MethodGet {
		return name, nil
	}
	return name, forAllTenants(c, "a queue cannot be configured")
}

func (s *Server) getQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	config, err := admin.QueueConfig(s.queryContext(c), s.q, name, requestTenant(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, config)
}

// configRequest is a configuration, as the whole body or under config. Only the settings that it
// names are changed.
type configRequest struct {
	_      struct{}        `check:"any"`
	Config json.RawMessage `json:"config" check:"object"`

	path string // where the configuration stands: config, or empty for the whole body
}

// Check takes the configuration from where it stands.
func (r *configRequest) Check(o *jsonbody.Object) {
	r.Config, r.path = bareOrUnder(o, "config", r.Config)
}

// bareOrUnder returns a document that is either the whole body or its only field key, whose value
// is under, and the path to it. It fails if other fields stand next to key.
func bareOrUnder(o *jsonbody.Object, key string, under json.RawMessage) (document json.RawMessage, path string) {
	document = o.Source
	jsonbody.Near(o, key)
	if o.Has(key) {
		jsonbody.Only(o, key)
		if document, path = under, key; under == nil {
			o.Missing(key)
		}
	}
	o.Storable(document, path)
	return document, path
}

func (s *Server) putQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	var req configRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	config, err := s.configure(c, sqlcgen.ConfigureQueueParams{Queue: name, Config: req.Config}, req.path)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, config)
}

type createRequest struct {
	Name   string          `json:"name" check:"required,name"`
	Config json.RawMessage `json:"config" check:"object,storable"`
}

// Check refuses a name that SQL would not accept.
func (r *createRequest) Check(o *jsonbody.Object) {
	if r.Name != "" && !names.Queue.MatchString(r.Name) {
		o.Fail(problems.Invalid("name", "must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters"))
	}
}

// createQueue configures a queue. It fails if the queue is configured already.
func (s *Server) createQueue(c echo.Context) error {
	if err := forAllTenants(c, "a queue cannot be created"); err != nil {
		return err
	}
	req := createRequest{Config: json.RawMessage("{}")}
	if err := c.Bind(&req); err != nil {
		return err
	}
	config, err := s.configure(c, sqlcgen.ConfigureQueueParams{Queue: req.Name, Config: req.Config, IsNew: true}, "config")
	var known *pg.Error
	if errors.As(s.db.Err(err), &known) && known.Code == problems.CodeDuplicate {
		return problems.Refuse(problems.CodeDuplicate, "name", "queue %s exists; change it with PUT /ojs/v1/queues/%[1]s/config", req.Name)
	}
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, v1+"/queues/"+req.Name)
	return c.JSON(http.StatusCreated, config)
}

// configure stores a configuration and returns the one that holds now. path is where the
// configuration stands in the request, for errors.
func (s *Server) configure(c echo.Context, params sqlcgen.ConfigureQueueParams, path string) (sqlcgen.QueueConfigRow, error) {
	if path != "" {
		spelledBy(c, func(problem *pg.Error) string {
			if problem.Field == "" {
				return ""
			}
			return path + "." + problem.Field
		})
	}
	row, err := patiently(s, c, (*sqlcgen.Queries).ConfigureQueue, params)
	if err == nil {
		s.refreshBounds(s.queryContext(c))
	}
	return sqlcgen.QueueConfigRow(row), err
}

type deleteRequest struct {
	jsonbody.Optional
	Strategy    string  `json:"strategy"`
	TargetQueue *string `json:"target_queue"` // of strategy move, which is refused
}

// deleteQueue removes the configuration of a queue. strategy says what happens to the jobs.
func (s *Server) deleteQueue(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	req := deleteRequest{Strategy: c.QueryParam("strategy")}
	if err := c.Bind(&req); err != nil {
		return err
	}
	if req.Strategy == "" {
		return problems.Invalid("strategy", "is required: what happens to the queue's jobs; \"reject\"")
	}
	params := sqlcgen.DeleteQueueParams{Queue: name, Strategy: strings.ToValidUTF8(req.Strategy, "?")}
	_, err = patiently(s, c, func(q *sqlcgen.Queries, ctx context.Context, p sqlcgen.DeleteQueueParams) (struct{}, error) {
		return struct{}{}, q.DeleteQueue(ctx, p)
	}, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"queue": name, "strategy": req.Strategy, "jobs_affected": 0, "state": "deleted"})
}
