-- +goose Up
-- Slots come back: ends of attempts, by the journals; what was decided ahead, where somebody else could use it; and who waits is told.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._ends(p_from pg_snapshot, p_to pg_snapshot) returns table (xid xid8, tenant_id text, queue text, jobs int)
language sql stable rows 100
as $$
    select m.xid, m.tenant_id, m.queue, m.jobs from ojs._movement m
    where m.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(m.xid, p_to) is not false
      and m.lo is null and m.from_state = 'active'
    union all
    select m.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral ojs._ends_of(x.xid) m
    where pg_visible_in_snapshot(x.xid, coalesce(p_to, (select pg_current_snapshot())))
$$;
-- +goose StatementEnd
comment on function ojs._ends(pg_snapshot, pg_snapshot) is
'Attempts that ended between two snapshots, of which the journals say how many in a row; p_to null: up to now. Arguments as for
ojs._since.';

-- +goose StatementBegin
create function ojs._ends_of(p_xid xid8) returns table (xid xid8, tenant_id text, queue text, jobs int)
language sql stable rows 10
as $$
    select m.xid, m.tenant_id, m.queue, m.jobs from ojs._movement m
    where m.xid = p_xid and m.lo is null and m.from_state = 'active' offset 0
$$;
-- +goose StatementEnd
comment on function ojs._ends_of(xid8) is 'Attempts that a transaction ended.';

-- +goose StatementBegin
create function ojs._take_ends(p_to pg_snapshot, p_first text[] default '{}') returns void
language plpgsql
as $$
declare
    -- Reading more would keep everybody waiting.
    c_rows constant int := 10000;
    v_mark ojs.slot_mark;
    v_ends record;
begin
    select * into v_mark from ojs._slot_mark();
    -- Once v_mark has moved on, nobody would notice any more that these queues are to be decided again.
    if v_mark.ahead <> '{}' then
        perform ojs._revoke(g.queue) from ojs._given_up(v_mark.ended, v_mark.ahead) g;
        select * into v_mark from ojs._slot_mark();
    end if;
    select array_agg(g.tenant_id) as tenants, array_agg(g.queue) as queues, array_agg(g.jobs) as jobs, coalesce(sum(g.rows), 0) as rows
    into v_ends
    from (select e.tenant_id, e.queue, sum(e.jobs)::int as jobs, count(*) as rows
        from (select * from ojs._ends(v_mark.ended, p_to) limit c_rows + 1) e group by e.tenant_id, e.queue) g;
    if v_ends.rows > c_rows then
        perform ojs._take_many_ends(v_mark, p_to, p_first);
    elsif v_ends.rows > 0 or v_mark.freed <> '{}'
            or pg_snapshot_xmax(p_to)::text::bigint - pg_snapshot_xmax(v_mark.ended)::text::bigint > 2000 then
        update ojs.slot_mark m set rev = m.rev + 1, ended = p_to where m.rev = v_mark.rev;
        perform ojs._free_slots(v_ends.tenants, v_ends.queues, v_ends.jobs, p_first);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_ends(pg_snapshot, text[]) is
'Takes away from ojs.usage the attempts that have ended and p_to sees; those tenants take turns again, in p_first first.';

-- +goose StatementBegin
create function ojs._take_many_ends(p_mark ojs.slot_mark, p_to pg_snapshot, p_first text[]) returns void
language plpgsql
as $$
declare
    c_transactions constant int := 2000;
    c_ends         constant int := 1000;
    v_xids  xid8[] := array(select x from ojs._ending(p_mark.ended, p_to) x limit c_transactions);
    v_aside xid8[] := array(select x from unnest(v_xids) x
        where (select count(*) from (select from ojs._ends_of(x) limit c_ends) e) = c_ends);
    v_ends  record;
begin
    select array_agg(g.tenant_id) as tenants, array_agg(g.queue) as queues, array_agg(g.jobs) as jobs into v_ends
    from (select e.tenant_id, e.queue, sum(e.jobs)::int as jobs from unnest(v_xids) x cross join lateral ojs._ends_of(x) e
        where x <> all (v_aside) group by e.tenant_id, e.queue) g;
    update ojs.slot_mark m
    set rev = m.rev + 1, aside = m.aside || v_aside, ended = case when cardinality(v_xids) < c_transactions then p_to
        else ojs._snapshot_part(p_mark.ended, p_to, (select max(x::text::bigint)::text::xid8 from unnest(v_xids) x), true) end
    where m.rev = p_mark.rev;
    perform ojs._free_slots(v_ends.tenants, v_ends.queues, v_ends.jobs, p_first);
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_many_ends(ojs.slot_mark, pg_snapshot, text[]) is
'As ojs._take_ends, for a bounded number of transactions, the first. One that ended very many attempts one by one is put aside for the
tick.';

