package kit

import (
	"net/http"
	"strings"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Two spellings of one header; the second is an alias.
const (
	TenantHeader      = "X-OJS-Tenant"
	tenantHeaderAlias = "X-OJS-Tenant-ID"
)

// NoTenantID is the refusal of a field that is to hold one.
func NoTenantID(field string) *pg.Error {
	return Invalid(field, "must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes")
}

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
	if !names.Tenant.MatchString(v) {
		return nil, "", NoTenantID(header)
	}
	return &v, header, nil
}
