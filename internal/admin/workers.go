package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// A worker is known by its name and the tenant that the header names, or none.

func (a *Admin) workerRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/workers", Scope: kit.Read, Query: kit.Paged, OfTenant: true, Handler: a.listWorkers},
		{Method: http.MethodGet, Path: v1 + "/workers/:id/health", Scope: kit.Read, Handler: a.workerHealth},
		{Method: http.MethodGet, Path: v1 + "/admin/workers", Scope: kit.Read, Query: kit.Paged, OfTenant: true, Handler: a.listWorkers},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/directive", Scope: kit.Admin, Handler: a.directWorkers},
		{Method: http.MethodGet, Path: v1 + "/admin/workers/:id", Scope: kit.Read, Handler: a.getWorker},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/:id/quiet", Scope: kit.Admin, Handler: kit.Bare(a.quietWorker)},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/:id/directive", Scope: kit.Admin, Handler: a.directWorker},
		{Method: http.MethodDelete, Path: v1 + "/admin/workers/:id", Scope: kit.Admin, Handler: kit.Bare(a.removeWorker)},
	})
}

// Worker is one of admin API section 9.1, with the jobs it holds. Its state is what it says it does, or stale.
type Worker struct {
	sqlcgen.WorkersRow
	Jobs []sqlcgen.WorkerJobsRow `json:"jobs,omitempty"`
}

// maxWorkerBytes is the most that a page of workers has, unless a single one has more. Each may name ten thousand jobs.
const maxWorkerBytes = 4 << 20

func (a *Admin) listWorkers(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := a.Context(c), kit.Scope(c)
	states, err := a.SQL.WorkerStates(ctx, tenant)
	if err != nil {
		return err
	}
	summary, total := map[string]int{"running": 0, "quiet": 0, "drain": 0, "terminate": 0, "stale": 0}, 0
	for _, s := range states {
		summary[s.State] = int(s.Workers)
		total += int(s.Workers)
	}
	summary["total"] = total
	rows, err := a.SQL.Workers(ctx, sqlcgen.WorkersParams{
		Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset), MaxBytes: maxWorkerBytes,
	})
	if err != nil {
		return err
	}
	body := listed("workers", rows, kit.Pagination(total, limit, offset, len(rows)))
	body["summary"] = summary
	return c.JSON(http.StatusOK, body)
}

// workerRef reads the name of a worker in a path. What PostgreSQL cannot hold as text names none.
func workerRef(c echo.Context) (id string, err error) {
	id = c.Param("id")
	if !kit.IsText(id) {
		return "", kit.NoSuch("worker", id)
	}
	return id, nil
}

// OneWorker reads a worker: the tenant's; for nil that of no tenant, else the only one of that name.
func OneWorker(ctx context.Context, q *sqlcgen.Queries, id string, tenant *string) (w Worker, err error) {
	rows, err := q.Workers(ctx, sqlcgen.WorkersParams{WorkerID: &id, Tenant: tenant, MaxRows: 1})
	if err != nil {
		return w, err
	}
	if len(rows) == 0 {
		return w, kit.NoSuch("worker", id) // it has just gone
	}
	w.WorkersRow = rows[0]
	w.Jobs, err = q.WorkerJobs(ctx, sqlcgen.WorkerJobsParams{Ids: w.ActiveJobIds, WorkerID: id, Tenant: w.TenantID})
	return w, err
}

// oneWorker reads the worker that a path names.
func (a *Admin) oneWorker(c echo.Context) (w Worker, err error) {
	id, err := workerRef(c)
	if err != nil {
		return w, err
	}
	return OneWorker(a.Context(c), a.SQL, id, kit.Scope(c))
}

func (a *Admin) getWorker(c echo.Context) error {
	w, err := a.oneWorker(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, w)
}

// workerHealth is 503 when the worker takes no jobs, or has fallen silent.
func (a *Admin) workerHealth(c echo.Context) error {
	w, err := a.oneWorker(c)
	if err != nil {
		return err
	}
	status, health := http.StatusOK, "ok"
	if w.State != "running" || w.Directive != nil && *w.Directive != "running" {
		status, health = http.StatusServiceUnavailable, "degraded"
	}
	return c.JSON(status, struct {
		Status          string    `json:"status"`
		WorkerID        string    `json:"worker_id"`
		State           string    `json:"state"`
		Directive       *string   `json:"directive,omitempty"`
		ActiveJobs      int32     `json:"active_jobs"`
		LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
	}{health, w.WorkerID, w.State, w.Directive, w.ActiveJobs, w.LastHeartbeatAt})
}

type directiveRequest struct {
	Directive string `json:"directive" check:"required,name"`
}

func (a *Admin) quietWorker(c echo.Context) error { return a.direct(c, "quiet") }

func (a *Admin) directWorker(c echo.Context) error {
	var req directiveRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	return a.direct(c, req.Directive)
}

// direct tells the worker that the path names what to do, and answers with it.
func (a *Admin) direct(c echo.Context, directive string) error {
	id, err := workerRef(c)
	if err != nil {
		return err
	}
	params := sqlcgen.DirectWorkerParams{WorkerID: id, Directive: directive, Tenant: kit.Scope(c)}
	_, err = kit.Patiently(a.Kit, c, (*sqlcgen.Queries).DirectWorker, params)
	if err != nil {
		return err
	}
	return a.getWorker(c)
}

// directWorkers tells all workers, or all of a tenant.
func (a *Admin) directWorkers(c echo.Context) error {
	var req directiveRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.DirectWorkersParams{Directive: req.Directive, Tenant: kit.Scope(c)}
	told, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).DirectWorkers, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"directive": req.Directive, "workers": told})
}

func (a *Admin) removeWorker(c echo.Context) error {
	id, err := workerRef(c)
	if err != nil {
		return err
	}
	params := sqlcgen.RemoveWorkerParams{WorkerID: id, Tenant: kit.Scope(c)}
	jobs, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).RemoveWorker, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"deleted": true, "worker_id": id, "jobs_requeued": jobs})
}
