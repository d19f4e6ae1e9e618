-- Queues of which no worker may take jobs, because all rest or end; and by which directive.

create or replace function ojs._told(p_tenant text default null, p_worker_id text default null)
returns table (at timestamptz, by text, directive text)
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select a.at, a.actor, a.new ->> 'directive'
    -- No index has the kinds of changes, so look at a bounded number of rows.
    from (select a.* from ojs.audit a order by a.n desc limit 1000) a
    where a.kind = 'worker' and a.action = 'directed'
      and (a.name is null and (a.tenant_id is null or a.tenant_id = p_tenant)
        or a.name = p_worker_id and coalesce(a.tenant_id, '') = p_tenant)
    order by a.n desc limit 1;
end;
$$;
comment on function ojs._told(text, text) is
'Returns the latest directive to a worker, with its time and the login or principal that gave it; no
row if it is not among the last 1000 changes.
p_tenant, p_worker_id: the worker, p_tenant empty for a worker that serves all tenants; null: only
directives to all workers of all tenants.';

create or replace function ojs._resting_queues(p_queue text default null)
returns table (queue text, workers bigint, told_at timestamptz, told_by text, directive text)
language plpgsql stable security definer rows 5 set search_path = pg_catalog, pg_temp
as $$
begin
    -- Most of the time no worker rests, and nothing else is read.
    if not exists (select from ojs.worker w where w.apart and w.resting) then
        return;
    end if;
    return query
    with serving as materialized (
        select q.queue, w.tenant_id, w.worker_id, w.resting, w.directive is not null as told
        from ojs.worker w
        cross join lateral (
            select b.seen_at from ojs.worker_beat b
            where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1
        ) b
        cross join lateral unnest(ojs._serves(w.queues, w.asks)) q(queue)
        where b.seen_at >= ojs.now() - ojs._heartbeat_timeout() / 2 and (p_queue is null or q.queue = p_queue)
    ), resting as materialized (
        select s.queue, count(*) as workers, (array_agg(s.tenant_id order by s.told desc, s.worker_id))[1] as tenant_id,
            (array_agg(s.worker_id order by s.told desc, s.worker_id))[1] as worker_id, bool_or(s.told) as told
        from serving s group by s.queue having bool_and(s.resting)
    )
    select r.queue, r.workers, d.at, d.by, d.directive
    from resting r
    left join lateral (select d.* from ojs._told(r.tenant_id, r.worker_id) d where r.told) d on true
    -- A worker that is not registered may serve the queue all the same: it was handed a job since,
    -- or still holds one.
    where not exists (
        select from (select l.queue, l.at from ojs.lease l order by l.at desc limit 1000) l
        where l.queue = r.queue and l.at > greatest(d.at + interval '1 second', ojs.now() - interval '1 minute'))
    and not exists (
        select from ojs._holders(r.queue) h
        where not exists (select from serving s where s.queue = r.queue and s.worker_id = h.worker_id));
end;
$$;
comment on function ojs._resting_queues(text) is
'Queues whose registered workers all rest or end, and that gave no job to another worker within a
minute, or since the directive. workers: how many they are; told_at, told_by, directive: the latest
directive to one of them, null if they rest of their own accord.
p_queue: only this queue. Reads little unless a worker rests; then the 1000 leases given last, and
the jobs that workers of such queues hold.';
