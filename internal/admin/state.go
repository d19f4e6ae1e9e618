// Package admin has what operators see and do, for HTTP's handlers and for the command line alike: whether dispatch is held, queues,
// workers, noisy neighbours, pauses, filters of dead letters, why a job waits, and how a terminal shows rows. What a number means is said
// in the comment of its view (db/code/statistics).
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

// Neighbours are the settings of the watch, the noisy tenants, and the throttled ones.
type Neighbours struct {
	Settings  sqlcgen.NeighbourWatchRow   `json:"settings"`
	Noisy     []sqlcgen.OjsNoisyNeighbour `json:"noisy"`
	Throttles []sqlcgen.OjsThrottles      `json:"throttles"`
}

// NoisyNeighbours reads all three, with at most most rows in each list.
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

// QueueConfig reads the configuration of a queue. A queue without a row has none. For a tenant the
// weights of tenants are left out.
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

// OneQueue reads a queue: over all tenants, or the tenant's part of it. Queues need not be created,
// so an unknown queue is an empty one; exists is false if it has had no job (of the tenant), no
// configuration and no pause.
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

// Worker is a worker of admin API section 9.1, with the jobs that it holds. Its state is what the
// worker says that it does, or stale.
type Worker struct {
	sqlcgen.WorkersRow
	Jobs []sqlcgen.WorkerJobsRow `json:"jobs,omitempty"`
}

// OneWorker reads a worker of the tenant. For nil it reads the worker without a tenant, or else the
// only one with that id.
func OneWorker(ctx context.Context, q *sqlcgen.Queries, id string, tenant *string) (w Worker, err error) {
	rows, err := q.Workers(ctx, sqlcgen.WorkersParams{WorkerID: &id, Tenant: tenant, MaxRows: 1})
	if err != nil {
		return w, err
	}
	if len(rows) == 0 {
		return w, problems.NoSuch("worker", id) // it has just gone
	}
	w.WorkersRow = rows[0]
	w.Jobs, err = q.WorkerJobs(ctx, sqlcgen.WorkerJobsParams{Ids: w.ActiveJobIds, WorkerID: id, Tenant: w.TenantID})
	return w, err
}

// Of is what a rule is about (a tenant, a queue, or a tenant in a queue), and the reason for the
// rule.
type Of struct {
	Queue, Tenant, Reason *string
}

// Switch is Pause or Resume.
type Switch func(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error)

// Pause stops dispatch (ojs.pause).
func Pause(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Pause(ctx, sqlcgen.PauseParams{Queue: of.Queue, Tenant: of.Tenant, Reason: of.Reason})
}

// Resume ends a pause (ojs.resume).
func Resume(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Resume(ctx, sqlcgen.ResumeParams{Queue: of.Queue, Tenant: of.Tenant})
}

// StatusOf is how answers call a switch that is on or off.
func StatusOf(paused bool) string {
	if paused {
		return "paused"
	}
	return "active"
}
