package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAdminUsage(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	// The hour before is closed without waiting for its end: what is rolled up was rolled up an hour ago.
	o.sql(`select ojs.tick()`)
	if got := o.admin(1, "usage", "latest", "acme"); !strings.Contains(got, "usage acme does not exist") {
		t.Error(got)
	}
	o.sql(`update ojs.tally_mark set at = at - interval '1 hour', usage_at = '-infinity'`)
	o.sql(`select ojs.tick()`)
	o.lines(o.admin(0, "usage"), "tenant age jobs attempts done failed worker_ms", "acme ", "globex ")
	o.lines(o.admin(0, "usage", "latest", "acme"), "tenant_id acme", "n 1", "enqueued 2")
	var rows []struct{ Enqueued int }
	err := json.Unmarshal([]byte(o.admin(0, "--json", "--tenant", "globex", "usage")), &rows)
	if err != nil || len(rows) != 1 || rows[0].Enqueued != 2 {
		t.Errorf("%v, %v", rows, err)
	}
	csv := o.admin(0, "usage", "csv", "--since", "2020-01-01T00:00:00Z")
	head, rest, _ := strings.Cut(csv, "\n")
	if !strings.HasPrefix(head, "tenant_id,n,hour,closed_at,enqueued,") || strings.Count(rest, "\n") != 2 {
		t.Error(csv)
	}
	csv = o.admin(0, "usage", "csv", "--until", "2020-01-01T00:00:00Z", "--since", "2019-01-01T00:00:00Z")
	if strings.Count(csv, "\n") != 1 {
		t.Error(csv)
	}
	o.admin(0, "usage", "verify")
	o.sql(`update ojs.usage_batch set enqueued = 1 where tenant_id = 'acme'`)
	o.admin(4, "usage", "verify")
	o.admin(0, "--tenant", "globex", "usage", "verify")
	o.admin(1, "usage", "prune", "--before", "P400D") // the service may not
	o.url = o.operator()
	o.lines(o.admin(0, "usage", "prune", "--before", "P400D"), "rows 0")
	o.admin(1, "usage", "prune", "--before", "2100-01-01T00:00:00Z")
	o.admin(2, "usage", "prune")
	o.admin(2, "usage", "prune", "--before", "soon")
	o.admin(2, "--tenant", "acme", "usage", "prune", "--before", "P1D")
	o.admin(2, "usage", "--since", "noon")
}
