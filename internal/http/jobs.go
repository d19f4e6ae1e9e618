package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const jobsQuery = paged + "queue state type cursor sort order since until"

func (s *Server) jobRoutes() []route {
	under := func(prefix string, change access, get echo.HandlerFunc) []route {
		return underPrefixes([]string{prefix}, []route{
			{Method: http.MethodGet, Path: "/:id", Scope: scopeRead, Queues: queueOfJob, Handler: get},
			{Method: http.MethodPatch, Path: "/:id", Scope: change, Queues: queueOfJob, Handler: s.patchJob},
			{Method: http.MethodPost, Path: "/:id/cancel", Scope: change, Queues: queueOfJob, Handler: withoutBody(s.cancel)},
			{Method: http.MethodPost, Path: "/:id/retry", Scope: change, Queues: queueOfJob, Handler: s.retryJob},
		})
	}
	const jobs = v1 + "/jobs"
	return scoped(slices.Concat([]route{
		{Method: http.MethodPost, Path: jobs, Scope: scopeProduce, Queues: queuesInBody, Handler: s.enqueue},
		{Method: http.MethodPost, Path: jobs + "/batch", Scope: scopeProduce, Queues: queuesInBody, Handler: s.enqueueBatch},
		{Method: http.MethodDelete, Path: jobs + "/:id", Scope: scopeProduce, Queues: queueOfJob, Handler: withoutBody(s.cancel)},
		{Method: http.MethodPost, Path: jobs + "/:id/activate", Scope: scopeProduce, Queues: queueOfJob, Handler: withoutBody(s.activate)},
		{Method: http.MethodGet, Path: jobs, Scope: scopeRead, Queues: queueInQuery, Query: jobsQuery, OfTenant: true, Handler: s.listJobs},
		{
			Method: http.MethodGet, Path: v1 + "/admin/jobs", Scope: scopeRead, Queues: queueInQuery,
			Query: jobsQuery, OfTenant: true, Handler: s.listJobs,
		},
		{
			Method: http.MethodGet, Path: v1 + "/admin/tenants/:id/jobs", Scope: scopeRead, Queues: queueInQuery,
			Query: jobsQuery, OfTenant: true, Handler: s.listTenantJobs,
		},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/cancel", Scope: scopeAdmin, Queues: queuesInBody, Handler: s.cancelJobs},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/retry", Scope: scopeAdmin, Queues: queuesInBody, Handler: s.retryJobs},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/delete", Scope: scopeAdmin, Handler: s.deleteJobs},
		{Method: http.MethodDelete, Path: v1 + "/admin/queues/:name/jobs", Scope: scopeAdmin, Handler: s.deleteJobs},
	}, under(jobs, scopeProduce, s.getJob), under(v1+"/admin/jobs", scopeAdmin, s.getJobFlat)))
}

func (s *Server) getJob(c echo.Context) error {
	job, result, err := s.jobOfPath(c)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job, result...)
}

// patchRequest holds what can be changed of a job while it waits.
type patchRequest struct {
	_        struct{}        `check:"configurable"`
	Priority json.RawMessage `json:"priority" check:"required"`
	Reason   *string         `json:"reason"`

	priority int32
}

// priorityNames are the names that the public conformance suite gives to priorities.
var priorityNames = map[string]int32{"high": 10, "normal": 0, "low": -10}

// Check reads the priority, which is a number or a name.
func (r *patchRequest) Check(o *jsonbody.Object) {
	if jsonbody.Kind(r.Priority) != "string" {
		if n := o.Integer("priority", -100); n != nil {
			r.priority = *n
		}
		return
	}
	n, known := priorityNames[jsonbody.Unquote(r.Priority)]
	if !known {
		o.Fail(problems.Invalid(o.At("priority"), `must be an integer, "high", "normal" or "low"`))
	}
	r.priority = n
}

// patchJob changes the priority of a job that waits.
func (s *Server) patchJob(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	var req patchRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.ReprioritizeParams{ID: id, Priority: req.priority, Tenant: scope}
	job, err := patiently(s, c, (*sqlcgen.Queries).Reprioritize, params)
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, s.wire().appendJob(nil, &job))
}

