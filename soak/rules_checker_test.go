package soak

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// tale is a ledger about rules and jobs, made up for a test.
type tale []entry

// at returns a moment, in milliseconds since the beginning.
func at(ms int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(ms) * time.Millisecond) }

// set adds a change of a rule. confirmed is when it was confirmed; 0: there was no answer.
func (l tale) set(kind ruleKind, of scope, most, asked, confirmed int) tale {
	c := &change{ID: newID(), scope: of, Kind: kind, Most: most}
	l = append(l, entry{What: rules, At: at(asked), Change: c})
	if confirmed > 0 {
		l = append(l, entry{What: ruled, At: at(confirmed), Change: c})
	}
	return l
}

func (l tale) limit(most, asked, confirmed int) tale {
	return l.set(limit, scope{Tenant: "t"}, most, asked, confirmed)
}

func (l tale) pause(asked, confirmed int) tale {
	return l.set(halt, scope{Tenant: "t"}, 0, asked, confirmed)
}

func (l tale) resume(asked, confirmed int) tale {
	return l.set(halt, scope{Tenant: "t"}, unlimited, asked, confirmed)
}

func (l tale) got(id string, sent, read, lease int) tale {
	return l.gotOf("t", "q", id, sent, read, lease)
}

// gotOf adds a FETCH that got a job of a tenant in a queue, whose lease may end at the moment lease.
func (l tale) gotOf(tenant, queue, id string, sent, read, lease int) tale {
	return append(l, entry{What: enqueues, IDs: []string{id}, Tenant: tenant},
		entry{What: fetched_, IDs: []string{id}, Queue: queue, Lease: id, At: at(read), Sent: at(sent), Until: at(lease)})
}

// gotIn adds a FETCH of a worker of a pool that got a job. pool "": the pool is not known.
func (l tale) gotIn(pool, tenant, queue, id string, sent, read int) tale {
	l = l.gotOf(tenant, queue, id, sent, read, 1000)
	l[len(l)-1].Pool = pool
	return l
}

// says adds an entry about a job.
func (l tale) says(w what, id string, when, lease int) tale {
	return append(l, entry{What: w, IDs: []string{id}, Lease: id, At: at(when), Until: at(lease)})
}

// refusedIn adds a FETCH of a tenant's login that was refused because the pool has a concurrency.
func (l tale) refusedIn(pool string, sent, read int) tale {
	return append(l, entry{What: barred, Tenant: "t", Pool: pool, Sent: at(sent), At: at(read)})
}

// The checker finds attempts that certainly break a rule, and lets attempts pass that may not.
func TestTheCheckerSeesWhetherRulesAreObeyed(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(limitTales(), newLimitTales(), scopeTales(), poolTales(), pauseTales(), refusalTales()) {
		t.Run(c.name, func(t *testing.T) {
			f := &findings{}
			f.obeyed(c.ledger, f.read(c.ledger))
			if got := strings.Join(f.violations, "\n"); !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

type ruleTale struct {
	name   string
	ledger tale
	want   string // empty: nothing
}

func limitTales() []ruleTale {
	one := tale{}.limit(1, 1, 2)
	busy := one.got("a", 10, 20, 1000)
	return []ruleTale{
		{"two at once where one may", busy.got("b", 30, 40, 1000), "2 jobs ran, 1 are allowed, the last one (b)"},
		{"two at once where two may", tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).got("b", 30, 40, 1000), ""},
		{"two in one answer", busy.got("b", 10, 20, 1000), "2 jobs ran"},
		{"asked for first and received last", one.got("b", 30, 40, 1000).got("a", 10, 50, 1000), "2 jobs ran"},
		{"an end was asked for before", busy.says(finishes, "a", 39, 0).got("b", 30, 40, 1000), ""},
		{"an end was asked for afterwards", busy.says(finishes, "a", 41, 0).got("b", 30, 40, 1000), "2 jobs ran"},
		{"the first lease was over", one.got("a", 10, 20, 35).got("b", 30, 40, 1000), ""},
		{
			"the first lease was over, and was extended",
			one.got("a", 10, 20, 35).says(extended, "a", 30, 1000).got("b", 30, 40, 1000), "2 jobs ran",
		},
		{"the second lease was over when it was read", busy.got("b", 30, 40, 35), ""},
		{"somebody was about to cancel the first", busy.says(cancels, "a", 39, 0).got("b", 30, 40, 1000), ""},
		{"raised before", busy.limit(2, 25, 28).got("b", 30, 40, 1000), ""},
		{"raised while it was under way", busy.limit(2, 35, 38).got("b", 30, 40, 1000), ""},
		{"raised too late", busy.limit(2, 45, 48).got("b", 30, 40, 1000), "2 jobs ran"},
		{"raised, and nobody answered", busy.limit(2, 25, 0).got("b", 30, 40, 1000), ""},
		{"raised, and nobody answered, and confirmed anew since", busy.limit(2, 21, 0).limit(1, 22, 23).got("b", 30, 40, 1000), ""},
		{
			"raised, and nobody answered, and more than that",
			busy.limit(2, 21, 0).got("b", 30, 40, 1000).got("c", 50, 60, 1000), "3 jobs ran, 2 are",
		},
		{"lowered before", tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).limit(1, 21, 22).got("b", 30, 40, 1000), "2 jobs ran, 1 are"},
		{"lowered while it was under way", tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).limit(1, 31, 32).got("b", 30, 40, 1000), ""},
		{"lowered below what runs", tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).got("b", 10, 20, 1000).limit(1, 31, 32), ""},
		{
			"lowered below what runs, and more came",
			tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).got("b", 10, 20, 1000).limit(1, 31, 32).got("c", 40, 50, 1000), "3 jobs ran, 1",
		},
		{"lowered, and nobody answered", tale{}.limit(2, 1, 2).got("a", 10, 20, 1000).limit(1, 21, 0).got("b", 30, 40, 1000), ""},
		{"removed", busy.limit(unlimited, 21, 22).got("b", 30, 40, 1000), ""},
	}
}

