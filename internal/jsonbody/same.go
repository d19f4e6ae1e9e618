package jsonbody

import (
	"cmp"

	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// SameTenant returns the tenant that a request names as tenant, as tenant_id, or twice. It fails if
// the two differ. at is the path of tenant.
func SameTenant(at string, tenant, id *string) (*string, error) {
	if tenant != nil && id != nil && *tenant != *id {
		return nil, problems.Invalid(at, "is another one than tenant_id")
	}
	return cmp.Or(tenant, id), nil
}
