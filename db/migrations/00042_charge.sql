-- +goose Up
-- Charge: books what a level was served. Tenants pay with their virtual time and their cursors move past what they were given; who has
-- no more work leaves the round. Joining: where a tenant begins that comes. What writes runs only under the row of ojs.lane.
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.picks as (
    spots tid[], tenants text[], ids uuid[], places tid[], seqs bigint[], agains boolean[], more boolean[], bytes int[],
    prices float8[], rest numeric,
    skims text[], blocked text[], size bigint, limited boolean, cut boolean
);
comment on type ojs.picks is
'What ojs._due dealt at one level, in order, as arrays in step: the tenant''s row, the tenant, the job (null: the tenant had none within
reach), the job''s row (null: somebody has it locked), its seq, whether it was found behind its tenant''s cursor, whether its tenant may
have more, its bytes, its price. rest: the lowest time of those at the front who were not served; skims: tenants whose cursors have to pass
jobs that ended; blocked: tenants of jobs that somebody has locked; size: the bytes in sum; limited: rules are about some of the
tenants; cut: some were left out for their bytes.';

-- +goose StatementBegin
create function ojs._charge(p_level ojs.level, p_picks ojs.picks, p_only text[], p_but text[], p_unit ojs.unit) returns ojs.level
language plpgsql
as $$
declare
    v_level ojs.level := p_level;
begin
    with moved as materialized (
        select b.spot, b.jobs, f.tenant_id, f.job_priority, f.weight, f.vtime as was,
            -- Who holds all its own jobs locked lets the next one go first.
            case when p_unit = 'none' then greatest(f.vtime, least(r.next, w.next))
                when b.jobs = 0 and b.dealt > 0 then greatest(f.vtime, p_picks.rest + round(b.step / f.weight, 15))
                else f.vtime + round(b.price / f.weight, 15) end as vtime,
            greatest(f.head, b.line) as head, f.behind as was_behind, f.again_lo as was_again_lo,
            greatest(f.again_seq, b.back) as again_seq, r.lo as again_lo, w.works and not w.full as stays, w.works and w.full as parks
        from ojs._bill(p_picks) b
        cross join lateral (select f.* from ojs.tenant_fairness f where f.ctid = b.spot) f
        left join lateral (select a.lo, greatest(a.lo, f.again_seq + 1, b.back + 1) as next from ojs.again a
            where f.behind and a.queue = f.queue and a.priority = f.job_priority and a.tenant_id = f.tenant_id and a.lo >= f.again_lo
              and a.hi > greatest(f.again_seq, b.back)
            order by a.lo limit 1) r on true
        cross join lateral (
            select b.more or r.lo is not null or n.next is not null or (f.lines[1]).works is true as works, n.next,
                case when f.limited then (select g.jobs <= b.jobs from ojs._room(f.queue, f.tenant_id) g) is true else false end as full
            from (select case when p_unit = 'none' or r.lo is null and not b.more then (select j.seq from ojs.job j
                    where j.queue = f.queue and j.priority = f.job_priority and j.tenant_id = f.tenant_id
                        and j.seq > greatest(f.head, b.line)
                    order by j.seq limit 1) end as next offset 0) n
            offset 0) w
    ), total as materialized (
        select p_level.tenants - count(*) filter (where not m.stays) as tenants,
            p_level.weight - coalesce(sum(m.weight) filter (where not m.stays), 0) as weight,
            p_level.moment + sum(m.weight * (m.vtime - m.was)) - coalesce(sum(m.weight * m.vtime) filter (where not m.stays), 0) as moment,
            -- Where nobody stays, those who come begin where the last one was: else they would go before whoever comes back.
            -- First in, first out nothing brings those up to the lowest time who were left out.
            greatest(p_level.low, coalesce(least(min(m.vtime) filter (where m.stays), p_picks.rest,
                case when p_only is not null or p_but is not null and p_unit = 'none'
                    then ojs._lowest(p_level, array(select m.tenant_id from moved m)) end), max(m.vtime))) as low
        from moved m
    ), charged as (
        update ojs.tenant_fairness f
        set rev = f.rev + 1, vtime = m.vtime, head = m.head, behind = m.again_lo is not null, again_seq = m.again_seq,
            again_lo = coalesce(m.again_lo, f.again_lo), ready = m.stays, parked = m.parks, charged = f.charged + m.jobs,
            deficit = case when m.stays and p_unit <> 'none'
                then ojs._deficit(t.tenants::int, t.weight, t.moment, t.low, f.weight, m.vtime) else 0 end
        from moved m, total t where f.ctid = m.spot
    ), passed as (
        delete from ojs.again a using moved m
        where m.was_behind and a.queue = p_level.queue and a.priority = m.job_priority and a.tenant_id = m.tenant_id
          and a.lo >= m.was_again_lo and a.hi <= m.again_seq
    )
    update ojs.level l
    set rev = l.rev + 1, low = t.low, tenants = t.tenants, weight = t.weight, moment = case when t.tenants > 0 then t.moment else 0 end,
        used_at = case when t.tenants > 0 then l.used_at else ojs.now() end
    from total t where l.queue = p_level.queue and l.priority = p_level.priority and l.rev = p_level.rev returning l.* into v_level;
    if v_level.tenants = 0 then
        perform ojs._set_backlog(v_level.queue, v_level.priority, false);
    end if;
    return v_level;