-- Those that were in progress come first: all that follow are later ones.
-- +goose StatementBegin
create function ojs._ending(p_from pg_snapshot, p_to pg_snapshot) returns setof xid8
language sql stable rows 10
as $$
    select x from pg_snapshot_xip(p_from) x where pg_visible_in_snapshot(x, p_to)
    union all
    (with recursive line as (
        select ojs._next_ending((pg_snapshot_xmax(p_from)::text::bigint - 1)::text::xid8) as xid
        union all
        select ojs._next_ending(l.xid) from line l where l.xid is not null
    )
    select l.xid from line l where pg_visible_in_snapshot(l.xid, p_to))
$$;
-- +goose StatementEnd
comment on function ojs._ending(pg_snapshot, pg_snapshot) is
'Transactions that p_to sees and p_from does not, and that may have ended attempts, at the cost of their number; in the order of their
ids.';

-- +goose StatementBegin
create function ojs._next_ending(p_xid xid8) returns xid8
language plpgsql stable
as $$
begin
    return least((select j.xid from ojs.journal j where j.lo is null and j.xid > p_xid order by j.xid limit 1),
        (select r.xid from ojs.release r where r.xid > p_xid order by r.xid limit 1));
end;
$$;
-- +goose StatementEnd
comment on function ojs._next_ending(xid8) is 'The first transaction after p_xid that may have ended attempts.';

-- +goose StatementBegin
create function ojs._take_aside() returns void
language plpgsql
as $$
declare
    v_aside xid8[] := (select m.aside from ojs._slot_mark() m);
    v_xid   xid8;
    v_ends  record;
begin
    foreach v_xid in array v_aside loop
        -- What a transaction did does not change any more, so it is added up before anybody has to wait.
        select array_agg(g.tenant_id) as tenants, array_agg(g.queue) as queues, array_agg(g.jobs) as jobs into v_ends
        from (select e.tenant_id, e.queue, sum(e.jobs)::int as jobs from ojs._ends_of(v_xid) e group by e.tenant_id, e.queue) g;
        perform from ojs.lane l where l.lane = 0 for update skip locked;
        if not found then
            return;
        end if;
        update ojs.slot_mark m set rev = m.rev + 1, aside = array_remove(m.aside, v_xid)
        where m.rev = (select n.rev from ojs._slot_mark() n) and v_xid = any (m.aside);
        if found then
            perform ojs._free_slots(v_ends.tenants, v_ends.queues, v_ends.jobs, p_xid => v_xid);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_aside() is
'Takes away from ojs.usage what transactions ended that decisions have put aside. Somebody decides at this moment: another time. For the
tick.';

-- +goose StatementBegin
create function ojs._slots_behind() returns boolean
language plpgsql stable
as $$
begin
    return exists (select from ojs._slot_mark() m where m.freed <> '{}' or exists (select from ojs._ends(m.ended, null)));
end;
$$;
-- +goose StatementEnd
comment on function ojs._slots_behind() is 'Whether slots have come back that no decision has taken in.';

-- +goose StatementBegin
create function ojs._note_ahead(p_queue text, p_is boolean) returns void
language plpgsql
as $$
begin
    update ojs.slot_mark m set rev = m.rev + 1, ahead = case when p_is then m.ahead || p_queue else array_remove(m.ahead, p_queue) end
    where m.rev = (select n.rev from ojs._slot_mark() n) and (p_queue = any (m.ahead)) <> p_is;
end;
$$;
-- +goose StatementEnd
comment on function ojs._note_ahead(text, boolean) is
'Notes whether jobs of tenants with rules may have been decided ahead for a queue.';

-- +goose StatementBegin
create function ojs._blocking(p_queues text[]) returns table (queue text)
language sql stable rows 1
as $$
    select a.queue from ojs._slot_mark() s cross join lateral unnest(s.ahead) a(queue) cross join lateral ojs._turn_mark(a.queue) m
    where exists (select from ojs.tenant_fairness f where f.parked and not f.ready and f.queue = any (p_queues))
      and a.queue <> all (p_queues) and exists (
        select from ojs.turn t where t.queue = a.queue and t.n >= case when m.held > 0 then 0 else m.lo end and exists (
            select from ojs.tenant_fairness f
            where f.parked and f.tenant_id = t.tenant_id and f.queue = any (p_queues) and ojs._only_full(t.tenant_id, f.queue)))
$$;
-- +goose StatementEnd
comment on function ojs._blocking(text[]) is
'Other queues, in which jobs were decided ahead that count against a limit of tenants who have work in p_queues and, for that limit, no
room.';

