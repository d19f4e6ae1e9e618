package kit

import (
	"context"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// refusals are those that limits have caused since the last note of them.
type refusals struct {
	noting sync.Mutex // held while some are noted
	mu     sync.Mutex
	counts map[refusal]int32
}

type refusal struct{ tenant, queue, resource string }

// noteAfter is how long refusals are collected before they are noted.
const noteAfter = time.Second

// Count has a refusal that a limit has caused noted, soon and together with others.
func (p *Problems) Count(problem *pg.Error) {
	var of refusal
	switch of.tenant, _ = problem.Details["tenant_id"].(string); problem.Code {
	case CodeLimit:
		of.resource, _ = problem.Details["limit"].(string)
	case codeQueueFull:
		of.resource = "max_depth"
	}
	if of.resource == "" {
		return
	}
	of.queue, _ = problem.Details["queue"].(string)
	p.refused.mu.Lock()
	defer p.refused.mu.Unlock()
	if p.refused.counts == nil {
		p.refused.counts = map[refusal]int32{}
		time.AfterFunc(noteAfter, p.NoteRefusals)
	}
	p.refused.counts[of]++
}

// NoteRefusals notes what has been refused since the last note. It returns when that and every note under way is
// written: a server that stops would lose them otherwise.
func (p *Problems) NoteRefusals() {
	p.refused.noting.Lock()
	defer p.refused.noting.Unlock()
	p.refused.mu.Lock()
	counts := p.refused.counts
	p.refused.counts = nil
	p.refused.mu.Unlock()
	if counts == nil {
		return
	}
	var params sqlcgen.NoteRefusalsParams
	for of, n := range counts {
		params.Tenants, params.Queues = append(params.Tenants, of.tenant), append(params.Queues, of.queue)
		params.Resources, params.Requests = append(params.Resources, of.resource), append(params.Requests, n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	if err := sqlcgen.New(p.db.Pool()).NoteRefusals(ctx, params); err != nil {
		p.log.Warn("refusals by limits are not noted", "error", err)
	}
}

// noteTimeout ends a note; the refusals in it are lost then.
const noteTimeout = 5 * time.Second
