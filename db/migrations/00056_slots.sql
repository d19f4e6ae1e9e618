-- +goose Up
-- Slots: how many jobs run where a rule limits that (ojs.rule, max_concurrency). A decision takes slots with the jobs it decides; slots
-- come back when the journals say that attempts have ended. Nobody else counts: ends cost an acknowledgement no lock and no row, and what
-- is read late only makes a limit tighter for a moment. What writes runs only under the row of ojs.lane.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._slot_mark() returns setof ojs.slot_mark
language sql stable rows 1
as $$ select m.* from ojs.slot_mark m order by m.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._slot_mark() is 'How far ends of attempts have been taken in; no row: nothing is counted.';

-- +goose StatementBegin
create function ojs._usage(p_tenant text, p_queue text) returns setof ojs.usage
language sql stable rows 1
as $$ select u.* from ojs.usage u where u.tenant_id = p_tenant and u.queue = p_queue order by u.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._usage(text, text) is 'What counts against the limit of a tenant and queue now; no row: there is none.';

-- +goose StatementBegin
create function ojs._use(p_tenants text[], p_queues text[], p_jobs int[], p_xid xid8 default null) returns text[]
language plpgsql
as $$
declare
    v_tenants text[];
begin
    with given as materialized (
        select * from unnest(p_tenants, p_queues, p_jobs) e(tenant_id, queue, jobs)
    ), used as (
        select g.tenant_id, '' as queue, sum(g.jobs)::int as jobs from given g group by g.tenant_id
        union all
        select '', g.queue, sum(g.jobs)::int from given g group by g.queue
        union all
        select g.tenant_id, g.queue, sum(g.jobs)::int from given g where (select m.shards from ojs._slot_mark() m)
            group by g.tenant_id, g.queue
    ), changed as (
        update ojs.usage u set rev = u.rev + 1, active = u.active + d.jobs
        from (
            select k.jobs, n.spot from used k
            cross join lateral (select x.ctid as spot, x.counted from ojs.usage x where x.tenant_id = k.tenant_id and x.queue = k.queue
                order by x.rev desc limit 1) n
            where pg_visible_in_snapshot(p_xid, n.counted) is not true
        ) d
        where u.ctid = d.spot
        returning u.tenant_id
    )
    select array_agg(c.tenant_id) into v_tenants from changed c where c.tenant_id <> '';
    return v_tenants;
end;
$$;
-- +goose StatementEnd
comment on function ojs._use(text[], text[], int[], xid8) is
'Counts p_jobs jobs of p_tenants in p_queues (in step; negative: takes them away) wherever a rule wants to know, and
returns the tenants whose rules it changed, perhaps twice. p_xid: the transaction that did it, which a count may have seen already.';

-- +goose StatementBegin
create function ojs._take_slots(p_queue text, p_picks ojs.picks) returns void
language plpgsql
as $$
begin
    perform ojs._use(array_agg(g.tenant_id), array_agg(p_queue), array_agg(g.jobs))
    from (select p.tenant_id, count(*)::int as jobs from unnest(p_picks.tenants, p_picks.places) p(tenant_id, place)
        where p.place is not null group by p.tenant_id) g;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_slots(text, ojs.picks) is 'Counts what was decided.';

-- +goose StatementBegin
create function ojs._free_slots(
    p_tenants text[], p_queues text[], p_jobs int[], p_first text[] default '{}', p_xid xid8 default null
) returns void
language plpgsql
as $$
begin
    perform ojs._unpark(
        ojs._use(p_tenants, p_queues, array(select -n from unnest(p_jobs) with ordinality j(n, i) order by i), p_xid), p_first);
end;
$$;
-- +goose StatementEnd
comment on function ojs._free_slots(text[], text[], int[], text[], xid8) is
'Takes away what ojs._use counted, and has the tenants take turns again, in p_first first.';

-- +goose StatementBegin
create function ojs._unpark(p_tenants text[], p_first text[] default '{}') returns int
language plpgsql
as $$
declare
    -- More at once would keep everybody waiting.
    c_rows   constant int := 100;
    v_most   int := ojs._freed_window(p_first);
    v_mark   ojs.slot_mark;
    v_now    ojs.slot_mark;
    v_line   text[];
    v_freed  text[];
    v_queues text[] := '{}';
