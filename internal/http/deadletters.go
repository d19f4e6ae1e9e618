package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The dead letter queue (ojs-dead-letter section 10), under /dead-letter and, for operators' tools,
// under /admin/dead-letter.

// deadLettersQuery holds the names of the query parameters of a list of dead letters.
const deadLettersQuery = paged + "queue type error_type since until older_than"

func (s *Server) deadLetterRoutes() []route {
	under := func(prefix string, change access, get, remove echo.HandlerFunc) []route {
		return underPrefixes([]string{prefix}, []route{
			{
				Method: http.MethodGet, Scope: scopeRead, Queues: queueInQuery, Query: deadLettersQuery, OfTenant: true,
				Handler: s.listDeadLetters,
			},
			{Method: http.MethodPost, Path: "/:id/retry", Scope: change, Queues: queueOfJob, Handler: s.retryDeadLetter},
			{Method: http.MethodGet, Path: "/:id", Scope: scopeRead, Queues: queueOfJob, Handler: get},
			{Method: http.MethodDelete, Path: "/:id", Scope: change, Queues: queueOfJob, Handler: withoutBody(remove)},
			{Method: http.MethodDelete, Scope: change, Queues: queuesInBody, Handler: s.purgeDeadLetters},
			{Method: http.MethodGet, Path: "/stats", Scope: scopeRead, OfTenant: true, Handler: s.deadLetterStats},
			{Method: http.MethodPost, Path: "/retry", Scope: change, Queues: queuesInBody, Handler: s.retryDeadLetters},
			{Method: http.MethodPost, Path: "/purge", Scope: change, Queues: queuesInBody, Handler: s.purgeDeadLetters},
		})
	}
	return scoped(append(
		under(v1+"/dead-letter", scopeProduce, s.getDeadLetter, s.deleteDeadLetter),
		under(v1+"/admin/dead-letter", scopeAdmin, s.getDeadLetterFlat, s.deleteDeadLetterSilently)...))
}

func (s *Server) listDeadLetters(c echo.Context) error {
	filter, err := queryFilter(c)
	if err != nil {
		return err
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := s.queryContext(c), requestTenant(c)
	if err := filter.Bound(ctx, s.q, false); err != nil {
		return err
	}
	total, err := filter.Count(ctx, s.q, tenant)
	if err != nil {
		return err
	}
	jobs, err := s.q.DeadLetters(ctx, sqlcgen.DeadLettersParams{
		Queue: filter.Queue, Type: filter.Type, ErrorType: filter.ErrorType, Since: filter.Since, Until: filter.Until,
		MaxRows: int32(limit), Skipped: int32(offset), Tenant: tenant, MaxBytes: s.limits.List,
	})
	if err != nil {
		return err
	}
	give, err := s.carry(c, sizeOf(jobs))
	if err != nil {
		return err
	}
	defer give()
	return writeBlob(c, http.StatusOK, jsonbody.Listed(s.wire().appendJobs(nil, jobs, nil), []string{"jobs", "items"},
		func(w *jsonbody.Writer) {
			w.Integer("total", total)
			writePagination(w, pagination(int(total), limit, offset, len(jobs)))
		})...)
}

func (s *Server) deadLetter(c echo.Context) (sqlcgen.OjsJob, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return sqlcgen.OjsJob{}, err
	}
	return s.q.DeadLetterInfo(s.queryContext(c), sqlcgen.DeadLetterInfoParams{ID: id, Tenant: scope})
}

func (s *Server) getDeadLetter(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job)
}

// getDeadLetterFlat answers with the job at the top of the body, as operators' tools read it.
func (s *Server) getDeadLetterFlat(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, s.wire().appendJob(nil, &job))
}

type retryRequest struct {
	jsonbody.Optional
	Override json.RawMessage `json:"override" check:"object,storable"`

	queue *string // queue that the job moves to
}

// Check refuses an expires_at that SQL would accept although OJS does not, and reads the queue.
func (r *retryRequest) Check(o *jsonbody.Object) {
	if r.Override != nil {
		override := o.Child("override")
		override.When("expires_at", time.Now())
		r.queue = override.Text("queue")
	}
}

func (s *Server) retryDeadLetter(c echo.Context) error {
	return s.runAgain(c, func(q *sqlcgen.Queries, ctx context.Context, p sqlcgen.RetryParams) (sqlcgen.OjsJob, error) {
		return q.RetryDeadLetter(ctx, sqlcgen.RetryDeadLetterParams(p))
	})
}

