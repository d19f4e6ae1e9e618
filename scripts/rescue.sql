-- Carries what waits from a database of a build before 0.1.0 into a new one: jobs that are available,
-- scheduled, retryable or pending, with their ids; tenants with weights and priorities; limits. What
-- has ended, dead letters, cron jobs, the configuration of queues and of the deployment stay behind.
--
--   1. Stop producers and workers, and wait until no job is active.
--   2. psql "$OLD" -v rescue=out -f scripts/rescue.sql    writes rescue-*.csv here
--   3. Make the new database: ojs-pg migrate up
--   4. psql "$NEW" -v rescue=in -f scripts/rescue.sql     in one transaction
--
-- OLD and NEW are URLs of a superuser or of a member of ojs_operator and ojs_service. A job keeps the
-- attempts that it has left. Run twice, step 4 fails and changes nothing, because the jobs are there.

\set ON_ERROR_STOP on
\set QUIET on
select :'rescue' = 'out' as out \gset
\if :out
select count(*) > 0 as busy, count(*) as jobs from ojs.jobs where state = 'active' \gset
\if :busy
\echo :jobs jobs are active: nothing is written
\quit
\endif
\copy (select tenant_id, id, type, queue, priority, state, args, meta, case state when 'retryable' then retry_at else scheduled_at end as scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, coalesce(retry, '{}') || jsonb_build_object('max_attempts', greatest(1, max_attempts - attempt)) as retry, options, extra from ojs.jobs where state in ('available', 'scheduled', 'retryable', 'pending') order by enqueued_at, id) to 'rescue-jobs.csv' csv header
\copy (select tenant_id, weight, priority_boost, max_priority, over_priority from ojs.tenant) to 'rescue-tenants.csv' csv header
\copy (select tenant_id, queue, jsonb_object_agg(resource, case when period is null then jsonb_build_object('limit', maximum, 'soft', soft) else jsonb_build_object('limit', maximum, 'period', ojs._iso_duration(period), 'burst', burst) end) from ojs.limits where tenant_id <> '' and resource <> 'max_concurrency' group by tenant_id, queue) to 'rescue-limits.csv' csv header
\copy (select tenant_id, queue, maximum from ojs.limits where resource = 'max_concurrency') to 'rescue-concurrency.csv' csv header
\else
begin;
create temp table rescue_job (tenant_id text, id uuid, type text, queue text, priority int, state text, args json, meta json, scheduled_at timestamptz, expires_at timestamptz, timeout_ms int, visibility_timeout_ms int, tags text[], retry json, options json, extra json, n bigint generated always as identity) on commit drop;
create temp table rescue_tenant (tenant_id text, weight numeric, priority_boost int, max_priority int, over_priority text) on commit drop;
create temp table rescue_limit (tenant_id text, queue text, limits json) on commit drop;
create temp table rescue_concurrency (tenant_id text, queue text, maximum int) on commit drop;
\copy rescue_job (tenant_id, id, type, queue, priority, state, args, meta, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, retry, options, extra) from 'rescue-jobs.csv' csv header
\copy rescue_tenant from 'rescue-tenants.csv' csv header
\copy rescue_limit from 'rescue-limits.csv' csv header
\copy rescue_concurrency from 'rescue-concurrency.csv' csv header
insert into ojs.jobs (tenant_id, id, type, queue, priority, args, meta, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, retry, options, extra)
select tenant_id, id, type, queue, priority, args, meta::jsonb, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, retry::jsonb, options, extra
from rescue_job where state <> 'pending' order by n;
select count(ojs.enqueue(type, args::text, queue, priority, scheduled_at, expires_at, meta, retry, null, timeout_ms, visibility_timeout_ms, tags, true, options, extra, id, tenant_id)) as pending_jobs
from rescue_job where state = 'pending';
-- Limits last: what is there counts against them, and is not refused.
select count(ojs.configure_tenant(tenant_id, weight, priority_boost, max_priority, over_priority)) as tenants from rescue_tenant;
select count(l) as limits from rescue_limit r cross join lateral ojs.configure_limits(r.tenant_id, r.limits, nullif(r.queue, '')) l;
select count(ojs.limit_concurrency(maximum, nullif(tenant_id, ''), nullif(queue, ''))) as concurrency_limits from rescue_concurrency;
commit;
\endif
