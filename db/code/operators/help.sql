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
            retry_many, failed_count, erase}'),
        (4, 'dead letters', '{dead_letters, dead_letter_info, dead_letter_count, dead_letter_stats, retry_dead_letter, retry_dead_letters,
            delete_dead_letter, purge_dead_letters, configure_dead_letters, set_replay_rule, delete_replay_rule}'),
        (5, 'cron', '{put_cron, configure_cron, trigger_cron, cron_info, delete_cron}'),
        (6, 'workers', '{register_worker, deregister_worker, worker_info, direct_worker, direct_workers, remove_worker}'),
        (7, 'pause and limit', '{pause, resume, limit_concurrency, configure_limits, throttle, release_throttle, hold_dispatch,
            resume_dispatch}'),
        (8, 'configure', '{configure, put_settings, configure_tenant, configure_queue, delete_queue, configure_pool, configure_pools,
            delete_pool, watch_neighbours, preview_weight}'),
        (9, 'tenants', '{create_tenant_role, put_tenant, configure_tier, set_tier, configure_static, suspend_tenant,
            resume_tenant, deregister_tenant, current_tenant, create_api_key, rotate_api_key, revoke_api_key}'),
        (10, 'look and keep', '{help, events, doctor, now, tick, upkeep, rebuild, cut_partition, drop_finished, verify_usage,
            prune_usage}')
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
ojs.help(''enqueue'') shows what to write instead of parameters that other job systems have.
In psql, \df+ shows the whole comment of a function, with parameters and errors.';

-- PostgreSQL itself refuses a parameter that does not exist, with "function does not exist", and no
-- function of ours can say what was meant.
-- Locks nothing.
-- Reads the catalog.
create or replace function ojs.help(p_function text) returns table (you_want text, you_write text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname = p_function and p.proname !~ '^_') then
        perform ojs._raise('OJ404', format('function ojs.%s does not exist', p_function), '{"field": "function"}',
            'select * from ojs.help() lists the functions.');
    end if;
    return query
    select h.you_want, h.you_write from (values
        ('enqueue', 'in 5 minutes (p_delay, p_run_at)', $w$p_scheduled_at => now() + interval '5 min'$w$),
        ('enqueue', 'another queue (queue)', $w$p_queue => 'mail'$w$),
        ('enqueue', 'for a tenant (tenant)', $w$p_tenant => 'acme'$w$),
        ('enqueue', 'arguments (p_payload, p_data)', $w$p_args => '["ada@example.com"]'$w$),
        ('enqueue', 'before others (p_prio)', 'p_priority => 10'),
        ('enqueue', 'more attempts (p_max_retries)', 'p_max_attempts => 10'),
        ('enqueue', 'a backoff (p_backoff)', $w$p_retry => '{"backoff_coefficient": 3}'$w$),
        ('enqueue', 'a time limit (p_timeout)', 'p_timeout_ms => 30000'),
        ('enqueue', 'not after a time (p_ttl)', $w$p_expires_at => now() + interval '1 hour'$w$),
        ('enqueue', 'not yet (p_state)', 'p_pending => true'),
        ('enqueue', 'data of your own (p_metadata)', $w$p_meta => '{"order": 17}'$w$),
        ('enqueue', 'only once (p_idempotency_key)', $w$ojs.enqueue_once('order-17', '[{...}]')$w$),
        ('fetch', 'a job of one queue', $w$ojs.fetch('{default}')$w$),
        ('fetch', 'of several queues (a list)', $w$ojs.fetch(array['mail', 'default'])$w$),
        ('fetch', 'more jobs (p_limit)', $w$ojs.fetch('{default}', 10)$w$),
        ('fetch', 'a longer lease (p_lease)', $w$ojs.fetch('{default}', p_visibility_timeout_ms => 60000)$w$),
        ('fetch', 'jobs of one tenant (tenant)', $w$ojs.fetch('{default}', p_tenant => 'acme')$w$),
        ('ack', 'the job is done', 'ojs.ack(id, lease)'),
        ('ack', 'with a result (p_output)', $w$ojs.ack(id, lease, '{"sent": true}')$w$),
        ('nack', 'the job failed', $w$ojs.nack(id, '{"message": "full"}', lease)$w$),
        ('nack', 'with a type', $w$'{"type": "Full", "message": "full"}'$w$),
        ('nack', 'no more tries', $w$'{"message": "full", "retryable": false}'$w$),
        ('nack', 'again at once', 'p_requeue => true'),
        ('cancel', 'one job (delete from ojs.jobs)', 'ojs.cancel(id)'),
        ('cancel', 'many jobs', $w$ojs.cancel_many(array[id, id])$w$),
        ('reprioritize', 'other priority (update ojs.jobs)', 'ojs.reprioritize(id, 10)')
    ) h(of_function, you_want, you_write)
    where h.of_function = p_function
    union all
    select 'all parameters and errors', E'\\df+ ojs.' || p_function;
