-- Requests that limits have refused. A record of a refusal would roll back with the refused
-- transaction, so a server writes it afterwards. Refusals of producers in SQL are not recorded;
-- only ojs.limits shows that a limit is used up.

comment on table ojs.refused is
'Requests that servers have refused because of limits, in sum over each minute, of the last day.
Written by ojs.note_refusals; read as ojs.refusals.';
comment on column ojs.refused.tenant_id is
'The tenant; empty: any tenant, for a depth bound of a queue.';
comment on column ojs.refused.queue is
'The queue whose limit it was; empty: the limit of all queues.';
comment on column ojs.refused.resource is 'What was limited, as in ojs.limits.';
comment on column ojs.refused.at is 'The minute.';
comment on column ojs.refused.requests is
'How many requests, or jobs of a batch in which each job is admitted alone.';
comment on column ojs.refused.counted is
'How many of these the usage ledger has. A row stays until it has all of them.';

-- Adds what a server has refused.
-- Locks the rows of the minute.
-- Writes refused, notice.
create or replace function ojs.note_refusals(p_tenants text[], p_queues text[], p_resources text[], p_requests int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_of record;
begin
    -- One row at a time and in one order, so that two servers do not wait for each other.
    for v_of in
        select u.tenant_id, u.queue, u.resource, sum(u.requests)::bigint as requests
        from unnest(p_tenants, p_queues, p_resources, p_requests) u(tenant_id, queue, resource, requests)
        group by u.tenant_id, u.queue, u.resource order by u.tenant_id, u.queue, u.resource
    loop
        insert into ojs.refused as r (tenant_id, queue, resource, at, requests)
        values (v_of.tenant_id, v_of.queue, v_of.resource, date_trunc('minute', ojs.now()), v_of.requests)
        on conflict (tenant_id, queue, resource, at) do update set requests = r.requests + excluded.requests;
        perform ojs._tell_of_limit(case when v_of.resource = 'max_depth' then 'backpressure.rejected' else 'tenant.limit_exceeded' end,
            v_of.tenant_id, v_of.queue, v_of.resource, q.current, coalesce(q.burst, q.maximum), q.soft, v_of.requests, ojs.now())
        from (select) x left join ojs._quota_use q on q.tenant_id = v_of.tenant_id and q.queue = v_of.queue and q.resource = v_of.resource;
    end loop;
    delete from ojs.refused r using (
        select o.tenant_id, o.queue, o.resource, o.at from ojs.refused o
        where o.at < ojs.now() - interval '1 day' and o.counted = o.requests order by o.at limit 1000 for update skip locked
    ) o where r.tenant_id = o.tenant_id and r.queue = o.queue and r.resource = o.resource and r.at = o.at;
end;
$$;
comment on function ojs.note_refusals(text[], text[], text[], int[]) is
'Adds to ojs.refusals what a server has refused since its last call, and writes events about it.
p_tenants, p_queues, p_resources, p_requests: lists in step; an empty name stands for all.
The events: tenant.limit_exceeded, backpressure.rejected. For servers.';

create or replace view ojs._own_refused as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.refused r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_refused is
'The refusals of the tenant that reads; no rows for other roles.';

create or replace view ojs.refusals as
select r.tenant_id, r.queue, r.resource, r.at, r.requests
from (select * from ojs.refused where ojs._reads_all() union all select * from ojs._own_refused) r;
comment on view ojs.refusals is
'Requests over HTTP of the last day that limits have refused, in sum over each minute.
There is a row per tenant, queue, limit and minute.
A tenant sees its own. Calls in SQL are not in it, because their transactions were rolled back.';
comment on column ojs.refusals.tenant_id is
'The tenant; empty: any tenant, for a depth bound of a queue.';
comment on column ojs.refusals.queue is
'The queue whose limit it was; empty: the limit of all queues.';
comment on column ojs.refusals.resource is 'What was limited, as in ojs.limits.';
comment on column ojs.refusals.at is 'The minute.';
comment on column ojs.refusals.requests is
'How many requests, or jobs of a batch in which each job is admitted alone.';
