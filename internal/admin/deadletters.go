package admin

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Dead letters in bulk (ojs-dead-letter section 10). Those that show a job are with the other jobs, in internal/http.

// DeadLettersQuery are the parameters of a list of dead letters.
const DeadLettersQuery = kit.Paged + "queue type error_type since until older_than"

func (a *Admin) deadLetterRoutes() []kit.Route {
	under := func(prefix string, change kit.Access) []kit.Route {
		return kit.Under([]string{prefix}, []kit.Route{
			{Method: http.MethodDelete, Scope: change, Queues: kit.QueuesInBody, Handler: a.purgeDeadLetters},
			{Method: http.MethodGet, Path: "/stats", Scope: kit.Read, OfTenant: true, Handler: a.deadLetterStats},
			{Method: http.MethodPost, Path: "/retry", Scope: change, Queues: kit.QueuesInBody, Handler: a.retryDeadLetters},
			{Method: http.MethodPost, Path: "/purge", Scope: change, Queues: kit.QueuesInBody, Handler: a.purgeDeadLetters},
		})
	}
	return kit.Scoped(append(under(v1+"/dead-letter", kit.Produce), under(v1+"/admin/dead-letter", kit.Admin)...))
}

// maxBulk is the most jobs that one bulk request changes.
const maxBulk = 10000

// Filter picks dead letters.
type Filter struct {
	Queue     *string    `json:"queue" check:"name"`
	Type      *string    `json:"type" check:"name"`
	ErrorType *string    `json:"error_type" check:"name"`
	Tenant    *string    `json:"tenant" check:"name"`
	TenantID  *string    `json:"tenant_id" check:"name"` // the same
	Since     *time.Time `json:"since"`
	Until     *time.Time `json:"until"`
	Older     *string    `json:"older_than"` // another spelling of until, which may also be an age

	age *time.Duration // instead of Until: how long ago, by the database's clock
}

// QueryFilter reads a filter from the query.
func QueryFilter(c echo.Context) (f Filter, err error) {
	if err = kit.QueryAll(c, kit.QueryText, map[string]**string{
		"queue": &f.Queue, "type": &f.Type, "error_type": &f.ErrorType, "older_than": &f.Older,
	}); err != nil {
		return f, err
	}
	if err = kit.QueryAll(c, kit.QueryTime, map[string]**time.Time{"since": &f.Since, "until": &f.Until}); err != nil {
		return f, err
	}
	err = f.ReadAge("older_than", "until")
	return f, err
}

// Check reads the age, and takes both names of the tenant.
func (f *Filter) Check(o *kit.Object) {
	tenant, err := kit.SameTenant(o.At("tenant"), f.Tenant, f.TenantID)
	if f.Tenant = tenant; err != nil {
		o.Fail(err)
	}
	if err := f.ReadAge(o.At("older_than"), o.At("until")); err != nil {
		o.Fail(err)
	}
}

// ReadAge reads Older, which its writer calls name, beside until: a time, or an age such as P30D for until 30 days ago. Nothing here counts
// forward from now, so what does, +P30D, is refused.
func (f *Filter) ReadAge(name, until string) error {
	if f.Older == nil {
		return nil
	}
	at, err := kit.ParseTime(*f.Older)
	age, noAge := kit.ParseDuration(*f.Older)
	switch {
	case err == nil && f.Until != nil && !f.Until.Equal(at), noAge == nil && f.Until != nil:
		return kit.Invalid(name, "disagrees with %s", until)
	case err == nil:
		f.Until = &at
	case noAge == nil:
		f.age = &age
	default:
		return kit.Invalid(name,
			"must be a time as in RFC 3339 with an offset, or an age as an ISO 8601 duration of weeks to seconds, such as P30D")
	}
	return nil
}

