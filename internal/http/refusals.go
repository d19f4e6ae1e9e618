package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// refusals counts the refusals by limits that are not yet noted in ojs.notice.
type refusals struct {
	db         *pg.DB
	log        *slog.Logger
	background *background

	// mu protects counts. counts is nil if there is nothing to note; the first refusal after that
	// starts the goroutine that notes.
	mu     sync.Mutex
	counts map[refusal]int32
}

// refusal is what refusals are counted by.
type refusal struct{ tenant, queue, resource string }

// noteAfter is how long refusals are collected before they are noted.
const noteAfter = time.Second

// count counts an error that a limit has caused, and ignores others. All refusals within noteAfter
// are noted together.
func (r *refusals) count(problem *pg.Error) {
	l := problem.Limit()
	of := refusal{tenant: l.Tenant, queue: l.Queue}
	switch problem.Code {
	case problems.CodeLimit:
		of.resource = l.Name
	case problems.CodeQueueFull:
		of.resource = "max_depth"
	}
	if of.resource == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[refusal]int32{}
		r.background.start(func(ctx context.Context) {
			select {
			case <-time.After(noteAfter):
			case <-ctx.Done(): // a server that stops notes what is left
			}
			r.note()
		})
	}
	r.counts[of]++
}

// note writes the counted refusals to ojs.notice. If that fails they are lost.
func (r *refusals) note() {
	r.mu.Lock()
	counts := r.counts
	r.counts = nil
	r.mu.Unlock()
	var params sqlcgen.NoteRefusalsParams
	for of, n := range counts {
		params.Tenants, params.Queues = append(params.Tenants, of.tenant), append(params.Queues, of.queue)
		params.Resources, params.Requests = append(params.Resources, of.resource), append(params.Requests, n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	if err := sqlcgen.New(r.db.Pool()).NoteRefusals(ctx, params); err != nil {
		r.log.Warn("refusals by limits are not noted", "error", err)
	}
}

// noteTimeout is how long a note may take. After that its refusals are lost.
const noteTimeout = 5 * time.Second
