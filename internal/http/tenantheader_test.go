package httpapi

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// MT 5.2: the name of the header that names the tenant is a matter of configuration.
func TestMT52NameOfTheTenantHeader(t *testing.T) {
	t.Parallel()
	const job = `{"type": "a", "args": []}`
	for list, cases := range map[string][]struct {
		headers []string
		status  int
		tenant  string // or the field that is wrong
	}{
		"X-OJS-Tenant,X-OJS-Tenant-ID": {
			{[]string{"X-OJS-Tenant: acme"}, 201, "acme"},
			{[]string{"x-ojs-tenant-id: acme"}, 201, "acme"},
			{[]string{"X-OJS-Tenant: acme", "X-OJS-Tenant-ID: globex"}, 400, "X-OJS-Tenant"},
			{[]string{"X-Customer: acme"}, 201, "_default"},
		},
		"X-Customer,X-Org": {
			{[]string{"X-Customer: acme"}, 201, "acme"},
			{[]string{"x-org: acme"}, 201, "acme"},
			{[]string{"X-Customer: a b"}, 400, "X-Customer"},
			{[]string{"X-Org: a b"}, 400, "X-Org"},
			{[]string{"X-Org: acme", "X-Customer: globex"}, 400, "X-Customer"},
			{[]string{"X-Org: acme", "X-Org: globex"}, 400, "X-Customer"},
			{[]string{"X-OJS-Tenant: acme"}, 400, "X-OJS-Tenant"},
			{[]string{"X-Customer: acme", "X-OJS-Tenant-ID: globex"}, 400, "X-OJS-Tenant-ID"},
			{nil, 201, "_default"},
		},
		"x-ojs-tenant": {
			{[]string{"X-OJS-Tenant: acme"}, 201, "acme"},
			{[]string{"X-OJS-Tenant-ID: acme"}, 400, "X-OJS-Tenant-ID"},
		},
		"none": {
			{nil, 201, "_default"},
			{[]string{"X-OJS-Tenant: acme"}, 400, "X-OJS-Tenant"},
		},
	} {
		headers, err := ReadTenantHeaders(list)
		if err != nil {
			t.Fatal(err)
		}
		a := start(t, func(c *Config) { c.TenantHeaders = headers })
		for _, c := range cases {
			r := a.do("POST", "/ojs/v1/jobs", job, c.headers...).want(c.status)
			got := r.text("error.details.field")
			if r.status == 201 {
				got = pgtest.One[string](t, a.pool, "select tenant_id from ojs.job order by seq desc limit 1")
			}
			if got != c.tenant {
				t.Errorf("with the headers %s and %q: %s, want %s", list, c.headers, got, c.tenant)
			}
		}
		if list == "X-Customer,X-Org" {
			// What SQL says of the header is said of this one.
			for _, tenant := range []string{"acme", "globex"} {
				pgtest.Exec(t, a.pool, "select ojs.enqueue('a', p_tenant => $1, p_id => $2)", tenant, someID)
			}
			a.do("GET", "/ojs/v1/jobs/"+someID, "").want(409).is(map[string]any{
				"error.details.field": "X-Customer", "error.hint": "Name the tenant in the X-Customer header or in p_tenant.",
			})
			a.do("GET", "/ojs/v1/jobs/"+someID, "", "X-Org: acme").want(200)
		}
	}
}
