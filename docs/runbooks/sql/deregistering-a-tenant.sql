-- Made from docs/runbooks/deregistering-a-tenant.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/deregistering-a-tenant.sql

select tenant_id, backlog, active, scheduled, retryable, total_jobs from ojs.tenant_stats order by total_jobs desc limit 20;

select tenant_id, prefix, scopes, name, state, last_used_at from ojs.api_keys where state = 'valid' order by tenant_id;

select tenant_id, at, erase_at, erased, gone_at from ojs.leaving order by at desc limit 20;

select at, actor, action, old, new, reason from ojs.audit_trail where kind = 'tenant' order by n desc limit 20;
