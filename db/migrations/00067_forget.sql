-- +goose Up
-- What nobody uses leaves: levels, queues, and lists of queues. Otherwise priorities and names that were used once would stay for ever.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._forget(p_now timestamptz) returns void
language plpgsql
as $$
declare
    c_levels constant int := 100;
    c_rows   constant int := 1000;
    v_before timestamptz := p_now - interval '1 hour';
    v_level  ojs.level;
    v_rows   int;
    v_sum    int := 0;
begin
    if not exists (select from ojs.level l where l.tenants = 0 and l.used_at < v_before)
            and not exists (select from ojs.rotation r where r.used_at < v_before) then
        return;
    end if;
    perform from ojs.lane l where l.lane = 0 for update skip locked;
    if not found then
        return;
    end if;
    -- Who is parked has jobs, and its row says where they begin.
    update ojs.level l set rev = l.rev + 1, used_at = p_now
    from (select l.ctid as spot from ojs.level l where l.tenants = 0 and l.used_at < v_before
        and exists (select from ojs.tenant_fairness f
            where f.queue = l.queue and f.priority = l.priority and f.parked and not f.ready) limit c_rows) p
    where l.ctid = p.spot;
    delete from ojs.rotation r using (select r.ctid as spot from ojs.rotation r where r.used_at < v_before limit c_rows) o
    where r.ctid = o.spot;
    for v_level in
        select l.* from ojs.level l
        -- Whoever has hold of a job decided ahead may let go of it, and its tenant then gets its time back.
        where l.tenants = 0 and l.used_at < v_before and not exists (select from ojs.turn t where t.queue = l.queue)
          and not exists (select from ojs.tenant_fairness f
            where f.queue = l.queue and f.priority = l.priority and f.parked and not f.ready)
        order by l.used_at limit c_levels
    loop
        v_rows := ojs._forget_level(v_level, c_rows - v_sum);
        v_sum := v_sum + v_rows;
        exit when v_sum >= c_rows;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._forget(timestamptz) is
'Removes levels at which no tenant has had work for an hour, with the rows of their tenants, about 1000 rows at most; queues without a
level; and lists of queues that nobody has asked for in that time. Somebody decides at this moment: does nothing. For the tick, at its
end.';

-- +goose StatementBegin
create function ojs._forget_level(p_level ojs.level, p_rows int) returns int
language plpgsql
as $$
declare
    v_rows int;
begin
    delete from ojs.tenant_fairness f using (
        select f.ctid as spot from ojs.tenant_fairness f
        where f.queue = p_level.queue and f.priority = p_level.priority limit p_rows) o
    where f.ctid = o.spot;
    get diagnostics v_rows = row_count;
    if v_rows < p_rows then
        -- Rows of tenants are found by their level, so it goes last.
        delete from ojs.level l where l.queue = p_level.queue and l.priority = p_level.priority and l.rev = p_level.rev;
        if not exists (select from ojs.level l where l.queue = p_level.queue) then
            delete from ojs.backlog b where b.queue = p_level.queue and not b.limited and b.unit = 'jobs' and not b.own_order;
            delete from ojs.turn_mark m where m.queue = p_level.queue;
        end if;
    end if;
    return v_rows + 1;
end;
$$;
-- +goose StatementEnd
comment on function ojs._forget_level(ojs.level, int) is
'Removes up to p_rows rows of tenants of a level without work, and, when none is left, the level; returns how many rows.';
reset role;