end;
$$;
-- +goose StatementEnd
comment on function ojs._charge(ojs.level, ojs.picks, text[], text[], ojs.unit) is
'Books what the tenants of one level were dealt, and returns the level as it is then: times and cursors move on, past jobs that somebody
has locked, too, for which nobody pays; who has no more jobs leaves, and so does, parked, who has no room for more. p_only: only these
were asked about; p_but: not these.';

-- +goose StatementBegin
create function ojs._bill(p_picks ojs.picks)
returns table (spot tid, jobs bigint, dealt bigint, more boolean, step numeric, line bigint, back bigint, price numeric)
language sql stable rows 10
as $$
    select b.spot, count(b.place), count(b.id), bool_or(b.more), max(b.price)::numeric,
        max(b.seq) filter (where not b.again), max(b.seq) filter (where b.again),
        coalesce(sum(b.price) filter (where b.place is not null), 0)::numeric
    from unnest(p_picks.spots, p_picks.ids, p_picks.places, p_picks.seqs, p_picks.agains, p_picks.more, p_picks.prices)
        b(spot, id, place, seq, again, more, price) group by b.spot
$$;
-- +goose StatementEnd
comment on function ojs._bill(ojs.picks) is
'What each tenant was dealt: jobs that are locked, all jobs, whether it may have more, the highest price, the last job of its line and the
last one behind its cursor, and the price of those that are locked. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._lowest(p_level ojs.level, p_but text[]) returns numeric
language plpgsql stable
as $$
begin
    return (select f.vtime from ojs.tenant_fairness f
        where f.queue = p_level.queue and f.priority = p_level.priority and f.ready and f.vtime >= p_level.low
          and (p_but is null or f.tenant_id <> all (p_but))
        order by f.vtime limit 1);
end;
$$;
-- +goose StatementEnd
comment on function ojs._lowest(ojs.level, text[]) is
'The lowest time of a level''s tenants with work, some left out; null: there is none.';

-- +goose StatementBegin
create function ojs._raise_times(p_level ojs.level, p_tenants text[], p_back boolean default false) returns ojs.level
language plpgsql
as $$
declare
    v_behind record;
begin
    select array_agg(f.spot) as spots, p_level.low - min(f.vtime) filter (where f.ready or f.parked) as step,
        coalesce(sum(f.weight) filter (where f.ready), 0) as weight
    into v_behind
    from unnest(p_tenants) t(tenant_id)
    cross join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f
        where f.queue = p_level.queue and f.priority = p_level.priority and f.tenant_id = t.tenant_id order by f.rev desc limit 1) f
    where (f.ready or f.parked or p_back and f.vtime > p_level.low)
        and (select b.unit from ojs._backlog(p_level.queue) b) is distinct from 'none'
    having p_back or min(f.vtime) < p_level.low;
    if v_behind.spots is not null then
        update ojs.tenant_fairness f
        set rev = f.rev + 1, vtime = case when f.ready or f.parked then f.vtime + v_behind.step else p_level.low end
        where f.ctid = any (v_behind.spots);
        perform ojs._move_level(p_level, 0, 0, coalesce(v_behind.weight * v_behind.step, 0), null);
        select * into p_level from ojs._level(p_level.queue, p_level.priority);
    end if;
    return p_level;
