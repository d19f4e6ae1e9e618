// Package admin reads the operators' views into rows that HTTP shows and a command line can
// print. It decides nothing: what a number means is said in the view's comment (db/migrations,
// 00010_views).
package admin

import (
	"context"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Counts are jobs by state, and since the beginning.
type Counts struct {
	Available, Active, Scheduled, Pending, Retryable int64
	Completed, Cancelled, Discarded                  int64
	Failed                                           int64 // attempts that failed
	Total                                            int64 // jobs enqueued
}

// Depth is the backlog that limits count: what waits for a worker or for its time.
func (c Counts) Depth() int64 { return c.Available + c.Scheduled + c.Pending }

// Queue is one line of a queue, over all tenants or of one.
type Queue struct {
	Name       string
	Paused     bool
	OldestWait time.Duration
	Counts
}

// Queues lists queues in the order of their names; one tenant's part of them if tenant is given,
// and at most the one called name if that is given.
func Queues(ctx context.Context, q *sqlcgen.Queries, tenant, name *string) ([]Queue, error) {
	if tenant != nil {
		rows, err := q.ShardStats(ctx, sqlcgen.ShardStatsParams{Tenant: *tenant, Queue: name})
		if err != nil {
			return nil, err
		}
		queues := make([]Queue, len(rows))
		for i, r := range rows {
			queues[i] = Queue{
				Name: r.Queue, Paused: r.Paused != nil && *r.Paused, OldestWait: seconds(r.OldestWaitSeconds),
				Counts: Counts{
					Available: r.Available, Active: r.Active, Scheduled: r.Scheduled, Pending: r.Pending, Retryable: r.Retryable,
					Completed: r.Completed, Cancelled: r.Cancelled, Discarded: r.Discarded, Failed: r.Failed, Total: r.TotalJobs,
				},
			}
		}
		return queues, nil
	}
	rows, err := q.QueueStats(ctx, name)
	if err != nil {
		return nil, err
	}
	queues := make([]Queue, len(rows))
	for i, r := range rows {
		queues[i] = Queue{
			Name: r.Queue, Paused: r.Paused, OldestWait: seconds(r.OldestWaitSeconds),
			Counts: Counts{
				Available: r.Available, Active: r.Active, Scheduled: r.Scheduled, Pending: r.Pending, Retryable: r.Retryable,
				Completed: r.Completed, Cancelled: r.Cancelled, Discarded: r.Discarded, Failed: r.Failed, Total: r.TotalJobs,
			},
		}
	}
	return queues, nil
}

// Tenant is one tenant over all queues.
type Tenant struct {
	ID                                   string
	Weight                               string // decimal text, as configured
	PriorityBoost                        int32
	CreatedAt                            *time.Time // nil: never configured
	Deficit, EffectiveShare, ActualShare float64
	Dispatched                           int64
	OldestWait                           time.Duration
	Counts
}

// Tenants lists tenants in the order of their ids, or the one called id.
func Tenants(ctx context.Context, q *sqlcgen.Queries, id *string) ([]Tenant, error) {
	rows, err := q.TenantStats(ctx, id)
	if err != nil {
		return nil, err
	}
	tenants := make([]Tenant, len(rows))
	for i, r := range rows {
		tenants[i] = Tenant{
			ID: r.TenantID, Weight: r.Weight, CreatedAt: r.CreatedAt, Deficit: r.Deficit, EffectiveShare: r.EffectiveShare,
			ActualShare: r.ActualShare, Dispatched: r.Dispatched, OldestWait: seconds(r.OldestWaitSeconds),
			Counts: Counts{
				Available: r.Available, Active: r.Active, Scheduled: r.Scheduled, Pending: r.Pending, Retryable: r.Retryable,
				Completed: r.Completed, Cancelled: r.Cancelled, Discarded: r.Discarded, Failed: r.Failed, Total: r.TotalJobs,
			},
		}
		if r.PriorityBoost != nil {
			tenants[i].PriorityBoost = *r.PriorityBoost
		}
	}
	return tenants, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
