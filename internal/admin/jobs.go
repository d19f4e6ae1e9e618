package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Jobs in lists and in bulk (ojs-admin-api sections 7 and 8). Those that show a whole job are in internal/http.

const jobsQuery = kit.Paged + "queue state type cursor sort order since until"

func (a *Admin) jobRoutes() []kit.Route {
	return kit.Scoped(append([]kit.Route{
		{
			Method: http.MethodGet, Path: v1 + "/admin/tenants/:id/jobs", Scope: kit.Read, Queues: kit.QueueInQuery,
			Query: jobsQuery, OfTenant: true, Handler: a.listTenantJobs,
		},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/cancel", Scope: kit.Admin, Queues: kit.QueuesInBody, Handler: a.cancelJobs},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/retry", Scope: kit.Admin, Queues: kit.QueuesInBody, Handler: a.retryJobs},
		{Method: http.MethodPost, Path: v1 + "/admin/jobs/bulk/delete", Scope: kit.Admin, Handler: a.deleteJobs},
		{Method: http.MethodDelete, Path: v1 + "/admin/queues/:name/jobs", Scope: kit.Admin, Handler: a.deleteJobs},
	}, kit.Under([]string{v1 + "/jobs", v1 + "/admin/jobs"}, []kit.Route{
		{Method: http.MethodGet, Scope: kit.Read, Queues: kit.QueueInQuery, Query: jobsQuery, OfTenant: true, Handler: a.listJobs},
	})...))
}

// states of a job; the first so many do not last.
var (
	states     = []string{"scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"}
	liveStates = states[:5]
)

// jobFilter picks jobs.
type jobFilter struct {
	Queue    *string    `json:"queue" check:"name"`
	State    *string    `json:"state" check:"name"`
	Type     *string    `json:"type" check:"name"`
	Tenant   *string    `json:"tenant" check:"name"`
	TenantID *string    `json:"tenant_id" check:"name"` // the same
	Since    *time.Time `json:"since"`
	Until    *time.Time `json:"until"`
}

// among refuses a state that is none of some.
func (f *jobFilter) among(known []string, at string) error {
	if f.State != nil && !slices.Contains(known, *f.State) {
		return kit.Invalid(at, "must be one of %v", known)
	}
	return nil
}

// narrow has the filter let pass jobs of one tenant only: of the header's, if there is one, to whom others are unknown.
func (f *jobFilter) narrow(own *string) (err error) {
	f.Tenant, err = kit.Narrow("tenant", f.Tenant, own)
	return err
}

// jobLine is a job in a list. What a producer put into it is left out, which may be large: GET /jobs/{id} has it.
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

// page reads a page of jobs behind a cursor, and the cursor of the next, nil if there is none. It looks at about 10,000 jobs at most, so it
// may hold fewer than limit, although there are more.
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

func (a *Admin) listJobs(c echo.Context) error { return a.jobsOf(c, nil) }

func (a *Admin) listTenantJobs(c echo.Context) error {
	t, err := a.oneTenant(c)
	if err != nil {
		return err
	}
	return a.jobsOf(c, &t.ID)
}