end;
$$;
-- +goose StatementEnd
comment on function ojs._raise_times(ojs.level, text[], boolean) is
'Brings the times of tenants whose jobs only one pool gets, and that the level''s lowest time has passed meanwhile, up to it, all by the
same step, so that the next one that comes does not wait for all that the others had less than everybody else. p_back: down to it, too,
and those of tenants without work, because others get their jobs from now on, and they would wait for as many as the pool has given them.
Returns the level as it is then.';

-- +goose StatementBegin
create function ojs._deficit(p_tenants int, p_weight numeric, p_moment numeric, p_low numeric, p_own_weight numeric,
    p_vtime numeric) returns numeric
language sql immutable
as $$ select round((p_moment - p_low * p_weight) / p_tenants - (p_vtime - p_low) * p_own_weight, 6) $$;
-- +goose StatementEnd
comment on function ojs._deficit(int, numeric, numeric, numeric, numeric, numeric) is
'Jobs owed to a tenant: how many fewer it has had ahead of the level''s lowest time than the tenants with work on average. The deficits
of a level are 0 in sum. The first four parameters are those of the level.';

-- +goose StatementBegin
create function ojs._join_at(p_own numeric, p_low numeric, p_weight numeric, p_joined bigint, p_nth bigint default 1) returns numeric
language sql immutable
as $$ select greatest(p_own, coalesce(p_low, 0) + round((coalesce(p_joined, 0) + p_nth) * 0.6180339887498949 % 1 / p_weight, 15)) $$;
-- +goose StatementEnd
comment on function ojs._join_at(numeric, numeric, numeric, bigint, bigint) is
'Joining, the one place: the time of a tenant that comes with work. Not before its own, and spread over one step of it, so that those
who come together do not all go before those who wait. p_own: its time when it left, if it has one; p_low, p_joined: those of the level, if
there is one; p_nth: which one it is of those that join now. Counted over several levels, the tenants of each would lie in heaps.';

-- +goose StatementBegin
create function ojs._set_backlog(p_queue text, p_priority int, p_ready boolean) returns void
language plpgsql
as $$
declare
    v_backlog ojs.backlog;
begin
    select * into v_backlog from ojs._backlog(p_queue);
    if v_backlog.queue is null then
        insert into ojs.backlog (queue, rev, priorities) values (p_queue, 1, array[p_priority]);
    else
        update ojs.backlog b
        set rev = b.rev + 1, priorities = array(select p from unnest(array_remove(b.priorities, p_priority) || case when p_ready then
            p_priority end) p
            where p is not null order by p desc)
        where b.queue = p_queue and b.rev = v_backlog.rev;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._set_backlog(text, int, boolean) is 'Notes whether a queue has tenants with work at an effective priority.';