// getJobFlat answers with the job at the top of the body, as operators' tools read it.
func (s *Server) getJobFlat(c echo.Context) error {
	job, result, err := s.jobOfPath(c)
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, s.wire().appendJob(nil, &job, result...))
}

// jobOfPath reads the job that a path names, and the attributes of its result if it has one.
func (s *Server) jobOfPath(c echo.Context) (job sqlcgen.OjsJob, result []jsonbody.Attr, err error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return job, nil, err
	}
	ctx := s.queryContext(c)
	if job, err = s.q.JobInfo(ctx, sqlcgen.JobInfoParams{ID: id, Tenant: scope}); err != nil || job.Result == nil {
		return job, nil, err
	}
	outcome, err := s.result(ctx, id, &job.TenantID)
	if err != nil {
		return job, nil, err
	}
	return job, outcome.attrs(), nil
}

func (s *Server) cancel(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, (*sqlcgen.Queries).Cancel, sqlcgen.CancelParams{ID: id, Tenant: scope})
	if err != nil {
		return err
	}
	// The job is cancelled already. If this query fails, previous_state is left out: after an error
	// the client would try again, and read that the job cannot be cancelled.
	var before []jsonbody.Attr
	from, err := s.q.CancelledFrom(s.queryContext(c), sqlcgen.CancelledFromParams{Tenant: job.TenantID, ID: job.ID})
	if err == nil {
		before = append(before, jsonbody.Attr{Name: "previous_state", Raw: jsonbody.AppendString(nil, from)})
	}
	return s.writeJob(c, http.StatusOK, &job, before...)
}

func (s *Server) activate(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, (*sqlcgen.Queries).Activate, sqlcgen.ActivateParams{ID: id, Tenant: scope})
	if err != nil {
		return err
	}
	// Only pending jobs can be activated, and enqueued_at is the time it happened.
	return s.writeJob(c, http.StatusOK, &job,
		jsonbody.Attr{Name: "previous_state", Raw: []byte(`"pending"`)}, jsonbody.Attr{
			Name: "activated_at", Raw: jsonbody.AppendTime(nil, job.EnqueuedAt),
		})
}

// Jobs in lists and in bulk (ojs-admin-api sections 7 and 8).

// states are the states of a job. The first five of them, liveStates, are not final.
var (
	states     = []string{"scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"}
	liveStates = states[:5]
)

// jobFilter selects jobs.
type jobFilter struct {
	Queue    *string    `json:"queue" check:"scope,name"`
	State    *string    `json:"state" check:"scope,name"`
	Type     *string    `json:"type" check:"scope,name"`
	Tenant   *string    `json:"tenant" check:"scope,name"`
	TenantID *string    `json:"tenant_id" check:"scope,name"` // the same as tenant
	Since    *time.Time `json:"since" check:"scope"`
	Until    *time.Time `json:"until" check:"scope"`
}

// among refuses a filter whose state is not one of known. at is the path of the state.
func (f *jobFilter) among(known []string, at string) error {
	if f.State != nil && !slices.Contains(known, *f.State) {
		return problems.Invalid(at, "must be one of %v", known)
	}
	return nil
}

// narrow limits the filter to the tenant of the request, if there is one. It fails with 404 if the
// filter names another tenant.
func (f *jobFilter) narrow(own *string) (err error) {
	f.Tenant, err = narrowTenant("tenant", f.Tenant, own)
	return err
}

// jobLine is a job in a list. It leaves out what a producer put into the job, which may be large:
// GET /jobs/{id} has it.
type jobLine struct {
	ID          string     `json:"id"`
	TenantID    string     `json:"tenant_id"`
	Type        string     `json:"type"`
	Queue       string     `json:"queue"`
	State       string     `json:"state"`
	Priority    int32      `json:"priority"`
	Attempt     int32      `json:"attempt"`
	MaxAttempts int32      `json:"max_attempts"`
	CreatedAt   time.Time  `json:"created_at"`
	EnqueuedAt  time.Time  `json:"enqueued_at"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"`
	StartedAt   *time.Time `json:"started_at,omitempty"`
	CompletedAt *time.Time `json:"completed_at,omitempty"`
	CancelledAt *time.Time `json:"cancelled_at,omitempty"`
	DiscardedAt *time.Time `json:"discarded_at,omitempty"`
	WorkerID    *string    `json:"worker_id,omitempty"`
}