end;
$$;
comment on function ojs.help(text) is
'What to write for a parameter of a function that has another name here (in parentheses: the names
of other job systems).
p_function: a function without its schema, such as enqueue.
Raises not_found.';

create or replace function ojs._cut(p_name text, p_width int) returns text
language sql immutable
as $$ select case when length(p_name) > p_width then left(p_name, p_width - 1) || '…' else p_name end $$;
comment on function ojs._cut(text, int) is 'The first characters of a name that is too long for a column.';

-- Cuts the names only as far as a screen of 80 columns needs: the lines between nine columns take 26,
-- the other columns what their longest value needs.
create or replace view ojs.overview with (security_invoker = true) as
select ojs._cut(o.tenant_id, least(greatest(54 - o.others, 8), 18)) as tenant,
    o.available as waiting, o.active, o.completed as done, o.share, o.due, o.oldest, o.discarded as failed, o.later
from (
    select l.*, max(greatest(length(l.available::text), 7)) over () + max(greatest(length(l.active::text), 6)) over ()
        + max(greatest(length(l.completed::text), 4)) over () + 5 + max(greatest(length(l.due), 3)) over ()
        + max(greatest(length(l.oldest), 6)) over () + max(greatest(length(l.discarded::text), 6)) over ()
        + max(greatest(length(l.later), 5)) over () as others
    from (
        select t.tenant_id, t.available, t.active, t.completed, t.discarded,
            case when not (select ojs._reads_all()) then null when max(t.actual_share) over () is null then 'quiet'
                else round(coalesce(t.actual_share, 0) * 100) || ' %' end as share,
            round(t.effective_share * 100) || ' %' as due,
            case when t.oldest_wait >= interval '1 day' then concat(floor(extract(epoch from t.oldest_wait) / 86400), 'd ',
                    floor(mod(extract(epoch from t.oldest_wait), 86400) / 3600), 'h')
                when t.oldest_wait >= interval '1 hour' then to_char(t.oldest_wait, 'FMHH24"h"MI"m"')
                else to_char(t.oldest_wait, 'FMMI"m"SS"s"') end as oldest,
            concat(t.scheduled, '+', t.retryable) as later
        from ojs.tenant_stats t
    ) l
) o
order by o.available desc, o.active desc, o.tenant_id;
comment on view ojs.overview is
'The tenants on a screen of 80 columns, those with most waiting jobs first.
ojs.tenant_stats has the exact numbers, ojs.overview_by_queue the same by queue. A tenant sees its
own row.';
comment on column ojs.overview.tenant is
'The tenant; the first characters of a long name, as many as there is space for.';
comment on column ojs.overview.waiting is 'Jobs that are available.';
comment on column ojs.overview.active is 'Jobs that are active.';
comment on column ojs.overview.done is 'Jobs that were ever completed.';
comment on column ojs.overview.share is
'Its share of the jobs handed out in the last minute, of all queues; quiet: no job was handed out to
anyone; null for a tenant''s login.';
comment on column ojs.overview.due is 'The share that it is to get among the tenants with work.';
comment on column ojs.overview.oldest is
'How long its oldest available job has waited: minutes and seconds, hours and minutes, or days and
hours.';
comment on column ojs.overview.failed is
'Jobs that were ever discarded, because their attempts were used up or they expired.';
comment on column ojs.overview.later is
'Jobs that wait for their time: the scheduled jobs + the jobs that failed and will be retried.';

