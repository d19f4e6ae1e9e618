package db_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What a tenant's own workers take counts against it at shared workers: the other tenant, of the same weight, goes first for as many jobs,
// but for no more than 100.
func TestWhatATenantsOwnWorkersTakeCountsToABound(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	own := d.As("a")
	for n, c := range []struct {
		name, unit string
		own        func(queue string, count int)
	}{
		{"a header names the tenant", "jobs", func(queue string, count int) { fetchAs(t, service, queue, count) }},
		{"a header, by cost", "cost", func(queue string, count int) { fetchAs(t, service, queue, count) }},
		{"a header, by time", "time", func(queue string, count int) { fetchAs(t, service, queue, count) }},
		{"the tenant's login", "jobs", func(queue string, count int) { taken(t, own, queue, count) }},
		{"the tenant's login, by cost", "cost", func(queue string, count int) { taken(t, own, queue, count) }},
	} {
		for count, want := range map[int]int{30: 30, 250: 100} {
			queue := fmt.Sprintf("q%d-%d", n, count)
			exec(t, operator, "select ojs.configure_queue($1, jsonb_build_object('tenant_fairness', jsonb_build_object('unit', $2::text)))",
				queue, c.unit)
			enqueueFor(t, service, queue, "a", 500)
			enqueueFor(t, service, queue, "b", 500)
			exec(t, d.Pool, "select ojs._fold_on()")
			taken(t, service, queue, 2)
			for left := count; left > 0; left -= 10 {
				c.own(queue, 10)
			}
			exec(t, d.Pool, "select ojs._fold_on()")
			order := taken(t, service, queue, 300)
			if first := strings.Index(order, "a"); first < want-2 || first > want+2 {
				t.Errorf("%s took %d: shared workers served %d jobs of the other tenant first, want %d", c.name, count, first, want)
			}
			if rest := order[min(len(order), want+4):]; strings.Count(rest, "a") < len(rest)/2-2 {
				t.Errorf("%s: then they do not share: %s", c.name, rest)
			}
			ringsAgree(t, d.Pool)
			for left := 1; left > 0; {
				left = len(taken(t, service, queue, 500))
			}
		}
	}
}

func fetchAs(t *testing.T, q *pgxpool.Pool, queue string, count int) {
	t.Helper()
	exec(t, q, "select ojs.fetch(array[$1], $2, p_tenant => 'a')", queue, count)
}