// lineOf returns a job as it stands in a list.
func lineOf(j *sqlcgen.ListJobsRow) jobLine {
	line := jobLine{
		ID: j.ID, TenantID: j.TenantID, Type: j.Type, Queue: j.Queue, State: j.State, Priority: j.Priority, Attempt: j.Attempt,
		MaxAttempts: j.MaxAttempts, CreatedAt: j.CreatedAt, EnqueuedAt: j.EnqueuedAt, ScheduledAt: j.ScheduledAt, StartedAt: j.StartedAt,
		WorkerID: j.WorkerID,
	}
	switch j.State {
	case "completed":
		line.CompletedAt = j.FinishedAt
	case "cancelled":
		line.CancelledAt = j.FinishedAt
	case "discarded":
		line.DiscardedAt = j.FinishedAt
	}
	return line
}

// page reads a page of jobs after the cursor before. It returns the cursor of the next page, or nil
// if there is none. It looks at 10,000 jobs or a few more, so a page may hold fewer than limit
// although there are more.
func (f *jobFilter) page(ctx context.Context, q *sqlcgen.Queries, before *string, skip, limit int, known []string) (
	rows []sqlcgen.ListJobsRow, next *string, err error,
) {
	floor, err := q.JobsFloor(ctx, sqlcgen.JobsFloorParams{Before: before, Until: f.Until, Tenant: f.Tenant})
	if err != nil {
		return nil, nil, err
	}
	params := sqlcgen.ListJobsParams{
		States: known, Queue: f.Queue, Type: f.Type, Since: f.Since, Until: f.Until, Before: before, Skip: int32(skip),
		MaxRows: int32(limit), Tenant: f.Tenant,
	}
	if f.State != nil {
		params.States = []string{*f.State}
	}
	if floor != "" {
		params.Floor = &floor
	}
	if rows, err = q.ListJobs(ctx, params); err != nil {
		return nil, nil, err
	}
	if len(rows) >= limit {
		return rows, &rows[len(rows)-1].ID, nil
	}
	return rows, params.Floor, nil
}

// emptyPages is for how long a list of jobs looks for the first job of its page.
const emptyPages = 250 * time.Millisecond

// firstFound reads a page as page does. If it holds no job, it goes on with the next one, until one
// holds a job or emptyPages have passed. Running jobs are the oldest: behind 10,000 jobs that wait,
// the first page would be empty beside a total of all that run. Each page is a statement of its
// own, so that the database is not busy with one for long. With skip the position in the list is
// the client's, and there is one page.
func (f *jobFilter) firstFound(ctx context.Context, q *sqlcgen.Queries, before *string, skip, limit int) (
	rows []sqlcgen.ListJobsRow, next *string, err error,
) {
	for until := time.Now().Add(emptyPages); ; before = next {
		rows, next, err = f.page(ctx, q, before, skip, limit, nil)
		if err != nil || len(rows) > 0 || next == nil || skip > 0 || time.Now().After(until) {
			return rows, next, err
		}
	}
}

func (s *Server) listJobs(c echo.Context) error { return s.jobsOf(c, nil) }

func (s *Server) listTenantJobs(c echo.Context) error {
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	return s.jobsOf(c, &t.ID)
}

func (s *Server) jobsOf(c echo.Context, tenant *string) error {
	limit, skip, err := paging(c)
	if err != nil {
		return err
	}
	f, before, err := queryJobs(c)
	if err != nil {
		return err
	}
	f.Tenant = cmp.Or(tenant, f.Tenant)
	if err := f.narrow(requestTenant(c)); err != nil {
		return err
	}
	ctx := s.queryContext(c)
	rows, next, err := f.firstFound(ctx, s.q, before, skip, limit)
	if err != nil {
		return err
	}
	page := cursorPage{Limit: limit, PerPage: limit, Page: skip/limit + 1, HasMore: next != nil && (skip == 0 || len(rows) > 0), Next: next}
	if f.State != nil && slices.Contains(liveStates, *f.State) && f.Type == nil && f.Since == nil && f.Until == nil {
		total, err := s.q.LiveJobs(ctx, sqlcgen.LiveJobsParams{State: *f.State, Queue: f.Queue, Tenant: f.Tenant})
		if err != nil {
			return err
		}
		page.Total = &total
	}
	items := make([]jobLine, len(rows))
	for i := range rows {
		items[i] = lineOf(&rows[i])
	}
	return c.JSON(http.StatusOK, listed("jobs", items, page))
}

