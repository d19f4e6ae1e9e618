package jsonbody

import (
	"cmp"

	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// SameTenant is the tenant that a request names as tenant, as tenant_id, or twice. at: where tenant stands.
func SameTenant(at string, tenant, id *string) (*string, error) {
	if tenant != nil && id != nil && *tenant != *id {
		return nil, problems.Invalid(at, "is another one than tenant_id")
	}
	return cmp.Or(tenant, id), nil
}
