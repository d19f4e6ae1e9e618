package httpapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// TenantHeaders are the names of the header that names a request's tenant. Errors use the first
// name; the others are aliases. If there are none, only bodies and credentials name tenants.
type TenantHeaders []string

// KnownTenantHeaders are the names that clients use unless they are configured otherwise.
var KnownTenantHeaders = TenantHeaders{names.TenantHeader, "X-OJS-Tenant-ID"}

var (
	headerName     = regexp.MustCompile("^[a-zA-Z0-9-]{1,100}$")
	takenByAnother = []string{"Authorization", "X-Api-Key", "Host", "Cookie", "Content-Type", "Content-Length"}
)

// ReadTenantHeaders reads names that are separated by commas, or the word none. It fails if a name
// is not valid, or is the name of another header that matters.
func ReadTenantHeaders(list string) (TenantHeaders, error) {
	if list == "none" {
		return TenantHeaders{}, nil
	}
	var all TenantHeaders
	for _, name := range strings.Split(list, ",") {
		if canonical := http.CanonicalHeaderKey(name); !headerName.MatchString(name) || slices.Contains(takenByAnother, canonical) {
			return nil, fmt.Errorf("%q cannot be the name of a tenant's header", name)
		}
		all = append(all, name)
	}
	return all, nil
}

// noTenantID returns the refusal of a field that should hold a tenant id and does not.
func noTenantID(field string) *pg.Error {
	return problems.Invalid(field, "must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes")
}

// namedTenant returns the tenant that the credential or the header of a request names, or "" if
// there is none. The header's tenant is not checked.
func (s *Server) namedTenant(c echo.Context) string {
	if p := principalOf(c); p != nil && p.Tenant != nil {
		return *p.Tenant
	}
	for _, name := range s.problems.tenant {
		if id := c.Request().Header.Get(name); id != "" {
			return id
		}
	}
	return ""
}

// read returns the tenant that a request names by header, and the name of that header; nil: none.
// It fails if the tenant is named twice, or is not a valid id.
func (t TenantHeaders) read(h http.Header) (id *string, header string, err error) {
	if name := t.stray(h); name != "" {
		return nil, "", problems.Invalid(name, "names no tenant on this server, which has it %s", t.instead())
	}
	var values []string
	for _, name := range t {
		if sent := h.Values(name); len(sent) > 0 {
			if header == "" {
				header = name
			}
			values = append(values, sent...)
		}
	}
	switch {
	case len(values) == 0:
		return nil, "", nil
	case len(values) > 1 && len(t) == 1:
		return nil, "", problems.Invalid(t[0], "must be sent once")
	case len(values) > 1:
		return nil, "", problems.Invalid(t[0], "must be sent once, under one of its names (%s)", strings.Join(t[1:], ", "))
	}
	v := strings.TrimSpace(values[0])
	if !names.Tenant.MatchString(v) {
		return nil, "", noTenantID(header)
	}
	return &v, header, nil
}

// stray returns a header whose name contains "tenant" and is none of t, or "". Its client believes
// that it names a tenant: if the server passed over it, the request would act for another tenant, or
// for all.
func (t TenantHeaders) stray(h http.Header) (name string) {
	for sent := range h {
		// net/http writes a capital only at the start of a word, so most headers need no copy.
		if strings.Contains(sent, "enant") && strings.Contains(strings.ToLower(sent), "tenant") && (name == "" || sent < name) &&
			!slices.ContainsFunc(t, func(own string) bool { return strings.EqualFold(own, sent) }) {
			name = sent
		}
	}
	for _, known := range KnownTenantHeaders {
		if strings.EqualFold(name, known) {
			return known // as the specification writes it
		}
	}
	return name
}

// instead returns, for an error, how tenants are named on this server.
func (t TenantHeaders) instead() string {
	if len(t) == 0 {
		return "in meta.tenant_id, or by the credential"
	}
	return "as " + t[0]
}

// rename puts this server's name of the header into an error that has the specification's name.
func (t TenantHeaders) rename(problem *pg.Error) {
	if len(t) == 0 || t[0] == names.TenantHeader {
		return
	}
	problem.Hint = strings.ReplaceAll(problem.Hint, names.TenantHeader, t[0])
	if problem.Field == names.TenantHeader && problem.Code == problems.CodeAmbiguousJob {
		problem.Field = t[0]
	}
}
