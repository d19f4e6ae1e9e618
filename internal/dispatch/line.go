package dispatch

import (
	"container/list"
	"time"
)

// line is the queue of groups that wait for a decision. Tenants take turns, and so do the groups of
// each tenant; all requests without a tenant count as one tenant. Dispatcher.mu guards it.
//
// The groups of a decision share a transaction, so all of them wait for the slowest, and a tenant
// decides how slow its groups are: it may ask for a hundred queues with two hundred priorities
// each. So a tenant begins with one group in a decision, and gets more while decisions are fast.
type line struct {
	turns list.List              // of *tenantLine with groups, the next one in front
	of    map[string]*tenantLine // the same, by tenant
	most  map[string]int         // most groups of a tenant in a decision; not in it: one
}

// tenantLine is the queue of a tenant's groups. It exists while it has a group.
type tenantLine struct {
	name   string
	groups []*group      // the next one first
	turn   *list.Element // in line.turns
}

const (
	slowDecision = 100 * time.Millisecond // after a slower one, its tenants get fewer groups
	maxTogether  = 8                      // groups of one tenant in a decision
	maxKnown     = 10_000                 // tenants in line.most; it is emptied when it is full
)

// empty reports whether no group waits for a decision.
func (l *line) empty() bool { return l.turns.Len() == 0 }

// add queues a group behind the other groups of its tenant. The caller sees to it that no group is
// queued twice (group.inLine).
func (l *line) add(g *group) {
	name := g.tenantName()
	t := l.of[name]
	if t == nil {
		if l.of == nil {
			l.of = map[string]*tenantLine{}
		}
		t = &tenantLine{name: name}
		t.turn = l.turns.PushBack(t)
		l.of[name] = t
	}
	t.groups = append(t.groups, g)
}

// next returns the first group of the next tenant that may have another group in the decision, or
// nil. It leaves the group in the queue. taken counts the groups in the decision by tenant.
func (l *line) next(taken map[string]int) *group {
	for e := l.turns.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*tenantLine); taken[t.name] < max(1, l.most[t.name]) {
			return t.groups[0]
		}
	}
	return nil
}

// remove takes g, which must be the first group of its tenant, out of the queue. The tenant's next
// group comes after those of all other tenants.
func (l *line) remove(g *group) {
	t := l.of[g.tenantName()]
	t.groups[0] = nil
	if t.groups = t.groups[1:]; len(t.groups) == 0 {
		l.turns.Remove(t.turn)
		delete(l.of, t.name)
		return
	}
	l.turns.MoveToBack(t.turn)
}

// learn adjusts how many groups a tenant may have in a decision. taken is the number in the decision
// that has just ended, and took its duration: after a slow one fewer, in proportion; after one of
// less than half of slowDecision twice as many, if the tenant had all that it may have.
func (l *line) learn(taken map[string]int, took time.Duration) {
	for name, n := range taken {
		switch {
		case took > slowDecision:
			if n = int(time.Duration(n) * slowDecision / took); n > 1 {
				l.most[name] = n
			} else {
				delete(l.most, name)
			}
		case n == max(1, l.most[name]) && took < slowDecision/2:
			if len(l.most) >= maxKnown || l.most == nil {
				l.most = map[string]int{}
			}
			l.most[name] = min(2*n, maxTogether)
		}
	}
}

// tenantName returns the group's tenant, or "" if it has none.
func (g *group) tenantName() string {
	if g.tenant == nil {
		return ""
	}
	return *g.tenant
}
