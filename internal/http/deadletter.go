package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The dead letter queue (ojs-dead-letter section 10), under /dead-letter and, for operators' tools, under /admin/dead-letter. What changes
// many at once is in internal/admin.

func (s *Server) deadLetterRoutes() []kit.Route {
	under := func(prefix string, change kit.Access, get, remove echo.HandlerFunc) []kit.Route {
		return kit.Under([]string{prefix}, []kit.Route{
			{
				Method: http.MethodGet, Scope: kit.Read, Queues: kit.QueueInQuery, Query: admin.DeadLettersQuery, OfTenant: true,
				Handler: s.listDeadLetters,
			},
			{Method: http.MethodPost, Path: "/:id/retry", Scope: change, Queues: kit.QueueOfJob, Handler: s.retryDeadLetter},
			{Method: http.MethodGet, Path: "/:id", Scope: kit.Read, Queues: kit.QueueOfJob, Handler: get},
			{Method: http.MethodDelete, Path: "/:id", Scope: change, Queues: kit.QueueOfJob, Handler: kit.Bare(remove)},
		})
	}
	return kit.Scoped(append(
		under(v1+"/dead-letter", kit.Produce, s.getDeadLetter, s.deleteDeadLetter),
		under(v1+"/admin/dead-letter", kit.Admin, s.getDeadLetterFlat, s.deleteDeadLetterSilently)...))
}

func (s *Server) listDeadLetters(c echo.Context) error {
	filter, err := admin.QueryFilter(c)
	if err != nil {
		return err
	}
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := s.kit.Context(c), kit.Scope(c)
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
	return kit.Blob(c, http.StatusOK, kit.Listed(s.wire().appendJobs(nil, jobs, nil), []string{"jobs", "items"}, func(w *kit.Writer) {
		w.Integer("total", total)
		w.Pagination(kit.Pagination(int(total), limit, offset, len(jobs)))
	})...)
}

func (s *Server) deadLetter(c echo.Context) (sqlcgen.OjsJob, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return sqlcgen.OjsJob{}, err
	}
	return s.q.DeadLetterInfo(s.kit.Context(c), sqlcgen.DeadLetterInfoParams{ID: id, Tenant: scope})
}

func (s *Server) getDeadLetter(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job)
}

// getDeadLetterFlat is for operators' tools, which want the job itself.
func (s *Server) getDeadLetterFlat(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, s.wire().appendJob(nil, &job))
}

type retryRequest struct {
	kit.Optional
	_        struct{}        `check:"only"`
	Override json.RawMessage `json:"override" check:"object,storable"`

	queue *string // to which the job moves
}

// Check refuses times that SQL would take although OJS does not.
func (r *retryRequest) Check(o *kit.Object) {
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

// retryJob takes any discarded job, dead letter or not.
func (s *Server) retryJob(c echo.Context) error { return s.runAgain(c, (*sqlcgen.Queries).Retry) }

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
		if err := kit.ForQueues(c, "override.queue", *req.queue); err != nil {
			return err
		}
	}
	job, err := kit.Patiently(s.kit, c, call, sqlcgen.RetryParams{ID: id, Override: req.Override, Tenant: scope})
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job,
		kit.Attr{Name: "previous_state", Raw: []byte(`"discarded"`)},
		kit.Attr{Name: "re_enqueued_at", Raw: kit.AppendTime(nil, job.EnqueuedAt)})
}

func (s *Server) removeDeadLetter(c echo.Context) (string, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return "", err
	}
	_, err = kit.Patiently(s.kit, c, (*sqlcgen.Queries).DeleteDeadLetter, sqlcgen.DeleteDeadLetterParams{ID: id, Tenant: scope})
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
