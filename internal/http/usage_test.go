package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The usage ledger over HTTP: pages, a period, CSV, the latest row, and a tenant's own rows.
func TestUsageOverHTTP(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	noon := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	r.gives("GET /usage", "", 200, `{"items": [], "pagination": {"has_more": false}}`)
	r.gives("GET /usage/latest?tenant=acme", "", 404, `{"error": {"code": "not_found"}}`)
	for hour := range 4 {
		r.db.SetNow(noon.Add(time.Duration(hour) * time.Hour))
		r.sql("select ojs.tick()")
		if hour < 3 {
			r.sql("select ojs.enqueue('a', p_tenant => t) from unnest('{acme,globex}'::text[]) t")
			r.sql("select ojs.tick()")
		}
	}
	r.gives("GET /admin/usage?limit=3", "", 200, `{"items": [{"tenant_id": "acme", "n": 1, "hour": "2031-05-04T12:00:00Z", "enqueued": 1},
		{"tenant_id": "globex", "n": 1}, {"tenant_id": "acme", "n": 2}],
		"pagination": {"has_more": true, "next_cursor": "`+fmt.Sprint(noon.Add(time.Hour).Unix())+`.acme", "limit": 3}}`)
	r.gives("GET /usage?limit=3&cursor="+fmt.Sprint(noon.Add(time.Hour).Unix())+".acme", "", 200, `{"usage": [
		{"tenant_id": "globex", "n": 2}, {"tenant_id": "acme", "n": 3}, {"tenant_id": "globex", "n": 3}],
		"pagination": {"has_more": false}}`)
	r.gives("GET /usage?since=2031-05-04T13:00:00Z&until=2031-05-04T14:00:00Z&tenant=acme", "", 200, `{"usage": [{"n": 2}]}`)
	r.gives("GET /usage/latest?tenant=acme", "", 200, `{"tenant_id": "acme", "n": 3}`)
	r.gives("GET /usage/latest", "", 200, `{"tenant_id": "globex", "n": 3}`)
	for call, field := range map[string]string{
		"cursor=x": "cursor", "cursor=1.%20": "cursor", "format=xml": "format", "since=noon": "since", "limit=0": "limit",
	} {
		r.refuses("GET /usage?"+call, "", 400, field)
	}

	csv := func(r *room, call string) []string {
		t.Helper()
		status, body := r.send(call, "")
		if status != http.StatusOK || !strings.HasPrefix(body, "tenant_id,n,hour,") {
			t.Fatalf("%s answers %d: %s", call, status, body)
		}
		return strings.Split(strings.TrimSpace(body), "\n")[1:]
	}
	if got := csv(r, "GET /usage?format=csv&limit=1"); len(got) != 6 ||
		!strings.HasPrefix(got[0], "acme,1,2031-05-04T12:00:00Z,2031-05-04T13:00:00.000000Z,1,0,0,0,0,0,,0,0,,") {
		t.Errorf("the CSV is %q", got)
	}
	if got := csv(r.with("Accept", "text/csv"), "GET /admin/usage?until=2031-05-04T13:00:00Z"); len(got) != 2 {
		t.Errorf("the CSV of an hour is %q", got)
	}
	if got := csv(r.as("acme"), "GET /usage?format=csv"); len(got) != 3 || strings.Contains(strings.Join(got, ""), "globex") {
		t.Errorf("acme's CSV is %q", got)
	}
	r.as("acme").gives("GET /usage", "", 200, `{"usage": [{"tenant_id": "acme"}, {"tenant_id": "acme"}, {"tenant_id": "acme"}]}`)

	r.gives("GET /usage/verify", "", 200, `{"valid": true, "faults": []}`)
	r.sql("update ojs.usage_batch set completed = 9 where tenant_id = 'globex' and n = 2")
	r.gives("GET /admin/usage/verify", "", 200,
		`{"valid": false, "faults": [{"tenant_id": "globex", "n": 2, "hour": "2031-05-04T13:00:00Z", "fault": "changed"}]}`)
	r.as("acme").gives("GET /usage/verify", "", 200, `{"valid": true}`)
}