-- +goose StatementBegin
create function ojs._only_full(p_tenant text, p_queue text) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from ojs.rule r where r.tenant_id = p_tenant and r.queue = '' and r.most is not null)
        and not exists (
            select from ojs.rule r
            where r.tenant_id = p_tenant and (r.queue in ('', p_queue) and r.paused_at is not null
                or r.queue = p_queue and r.most <= (select u.active from ojs._usage(r.tenant_id, r.queue) u)));
end;
$$;
-- +goose StatementEnd
comment on function ojs._only_full(text, text) is
'Whether nothing but a limit over all queues can keep a tenant from jobs of a queue.';

-- +goose StatementBegin
create function ojs._queue_has_room(p_queue text) returns boolean
language plpgsql stable
as $$
begin
    return (select r.jobs from ojs._room(p_queue, '') r) > 0
        or exists (select from ojs._slot_mark() s cross join lateral ojs._ends(s.ended, null) e where e.queue = p_queue);
end;
$$;
-- +goose StatementEnd
comment on function ojs._queue_has_room(text) is 'Whether a queue with a max_concurrency may have room now.';

-- +goose StatementBegin
create function ojs._room_may_be_back(p_queues text[]) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select from ojs._slot_mark() s
        cross join lateral (
            select e.tenant_id from ojs._ends(s.ended, null) e
            union all
            select t from unnest(s.freed) t
        ) e
        where exists (select from ojs.tenant_fairness f where f.parked and f.tenant_id = e.tenant_id and f.queue = any (p_queues)))
        or exists (select from ojs._slot_mark() s cross join lateral ojs._given_up(s.ended, s.ahead) g where g.queue = any (p_queues))
        or exists (select from ojs._blocking(p_queues));
end;
$$;
-- +goose StatementEnd
comment on function ojs._room_may_be_back(text[]) is
'Whether a tenant that had no room for its work in p_queues may have some now, which a decision would find out.';

-- +goose StatementBegin
create function ojs._given_up(p_from pg_snapshot, p_ahead text[]) returns table (queue text)
language sql stable rows 1
as $$
    select distinct g.queue
    from (
        select r.tenant_id, r.queue, r.job_id from ojs.release r
        where r.xid >= pg_snapshot_xmax(p_from) and r.from_state = 'available'
        union all
        select r.* from pg_snapshot_xip(p_from) x(xid) cross join lateral (
            select r.tenant_id, r.queue, r.job_id from ojs.release r where r.xid = x.xid and r.from_state = 'available' offset 0) r
    ) g
    where g.queue = any (p_ahead)
      and exists (select from ojs.turn t where t.queue = g.queue and t.id = g.job_id and t.tenant_id = g.tenant_id)
      and exists (select from ojs.tenant_fairness f where f.parked and f.tenant_id = g.tenant_id and f.queue = g.queue)
$$;
-- +goose StatementEnd
comment on function ojs._given_up(pg_snapshot, text[]) is
'Those of p_ahead in which a job that was decided ahead ended without an attempt (cancelled, expired), by a transaction that p_from does not
see, while its tenant has work there and no room. Jobs of others that were decided ahead would go before that work, though it may have
a higher priority.';

-- +goose StatementBegin
create function ojs._notify_room(p_tenants text[], p_queues text[], p_pools int[]) returns void
language plpgsql
as $$
declare
    v_tenants text[];
    v_queues  text[];
begin
    if not exists (select from ojs.waiter) then
        return;
    end if;
    v_tenants := array(select distinct c.tenant_id from ojs.tenant c where c.tenant_id = any (p_tenants) and c.limited);
    v_queues := array(select distinct q.queue from unnest(p_queues) q(queue) cross join lateral ojs._backlog(q.queue) b where b.limited);
    if exists (select from ojs.pool p where p.id = any (p_pools) and p.max_concurrency is not null) then
        v_queues := v_queues || ojs._pool_queues(p_pools);
    end if;
    if v_tenants = '{}' and v_queues = '{}' then
        return;
    end if;
    perform ojs._notify(array(
        select w.queue from (select distinct w.queue from ojs.waiter w) w
        where w.queue = any (v_queues) or exists (
            select from unnest(v_tenants) t(tenant_id)
            where exists (select from ojs.tenant_fairness f where f.parked and f.tenant_id = t.tenant_id and f.queue = w.queue)
               -- A decision that has not committed may be about to park who takes turns, or who has come.
               or exists (select from ojs._backlog(w.queue) b cross join lateral unnest(b.priorities) p(priority)
                    cross join lateral ojs._fair(w.queue, p.priority, t.tenant_id) f where f.ready)
               or exists (select from ojs._unfolded() u where u.tenant_id = t.tenant_id and u.queue = w.queue))));
end;
$$;
-- +goose StatementEnd
comment on function ojs._notify_room(text[], text[], int[]) is
'Attempts of p_tenants in p_queues and p_pools have ended: notifies where somebody waits who may now get a job.';
reset role;
