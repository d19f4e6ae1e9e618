-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Writes into ojs.pace what was handed out since the last time, and removes what is older than an hour.
-- Locks the row of ojs.tally_mark, if nobody else has; waits for nobody.
-- Writes a row for each queue and tenant of which a job was handed out, at most every ten seconds, and the mark; nothing else.
-- +goose StatementBegin
create function ojs._roll_up_pace() returns void
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
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return;
    end if;
    with mark as materialized (
        select ojs._snapshot() as snapshot
    ), recent as materialized (
        select coalesce(l.queue, '') as queue, coalesce(x.tenant_id, '') as tenant_id, count(*) as jobs, sum(x.wait) as waited
        from ojs._leases_since(v_mark.pace_snapshot) l cross join lateral unnest(l.tenants, l.waits) x(tenant_id, wait)
        -- What this transaction handed out itself is not in the snapshot and would be counted twice.
        where not ojs._foreign(v_mark.pace_snapshot) and l.xid is distinct from pg_current_xact_id_if_assigned()
        group by grouping sets ((l.queue), (x.tenant_id), ()) having count(*) > 0
    ), marked as (
        update ojs.tally_mark t set pace_snapshot = m.snapshot, pace_at = v_now from mark m where t.rev = v_mark.rev
    )
    insert into ojs.pace (queue, tenant_id, at, jobs, waited, jobs_before, waited_before)
    -- A clock that was put back must not break the order of the sums.
    select r.queue, r.tenant_id, greatest(v_now, p.at + interval '1 microsecond'), r.jobs, r.waited, coalesce(p.jobs_before + p.jobs, 0),
        coalesce(p.waited_before + p.waited, 0)
    from recent r
    left join lateral (select p.* from ojs.pace p where p.queue = r.queue and p.tenant_id = r.tenant_id
        order by p.at desc limit 1) p on true;
    -- Not all at once: after a pause of the clock there may be much.
    delete from ojs.pace p where p.ctid = any (array(
        select o.ctid from ojs.pace o where o.at < v_now - interval '1 hour' - ojs._pace_step() order by o.at limit 50000));
end;
$$;
-- +goose StatementEnd
comment on function ojs._roll_up_pace() is
'Adds the rows of ojs.lease since ojs.tally_mark to ojs.pace, at most every ten seconds. Another server at it: does nothing.';

-- +goose StatementBegin
create function ojs._pace_step() returns interval
language sql immutable
as $$ select interval '10 seconds' $$;
-- +goose StatementEnd
comment on function ojs._pace_step() is 'The shortest time between two rows of ojs.pace. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._leases_since(p_from pg_snapshot) returns setof ojs.lease
language sql stable rows 100
as $$
    select l.* from ojs.lease l where l.xid >= pg_snapshot_xmax(p_from)
    union all
    select l.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral (select l.* from ojs.lease l where l.xid = x.xid offset 0) l
    where pg_visible_in_snapshot(x.xid, (select pg_current_snapshot()))
$$;
-- +goose StatementEnd
comment on function ojs._leases_since(pg_snapshot) is 'Rows of ojs.lease that p_from does not see; arguments as for ojs._since.';
reset role;
