package kit

import (
	"net/http"
	"regexp"
	"strings"
)

// Two spellings of one header; the second is an alias.
const (
	TenantHeader      = "X-OJS-Tenant"
	tenantHeaderAlias = "X-OJS-Tenant-ID"
)

// tenantID admits what a tenant id can look like, and a leading underscore beside it: the
// default tenant breaks the pattern so that no client can happen to choose it, and only the
// database knows what it is called.
var TenantID = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._:-]{0,255}$`)

// readTenant is the tenant a request names by header, or nil. Without one SQL decides: enqueue falls
// to the default tenant, everything else acts across tenants.
func readTenant(h http.Header) (id *string, header string, err error) {
	values := append(h.Values(TenantHeader), h.Values(tenantHeaderAlias)...)
	header = TenantHeader
	if len(h.Values(TenantHeader)) == 0 {
		header = tenantHeaderAlias
	}
	switch {
	case len(values) == 0:
		return nil, "", nil
	case len(values) > 1:
		return nil, "", Invalid(TenantHeader, "must be sent once, under one of its two names (%s)", tenantHeaderAlias)
	}
	v := strings.TrimSpace(values[0])
	if !TenantID.MatchString(v) {
		return nil, "", Invalid(header, "must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and be at most 256 bytes long")
	}
	return &v, header, nil
}
