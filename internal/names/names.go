// Package names judges names as SQL does, where asking the database would cost a round trip, or the company of a decision that requests
// share.
package names

import "regexp"

var (
	// Tenant is ojs._tenant_valid. The names that SQL reserves break the pattern of the others, so that nobody chooses them by accident.
	Tenant = regexp.MustCompile(`^(?:[a-zA-Z0-9][a-zA-Z0-9._:-]{0,255}|_default|_other)$`)
	// Queue is ojs._queue_name.
	Queue = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)
	// Pool is ojs._check_pool_name, without the name that stands for all of them.
	Pool = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	// Cron is what ojs.put_cron accepts.
	Cron = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,254}$`)
)

// TenantHeader is what the specification calls the header that names a tenant.
const TenantHeader = "X-OJS-Tenant"
