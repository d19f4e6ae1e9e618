package dispatch

import (
	"context"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Can replaces the database by canned answers: a FETCH gets the jobs that jobs makes, every
// settlement succeeds, and every job is accepted. A benchmark measures with it the cost of
// everything but the database. It must be called before the Dispatcher is used.
func (d *Dispatcher) Can(jobs func(count int) []sqlcgen.OjsJob) {
	d.send = statements{
		fetch: func(_ context.Context, parts []*part) error {
			for _, p := range parts {
				p.fetched = fetched{jobs: jobs(p.asked), runs: make([]run, len(p.requests))}
				from := 0
				for i, r := range p.requests {
					p.runs[i] = run{from: from, jobs: min(r.Count, len(p.jobs)-from)}
					from += p.runs[i].jobs
				}
			}
			return nil
		},
		ack: func(_ context.Context, items []ack, _ bool) ([]*sqlcgen.OjsJob, error) {
			acked := make([]*sqlcgen.OjsJob, len(items))
			for i, j := range jobs(len(items)) {
				acked[i] = &j
			}
			return acked, nil
		},
		settle: func(_ context.Context, items []Settlement, _ bool) ([]Settled, error) {
			settled := make([]Settled, len(items))
			for i, j := range jobs(len(items)) {
				settled[i].Job = j
			}
			return settled, nil
		},
		enqueue: func(_ context.Context, _ sqlcgen.DBTX, items []*NewJob, _ *string, _ bool, made madeJob) error {
			for i, j := range jobs(len(items)) {
				made(i, j, nil)
			}
			return nil
		},
		release: func(context.Context, []string, []string) ([]string, error) { return nil, nil },
	}
}
