-- History: how many jobs came, ran and ended in a period, of a queue, of a tenant or of all. The
-- numbers of ojs.tally only grow, so it is enough to keep their values at certain times.

-- Keeps what has changed in ojs.tally since the last call, and merges and removes old rows.
-- Locks the row of ojs.tally_mark (skip locked).
-- Writes a row for each queue and tenant whose numbers have changed, at most every minute, and the
-- mark; nothing else.
create or replace function ojs._keep_history(p_now timestamptz) returns void
language plpgsql
as $$
declare
    c_step constant interval := '1 minute';
    v_mark ojs.tally_mark := (select t from ojs.tally_mark t order by t.rev desc limit 1);
    v_hour boolean := date_trunc('hour', v_mark.history_at, 'UTC') <> date_trunc('hour', p_now, 'UTC')
        and exists (select from ojs.history);
begin
    if not v_hour and (v_mark.at <= v_mark.history_at or p_now < v_mark.history_at + c_step) and p_now >= v_mark.history_at then
        return;
    end if;
    -- Not found: another server has the row locked, or has moved it to a higher rev since it was
    -- read.
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return;
    end if;
    update ojs.tally_mark t set history_at = p_now where t.rev = v_mark.rev;
    insert into ojs.history (queue, tenant_id, since, at, before, after)
    -- A clock that was put back must not break the order.
    select n.queue, n.tenant_id, greatest(v_mark.history_at, p_now - c_step), greatest(p_now, p.at + interval '1 microsecond'),
        coalesce(p.after, row(0, 0, 0, 0, 0, 0)::ojs.counts), n.counts
    from (
        select coalesce(t.queue, '') as queue, coalesce(t.tenant_id, '') as tenant_id, row(sum(t.total), sum(t.dispatched),
            sum(t.completed), sum(t.cancelled), sum(t.failed_jobs), sum(t.failed))::ojs.counts as counts
        from ojs.tally t group by grouping sets ((t.queue), (t.tenant_id), ())
    ) n
    left join lateral (select p.at, p.after from ojs.history p where p.queue = n.queue and p.tenant_id = n.tenant_id
        order by p.at desc limit 1) p on true
    where n.counts is distinct from p.after;
    perform ojs._merge_history(p_now), ojs._drop_stripes() where v_hour;
end;
$$;
comment on function ojs._keep_history(timestamptz) is
'Keeps the numbers of ojs.tally in ojs.history, at most every minute. If another server does it, it
does nothing.';

create or replace function ojs._merge_history(p_now timestamptz) returns void
language plpgsql
as $$
begin
    -- Hours of UTC: a session at +05:45 would cut other hours. Merge the three hours before, too,
    -- in case the clock stood still.
    with span as (
        select date_trunc('hour', p_now - interval '1 hour', 'UTC') as tenants,
            date_trunc('hour', p_now - interval '1 day', 'UTC') as queues
    ), old as materialized (
        select h.ctid as spot, h.queue, h.tenant_id, h.since, h.at, h.before, row_number() over w as nth, count(*) over w_all as rows
        from span s join ojs.history h on h.tenant_id <> '' and h.at >= s.tenants - interval '4 hours' and h.at < s.tenants
            or h.tenant_id = '' and h.at >= s.queues - interval '4 hours' and h.at < s.queues
        window w_all as (partition by h.queue, h.tenant_id, date_trunc('hour', h.at, 'UTC')), w as (w_all order by h.at)
    ), merged as (
        update ojs.history h set since = f.since, before = f.before
        from old f join old l on l.queue = f.queue and l.tenant_id = f.tenant_id
            and date_trunc('hour', l.at, 'UTC') = date_trunc('hour', f.at, 'UTC')
        where f.nth = 1 and l.nth = l.rows and l.rows > 1 and h.ctid = l.spot
    )
    delete from ojs.history h using old o where o.nth < o.rows and h.ctid = o.spot;
    delete from ojs.history h where h.ctid = any (array(
        select o.ctid from ojs.history o where o.at < p_now - interval '31 days'
            and exists (select from ojs.history n where n.queue = o.queue and n.tenant_id = o.tenant_id and n.at > o.at)
        order by o.at limit 10000));
end;
$$;
comment on function ojs._merge_history(timestamptz) is
'Merges old minutes of ojs.history into hours, and removes rows older than 31 days.';

create or replace function ojs._counts_at(p_queue text, p_tenant text, p_at timestamptz) returns ojs.counts
language sql stable
as $$
    select coalesce(
        (select case when h.since >= p_at then h.before else row(
            (h.before).entered + round(((h.after).entered - (h.before).entered) * p.part),
            (h.before).dispatched + round(((h.after).dispatched - (h.before).dispatched) * p.part),
            (h.before).completed + round(((h.after).completed - (h.before).completed) * p.part),
            (h.before).cancelled + round(((h.after).cancelled - (h.before).cancelled) * p.part),
            (h.before).failed_jobs + round(((h.after).failed_jobs - (h.before).failed_jobs) * p.part),
            (h.before).failed + round(((h.after).failed - (h.before).failed) * p.part))::ojs.counts end
        from ojs.history h
        cross join lateral (select extract(epoch from p_at - h.since) / extract(epoch from h.at - h.since) as part) p
        where h.queue = p_queue and h.tenant_id = p_tenant and h.at > p_at order by h.at limit 1),
        (select h.after from ojs.history h where h.queue = p_queue and h.tenant_id = p_tenant order by h.at desc limit 1),
        row(0, 0, 0, 0, 0, 0)::ojs.counts)
$$;
comment on function ojs._counts_at(text, text, timestamptz) is
'The numbers of ojs.history at some time, as if they had grown evenly within a row; 0 before the
first row.';

create or replace function ojs._counts_since(p_queue text, p_tenant text, p_now ojs.counts, p_since timestamptz) returns setof ojs.counts
language sql stable rows 1
as $$
    -- At least 0: a count of all jobs anew (ojs._recount) may lower the numbers.
    select greatest(p_now.entered - (w.c).entered, 0), greatest(p_now.dispatched - (w.c).dispatched, 0),
        greatest(p_now.completed - (w.c).completed, 0), greatest(p_now.cancelled - (w.c).cancelled, 0),
        greatest(p_now.failed_jobs - (w.c).failed_jobs, 0), greatest(p_now.failed - (w.c).failed, 0)
    from (select ojs._counts_at(p_queue, p_tenant, p_since) as c offset 0) w
$$;
comment on function ojs._counts_since(text, text, ojs.counts, timestamptz) is
'By how much the numbers of a queue, a tenant or all have grown between p_since and p_now.';
