package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Explanation is what ojs.explain says, as far as it is printed.
type Explanation struct {
	ID                string   `json:"id"`
	TenantID          string   `json:"tenant_id"`
	Queue             string   `json:"queue"`
	Priority          int32    `json:"priority"`
	EffectivePriority int32    `json:"effective_priority"`
	State             string   `json:"state"`
	Reasons           []string `json:"reasons"`
	HeldBy            []struct {
		Text   string       `json:"text"`
		HeldBy []SlotHolder `json:"held_by"`
	} `json:"held_by"`
	DispatchesAhead *int64  `json:"dispatches_ahead"`
	Certainty       *string `json:"certainty"`

	waited time.Duration // of an available job: since when it is available
}

// SlotHolder is a job that counts against a limit.
type SlotHolder struct {
	ID        string    `json:"id"`
	TenantID  string    `json:"tenant_id"`
	Queue     string    `json:"queue"`
	WorkerID  *string   `json:"worker_id"`
	StartedAt time.Time `json:"started_at"`
}

// Explain prints why a job waits, in sentences. With asJSON it prints what the database says.
func Explain(ctx context.Context, w io.Writer, q *sqlcgen.Queries, id string, tenant *string, asJSON bool) error {
	raw, err := q.Explain(ctx, sqlcgen.ExplainParams{ID: id, Tenant: tenant})
	if err != nil {
		return err
	}
	if asJSON {
		return JSON(w, json.RawMessage(raw))
	}
	var e Explanation
	if err := json.Unmarshal(raw, &e); err != nil {
		return fmt.Errorf("read what ojs.explain says: %w", err)
	}
	now, err := q.Ago(ctx, 0)
	if err != nil {
		return err
	}
	if e.State == "available" {
		// The job may have run meanwhile; then it is as if it had just become available.
		j, err := q.JobInfo(ctx, sqlcgen.JobInfoParams{ID: id, Tenant: tenant})
		if err != nil {
			return err
		}
		e.waited = max(now.Sub(j.EnqueuedAt), 0)
	}
	return e.print(w, now)
}

// print writes the explanation in sentences, with a list of the jobs that count against each limit.
func (e *Explanation) print(w io.Writer, now time.Time) error {
	fmt.Fprintf(w, "Job %s of tenant %s, in queue %s with priority %d", e.ID, e.TenantID, e.Queue, e.Priority)
	if e.EffectivePriority != e.Priority {
		fmt.Fprintf(w, ", with its tenant's boost %d", e.EffectivePriority)
	}
	fmt.Fprintf(w, ", is %s", e.State)
	if e.waited > 0 {
		fmt.Fprintf(w, " and has waited for %s", Age(e.waited.Seconds()))
	}
	fmt.Fprintf(w, ".\n\n")
	for _, h := range e.HeldBy {
		fmt.Fprintf(w, "  - %s\n", cell(reflect.ValueOf(h.Text)))
	}
	for _, h := range e.HeldBy {
		if len(h.HeldBy) > 0 {
			fmt.Fprintf(w, "\n%s Of these, at most ten:\n\n", cell(reflect.ValueOf(h.Text)))
			err := List(w, h.HeldBy, now, Column{Field: "id"}, Column{Field: "tenant_id", Head: "tenant", Cut: 10},
				Column{Field: "queue", Cut: 10}, Column{Field: "worker_id", Head: "worker", Cut: 7},
				Column{Field: "started_at", Head: "runs"})
			if err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprint(w, e.place())
	return err
}

// place returns a sentence that says how many jobs will be handed out before this one.
func (e *Explanation) place() string {
	about := map[string]string{"estimate": "about ", "at_least": "at least "}
	switch {
	case e.Certainty == nil:
		return ""
	case e.DispatchesAhead == nil:
		return "\nHow many jobs of the queue go before it depends on when its tenant may have jobs again.\n"
	default:
		return fmt.Sprintf("\nJobs of queue %s that are handed out before it: %s%d.\n", e.Queue, about[*e.Certainty], *e.DispatchesAhead)
	}
}