begin
    select * into v_mark from ojs._slot_mark();
    -- Those that have waited for longest come first. Else they would wait for as long as others get room with each decision.
    v_line := array(select t from unnest(v_mark.freed || p_tenants) with ordinality u(t, n) group by t order by min(n));
    if v_line <> '{}' then
        v_freed := array(select t from unnest(v_line[:v_most]) with ordinality u(t, n)
            where exists (select from ojs.tenant_fairness f where f.parked and f.tenant_id = t)
                and (select r.jobs from ojs._room('', t) r) is distinct from 0
            order by n);
        v_queues := ojs._unpark_rows(v_freed[:case when p_first = '{}' then c_rows else v_most end], p_first, c_rows);
        if cardinality(v_queues) < c_rows and p_first <> '{}' then
            v_queues := v_queues || ojs._unpark_rows(v_freed[:c_rows], '{}', c_rows - cardinality(v_queues));
        end if;
        -- What was decided ahead there has no turns of these tenants.
        perform ojs._revoke(q.queue) from (select distinct q from unnest(v_queues) q) q(queue)
        where exists (select from ojs._turn_mark(q.queue) m where m.hi >= m.lo);
        perform ojs._notify(v_queues);
        -- Of the first, who still has room somewhere stays; the others have not had their turn yet.
        v_freed := v_freed[c_rows + 1:] || array(select t from unnest(v_freed[:c_rows]) t
            where exists (select from ojs._parked_queues(t) q where (select r.jobs from ojs._room(q, t) r) is distinct from 0));
        v_line := array(select t from unnest(v_line) with ordinality u(t, n) where n > v_most or t = any (v_freed) order by n);
        -- Taking back what was decided ahead has come here, too, and may have brought more, or given room to one that had none before.
        select * into v_now from ojs._slot_mark();
        if v_now.rev <> v_mark.rev then
            v_line := v_line || array(select f.t from (select unnest(v_now.freed) except select unnest(v_line)) f(t)
                where (select r.jobs from ojs._room('', f.t) r) is distinct from 0);
        end if;
    end if;
    update ojs.slot_mark m set rev = m.rev + 1, freed = v_line
    where m.rev = (select n.rev from ojs._slot_mark() n) and m.freed <> v_line;
    return cardinality(v_queues);
end;
$$;
-- +goose StatementEnd
comment on function ojs._unpark(text[], text[]) is
'Has tenants take turns again where they have room, in the queues p_first first, and notifies. About 100 rows at once, in p_first those of
the highest priorities of the tenants that have waited for longest (ojs._freed_window). The rest comes with the next call
(ojs.slot_mark.freed); until then decisions hand out nothing below it (ojs._freed_priority). Returns how many rows.';

-- +goose StatementBegin
create function ojs._unpark_rows(p_tenants text[], p_queues text[], p_limit int) returns text[]
language plpgsql
as $$
declare
    v_queues text[] := '{}';
    v_back   record;
begin
    for v_back in
        with parked as materialized (
            select f.* from unnest(p_tenants) with ordinality t(tenant_id, n)
            cross join lateral (
                select u.queue from unnest(p_queues) u(queue)
                union all
                select q from ojs._parked_queues(t.tenant_id) q where p_queues = '{}'
            ) q
            cross join lateral (select case when exists (
                    select from ojs.tenant_fairness f where f.parked and f.tenant_id = t.tenant_id and f.queue = q.queue)
                then (select r.jobs from ojs._room(q.queue, t.tenant_id) r) else 0 end as jobs offset 0) r
            -- Not many more than it has room for, or one tenant of many priorities would take all the places, and give nearly all up again.
            cross join lateral (select f.queue, f.priority, f.tenant_id, f.vtime, f.weight, f.ctid as spot, t.n from ojs.tenant_fairness f
                where f.parked and f.tenant_id = t.tenant_id and f.queue = q.queue
                order by f.priority desc limit least(r.jobs + 9, p_limit)) f
            where r.jobs is distinct from 0
            order by f.priority desc, f.n limit p_limit
        ), back as materialized (
            select p.*, l.spot as level_spot,
                case when b.unit = 'none' then p.vtime else ojs._join_at(p.vtime, l.low, p.weight, l.joined,
                    row_number() over (partition by p.queue, p.priority)) end as joins_at
            from parked p cross join lateral (select l.*, l.ctid as spot from ojs.level l
                where l.queue = p.queue and l.priority = p.priority order by l.rev desc limit 1) l
            left join lateral ojs._backlog(p.queue) b on true
        ), joined as (
            update ojs.tenant_fairness f set rev = f.rev + 1, ready = true, parked = false, vtime = b.joins_at from back b
            where f.ctid = b.spot
        ), opened as (
            update ojs.level l set rev = l.rev + 1, tenants = l.tenants + c.tenants, joined = l.joined + c.tenants,
                weight = l.weight + c.weight, moment = l.moment + c.moment, low = least(l.low, c.low), used_at = ojs.now()
            from (select b.queue, b.priority, b.level_spot, count(*)::int as tenants, sum(b.weight) as weight,
                    sum(b.weight * b.joins_at) as moment, min(b.joins_at) as low
                from back b group by b.queue, b.priority, b.level_spot) c
            where l.ctid = c.level_spot
            returning l.queue, l.priority, c.tenants as came, l.tenants = c.tenants as opened
        )
        select * from opened
    loop
        v_queues := v_queues || array_fill(v_back.queue, array[v_back.came]);
        if v_back.opened then
            perform ojs._set_backlog(v_back.queue, v_back.priority, true);
        end if;
    end loop;
    return v_queues;