// runAgain retries the job of the path with call, and answers with it.
func (s *Server) runAgain(c echo.Context, call func(*sqlcgen.Queries, context.Context, sqlcgen.RetryParams) (sqlcgen.OjsJob, error)) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	var req retryRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if req.queue != nil {
		if err := forQueues(c, "override.queue", *req.queue); err != nil {
			return err
		}
	}
	job, err := patiently(s, c, call, sqlcgen.RetryParams{ID: id, Override: req.Override, Tenant: scope})
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job,
		jsonbody.Attr{Name: "previous_state", Raw: []byte(`"discarded"`)},
		jsonbody.Attr{Name: "re_enqueued_at", Raw: jsonbody.AppendTime(nil, job.EnqueuedAt)})
}

func (s *Server) removeDeadLetter(c echo.Context) (string, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return "", err
	}
	_, err = patiently(s, c, (*sqlcgen.Queries).DeleteDeadLetter, sqlcgen.DeleteDeadLetterParams{ID: id, Tenant: scope})
	return id, err
}

func (s *Server) deleteDeadLetter(c echo.Context) error {
	id, err := s.removeDeadLetter(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"deleted": true, "job_id": id})
}

func (s *Server) deleteDeadLetterSilently(c echo.Context) error {
	if _, err := s.removeDeadLetter(c); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// Bulk requests.

// queryFilter reads a filter of dead letters from the query.
func queryFilter(c echo.Context) (f admin.Filter, err error) {
	if err = queryAll(c, queryText, map[string]**string{
		"queue": &f.Queue, "type": &f.Type, "error_type": &f.ErrorType, "older_than": &f.Older,
	}); err != nil {
		return f, err
	}
	if err = queryAll(c, queryTime, map[string]**time.Time{"since": &f.Since, "until": &f.Until}); err != nil {
		return f, err
	}
	err = f.ReadAge("older_than", "until")
	return f, err
}

// innerFilter is a filter in a field of its own.
type innerFilter struct {
	admin.Filter
}

// bulkRequest is the body of a bulk request: {"filter": {...}, "limit": n, "confirm": true}. The
// fields of the filter stand either all under filter or all in the body itself. A request without
// confirm is refused.
type bulkRequest struct {
	jsonbody.Optional
	admin.Filter
	Inner   *innerFilter `json:"filter" check:"scope"`
	Limit   int32        `json:"limit" check:"1.."`
	Confirm bool         `json:"confirm"`
}

// Check takes the filter from where it stands, and refuses a request that is not confirmed.
func (r *bulkRequest) Check(o *jsonbody.Object) {
	if r.Inner != nil {
		jsonbody.Only(o, "filter", "limit", "confirm")
		r.Filter = r.Inner.Filter
	} else {
		r.Filter.Check(o)
	}
	checkBulk(o, r.Limit, r.Confirm)
}

func (s *Server) retryDeadLetters(c echo.Context) error {
	return s.bulk(c, "retried", (*admin.Filter).Retry)
}

func (s *Server) purgeDeadLetters(c echo.Context) error {
	return s.bulk(c, "deleted", (*admin.Filter).Purge)
}

// doing changes at most limit jobs that match a filter, and returns how many it has changed.
type doing func(f *admin.Filter, ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error)

// counter returns how many jobs match a filter.
type counter func(f *admin.Filter, ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error)

func (s *Server) bulk(c echo.Context, done string, do doing) error {
	req := bulkRequest{Limit: 1000}
	if err := c.Bind(&req); err != nil {
		return err
	}
	n, left, err := s.inBulk(c, &req.Filter, req.Limit, do, (*admin.Filter).Count)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{done: n, "remaining": left})
}

// inBulk changes the jobs that match a filter, with do. It returns how many it has changed, and how
// many that match are left for another request. left is nil if count has failed.
func (s *Server) inBulk(c echo.Context, filter *admin.Filter, limit int32, do doing, count counter) (n int32, left *int64, err error) {
	if err := forFilter(c, "filter.queue", filter.Queue); err != nil {
		return 0, nil, err
	}
	tenant, err := narrowTenant("tenant", filter.Tenant, requestTenant(c))
	if err != nil {
		return 0, nil, err
	}
	ctx := s.queryContext(c)
	// The filter gets a bound in time before anything is changed. Jobs that fail again after it are
	// neither changed by this request nor counted as left.
	if err := filter.Bound(ctx, s.q, true); err != nil {
		return 0, nil, err
	}
	if n, err = do(filter, ctx, s.changing(c), limit, tenant); err != nil {
		return 0, nil, err
	}
	// The jobs are changed already. If the count fails it is left out, because after an error the
	// client would repeat the request, and change as many jobs again.
	rest, err := count(filter, ctx, s.q, tenant)
	if err != nil {
		s.log.Warn("jobs that remain after a bulk request are not counted", "error", err)
		return n, nil, nil
	}
	return n, &rest, nil
}

func (s *Server) deadLetterStats(c echo.Context) error {
	stats, err := s.q.DeadLetterStats(s.queryContext(c), requestTenant(c))
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, stats)
}
