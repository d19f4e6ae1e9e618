-- Events for operators about queues that get no jobs dispatched and pools at their concurrency; no
-- event of a job says this.

-- Writes events about starved queues and overloaded pools, one for as long as it lasts.
-- Locks the row of ojs.tally_mark with skip locked, and so never waits.
-- Writes notice, and the mark every ten seconds; without pools nothing.
create or replace function ojs._watch(p_now timestamptz) returns void
language plpgsql
as $$
begin
    if not exists (select from ojs.pool) and not exists (
                select from ojs.notice n where n.ended_at is null and n.type in ('scheduling.queue_starved', 'scheduling.pool_overloaded'))
            or (select t.watched_at between p_now - ojs._pace_step() and p_now from ojs.tally_mark t order by t.rev desc limit 1) then
        return;
    end if;
    perform from ojs.tally_mark t
    where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if not found then
        return;
    end if;
    update ojs.tally_mark t set watched_at = p_now;
    with seen as materialized (
        select 'scheduling.queue_starved' as type, s.queue as subject, jsonb_build_object('queue', s.queue,
            'duration', format('PT%sS', floor(extract(epoch from s.duration))), 'available_count', s.available) as data
        from ojs._starved() s
        union all
        select 'scheduling.pool_overloaded', p.pool, jsonb_build_object('pool', p.pool, 'active_jobs', p.active, 'waiting_jobs', p.waiting)
        from ojs._overloaded() p
    ), ended as (
        update ojs.notice n set ended_at = p_now
        where n.ended_at is null and n.type in ('scheduling.queue_starved', 'scheduling.pool_overloaded')
            and not exists (select from seen s where s.type = n.type and s.subject = n.subject)
    )
    insert into ojs.notice (at, type, subject, data, nth)
    select p_now, s.type, s.subject, s.data, 1 + coalesce((
        select max(n.nth) from ojs.notice n where n.type = s.type and n.subject = s.subject), 0)
    from seen s
    on conflict (type, subject) where ended_at is null do nothing;
end;
$$;
comment on function ojs._watch(timestamptz) is
'Looks, at most every 10 seconds, for starved queues of pools and for overloaded pools
(fair-scheduling section 11.1). If another session has the mark locked, does nothing.';

create or replace function ojs._starved() returns table (queue text, available bigint, duration interval)
language plpgsql stable
as $$
begin
    return query
    select q.queue, q.available::bigint, least(q.oldest_wait, ojs.now() - p.at)
    from ojs.queue_stats q
    cross join lateral (
        select min(coalesce(a.rotation_interval, p.rotation_interval, '30 seconds')) as rotation from ojs.pool p
        left join ojs.pool a on a.name = '*' where p.name <> '*' and (q.queue = any (p.queues) or p.queues is null)
    ) r
    left join lateral (
        select max(u.at) as at from (
            (select p.at from ojs.pace p where p.kind = 'queue' and p.name = q.queue and p.at > '-infinity' order by p.at desc limit 1)
            union all
            select ojs.now() from ojs._lately('queue') l where l.name = q.queue
        ) u
    ) p on true
    where q.available > 0 and not q.paused and least(q.oldest_wait, ojs.now() - p.at) > r.rotation
        and (select o.queues from ojs._open_queues(array[q.queue]) o) <> '{}'
        and (select r.jobs from ojs._capacity(q.queue, '') r) is distinct from 0
        and exists (select from ojs.tally t where t.queue = q.queue and t.available > 0
            and (select r.jobs from ojs._capacity(q.queue, t.tenant_id) r) is distinct from 0);
end;
$$;
comment on function ojs._starved() is
'Returns queues of pools with available jobs that pauses and limits allow, but of which none was
handed out for longer than the rotation_interval (30 seconds if none is set).';

create or replace function ojs._overloaded() returns table (pool text, active bigint, waiting bigint)
language plpgsql stable
as $$
begin
    return query
    with line as materialized (
        select q.queue, q.available from ojs.queue_stats q where q.available > 0 and not q.paused
    )
    select p.name, u.active, sum(w.available)::bigint
    from ojs.pool p
    join ojs._pool_use u on u.pool = p.id
    join line w on (p.queues is null or w.queue = any (p.queues)) and not ojs._isolated_from(p.name, w.queue)
    where u.active >= p.max_concurrency group by p.name, u.active;
end;
$$;
comment on function ojs._overloaded() is
'Returns pools that run as many jobs as they may while more jobs wait.';
