-- Writes into ojs.pace what was handed out since the last call, and removes rows older than an
-- hour; of each kind and name the sums stay, in a row at -infinity, for counters that never go back.
-- Locks the row of ojs.tally_mark (skip locked).
-- Writes a row for each queue, tenant and pool of which a job was handed out, at most every 10
-- seconds, and the mark; nothing else.
create or replace function ojs._roll_up_pace() returns void
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_mark ojs.tally_mark := (select t from ojs.tally_mark t order by t.rev desc limit 1);
begin
    if v_mark.pace_at > v_now - ojs._pace_step() and v_mark.pace_at <= v_now
            or not ojs._foreign(v_mark.pace_snapshot) and not exists (select from ojs._leases_since(v_mark.pace_snapshot)) then
        return;
    end if;
    -- Not found: another server has the row locked, or has moved it to a higher rev since it was
    -- read.
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return;
    end if;
    with mark as materialized (
        select ojs._snapshot() as snapshot
    ), handed as materialized (
        select l.queue, l.pool::text as pool, case when l.pool is not null then coalesce(o.name, '_other') end as pool_name,
            x.tenant_id, ojs._wait_class(x.wait) as class, count(*) as jobs, sum(x.wait::float8) as waited
        from ojs._leases_since(v_mark.pace_snapshot) l
        left join ojs.pool o on o.id = l.pool
        cross join lateral unnest(l.tenants, l.waits) x(tenant_id, wait)
        -- The snapshot does not hold this transaction: its own rows would be counted now and by the
        -- next roll-up.
        where not ojs._foreign(v_mark.pace_snapshot) and l.xid is distinct from pg_current_xact_id_if_assigned()
        group by 1, 2, 3, 4, 5
    ), recent as (
        select k.kind, k.name, sum(h.jobs) as jobs, sum(h.waited) as waited,
            case when k.kind not in ('tenant', 'pool_queue') then ojs._waits(array_agg(h.class), array_agg(h.jobs)) end as waits
        from handed h
        cross join lateral (values ('all', ''), ('queue', h.queue), ('pool', h.pool), ('pool_queue', h.pool_name || ' ' || h.queue),
            ('tenant', h.tenant_id)) k(kind, name)
        where k.name is not null group by k.kind, k.name
    ), marked as (
        update ojs.tally_mark t set pace_snapshot = m.snapshot, pace_at = v_now from mark m where t.rev = v_mark.rev
    )
    insert into ojs.pace (kind, name, at, jobs, waited, waits, jobs_before, waited_before, waits_before)
    -- A clock that was put back must not break the order of the sums.
    select r.kind, r.name, greatest(v_now, p.at + interval '1 microsecond'), r.jobs, r.waited, r.waits,
        coalesce(p.jobs_before + p.jobs, 0), coalesce(p.waited_before + p.waited, 0), ojs._waits_sum(p.waits_before, p.waits)
    from recent r
    left join lateral (select p.* from ojs.pace p where p.kind = r.kind and p.name = r.name order by p.at desc limit 1) p on true;
    -- A bounded number: after a pause of the clock there may be many.
    with old as materialized (
        select o.*, o.ctid as spot from ojs.pace o
        where o.at > '-infinity' and o.at < v_now - interval '1 hour' - ojs._pace_step() order by o.at limit 50000
    ), kept as (
        insert into ojs.pace (kind, name, at, jobs, waited, waits, jobs_before, waited_before, waits_before)
        select o.kind, o.name, '-infinity', 0, 0, null, o.jobs_before + o.jobs, o.waited_before + o.waited,
            ojs._waits_sum(o.waits_before, o.waits)
        from old o where not exists (select from ojs.pace n where n.kind = o.kind and n.name = o.name and n.at > o.at)
        on conflict (kind, name, at) do update
        set jobs_before = excluded.jobs_before, waited_before = excluded.waited_before, waits_before = excluded.waits_before
    )
    delete from ojs.pace p using old o where p.ctid = o.spot;
end;
$$;
comment on function ojs._roll_up_pace() is
'Adds the rows of ojs.lease since ojs.tally_mark to ojs.pace, at most every 10 seconds. If another
server does it, it does nothing.';

create or replace function ojs._pace_step() returns interval
language sql immutable
as $$ select interval '10 seconds' $$;
comment on function ojs._pace_step() is
'The shortest time between two rows of ojs.pace. Becomes part of the expression that asks.';

create or replace function ojs._wait_bounds() returns float8[]
language sql immutable
as $$
    select array[0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800,
        86400]::float8[]
$$;
comment on function ojs._wait_bounds() is
'The lower bounds of the classes in which waits are counted, seconds.';

create or replace function ojs._wait_class(p_wait float8) returns int
language sql immutable
as $$ select greatest(width_bucket(p_wait, ojs._wait_bounds()), 1) $$;
comment on function ojs._wait_class(float8) is
'The class of a wait. Becomes part of the expression that asks.';

create or replace function ojs._waits(p_classes int[], p_jobs numeric[]) returns bigint[]
language sql immutable
as $$
    select array(select coalesce(sum(u.jobs), 0)::bigint from generate_subscripts(ojs._wait_bounds(), 1) c(class)
        left join unnest(p_classes, p_jobs) u(class, jobs) on u.class = c.class group by c.class order by c.class)
$$;
comment on function ojs._waits(int[], numeric[]) is
'How many jobs are in each class of waits. p_jobs: how many jobs of p_classes.';

create or replace function ojs._waits_sum(p_waits bigint[], p_more bigint[], p_less bigint[] default null) returns bigint[]
language sql immutable
as $$
    select nullif(array(select coalesce(u.n, 0) + coalesce(u.more, 0) - coalesce(u.less, 0)
        from unnest(p_waits, p_more, p_less) with ordinality u(n, more, less, class) order by u.class), '{}')
$$;
comment on function ojs._waits_sum(bigint[], bigint[], bigint[]) is
'p_waits plus p_more minus p_less, class by class; null: empty.';

create or replace function ojs._percentile(p_waits bigint[], p_part float8) returns interval
language sql immutable
as $$
    select (u.low + (coalesce(b.high, u.low) - u.low) * greatest(p_part * u.total - (u.upto - u.jobs), 0) / u.jobs) * interval '1 second'
    from (
        select w.class, w.jobs, sum(w.jobs) over (order by w.class) as upto, sum(w.jobs) over () as total,
            (ojs._wait_bounds())[w.class] as low
        from unnest(p_waits) with ordinality w(jobs, class)
    ) u
    cross join lateral (select (ojs._wait_bounds())[u.class + 1] as high) b
    where u.jobs > 0 and u.upto >= p_part * u.total
    order by u.class limit 1
$$;
comment on function ojs._percentile(bigint[], float8) is
'The wait that a part of the jobs (0.99: 99 of 100) did not exceed. An estimate, as if the jobs of
a class were spread evenly over it. Null: no jobs.';

create or replace function ojs._leases_since(p_from pg_snapshot) returns setof ojs.lease
language sql stable rows 100
as $$
    select l.* from ojs.lease l where l.xid >= pg_snapshot_xmax(p_from)
    union all
    select l.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral (select l.* from ojs.lease l where l.xid = x.xid offset 0) l
    where pg_visible_in_snapshot(x.xid, (select pg_current_snapshot()))
$$;
comment on function ojs._leases_since(pg_snapshot) is
'Rows of ojs.lease that p_from does not see; arguments as for ojs._since.';
