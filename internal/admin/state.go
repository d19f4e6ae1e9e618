// Package admin holds what operators see and do, for the handlers of HTTP and for the command line:
// whether dispatch is held, queues, workers, noisy neighbours, pauses, filters of dead letters, why
// a job waits, and how a terminal shows rows. The comment of each view explains its numbers
// (db/code/statistics).
package admin

import (
	"context"
	"encoding/json"

	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Dispatch says whether dispatch is held, and what there is to dispatch.
type Dispatch struct {
	Held bool `json:"held"`
	sqlcgen.OjsDispatch
}

// Neighbours are the settings by which tenants count as noisy, the noisy tenants, and the throttled
// ones.
type Neighbours struct {
	Settings  sqlcgen.NeighbourWatchRow   `json:"settings"`
	Noisy     []sqlcgen.OjsNoisyNeighbour `json:"noisy"`
	Throttles []sqlcgen.OjsThrottles      `json:"throttles"`
}

// NoisyNeighbours reads the settings and both lists. Each list has at most most rows.
func NoisyNeighbours(ctx context.Context, q *sqlcgen.Queries, most int32) (n Neighbours, err error) {
	if n.Settings, err = q.NeighbourWatch(ctx); err != nil {
		return n, err
	}
	if n.Noisy, err = q.NoisyNeighbours(ctx, most); err != nil {
		return n, err
	}
	n.Throttles, err = q.Throttles(ctx, sqlcgen.ThrottlesParams{MaxRows: most})
	return n, err
}

// QueueConfig reads the configuration of a queue, which is {} if there is none. For a tenant it is
// without the weights of tenants.
func QueueConfig(ctx context.Context, q *sqlcgen.Queries, name string, tenant *string) (sqlcgen.QueueConfigRow, error) {
	rows, err := q.QueueConfig(ctx, sqlcgen.QueueConfigParams{Queue: name, Tenant: tenant})
	if err != nil {
		return sqlcgen.QueueConfigRow{}, err
	}
	if len(rows) > 0 {
		return rows[0], nil
	}
	pause, err := q.QueuePause(ctx, name)
	return sqlcgen.QueueConfigRow{Name: name, State: StatusOf(len(pause) > 0), Config: json.RawMessage("{}")}, err
}

// OneQueue reads a queue over all tenants, or a tenant's part of it. Queues need not be created, so
// a queue without a row is empty. exists is false if the queue has had no job (of the tenant) and
// has neither a configuration nor a pause.
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
	return sqlcgen.QueuesRow{Name: name, Status: StatusOf(paused), Paused: paused}, paused, err
}

// Worker is a worker as in admin API section 9.1, with the jobs that it holds. Its state is what it
// reports that it does, or stale.
type Worker struct {
	sqlcgen.WorkersRow
	Jobs []sqlcgen.WorkerJobsRow `json:"jobs,omitempty"`
}

// OneWorker reads a worker of a tenant. Without a tenant it reads the worker that belongs to no
// tenant, or else the only worker of that id. It fails with not_found if there is none.
func OneWorker(ctx context.Context, q *sqlcgen.Queries, id string, tenant *string) (w Worker, err error) {
	rows, err := q.Workers(ctx, sqlcgen.WorkersParams{WorkerID: &id, Tenant: tenant, MaxRows: 1})
	if err != nil {
		return w, err
	}
	if len(rows) == 0 {
		return w, problems.NoSuch("worker", id) // the worker has just gone
	}
	w.WorkersRow = rows[0]
	w.Jobs, err = q.WorkerJobs(ctx, sqlcgen.WorkerJobsParams{Ids: w.ActiveJobIds, WorkerID: id, Tenant: w.TenantID})
	return w, err
}

// Of says what a rule is about, which is a tenant, a queue or a tenant in a queue, and why there is
// one.
type Of struct {
	Queue, Tenant, Reason *string
}

// Switch stops or resumes dispatch, for a tenant, a queue or a tenant in a queue.
type Switch func(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error)

// Pause stops dispatch (ojs.pause).
func Pause(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Pause(ctx, sqlcgen.PauseParams{Queue: of.Queue, Tenant: of.Tenant, Reason: of.Reason})
}

// Resume lets dispatch go on (ojs.resume).
func Resume(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Resume(ctx, sqlcgen.ResumeParams{Queue: of.Queue, Tenant: of.Tenant})
}

// StatusOf returns the word that answers use for paused or not.
func StatusOf(paused bool) string {
	if paused {
		return "paused"
	}
	return "active"
}
