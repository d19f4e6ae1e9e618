-- What operators and programmers read first in psql: which functions there are, and how the tenants
-- are doing.

-- Lists the functions that the caller may call.
-- Locks nothing.
-- Reads the catalog.
create or replace function ojs.help() returns table (purpose text, call text, does text)
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select h.purpose, 'ojs.' || p.proname,
        case when length(c.line) > 100 then left(c.line, 99) || '…' else c.line end
    from (values
        (1, 'enqueue', '{enqueue, enqueue_many, enqueue_bulk, enqueue_each, enqueue_once}'::text[]),
        (2, 'work', '{fetch, ack, ack_many, nack, settle, release, heartbeat, beat}'),
        (3, 'jobs', '{job_status, job_info, job_results, list_jobs, explain, cancel, cancel_many, activate, reprioritize, retry,
            retry_many, failed_count}'),
        (4, 'dead letters', '{dead_letters, dead_letter_info, dead_letter_count, dead_letter_stats, retry_dead_letter, retry_dead_letters,
            delete_dead_letter, purge_dead_letters, configure_dead_letters, set_replay_rule, delete_replay_rule}'),
        (5, 'cron', '{put_cron, configure_cron, trigger_cron, cron_info, delete_cron}'),
        (6, 'workers', '{register_worker, deregister_worker, worker_info, direct_worker, direct_workers, remove_worker}'),
        (7, 'pause and limit', '{pause, resume, limit_concurrency, configure_limits, throttle, release_throttle, hold_dispatch,
            resume_dispatch}'),
        (8, 'configure', '{configure, configure_tenant, configure_queue, delete_queue, configure_pool, configure_pools, delete_pool,
            watch_neighbours, preview_weight}'),
        (9, 'tenants', '{create_tenant_role, put_tenant, configure_tier, set_tier, configure_static, suspend_tenant,
            resume_tenant, deregister_tenant, current_tenant, create_api_key, rotate_api_key, revoke_api_key}'),
        (10, 'look and keep', '{help, events, doctor, now, tick, upkeep, rebuild, cut_partition, drop_finished}')
    ) h(place, purpose, names)
    cross join lateral unnest(h.names) with ordinality u(name, n)
    -- If functions differ only in the types of their JSON, only the first one has the whole
    -- comment.
    join lateral (
        select p.oid, p.proname from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname = u.name order by p.oid limit 1
    ) p on true
    cross join lateral (
        -- The first clause of the comment, without parentheses.
        select regexp_replace(regexp_replace(replace(obj_description(p.oid, 'pg_proc'), E'\n', ' '), ' [(][^)]*[)]', '', 'g'),
            '[.:;]( .*)?$', '') as line) c
    where has_function_privilege(p.oid, 'execute')
    order by h.place, u.n
$$;
comment on function ojs.help() is
'Lists the functions that the caller may call, by purpose, one line each.
In psql, \df+ shows the whole comment of a function, with parameters and errors.';

create or replace view ojs.overview with (security_invoker = true) as
select case when length(t.tenant_id) > 18 then left(t.tenant_id, 17) || '…' else t.tenant_id end as tenant,
    t.backlog as waiting, t.active, t.completed as done, round(t.actual_share * 100) || ' %' as share,
    round(t.effective_share * 100) || ' %' as due,
    case when t.oldest_wait >= interval '1 day' then
        concat(floor(extract(epoch from t.oldest_wait) / 86400), 'd ', floor(mod(extract(epoch from t.oldest_wait), 86400) / 3600), 'h')
        else to_char(t.oldest_wait, 'HH24:MI:SS') end as oldest
from ojs.tenant_stats t order by t.backlog desc, t.active desc, t.tenant_id;
comment on view ojs.overview is
'The tenants on a screen of 80 columns, those with most waiting jobs first.
ojs.tenant_stats has the exact numbers. A tenant sees its own row.';
comment on column ojs.overview.tenant is 'The tenant; the first 17 characters of a long name.';
comment on column ojs.overview.waiting is 'Jobs that are available.';
comment on column ojs.overview.active is 'Jobs that are active.';
comment on column ojs.overview.done is 'Jobs that were ever completed.';
comment on column ojs.overview.share is
'Its share of the jobs handed out in the last minute; null for a tenant''s login.';
comment on column ojs.overview.due is 'The share that it is to get among the tenants with work.';
comment on column ojs.overview.oldest is
'How long its oldest available job has waited: hours, minutes and seconds, or days and hours.';