-- Shares of a queue are compared with the weights in that queue. Over all queues they mislead: a
-- tenant may get all of a queue in which it is alone.
create or replace function ojs._queue_shares() returns table (queue text, tenant_id text, share numeric, due numeric)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
begin
    if not ojs._sees_all() then
        return;
    end if;
    return query
    with work as (
        select n.queue, n.tenant_id, w.weight / sum(w.weight) over (partition by n.queue) as due
        from ojs._shard_numbers n
        left join ojs.tenant t on t.tenant_id = n.tenant_id
        cross join lateral ojs._weight_in(n.queue, n.tenant_id, t.weight, t.throttle) w
        where n.available > 0 or n.active > 0
    ), handed as (
        select l.queue, u.tenant_id, count(*) / sum(count(*)) over (partition by l.queue) as share
        from ojs.lease l cross join lateral unnest(l.tenants) u(tenant_id)
        where l.at > (select ojs.now()) - interval '1 minute' group by l.queue, u.tenant_id
    )
    select coalesce(w.queue, h.queue), coalesce(w.tenant_id, h.tenant_id), h.share, w.due
    from work w full join handed h on h.queue = w.queue and h.tenant_id = w.tenant_id;
end;
$$;
comment on function ojs._queue_shares() is
'The share of each tenant in each queue: share, of the jobs that the queue handed out in the last
minute; due, of the weights of the tenants with available or active jobs in the queue. Null: none.
Empty for a tenant''s login.';

create or replace view ojs.overview_by_queue with (security_invoker = true) as
select ojs._cut(o.queue, 12) as queue, ojs._cut(o.tenant_id, 12) as tenant, o.available as waiting, o.active,
    case when not (select ojs._reads_all()) then null when max(s.share) over (partition by o.queue) is null then 'quiet'
        else round(coalesce(s.share, 0) * 100) || ' %' end as share,
    round(s.due * 100) || ' %' as due, o.discarded as failed, concat(o.scheduled, '+', o.retryable) as later
from ojs.shard_stats o
left join ojs._queue_shares() s on s.queue = o.queue and s.tenant_id = o.tenant_id
order by o.queue, o.available desc, o.active desc, o.tenant_id;
comment on view ojs.overview_by_queue is
'The tenants of each queue on a screen of 80 columns, with their shares in that queue.
ojs.shard_stats has the exact numbers. A tenant sees its own rows.';
comment on column ojs.overview_by_queue.queue is 'The queue; the first 11 characters of a long name.';
comment on column ojs.overview_by_queue.tenant is 'The tenant; the first 11 characters of a long name.';
comment on column ojs.overview_by_queue.waiting is 'Jobs that are available.';
comment on column ojs.overview_by_queue.active is 'Jobs that are active.';
comment on column ojs.overview_by_queue.share is
'The tenant''s share of the jobs that the queue handed out in the last minute; quiet: the queue handed
out no job; null for a tenant''s login.';
comment on column ojs.overview_by_queue.due is
'The share that its weight gives it among the tenants with waiting or active jobs in the queue; null:
it has no such job, or for a tenant''s login.';
comment on column ojs.overview_by_queue.failed is
'Jobs that were ever discarded, because their attempts were used up or they expired.';
comment on column ojs.overview_by_queue.later is
'Jobs that wait for their time: the scheduled jobs + the jobs that failed and will be retried.';