// Bound turns an age into a time, by the clock that dead letters are dated with; it gives a filter without either the present, if it is
// to have a bound.
func (f *Filter) Bound(ctx context.Context, q *sqlcgen.Queries, required bool) error {
	age := f.age
	if age == nil && required {
		age = new(time.Duration)
	}
	if f.Until != nil || age == nil {
		return nil
	}
	at, err := q.Ago(ctx, age.Seconds())
	f.Until = &at
	return err
}

// counting is the filter as the statements take it that count.
func (f *Filter) counting(tenant *string) sqlcgen.DeadLetterCountParams {
	return sqlcgen.DeadLetterCountParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, Tenant: tenant,
	}
}

// changing is the filter as the statements take it that change at most limit jobs.
func (f *Filter) changing(limit int32, tenant *string) sqlcgen.RetryDeadLettersParams {
	return sqlcgen.RetryDeadLettersParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, MaxJobs: limit, Tenant: tenant,
	}
}

// Count is how many dead letters the filter lets pass.
func (f *Filter) Count(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.DeadLetterCount(ctx, f.counting(tenant))
}

// Retry puts at most limit of them back into their queues and says how many.
func (f *Filter) Retry(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryDeadLetters(ctx, f.changing(limit, tenant))
}

// CountFailed is how many jobs that failed for good the filter lets pass, dead letters or not.
func (f *Filter) CountFailed(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.FailedCount(ctx, sqlcgen.FailedCountParams(f.counting(tenant)))
}

// RetryFailed has at most limit of them run again and says how many.
func (f *Filter) RetryFailed(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryMany(ctx, sqlcgen.RetryManyParams(f.changing(limit, tenant)))
}

// Purge deletes at most limit of them and says how many.
func (f *Filter) Purge(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.PurgeDeadLetters(ctx, sqlcgen.PurgeDeadLettersParams(f.changing(limit, tenant)))
}

// innerFilter is a filter that stands by itself.
type innerFilter struct {
	_ struct{} `check:"only"`
	Filter
}

// bulkRequest is what a bulk request is about: {"filter": {...}, "limit": n, "confirm": true}. The filter may stand by itself or be the
// body, but not half of it here and half there. What the client does not confirm is not done.
type bulkRequest struct {
	kit.Optional
	_ struct{} `check:"only"`
	Filter
	Inner   *innerFilter `json:"filter"`
	Limit   int32        `json:"limit" check:"1.."`
	Confirm bool         `json:"confirm"`
}

// Check finds the filter and asks for the confirmation.
func (r *bulkRequest) Check(o *kit.Object) {
	if r.Inner != nil {
		kit.Only(o, kit.NotKnown, "filter", "limit", "confirm")
		r.Filter = r.Inner.Filter
	} else {
		r.Filter.Check(o)
	}
	checkBulk(o, r.Limit, r.Confirm)
}

func checkBulk(o *kit.Object, limit int32, confirm bool) {
	if limit > maxBulk {
		o.Fail(kit.Invalid("limit", "must be an integer between 1 and %d", maxBulk))
	}
	if !confirm {
		o.Fail(kit.Invalid("confirm", "must be true: this changes every job that the filter lets pass"))
	}
}

func (a *Admin) retryDeadLetters(c echo.Context) error { return a.bulk(c, "retried", (*Filter).Retry) }

func (a *Admin) purgeDeadLetters(c echo.Context) error { return a.bulk(c, "deleted", (*Filter).Purge) }

// doing does something to at most limit jobs that a filter lets pass, and says to how many.
type doing func(f *Filter, ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error)

// counter says how many jobs a filter lets pass.
type counter func(f *Filter, ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error)

func (a *Admin) bulk(c echo.Context, done string, do doing) error {
	req := bulkRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	n, left, err := a.inBulk(c, &req.Filter, req.Limit, do, (*Filter).Count)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{done: n, "remaining": left})
}

