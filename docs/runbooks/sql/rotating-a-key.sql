-- Made from docs/runbooks/rotating-a-key.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/rotating-a-key.sql

select id, prefix, tenant_id, scopes, name, state, expires_at, revoked_at, last_used_at, rotated_to
from ojs.api_keys
order by tenant_id nulls first, created_at desc;

select at, actor, action, name, old, new, reason
from ojs.audit_trail
where kind = 'api_key'
order by n desc limit 20;
