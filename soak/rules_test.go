package soak

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// scope is the set of jobs that a rule is about.
type scope struct {
	Tenant string `json:"tenant,omitempty"` // empty: all tenants together
	Queue  string `json:"queue,omitempty"`  // empty: all
	Pool   string `json:"pool,omitempty"`   // of the workers; empty: any pool
}

func (s scope) has(a attempt) bool {
	return (s.Tenant == "" || s.Tenant == a.tenant) && (s.Queue == "" || s.Queue == a.queue) && (s.Pool == "" || s.Pool == a.pool)
}

func (s scope) String() string {
	if s.Pool != "" {
		return fmt.Sprintf("pool %q", s.Pool)
	}
	return fmt.Sprintf("%q in queue %q", s.Tenant, s.Queue)
}

// pool holds the settings of a pool of workers that do not change. Its concurrency is a limit, which
// does.
type pool struct {
	Name     string   `json:"name"`
	Queues   []string `json:"queues,omitempty"` // empty: all that are not isolated
	Isolated bool     `json:"isolated,omitempty"`
	Tenants  []string `json:"tenants,omitempty"` // empty: all
	Strategy string   `json:"strategy,omitempty"`
}

// noPool is the pool of workers that name none.
const noPool = "default"

var campaignPools = []pool{
	{Name: "narrow", Queues: []string{"mail"}},
	{Name: "wide", Queues: []string{"work", "mail"}, Strategy: "strict"},
	{Name: "bound", Tenants: []string{"gamma"}},
	{Name: "keepers", Queues: []string{"vault"}, Isolated: true},
}

// poolNamed returns the pool with a name, or one without settings if there is none.
func poolNamed(name string) pool {
	for _, p := range campaignPools {
		if p.Name == name {
			return p
		}
	}
	return pool{Name: name}
}

// serves reports whether workers of the pool may have jobs of a queue.
func (p pool) serves(queue string) bool {
	for _, o := range campaignPools {
		if o.Isolated && o.Name != p.Name && slices.Contains(o.Queues, queue) {
			return false
		}
	}
	return len(p.Queues) == 0 || slices.Contains(p.Queues, queue)
}

// servesAny reports whether a worker of the pool may get jobs of any of some queues.
func (p pool) servesAny(queues []string) bool { return slices.ContainsFunc(queues, p.serves) }

// servesTenant reports whether workers of the pool may have jobs of a tenant.
func (p pool) servesTenant(tenant string) bool {
	return len(p.Tenants) == 0 || slices.Contains(p.Tenants, tenant)
}

// change is a rule as a client wants it to be.
type change struct {
	ID string `json:"id"` // relates a confirmation to its request
	scope
	Kind ruleKind `json:"kind"`
	Most int      `json:"most"` // jobs that may run; unlimited: no limit; of a pause, 0: it is paused
}

// ruleKind is the kind of a rule: a limit of running jobs, or a pause. A rule replaces an earlier one of
// the same kind and scope.
type ruleKind string

const (
	limit ruleKind = "limit"
	halt  ruleKind = "pause"
)

const unlimited = math.MaxInt32

// setting is a value that a rule may have had: from the moment at which a client began to set it, until
// it was certainly replaced.
type setting struct {
	most        int
	from, until time.Time
	open        bool // there was no answer: it may take effect at any time, also after another change was confirmed
}

// forever is later than any round.
var forever = time.Unix(1<<40, 0)

// settings holds all values that rules may have had, in the order in which clients began to set them.
type settings map[ruleKind]map[scope][]setting

func readSettings(ledger []entry) settings {
	type asked struct {
		change
		at, sure time.Time
	}
	var changes []*asked
	known := map[string]*asked{}
	for _, e := range ledger {
		if e.What == rules {
			c := &asked{change: *e.Change, at: e.At}
			changes, known[c.ID] = append(changes, c), c
		}
	}
	for _, e := range ledger {
		if e.What == ruled {
			known[e.Change.ID].sure = e.At
		}
	}
	slices.SortFunc(changes, func(a, b *asked) int { return a.at.Compare(b.at) })
	all := settings{limit: {}, halt: {}}
	for _, c := range changes {
		of := all[c.Kind][c.scope]
		if of == nil {
			of = []setting{{most: unlimited, until: forever}}
		}
		if !c.sure.IsZero() {
			// Only one client changes this rule, so a confirmed change ends those before it.
			for i := range of {
				if !of[i].open {
					of[i].until = minTime(of[i].until, c.sure)
				}
			}
		}
		all[c.Kind][c.scope] = append(of, setting{most: c.Most, from: c.at, until: forever, open: c.sure.IsZero()})
	}
	return all
}

// most returns the largest number that a rule may have allowed at some moment between two.
func most(of []setting, from, until time.Time) int {
	n := 0
	for _, s := range of {
		if !s.from.After(until) && !s.until.Before(from) {
			n = max(n, s.most)
		}
	}
	return n
}

