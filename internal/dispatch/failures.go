package dispatch

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	tellFailures   = time.Minute // between two reports
	failureTypes   = 100         // of jobs that have a line of their own in a report
	failureTenants = 100         // that are counted for each of them
	failureMessage = 200         // bytes of an error's message
	otherTypes     = "_other"    // the rest. No type of jobs can have this name
)

// failures collects the attempts that clients of this server have reported as failed since the last
// report, so that the log shows which jobs fail, and why. One line for each failure could fill the
// disk. mu guards types. It is a leaf: nothing else is locked while it is held.
type failures struct {
	log *slog.Logger

	mu    sync.Mutex
	types map[string]*failing
}

// failing counts the failed attempts of one type of jobs.
type failing struct {
	attempts, discarded int
	tenants             map[string]struct{}

	// Of the last one.
	tenant, queue, job, worker, message string
}

// note counts the settlements that ended in a failed attempt.
func (f *failures) note(items []Settlement, settled []Settled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range settled {
		if items[i].Error != nil && settled[i].Err == nil {
			f.of(settled[i].Job.Type).add(&settled[i].Job, items[i].Message)
		}
	}
}

// of returns the counter of a type. The caller holds failures.mu.
func (f *failures) of(name string) *failing {
	if known := f.types[name]; known != nil {
		return known
	}
	switch {
	case f.types == nil:
		f.types = map[string]*failing{}
	case len(f.types) >= failureTypes && name != otherTypes:
		return f.of(otherTypes)
	}
	t := &failing{tenants: map[string]struct{}{}}
	f.types[name] = t
	return t
}

// add counts a failed attempt and remembers it as the last one. The caller holds failures.mu.
func (t *failing) add(job *sqlcgen.OjsJob, message string) {
	t.attempts++
	if job.State == "discarded" {
		t.discarded++
	}
	if len(t.tenants) < failureTenants {
		t.tenants[job.TenantID] = struct{}{}
	}
	t.tenant, t.queue, t.job, t.worker = job.TenantID, job.Queue, job.ID, ""
	if job.WorkerID != nil {
		t.worker = *job.WorkerID
	}
	t.message = clipped(message)
}

// clipped returns a copy of the message's beginning. A slice would keep the whole text in memory.
func clipped(message string) string {
	if len(message) <= failureMessage {
		return strings.Clone(message)
	}
	return strings.ToValidUTF8(message[:failureMessage], "") + "..."
}

// run reports once a minute until ctx ends.
func (f *failures) run(ctx context.Context) {
	next := time.NewTicker(tellFailures)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			f.tell()
		}
	}
}

// tell logs a line for each type of jobs, the most frequent failures first, and starts again at
// zero.
func (f *failures) tell() {
	f.mu.Lock()
	types := f.types
	f.types = nil
	f.mu.Unlock()
	// Not under the lock: NACKs would wait for the reader of the log.
	for _, name := range slices.SortedFunc(maps.Keys(types), func(a, b string) int {
		return cmp.Or(cmp.Compare(types[b].attempts, types[a].attempts), cmp.Compare(a, b))
	}) {
		t := types[name]
		f.log.Info("attempts failed within the last minute", "type", name,
			"attempts", t.attempts, "discarded", t.discarded, "tenants", len(t.tenants),
			"tenant", t.tenant, "queue", t.queue, "job", t.job, "worker", t.worker, "error", t.message)
	}
}