end;
$$;
-- +goose StatementEnd
comment on function ojs._unpark_rows(text[], text[], int) is
'Has up to p_limit rows of tenants take turns again, in p_queues (empty: in all) where they have room, the highest priorities
first: with the time they had, but not before those who are there, so that they have neither credit nor loss. Returns the queue of each.';

-- +goose StatementBegin
create function ojs._freed_window(p_queues text[]) returns int
language sql immutable
as $$ select least(1000, 10000 / greatest(cardinality(p_queues), 1)) $$;
-- +goose StatementEnd
comment on function ojs._freed_window(text[]) is
'At how many of ojs.slot_mark.freed one call looks, the first: in each of its queues. Looking at more would keep everybody waiting.';

-- +goose StatementBegin
create function ojs._freed(p_queues text[], p_only text[], p_but text[]) returns text[]
language plpgsql stable
as $$
begin
    return array(select t from ojs._slot_mark() m cross join lateral unnest(m.freed[:ojs._freed_window(p_queues)]) t
        where (p_only is null or t = any (p_only)) and (p_but is null or t <> all (p_but))
            and exists (select from ojs.tenant_fairness f where f.parked and f.tenant_id = t and f.queue = any (p_queues)));
end;
$$;
-- +goose StatementEnd
comment on function ojs._freed(text[], text[], text[]) is
'Tenants that have room again and not all their turns in the queues yet: of p_only (null: of all) without p_but, of those that have waited
for longest (ojs._freed_window).';

-- +goose StatementBegin
create function ojs._freed_priority(p_tenants text[], p_queue text) returns int
language plpgsql stable
as $$
begin
    return (select max(f.priority) from unnest(p_tenants) t(tenant_id)
        cross join lateral (select f.priority from ojs.tenant_fairness f where f.parked and f.tenant_id = t.tenant_id and f.queue = p_queue
            order by f.priority desc limit 1) f
        where (select r.jobs from ojs._room(p_queue, t.tenant_id) r) is distinct from 0);
end;
$$;
-- +goose StatementEnd
comment on function ojs._freed_priority(text[], text) is
'The highest effective priority in a queue of those of the tenants that have room there and no turns yet; null: none.';

-- +goose StatementBegin
create function ojs._parked_queues(p_tenant text) returns setof text
language sql stable rows 10
as $$
    with recursive line as (
        (select f.queue from ojs.tenant_fairness f where f.parked and f.tenant_id = p_tenant order by f.queue limit 1)
        union all
        select (select f.queue from ojs.tenant_fairness f where f.parked and f.tenant_id = p_tenant and f.queue > l.queue
            order by f.queue limit 1)
        from line l where l.queue is not null
    )
    select l.queue from line l where l.queue is not null
$$;
-- +goose StatementEnd
comment on function ojs._parked_queues(text) is
'The queues in which a tenant is parked, each once, at the cost of their number, whatever that of priorities.';

-- +goose StatementBegin
create function ojs._has_fetched() returns boolean
language sql stable
as $$ select exists (select from ojs.lease l where l.xid = pg_current_xact_id_if_assigned()) $$;
-- +goose StatementEnd
comment on function ojs._has_fetched() is
'Whether the running transaction has fetched jobs. They are in no snapshot yet, so a setting that changes now would not count them.';

-- +goose StatementBegin
create function ojs._fetched_nothing() returns void
language plpgsql
as $$
begin
    if ojs._has_fetched() then
        perform ojs._raise('OJ409', 'this transaction has fetched jobs: commit it first', '{"field": "transaction"}',
            'Change settings in a transaction of its own.');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fetched_nothing() is 'Raises that the running transaction has fetched jobs.';
-- +goose StatementBegin
create function ojs._apply_limit(p_rule ojs.rule) returns void
language plpgsql
as $$
begin
    if p_rule.most is null then
        delete from ojs.usage u where u.tenant_id = p_rule.tenant_id and u.queue = p_rule.queue;
    elsif not exists (select from ojs._usage(p_rule.tenant_id, p_rule.queue)) then
        perform ojs._begin_count(p_rule);
    end if;
    perform ojs._apply_rule(p_rule);
end;
$$;
-- +goose StatementEnd
comment on function ojs._apply_limit(ojs.rule) is
'Has a limit that has changed act from the next decision on. Only after ojs._stop_ahead.';
reset role;