// attempt is a job that a worker held. sent is when it asked for the job, from when it received it. The
// job was certainly active from then until the moment until, when the worker began to finish it or the
// lease may have been over.
type attempt struct {
	id, tenant, queue string
	pool              string // empty: not known
	sent, from, until time.Time
}

// attempts returns the attempts of all jobs, in the order in which workers received them.
func (a *account) attempts() []attempt {
	var all []attempt
	for id, s := range a.stories {
		for _, h := range s.held {
			until := h.until
			if !s.cancels.IsZero() {
				until = minTime(until, s.cancels)
			}
			all = append(all, attempt{id: id, tenant: s.tenant, queue: h.queue, pool: h.pool, sent: h.sent, from: h.from, until: until})
		}
	}
	slices.SortFunc(all, func(a, b attempt) int { return a.from.Compare(b.from) })
	return all
}

// obeyed checks, from the ledger alone, that no attempt broke a limit, a pause or the rules of a pool.
func (f *findings) obeyed(ledger []entry, told *account) {
	all, attempts := readSettings(ledger), told.attempts()
	within := func(of scope) []attempt {
		return slices.DeleteFunc(slices.Clone(attempts), func(a attempt) bool { return !of.has(a) })
	}
	for _, a := range attempts {
		f.inPool(a)
	}
	for of, values := range all[halt] {
		f.paused(of, values, within(of))
	}
	for of, values := range all[limit] {
		f.limited(of, values, within(of))
	}
	for _, e := range ledger {
		switch {
		case e.What == ruled && e.Change.Kind == halt && e.Change.Most == 0:
			f.pauses++
		case e.What == ruled && e.Change.Kind == limit:
			f.limits++
		case e.What == barred && !mayBeLimited(all[limit], e):
			f.violation("a FETCH of %s at %v was refused for its pool's concurrency, and there was none", e.Tenant, e.Sent)
		}
	}
}

// inPool checks that the worker's pool serves the queue and the tenant of its job.
func (f *findings) inPool(a attempt) {
	p := poolNamed(a.pool)
	switch {
	case a.pool == "":
	case !p.serves(a.queue):
		f.violation("job %s of queue %s was received at %v by a worker of pool %s, which does not serve it", a.id, a.queue, a.from,
			a.pool)
	case !p.servesTenant(a.tenant):
		f.violation("job %s of tenant %s was received at %v by a worker of pool %s, which is not for it", a.id, a.tenant, a.from,
			a.pool)
	}
}

// mayBeLimited reports whether the worker's pool may have had a concurrency at the moment of a FETCH by a
// tenant's login.
func mayBeLimited(limits map[scope][]setting, e entry) bool {
	for of, values := range limits {
		if of.Pool != "" && of.Pool == e.Pool && slices.ContainsFunc(values, func(s setting) bool {
			return s.most < unlimited && !s.from.After(e.At) && !s.until.Before(e.Sent)
		}) {
			return true
		}
	}
	return false
}

// paused checks that no worker got a job for which it asked after a pause was confirmed and before a
// client began to end the pause.
func (f *findings) paused(of scope, values []setting, mine []attempt) {
	for _, a := range mine {
		if most(values, a.sent, a.from) == 0 {
			f.violation("job %s was asked for at %v and received at %v, while %v was paused", a.id, a.sent, a.from, of)
		}
	}
}

// limited checks that no limit was exceeded. Of attempts that certainly ran at the same time, all others
// ran when the last one was dispatched. That was after all had been asked for and before all had been
// received, so the limit must have allowed their number at some moment of that time.
//
// A FETCH that began when there may have been no limit may have been served by a transaction that the
// count of a new limit did not see. Its jobs count for FETCHes that began after they were received.
func (f *findings) limited(of scope, values []setting, mine []attempt) {
	var running []attempt
	for _, a := range mine {
		running = slices.DeleteFunc(append(running, a), func(b attempt) bool { return !b.until.After(a.from) })
		var asked, received time.Time
		free := func(b attempt) bool { return most(values, b.sent, b.from) == unlimited }
		n := 0
		for _, b := range running {
			if !free(b) {
				asked, received, n = later(asked, b.sent), later(received, b.from), n+1
			}
		}
		for _, b := range running {
			if free(b) && !b.from.After(asked) {
				n++
			}
		}
		switch allowed := most(values, asked, received); {
		case n == 0:
		case n > allowed:
			f.violation("%v: at %v %d jobs ran, %d are allowed, the last one (%s) was asked for at %v", of, a.from, n, allowed, a.id, asked)
		case n == allowed && a.until.After(a.from):
			f.full++
			if of.Pool != "" {
				f.fullPools++
			}
		}
	}
}