func (a *Admin) jobsOf(c echo.Context, tenant *string) error {
	limit, skip, err := kit.Paging(c)
	if err != nil {
		return err
	}
	f, before, err := queryJobs(c)
	if err != nil {
		return err
	}
	f.Tenant = cmp.Or(tenant, f.Tenant)
	if err := f.narrow(kit.Scope(c)); err != nil {
		return err
	}
	ctx := a.Context(c)
	rows, next, err := f.page(ctx, a.SQL, before, skip, limit, nil)
	if err != nil {
		return err
	}
	page := cursorPage{Limit: limit, PerPage: limit, Page: skip/limit + 1, HasMore: next != nil && (skip == 0 || len(rows) > 0), Next: next}
	if f.State != nil && slices.Contains(liveStates, *f.State) && f.Type == nil && f.Since == nil && f.Until == nil {
		total, err := a.SQL.LiveJobs(ctx, sqlcgen.LiveJobsParams{State: *f.State, Queue: f.Queue, Tenant: f.Tenant})
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

// queryJobs reads which jobs are asked for, and behind which.
func queryJobs(c echo.Context) (f jobFilter, before *string, err error) {
	if f.Tenant, err = kit.QueryTenant(c); err != nil {
		return f, nil, err
	}
	var sort, order *string
	if err := cmp.Or(
		kit.QueryAll(c, kit.QueryText, map[string]**string{
			"queue": &f.Queue, "state": &f.State, "type": &f.Type, "cursor": &before, "sort": &sort, "order": &order,
		}),
		kit.QueryAll(c, kit.QueryTime, map[string]**time.Time{"since": &f.Since, "until": &f.Until})); err != nil {
		return f, nil, err
	}
	switch {
	case before != nil && !kit.IsUUID(*before):
		return f, nil, kit.Invalid("cursor", "must be the next_cursor of an earlier page")
	case sort != nil && *sort != "created_at":
		return f, nil, kit.Refuse(kit.CodeUnsupported, "sort", "jobs are sorted by created_at alone")
	case order != nil && *order != "desc":
		return f, nil, kit.Refuse(kit.CodeUnsupported, "order", "the newest job comes first: order is desc")
	}
	return f, before, f.among(states, "state")
}

// cancelFilter is a filter of jobs that have not ended.
type cancelFilter struct {
	_ struct{} `check:"only"`
	jobFilter
}

// Check takes both names of the tenant, and refuses other states.
func (f *cancelFilter) Check(o *kit.Object) {
	var err error
	if f.Tenant, err = kit.SameTenant(o.At("tenant"), f.Tenant, f.TenantID); err == nil {
		err = f.among(liveStates, o.At("state"))
	}
	if err != nil {
		o.Fail(err)
	}
}

// cancelRequest names jobs, or filters them.
type cancelRequest struct {
	kit.Optional
	_       struct{}      `check:"only"`
	Filter  *cancelFilter `json:"filter"`
	IDs     []string      `json:"ids" check:"id"`
	Limit   int32         `json:"limit" check:"1..1000"`
	Cursor  *string       `json:"cursor" check:"id"`
	Confirm bool          `json:"confirm"`
	Reason  *string       `json:"reason"`
}

// Check asks for the confirmation, and for one way of saying which jobs are meant.
func (r *cancelRequest) Check(o *kit.Object) {
	checkBulk(o, r.Limit, r.Confirm)
	checkIDs(o, r.IDs, r.Filter != nil)
}

func checkIDs(o *kit.Object, ids []string, filtered bool) {
	switch {
	case ids != nil && filtered:
		o.Fail(kit.Invalid("ids", "does not go with a filter"))
	case ids != nil && (len(ids) == 0 || len(ids) > 1000):
		o.Fail(kit.Invalid("ids", "must name 1 to 1000 jobs"))
	}
}

// bulkError is a job that a bulk request did not change, and why.
type bulkError struct {
	JobID string `json:"job_id"`
	Code  string `json:"code"`
	Error string `json:"error"`
}

// cancelJobs cancels the jobs that are named, or a page of those that a filter lets pass; the answer has the cursor of the next.
func (a *Admin) cancelJobs(c echo.Context) error {
	req := cancelRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	ctx, tenant := a.Context(c), kit.Scope(c)
	var next *string
	if req.IDs == nil {
		if req.Filter == nil {
			req.Filter = &cancelFilter{}
		}
		if err := cmp.Or(req.Filter.narrow(tenant), kit.ForFilter(c, "filter.queue", req.Filter.Queue)); err != nil {
			return err
		}
		tenant = req.Filter.Tenant
		var rows []sqlcgen.ListJobsRow
		var err error
		if rows, next, err = req.Filter.page(ctx, a.SQL, req.Cursor, 0, int(req.Limit), liveStates); err != nil {
			return err
		}
		for i := range rows {
			req.IDs = append(req.IDs, rows[i].ID)
		}
	} else if err := a.ForJobs(c, "ids", req.IDs...); err != nil {
		return err
	}
	errors := []bulkError{}
	if len(req.IDs) > 0 {
		left, err := a.Changing(c).CancelMany(ctx, sqlcgen.CancelManyParams{Ids: req.IDs, Tenant: tenant})
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

// deleteJobs says that only retention removes finished jobs: they leave by the partition.
func (a *Admin) deleteJobs(echo.Context) error {
	return kit.Refuse(kit.CodeUnsupported, "action", "finished jobs are removed by retention alone; jobs that wait can be cancelled")
}
