-- Which queues workers take jobs from: one definition for shares and for lists of queues.

create or replace function ojs._served_queues() returns table (queue text)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    -- Workers that were told to rest or end do not ask again. What was handed out before is no sign.
    v_rest timestamptz;
begin
    if not ojs._sees_all() then
        return;
    end if;
    select d.at into v_rest from ojs._told() d where d.directive <> 'running';
    return query
    with known as materialized (
        select u.queue, sum(u.active) > 0 as works
        from (select t.queue, t.active from ojs.tally t union all select r.queue, r.active from ojs._recent() r) u group by u.queue
    )
    select s.queue
    from (
        select k.queue from known k where k.works
        union
        select w.queue from ojs._waiting_servers() w(queue, servers)
        union
        select l.name from ojs._lately('queue') l where l.name <> ''
        union
        select k.queue from known k
        cross join lateral (select p.at from ojs.pace p where p.kind = 'queue' and p.name = k.queue order by p.at desc limit 1) h
        where h.at > greatest(ojs.now() - interval '5 minutes', v_rest + ojs._pace_step())
    ) s
    -- A FETCH of a worker that rests waits, too, and gets no job.
    where not exists (select from ojs._resting_queues() r where r.queue = s.queue);
end;
$$;
comment on function ojs._served_queues() is
'The queues that workers take jobs from: a FETCH waits, a job runs, or a job was handed out within
5 minutes and since all workers were last told to rest or end. A queue whose registered workers all
rest or end is left out (_resting_queues). Empty for a tenant''s login. Costs as much as there are
pairs of tenant and queue.';