// queryJobs reads the filter of a list of jobs, and the cursor that the page begins after.
func queryJobs(c echo.Context) (f jobFilter, before *string, err error) {
	if f.Tenant, err = queryTenant(c); err != nil {
		return f, nil, err
	}
	var sort, order *string
	if err := cmp.Or(
		queryAll(c, queryText, map[string]**string{
			"queue": &f.Queue, "state": &f.State, "type": &f.Type, "cursor": &before, "sort": &sort, "order": &order,
		}),
		queryAll(c, queryTime, map[string]**time.Time{"since": &f.Since, "until": &f.Until})); err != nil {
		return f, nil, err
	}
	switch {
	case before != nil && !jsonbody.IsUUID(*before):
		return f, nil, problems.Invalid("cursor", "must be the next_cursor of an earlier page")
	case sort != nil && *sort != "created_at":
		return f, nil, problems.Refuse(problems.CodeUnsupported, "sort", "jobs are sorted by created_at alone")
	case order != nil && *order != "desc":
		return f, nil, problems.Refuse(problems.CodeUnsupported, "order", "the newest job comes first: order is desc")
	}
	return f, before, f.among(states, "state")
}

// cancelFilter selects jobs that have not ended.
type cancelFilter struct {
	jobFilter
}

// Check accepts both names of the tenant, and refuses states of jobs that have ended.
func (f *cancelFilter) Check(o *jsonbody.Object) { f.check(o, liveStates) }

// check accepts both names of the tenant, and refuses states that are not in known.
func (f *jobFilter) check(o *jsonbody.Object, known []string) {
	var err error
	if f.Tenant, err = jsonbody.SameTenant(o.At("tenant"), f.Tenant, f.TenantID); err == nil {
		err = f.among(known, o.At("state"))
	}
	if err != nil {
		o.Fail(err)
	}
}

// cancelRequest is the body of a bulk cancellation. It names jobs or filters them.
type cancelRequest struct {
	jsonbody.Optional
	Filter  *cancelFilter `json:"filter" check:"scope"`
	IDs     []string      `json:"ids" check:"scope,id"`
	Limit   int32         `json:"limit" check:"1..1000"`
	Cursor  *string       `json:"cursor" check:"id"`
	Confirm bool          `json:"confirm"`
	Reason  *string       `json:"reason"`
}

// Check refuses a request that is not confirmed, and one that has both ids and a filter.
func (r *cancelRequest) Check(o *jsonbody.Object) {
	checkBulk(o, r.Limit, r.Confirm)
	checkIDs(o, r.IDs, r.Filter != nil)
}

// cancelJobs cancels the jobs that are named, or one page of the jobs that match a filter. The
// answer holds the cursor of the next page.
func (s *Server) cancelJobs(c echo.Context) error {
	req := cancelRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	ctx, tenant := s.queryContext(c), requestTenant(c)
	var next *string
	if req.IDs == nil {
		if req.Filter == nil {
			req.Filter = &cancelFilter{}
		}
		if err := cmp.Or(req.Filter.narrow(tenant), forFilter(c, "filter.queue", req.Filter.Queue)); err != nil {
			return err
		}
		tenant = req.Filter.Tenant
		var rows []sqlcgen.ListJobsRow
		var err error
		if rows, next, err = req.Filter.page(ctx, s.q, req.Cursor, 0, int(req.Limit), liveStates); err != nil {
			return err
		}
		for i := range rows {
			req.IDs = append(req.IDs, rows[i].ID)
		}
	} else if err := s.forJobs(c, "ids", req.IDs...); err != nil {
		return err
	}
	errors := []bulkError{}
	if len(req.IDs) > 0 {
		left, err := s.changing(c).CancelMany(ctx, sqlcgen.CancelManyParams{Ids: req.IDs, Tenant: tenant})
		if err != nil {
			return err
		}
		for _, r := range left {
			errors = append(errors, bulkError{r.JobID, r.Code, r.Message})
		}
	}
	slices.Sort(req.IDs)
	matched := len(slices.Compact(req.IDs))
	return c.JSON(http.StatusOK, map[string]any{
		"action": "cancel", "matched": matched, "succeeded": matched - len(errors), "failed": len(errors), "errors": errors,
		"next_cursor": next,
	})
}