// inBulk says how many jobs were done, and how many that the filter lets pass are left for another request; nil: nobody
// knows.
func (a *Admin) inBulk(c echo.Context, filter *Filter, limit int32, do doing, count counter) (n int32, left *int64, err error) {
	if given := slices.Sorted(maps.Keys(c.QueryParams())); len(given) > 0 {
		return 0, nil, kit.Invalid(kit.Clip(given[0]), "belongs in the body here")
	}
	if err := kit.ForFilter(c, "filter.queue", filter.Queue); err != nil {
		return 0, nil, err
	}
	tenant, err := kit.Narrow("tenant", filter.Tenant, kit.Scope(c))
	if err != nil {
		return 0, nil, err
	}
	ctx := a.Context(c)
	// What fails again meanwhile is not meant, neither by what is done nor by what remains.
	if err := filter.Bound(ctx, a.SQL, true); err != nil {
		return 0, nil, err
	}
	if n, err = do(filter, ctx, a.Changing(c), limit, tenant); err != nil {
		return 0, nil, err
	}
	// The jobs are done, whatever becomes of this: an error would have the client do as many again.
	rest, err := count(filter, ctx, a.SQL, tenant)
	if err != nil {
		a.Log.Warn("jobs that remain after a bulk request are not counted", "error", err)
		return n, nil, nil
	}
	return n, &rest, nil
}

// jobsFilter picks jobs to run again. Only those that failed for good can be, so state may say that it means those.
type jobsFilter struct {
	_ struct{} `check:"only"`
	Filter
	State *string `json:"state"`
}

// Check refuses other states.
func (f *jobsFilter) Check(o *kit.Object) {
	f.Filter.Check(o)
	if f.State != nil && *f.State != "discarded" {
		o.Fail(kit.Refuse(kit.CodeUnsupported, o.At("state"), "only discarded jobs can be retried"))
	}
}

// jobsRequest is ojs-admin-api section 8.1.
type jobsRequest struct {
	kit.Optional
	_       struct{}    `check:"only"`
	Filter  *jobsFilter `json:"filter"`
	IDs     []string    `json:"ids" check:"id"`
	Limit   int32       `json:"limit" check:"1.."`
	Confirm bool        `json:"confirm"`
}

// Check asks for the confirmation, and for one way of saying which jobs are meant.
func (r *jobsRequest) Check(o *kit.Object) {
	checkBulk(o, r.Limit, r.Confirm)
	checkIDs(o, r.IDs, r.Filter != nil)
}

// retryJobs has all jobs that failed for good run again that a filter lets pass, dead letters or not, in the words of ojs-admin-api.
func (a *Admin) retryJobs(c echo.Context) error {
	req := jobsRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	if req.IDs != nil {
		return a.retryThese(c, req.IDs)
	}
	if req.Filter == nil {
		req.Filter = &jobsFilter{}
	}
	n, left, err := a.inBulk(c, &req.Filter.Filter, req.Limit, (*Filter).RetryFailed, (*Filter).CountFailed)
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

// retryThese has discarded jobs run again by their ids, each of which succeeds or fails by itself.
func (a *Admin) retryThese(c echo.Context, ids []string) error {
	if err := a.ForJobs(c, "ids", ids...); err != nil {
		return err
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	failed := []bulkError{}
	for _, id := range ids {
		_, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).Retry, sqlcgen.RetryParams{ID: id, Tenant: kit.Scope(c)})
		if err == nil {
			continue
		}
		problem := a.Problems.Classify(err)
		if problem.Status >= http.StatusInternalServerError {
			return err
		}
		failed = append(failed, bulkError{id, problem.Code, problem.Message})
	}
	return c.JSON(http.StatusOK, map[string]any{
		"action": "retry", "matched": len(ids), "succeeded": len(ids) - len(failed), "failed": len(failed), "errors": failed,
	})
}

func (a *Admin) deadLetterStats(c echo.Context) error {
	stats, err := a.SQL.DeadLetterStats(a.Context(c), kit.Scope(c))
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, stats)
}