-- +goose StatementBegin
create function ojs._refund(
    p_queue text, p_priority int, p_tenant text, p_jobs int, p_price float8, p_lo bigint, p_hi bigint
) returns void
language plpgsql
as $$
declare
    v_fair  ojs.tenant_fairness;
    v_level ojs.level;
    v_own   numeric;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    select * into v_level from ojs._level(p_queue, p_priority);
    if v_fair.queue is null or v_level.queue is null then
        return;
    end if;
    v_own := case when (select b.unit from ojs._backlog(p_queue) b) = 'none' then least(v_fair.vtime, p_lo)
        else v_fair.vtime - round(p_price::numeric / v_fair.weight, 15) end;
    update ojs.tenant_fairness f
    set rev = f.rev + 1, vtime = v_own, ready = f.ready or p_hi is not null, parked = f.parked and p_hi is null,
        charged = f.charged - p_jobs
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
    if p_hi is not null then
        perform ojs._look_back(p_queue, p_priority, p_tenant, array[p_lo], array[p_hi]);
    end if;
    if v_fair.ready then
        -- Where all take jobs beside decisions the lowest time rises, too; otherwise whoever comes would begin far behind the others.
        perform ojs._move_level(v_level, 0, 0, v_fair.weight * (v_own - v_fair.vtime),
            case when v_own < v_fair.vtime then least(v_level.low, v_own) else ojs._lowest(v_level, null) end);
    elsif p_hi is not null then
        perform ojs._move_level(v_level, 1, v_fair.weight, v_fair.weight * v_own, least(v_level.low, v_own));
    elsif v_level.tenants = 0 and v_own > v_fair.vtime then
        -- Those who come begin where the last one was, as when it left.
        perform ojs._move_level(v_level, 0, 0, 0, greatest(v_level.low, v_own));
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._refund(text, int, text, int, float8, bigint, bigint) is
'Gives a tenant back what it was charged for p_jobs jobs that nobody has taken, p_price in sum (both negative: charges it for jobs that were
taken beside decisions; 0 jobs: settles what attempts took), and has the range of job.seq in which they lie looked at again (null: none).';

-- +goose StatementBegin
create function ojs._settle_ends(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint) returns void
language plpgsql
as $$
begin
    perform ojs._settle_time(f.queue, r.priority, f.tenant_id, f.jobs, f.price, f.seconds)
    from (
        select f.queue, f.priority, f.tenant_id, sum(f.owed)::int as jobs, sum(f.price) as price, sum(f.seconds) as seconds
        from ojs._fresh(p_from, p_to, p_xid, p_lo, p_hi) f
        where f.from_state = 'active' and f.xid is distinct from pg_current_xact_id_if_assigned()
        group by f.queue, f.priority, f.tenant_id
    ) f left join ojs.tenant t on t.tenant_id = f.tenant_id
    cross join lateral ojs._rank(f.queue, f.priority, t.priority_boost) r;
end;
$$;
-- +goose StatementEnd
comment on function ojs._settle_ends(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'Settles with tenants that share by time for what their attempts took. The parameters are those of ojs._fresh.';

-- +goose StatementBegin
create function ojs._settle_time(p_queue text, p_priority int, p_tenant text, p_jobs int, p_price float8, p_seconds float8) returns void
language plpgsql
as $$
declare
    -- What is charged beforehand keeps a tenant from others' workers until it is known to be wrong.
    c_most constant real := 600;
    v_fair ojs.tenant_fairness;
    v_low  numeric;
begin
    select f.* into v_fair from ojs._backlog(p_queue) b cross join lateral ojs._fair(p_queue, p_priority, p_tenant) f where b.unit = 'time';
    if v_fair.queue is null then
        return;
    end if;
    if p_price < 0 then
        -- What is given back puts a tenant one job before the others at most; else those who came meanwhile would wait for all of it.
        v_low := (select ojs._lowest(l, array[p_tenant]) from ojs._level(p_queue, p_priority) l);
        if v_low is not null then
            p_price := greatest(p_price, least(0, (v_low - v_fair.vtime) * v_fair.weight - v_fair.seconds));
        end if;
    end if;
    perform ojs._refund(p_queue, p_priority, p_tenant, 0, -coalesce(p_price, 0), null, null);
    -- Some five attempts change what is expected of the next one; a slower average would mischarge jobs of another kind for long.
    update ojs.tenant_fairness f
    set rev = f.rev + 1, seconds = greatest(0.001, least(c_most, f.seconds + (p_seconds / p_jobs - f.seconds) * (1 - 0.8 ^ p_jobs)))
    where p_jobs > 0 and f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant
        and f.rev = (select n.rev from ojs._fair(p_queue, p_priority, p_tenant) n);
end;
$$;
-- +goose StatementEnd
comment on function ojs._settle_time(text, int, text, int, float8, float8) is
'Settles with a tenant for p_jobs attempts that ended and ran p_seconds in sum, p_price more than it was charged; 0: for some that go on.';
reset role;