// newLimitTales returns tales about jobs that ran before there was a limit.
func newLimitTales() []ruleTale {
	return []ruleTale{
		{"what ran already counts", tale{}.got("a", 1, 5, 1000).limit(1, 10, 20).got("b", 30, 40, 1000), "2 jobs ran"},
		{"what ran already may run", tale{}.got("a", 1, 5, 1000).got("b", 1, 5, 1000).limit(1, 10, 20), ""},
		{
			"what was under way, and received before the other was asked for",
			tale{}.limit(1, 10, 20).got("a", 5, 25, 1000).got("b", 30, 40, 1000), "2 jobs ran",
		},
		{"what was under way, and received afterwards", tale{}.limit(1, 10, 20).got("b", 30, 40, 1000).got("a", 5, 50, 1000), ""},
		{
			"what was under way is no excuse for others",
			tale{}.limit(1, 10, 20).got("b", 30, 40, 1000).got("a", 5, 50, 1000).got("c", 60, 70, 1000), "3 jobs ran",
		},
		{"a limit of which nobody had word", tale{}.limit(1, 10, 0).got("a", 20, 30, 1000).got("b", 20, 30, 1000), ""},
	}
}

func scopeTales() []ruleTale {
	of := func(s scope) tale { return tale{}.set(limit, s, 1, 1, 2).gotOf("t", "q", "a", 10, 20, 1000) }
	return []ruleTale{
		{"another tenant's job", of(scope{Tenant: "t"}).gotOf("u", "q", "b", 30, 40, 1000), ""},
		{"the tenant's job in another queue", of(scope{Tenant: "t"}).gotOf("t", "r", "b", 30, 40, 1000), `"t" in queue "": at`},
		{"another tenant's job in the queue", of(scope{Queue: "q"}).gotOf("u", "q", "b", 30, 40, 1000), `"" in queue "q": at`},
		{"a job in another queue", of(scope{Queue: "q"}).gotOf("t", "r", "b", 30, 40, 1000), ""},
		{"the tenant's job in the queue", of(scope{Tenant: "t", Queue: "q"}).gotOf("t", "q", "b", 30, 40, 1000), `"t" in queue "q": at`},
		{"the tenant's job in a queue without", of(scope{Tenant: "t", Queue: "q"}).gotOf("t", "r", "b", 30, 40, 1000), ""},
	}
}

