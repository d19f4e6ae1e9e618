-- Removes levels, queues and lists of queues (ojs.rotation) that have not been used for an hour.
-- Otherwise a priority or name that was used once would stay for ever.

create or replace function ojs._forget(p_now timestamptz) returns void
language plpgsql
as $$
declare
    c_queues constant int := 100;
    c_rows   constant int := 1000;
    v_before timestamptz := p_now - interval '1 hour';
    v_state  ojs.dispatch_state;
    v_left   int := c_rows;
begin
    -- First without the lane, because nearly always there is nothing to remove.
    if not exists (select from ojs.dispatch_state s where s.idle_at < v_before)
            and not exists (select from ojs.rotation r where r.used_at < v_before) then
        return;
    end if;
    if not ojs._enter_lane(-1) then
        return;
    end if;
    delete from ojs.rotation r using (select r.ctid as spot from ojs.rotation r where r.used_at < v_before limit c_rows) o
    where r.ctid = o.spot;
    for v_state in select s.* from ojs.dispatch_state s where s.idle_at < v_before order by s.idle_at limit c_queues loop
        v_left := v_left - ojs._forget_levels(v_state, v_before, v_left);
        exit when v_left <= 0;
    end loop;
end;
$$;
comment on function ojs._forget(timestamptz) is
'Removes levels, queues and lists of queues that have not been used for an hour.
A level goes with the rows of its tenants, about 1000 rows in one call; a queue with default
settings goes when it has no level. If another session holds the lane, does nothing. For the tick,
at its end.';

create or replace function ojs._forget_levels(p_state ojs.dispatch_state, p_before timestamptz, p_rows int) returns int
language plpgsql
as $$
declare
    v_rows   int;
    v_levels ojs.level[];
begin
    delete from ojs.tenant_fairness f using (
        select f.ctid as spot from unnest(p_state.levels) l
        cross join lateral (select f.ctid from ojs.tenant_fairness f where f.queue = p_state.queue and f.priority = l.priority) f
        where l.idle_at < p_before limit p_rows) o
    where f.ctid = o.spot;
    get diagnostics v_rows = row_count;
    if v_rows < p_rows then
        -- Rows of tenants are found by their level, so the level goes after the last of them.
        v_levels := array(select l from unnest(p_state.levels) l where (l.idle_at < p_before) is not true order by l.priority desc);
        if v_levels = '{}' and p_state.unit = 'jobs' and not p_state.own_order then
            delete from ojs.dispatch_state s where s.queue = p_state.queue and s.rev = p_state.rev;
        else
            update ojs.dispatch_state s set rev = s.rev + 1, levels = v_levels, idle_at = ojs._idle_at(v_levels)
            where s.queue = p_state.queue and s.rev = p_state.rev;
        end if;
    end if;
    return v_rows + 1;
end;
$$;
comment on function ojs._forget_levels(ojs.dispatch_state, timestamptz, int) is
'Removes up to p_rows rows of tenants at levels of a queue that were idle before p_before.
When no row is left, removes these levels, too. Returns how many rows it removed, and one.';
