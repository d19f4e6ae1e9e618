package httpapi

import (
	"cmp"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) eraseRoutes() []route {
	return scoped([]route{
		{Method: http.MethodPost, Path: v1 + "/admin/erase", Scope: scopeAdmin, Queues: queuesInBody, Handler: s.erase},
	})
}

// eraseFilter selects jobs to erase, in any state.
type eraseFilter struct {
	jobFilter
}

// Check accepts both names of the tenant, and refuses a filter that lets all jobs pass.
func (f *eraseFilter) Check(o *jsonbody.Object) {
	f.check(o, states)
	if f.Queue == nil && f.State == nil && f.Type == nil && f.Tenant == nil && f.Since == nil && f.Until == nil {
		o.Fail(problems.Invalid("filter", "must name something: it would let all jobs pass"))
	}
}

// eraseRequest is the body of an erasure. It names jobs, or filters them; a filter that names a
// tenant alone means all of its jobs.
type eraseRequest struct {
	Filter  *eraseFilter `json:"filter" check:"scope"`
	IDs     []string     `json:"ids" check:"scope,id"`
	Cursor  *string      `json:"cursor" check:"id"`
	Confirm bool         `json:"confirm"`
	Reason  *string      `json:"reason"`
}

// Check refuses a request that is not confirmed, and one with both ids and a filter, or neither.
func (r *eraseRequest) Check(o *jsonbody.Object) {
	checkBulk(o, 0, r.Confirm)
	checkIDs(o, r.IDs, r.Filter != nil)
	if r.IDs == nil && r.Filter == nil {
		o.Fail(problems.Invalid("filter", "must be given, or ids: without them all jobs would be meant"))
	}
}

// erase erases the content of jobs, a page in each transaction, for half of the time that a request
// may take. The answer holds the cursor of the next request, null if all is done.
func (s *Server) erase(c echo.Context) error {
	var req eraseRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.EraseParams{Reason: reasonOf(c), Ids: req.IDs, Before: req.Cursor, MaxRows: 1000, Tenant: requestTenant(c)}
	if f := req.Filter; f != nil {
		if err := cmp.Or(f.narrow(params.Tenant), forFilter(c, "filter.queue", f.Queue)); err != nil {
			return err
		}
		params.Queue, params.Type, params.Since, params.Until, params.Tenant = f.Queue, f.Type, f.Since, f.Until, f.Tenant
		if f.State != nil {
			params.States = []string{*f.State}
		}
	} else if err := s.forJobs(c, "ids", req.IDs...); err != nil {
		return err
	}
	done, err := admin.Erase(s.queryContext(c), s.changing(c), params, time.Now().Add(s.limits.Query/2))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, done)
}