// poolTales returns tales about the concurrency of pools, and about the tenants that pools serve.
func poolTales() []ruleTale {
	most := func(n, asked, confirmed int) tale { return tale{}.set(limit, scope{Pool: "wide"}, n, asked, confirmed) }
	one := most(1, 1, 2).gotIn("wide", "t", "work", "a", 10, 20)
	return []ruleTale{
		{"two of a pool", one.gotIn("wide", "u", "mail", "b", 30, 40), `pool "wide": at`},
		{"a job of a worker of another pool", one.gotIn("narrow", "t", "mail", "b", 30, 40), ""},
		{"a job of a worker of no pool", one.gotIn(noPool, "t", "work", "b", 30, 40), ""},
		{"a job of a worker of whom nobody knows", one.gotIn("", "t", "work", "b", 30, 40), ""},
		{"two of a pool, and an end between", one.says(finishes, "a", 29, 0).gotIn("wide", "t", "work", "b", 30, 40), ""},
		{
			"a concurrency is removed, and set again",
			most(1, 1, 2).set(limit, scope{Pool: "wide"}, unlimited, 3, 4).gotIn("wide", "t", "work", "a", 10, 20).
				set(limit, scope{Pool: "wide"}, 1, 25, 26).gotIn("wide", "t", "work", "b", 30, 40), "2 jobs ran, 1 are allowed",
		},
		{
			"what ran already when a concurrency is set",
			tale{}.gotIn("wide", "t", "work", "a", 1, 5).gotIn("wide", "t", "work", "b", 1, 5).
				set(limit, scope{Pool: "wide"}, 1, 10, 20), "",
		},
		{"a queue that is not the pool's", tale{}.gotIn("narrow", "t", "work", "a", 10, 20), "a worker of pool narrow, which does not"},
		{"a queue that another pool isolates", tale{}.gotIn("bound", "gamma", "vault", "a", 10, 20), "job a of queue vault was received"},
		{"an isolated queue without a pool", tale{}.gotIn(noPool, "t", "vault", "a", 10, 20), "a worker of pool default"},
		{"an isolated queue, and nobody knows the pool", tale{}.gotIn("", "t", "vault", "a", 10, 20), ""},
		{"an isolated queue in its pool", tale{}.gotIn("keepers", "t", "vault", "a", 10, 20), ""},
		{"a tenant that is not the pool's", tale{}.gotIn("bound", "t", "work", "a", 10, 20), "tenant t was received"},
		{"a tenant of the pool", tale{}.gotIn("bound", "gamma", "work", "a", 10, 20), ""},
		{"refused for the pool's concurrency", most(1, 1, 2).refusedIn("wide", 10, 20), ""},
		{"refused for another pool's concurrency", most(1, 1, 2).refusedIn("bound", 10, 20), "there was none"},
		{"refused without a pool", most(1, 1, 2).refusedIn(noPool, 10, 20), "there was none"},
	}
}

func pauseTales() []ruleTale {
	paused := tale{}.pause(1, 10)
	return []ruleTale{
		{"asked for and received in a pause", paused.resume(50, 60).got("a", 20, 40, 1000), "was paused"},
		{"received in a pause when the lease was over", paused.resume(50, 60).got("a", 20, 40, 30), "was paused"},
		{"asked for before the pause was confirmed", paused.resume(50, 60).got("a", 9, 40, 1000), ""},
		{"received when somebody had set about its end", paused.resume(50, 60).got("a", 20, 55, 1000), ""},
		{"paused, and nobody answered", tale{}.pause(1, 0).got("a", 20, 40, 1000), ""},
		{"resumed without an answer, and paused again", paused.resume(12, 0).pause(14, 16).got("a", 20, 40, 1000), ""},
		{"paused twice", paused.pause(12, 14).got("a", 20, 40, 1000), "was paused"},
		{"everything was paused", tale{}.set(halt, scope{}, 0, 1, 10).got("a", 20, 40, 1000), "was paused"},
		{"another queue was paused", tale{}.set(halt, scope{Queue: "r"}, 0, 1, 10).got("a", 20, 40, 1000), ""},
	}
}

func refusalTales() []ruleTale {
	wide := scope{Pool: "wide"}
	return []ruleTale{
		{"refused for a concurrency that is about to be", tale{}.set(limit, wide, 1, 15, 25).refusedIn("wide", 10, 20), ""},
		{
			"refused for a concurrency that is gone", tale{}.set(limit, wide, 1, 1, 2).set(limit, wide, unlimited, 3, 4).
				refusedIn("wide", 10, 20),
			"there was none",
		},
		{"refused for a limit of the tenant", tale{}.limit(1, 1, 2).refusedIn("wide", 10, 20), "there was none"},
	}
}
