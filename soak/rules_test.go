package soak

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// scope is what a rule is about.
type scope struct {
	Tenant string `json:"tenant,omitempty"` // empty: all together
	Queue  string `json:"queue,omitempty"`  // empty: all
	Pool   string `json:"pool,omitempty"`   // of the workers; empty: whatever their pools
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

// pool is what a pool of workers is throughout. How many jobs they may run is a limit like others.
type pool struct {
	Name     string   `json:"name"`
	Queues   []string `json:"queues,omitempty"` // empty: all that are not isolated
	Isolated bool     `json:"isolated,omitempty"`
	Tenants  []string `json:"tenants,omitempty"` // empty: all
	Strategy string   `json:"strategy,omitempty"`
}

// noPool is where workers are that name none.
const noPool = "default"

var campaignPools = []pool{
	{Name: "narrow", Queues: []string{"mail"}},
	{Name: "wide", Queues: []string{"work", "mail"}, Strategy: "strict"},
	{Name: "bound", Tenants: []string{"gamma"}},
	{Name: "keepers", Queues: []string{"vault"}, Isolated: true},
}

// poolNamed has no settings if there is none of that name.
func poolNamed(name string) pool {
	for _, p := range campaignPools {
		if p.Name == name {
			return p
		}
	}
	return pool{Name: name}
}

// serves is whether its workers may have jobs of a queue.
func (p pool) serves(queue string) bool {
	for _, o := range campaignPools {
		if o.Isolated && o.Name != p.Name && slices.Contains(o.Queues, queue) {
			return false
		}
	}
	return len(p.Queues) == 0 || slices.Contains(p.Queues, queue)
}

// servesAny is whether a FETCH that names some queues is one for its workers.
func (p pool) servesAny(queues []string) bool { return slices.ContainsFunc(queues, p.serves) }

// servesTenant is whether its workers may have jobs of a tenant.
func (p pool) servesTenant(tenant string) bool {
	return len(p.Tenants) == 0 || slices.Contains(p.Tenants, tenant)
}

// change is a rule as somebody wants it to be.
type change struct {
	ID string `json:"id"` // says which confirmation belongs to which request
	scope
	Kind ruleKind `json:"kind"`
	Most int      `json:"most"` // how many jobs may run; unlimited: there is no rule; of a pause 0: there is one
}

// ruleKind is what a rule restricts. Rules of one kind about one scope replace each other.
type ruleKind string

const (
	limit ruleKind = "limit"
	halt  ruleKind = "pause"
)

const unlimited = math.MaxInt32

// setting is what a rule may have said for a while: from the moment at which somebody set about it, until it was certainly replaced.
type setting struct {
	most        int
	from, until time.Time
	open        bool // nobody answered: it may begin to hold at any time, also after another one was confirmed
}

// forever is later than any round.
var forever = time.Unix(1<<40, 0)

// settings are all that rules may have said, in the order in which somebody set about it.
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
			// Nobody else changes this rule meanwhile.
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

// most is the largest number that a rule may have allowed at some instant between two.
func most(of []setting, from, until time.Time) int {
	n := 0
	for _, s := range of {
		if !s.from.After(until) && !s.until.Before(from) {
			n = max(n, s.most)
		}
	}
	return n
}

// attempt is a job in a worker's hands: asked for, received, and certainly active from then until it was finished or its lease may have
// been over.
type attempt struct {
	id, tenant, queue string
	pool              string // empty: nobody knows
	sent, from, until time.Time
}

// attempts are those of all jobs, in the order in which they were received.
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

// obeyed asks whether limits, pauses and pools were, by what the clients know.
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

// inPool: nobody has a job that is not for workers of its pool.
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

// mayBeLimited is whether there may have been a concurrency of the worker's pool while a tenant's login asked.
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

// paused: nobody gets a job for which he asked when the pause was confirmed, before somebody has set about its end.
func (f *findings) paused(of scope, values []setting, mine []attempt) {
	for _, a := range mine {
		if most(values, a.sent, a.from) == 0 {
			f.violation("job %s was asked for at %v and received at %v, while %v was paused", a.id, a.sent, a.from, of)
		}
	}
}

// limited: of attempts that certainly ran at the same time, all others ran when the last one was dispatched. That was after all had
// been asked for and before all had been received, so in that time the limit must have allowed their number. A request that asked when
// there may have been no limit may have been dispatched by a transaction that the count of a new limit did not see. Such attempts are
// counted by what is asked for after they were received.
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
