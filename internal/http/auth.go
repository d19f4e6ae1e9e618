package httpapi

import (
	"net/http"
	"regexp"
	"strings"
)

// Two spellings of one header; the second is an alias.
const (
	tenantHeader      = "X-OJS-Tenant"
	tenantHeaderAlias = "X-OJS-Tenant-ID"
)

// tenantID admits what a tenant id can look like, and a leading underscore beside it: the
// default tenant breaks the pattern so that no client can happen to choose it, and only the
// database knows what it is called.
var tenantID = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._:-]{0,255}$`)

// tenant is the tenant a request names by header, or nil. Without one SQL decides: enqueue falls
// to the default tenant, everything else acts across tenants.
func tenant(h http.Header) (id *string, header string, err error) {
	values := append(h.Values(tenantHeader), h.Values(tenantHeaderAlias)...)
	header = tenantHeader
	if len(h.Values(tenantHeader)) == 0 {
		header = tenantHeaderAlias
	}
	switch {
	case len(values) == 0:
		return nil, "", nil
	case len(values) > 1:
		return nil, "", invalid(tenantHeader, "must be sent once, under one of its two names (%s)", tenantHeaderAlias)
	}
	v := strings.TrimSpace(values[0])
	if !tenantID.MatchString(v) {
		return nil, "", invalid(header, "must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and be at most 256 bytes long")
	}
	return &v, header, nil
}