// deleteJobs refuses the request, because only retention removes finished jobs, a partition at a
// time.
func (s *Server) deleteJobs(echo.Context) error {
	return problems.Refuse(problems.CodeUnsupported, "action",
		"finished jobs are removed by retention alone; jobs that wait can be cancelled")
}

// retryJob retries a discarded job, whether it is a dead letter or not.
func (s *Server) retryJob(c echo.Context) error { return s.runAgain(c, (*sqlcgen.Queries).Retry) }

// jobsFilter selects jobs to retry. Only discarded jobs can be retried, so that is the only state
// that it accepts.
type jobsFilter struct {
	admin.Filter
	State *string `json:"state" check:"scope"`
}

// Check refuses other states than discarded.
func (f *jobsFilter) Check(o *jsonbody.Object) {
	f.Filter.Check(o)
	if f.State != nil && *f.State != "discarded" {
		o.Fail(problems.Refuse(problems.CodeUnsupported, o.At("state"), "only discarded jobs can be retried"))
	}
}

// jobsRequest is the body of a bulk retry (ojs-admin-api section 8.1).
type jobsRequest struct {
	jsonbody.Optional
	Filter  *jobsFilter `json:"filter" check:"scope"`
	IDs     []string    `json:"ids" check:"scope,id"`
	Limit   int32       `json:"limit" check:"1.."`
	Confirm bool        `json:"confirm"`
}

// Check refuses a request that is not confirmed, and one that has both ids and a filter.
func (r *jobsRequest) Check(o *jsonbody.Object) {
	checkBulk(o, r.Limit, r.Confirm)
	checkIDs(o, r.IDs, r.Filter != nil)
}

// retryJobs retries discarded jobs, dead letters or not: those that are named, or those that match
// a filter (ojs-admin-api section 8.1).
func (s *Server) retryJobs(c echo.Context) error {
	req := jobsRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	if req.IDs != nil {
		return s.retryThese(c, req.IDs)
	}
	if req.Filter == nil {
		req.Filter = &jobsFilter{}
	}
	n, left, err := s.inBulk(c, &req.Filter.Filter, req.Limit, (*admin.Filter).RetryFailed, (*admin.Filter).CountFailed)
	if err != nil {
		return err
	}
	matched := int64(n)
	if left != nil {
		matched += *left
	}
	return c.JSON(http.StatusOK, map[string]any{
		"action": "retry", "matched": matched, "succeeded": n, "failed": 0, "errors": []any{}, "remaining": left,
	})
}

// retryThese retries discarded jobs by their ids. Each of them succeeds or fails by itself. It
// fails if the server cannot retry a job.
func (s *Server) retryThese(c echo.Context, ids []string) error {
	if err := s.forJobs(c, "ids", ids...); err != nil {
		return err
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	failed := []bulkError{}
	for _, id := range ids {
		_, err := patiently(s, c, (*sqlcgen.Queries).Retry, sqlcgen.RetryParams{ID: id, Tenant: requestTenant(c)})
		if err == nil {
			continue
		}
		problem := s.problems.classify(err)
		if problem.Status >= http.StatusInternalServerError {
			return err
		}
		failed = append(failed, bulkError{id, problem.Code, problem.Message})
	}
	return c.JSON(http.StatusOK, map[string]any{
		"action": "retry", "matched": len(ids), "succeeded": len(ids) - len(failed), "failed": len(failed), "errors": failed,
	})
}
