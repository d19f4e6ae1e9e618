package dispatch

import (
	"slices"
	"testing"
	"time"
)

// decideAll takes decisions until no group waits, and returns the tenants of the groups in each.
func decideAll(l *line, took time.Duration) (decisions [][]string) {
	for !l.empty() {
		taken := map[string]int{}
		var names []string
		for g := l.next(taken); g != nil; g = l.next(taken) {
			l.remove(g)
			taken[g.tenantName()]++
			names = append(names, g.tenantName()+g.key.queues)
		}
		l.learn(taken, took)
		decisions = append(decisions, names)
	}
	return decisions
}

func inLine(l *line, tenant, queues string) {
	g := &group{key: groupKey{queues: queues}}
	if tenant != "" {
		g.tenant = &tenant
	}
	l.add(g)
}

// A tenant has many groups in a decision only while decisions are fast, and the groups of another tenant
// do not wait for them.
func TestGroupsOfOneTenantInADecision(t *testing.T) {
	t.Parallel()
	var l line
	fill := func() {
		for _, queues := range []string{"1", "2", "3", "4", "5", "6"} {
			inLine(&l, "flood", queues)
		}
		inLine(&l, "", "a")
		inLine(&l, "small", "b")
		inLine(&l, "", "c")
	}
	for _, c := range []struct {
		took time.Duration
		want [][]string
	}{
		{slowDecision / 4, [][]string{{"flood1", "a", "smallb"}, {"flood2", "c", "flood3"}, {"flood4", "flood5", "flood6"}}},
		// The tenant may have four groups and more by now. One slow decision reduces that again.
		{5 * slowDecision, [][]string{{"flood1", "a", "smallb", "flood2", "c", "flood3", "flood4"}, {"flood5"}, {"flood6"}}},
		{slowDecision - 1, [][]string{{"flood1", "a", "smallb"}, {"flood2", "c"}, {"flood3"}, {"flood4"}, {"flood5"}, {"flood6"}}},
	} {
		fill()
		if got := decideAll(&l, c.took); !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("decisions of %v: %v", c.took, got)
		}
	}
	for range 10 {
		for range 2 * maxTogether {
			inLine(&l, "flood", "")
		}
		if got := decideAll(&l, 0); len(got[0]) > maxTogether {
			t.Errorf("%d groups of one tenant", len(got[0]))
		}
	}
}
