-- name: AuditTrail :many
-- The latest first, before a row of an earlier page.
select a.n, a.at, a.actor, a.tenant_id, a.kind, a.name, a.action, a.old, a.new, a.reason
from ojs.audit_trail a
where (sqlc.narg('before')::bigint is null or a.n < sqlc.narg('before')::bigint)
    and (sqlc.narg('tenant')::text is null or a.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('actor')::text is null or a.actor = sqlc.narg('actor')::text)
    and (sqlc.narg('action')::text is null or a.action = sqlc.narg('action')::text)
order by a.n desc limit @max_rows::int;

-- name: SuspendTenant :one
select s.tenant_id, s.at, s.reason from ojs.suspend_tenant(@tenant::text, sqlc.narg('reason')::text) s;

-- name: ResumeTenant :one
select ojs.resume_tenant(@tenant::text);

-- name: DeregisterTenant :one
select d.tenant_id, d.at, d.jobs from ojs.deregister_tenant(@tenant::text, sqlc.narg('confirm')::text, sqlc.narg('reason')::text) d;

-- name: TenantIsConfigured :one
select exists (select from ojs.tenant t where t.tenant_id = @tenant::text);
