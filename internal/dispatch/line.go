package dispatch

import (
	"container/list"
	"time"
)

// line is the queue of groups that wait for a decision. Tenants take turns, and so do the groups of
// each tenant; all requests without a tenant count as one.
//
// The groups of a decision share a transaction, so all of them wait for the slowest, and a tenant
// decides how slow its groups are: it may ask for a hundred queues with two hundred priorities
// each. So a tenant begins with one group in a decision, and gets more while decisions are fast.
type line struct {
	turns list.List // of *tenantLine, the next one in front
	of    map[string]*tenantLine
	most  map[string]int // groups of a tenant in a decision, where that is more than one
}

type tenantLine struct {
	name   string
	groups []*group
	turn   *list.Element
}

const (
	slowDecision = 100 * time.Millisecond
	maxTogether  = 8      // groups of one tenant in a decision
	maxKnown     = 10_000 // tenants of which is known how many groups they may have
)

func (l *line) empty() bool { return l.turns.Len() == 0 }

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
// nil. taken counts the groups that are in it.
func (l *line) next(taken map[string]int) *group {
	for e := l.turns.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*tenantLine); taken[t.name] < max(1, l.most[t.name]) {
			return t.groups[0]
		}
	}
	return nil
}

// remove takes the first group of its tenant out of the queue. The tenant's next group comes after
// those of all other tenants.
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

// learn adjusts how many groups a tenant may have in a decision, by how long a decision with so
// many took.
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
