-- Made from docs/runbooks/deleting-personal-data.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/deleting-personal-data.sql

select id, tenant_id, queue, type, state, created_at from ojs.list_jobs(p_type => 'mail.*', p_tenant => 'acme') limit 20;

select id, tenant_id, type, state from ojs.job where args::text like '%a.person@example.com%' or meta::text like '%a.person@example.com%' limit 100;

select at, actor, tenant_id, new, reason from ojs.audit_trail where kind = 'jobs' and action = 'erased' order by n desc limit 20;
