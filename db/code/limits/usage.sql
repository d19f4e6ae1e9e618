-- How many jobs run, where a rule limits that (ojs.rule, max_concurrency). A decision adds the jobs
-- it deals. Ends of attempts are read from the journals, so an acknowledgement neither locks nor
-- writes ojs.usage.
--
-- Every session that deals jobs of a tenant with a limit, with or without the lane, first locks the
-- rows of ojs.usage that count them, with skip locked. It deals no jobs of a tenant whose row
-- another session has locked. So two sessions never give the same capacity away.

create or replace function ojs._usage(p_tenant text, p_queue text) returns setof ojs.usage
language sql stable rows 1
as $$ select u.* from ojs.usage u where u.tenant_id = p_tenant and u.queue = p_queue order by u.rev desc limit 1 $$;
comment on function ojs._usage(text, text) is
'Returns the count for the limit of a tenant and queue; no row: it has not been counted yet.';

create or replace function ojs._limit_key(p_rule ojs.rule) returns text
language sql stable
as $$ select p_rule.limit_xid || '/' || p_rule.queue || '/' || p_rule.tenant_id $$;
comment on function ojs._limit_key(ojs.rule) is
'Returns a text that identifies the limit of a rule, from when it is set until it is removed.
Becomes part of the query that asks.';

create or replace function ojs._lock_usage(
    p_queue text, p_priority int, p_low numeric, p_count int, p_most int, p_only text[], p_but text[], p_no_lane boolean,
    out o_uncounted ojs.uncounted, out o_capacity int, out o_locked boolean
)
language plpgsql
as $$
declare
    v_busy    text[];
    v_locked  text[];
    v_limited boolean;
begin
    -- Without the lane other sessions go on deciding. So ojs._due may read a tenant or a new limit
    -- whose row is not locked here: v_locked has it allow no jobs.
    select array_agg(distinct b.tenant_id) filter (where b.busy),
        case when p_no_lane then coalesce(array_agg(b.limit_key) filter (where b.locked), '{}') end,
        coalesce(bool_or(b.tenant_id = ''), false), count(*) > 0
    into v_busy, v_locked, v_limited, o_locked
    from (
        select r.tenant_id, r.limit_key, u.spot is not null and l.limit_xid is null as busy, l.limit_xid is not null as locked
        from (
            -- The tenants that ojs._due is going to read, and the queue (empty name).
            select f.tenant_id, row_number() over () as nth
            from ojs._front(p_queue, p_priority, p_low, p_count, p_only, p_but, p_no_lane) f
            where exists (select from ojs.rule r where r.tenant_id = f.tenant_id and r.queue in ('', p_queue) and r.most is not null)
            union all
            select '', 0
        ) f
        cross join lateral (select r.tenant_id, r.queue, r.limit_xid, ojs._limit_key(r) as limit_key from ojs.rule r
            where r.tenant_id = f.tenant_id and r.queue in ('', p_queue) and r.most is not null) r
        left join lateral (select u.ctid as spot from ojs.usage u
            where u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid order by u.rev desc limit 1) u on true
        left join lateral (select u.limit_xid from ojs.usage u
            -- By limit_xid: a count for an earlier limit of the rule is of no use.
            where f.nth <= p_most and u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid
            order by u.rev desc limit 1 for update skip locked) l on true
    ) b;
    if o_locked then
        -- A statement of its own, after the locks: its snapshot sees what the session that had a
        -- row locked before has written into the journal.
        o_uncounted := ojs._uncounted(p_queue, v_busy, v_locked);
        if v_limited then
            o_capacity := (select c.jobs from ojs._capacity(p_queue, '', o_uncounted) c);
        end if;
    elsif p_no_lane then
        o_uncounted.locked := '{}';
    end if;
end;
$$;
comment on function ojs._lock_usage(text, int, numeric, int, int, text[], text[], boolean) is
'Locks the rows of ojs.usage of the first p_most tenants with a limit at the front of a level, and
of the queue, with skip locked.
o_uncounted: what these rows do not say; tenants after the first p_most are busy in it, too.
o_capacity: how many more jobs of the queue may be handed out (null: no limit).
o_locked: the queue or a tenant has a limit.
The other parameters are those of ojs._front.';

create or replace function ojs._count_dealt(p_queue text, p_tenants text[]) returns void
language plpgsql
as $$
begin
    update ojs.usage u set rev = u.rev + 1, active = u.active + n.jobs
    from (
        select g.jobs, x.spot
        -- Per tenant, and for all tenants together (empty name), whose limit is that of the queue.
        from (select coalesce(t, '') as tenant_id, count(*) as jobs from unnest(p_tenants) t group by grouping sets ((t), ())) g
        cross join lateral (select r.tenant_id, r.queue, r.limit_xid from ojs.rule r
            where r.tenant_id = g.tenant_id and r.queue in ('', p_queue) and r.most is not null) r
        cross join lateral (select u.ctid as spot from ojs.usage u
            where u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid
            order by u.rev desc limit 1) x
    ) n
    where u.ctid = n.spot;
end;
$$;
comment on function ojs._count_dealt(text, text[]) is
'Adds jobs dealt from a queue to the counts of their limits. p_tenants: the tenant of each job. Only
after ojs._lock_usage.';

create or replace function ojs._take_in_ends(p_slice ojs.slice, p_ruled boolean, p_part boolean) returns ojs.slice
language plpgsql
as $$
declare
    -- A new limit begins with a count at one snapshot. That needs all of the journal, and jobs that
    -- this transaction has fetched are in no snapshot. Otherwise the count waits for a later fold;
    -- until then the limit allows no jobs.
    v_begin   boolean := p_ruled and not p_part and not ojs._has_fetched();
    v_first   record;
    v_back    text[];
    v_counts  record;
begin
    if p_ruled and not v_begin then
        -- Write the change into the journal again, for a later fold.
        perform ojs._rule_changed(c.tenant_id, c.queue) from ojs._rule_changes(p_slice) c;
    elsif v_begin then
        -- Count before anything is folded, because the slice has to end at the snapshot of the
        -- count.
        select * into v_first from ojs._first_counts(p_slice);
        p_slice := v_first.o_slice;
    end if;
    select array_agg(g.tenant_id) as tenants, array_agg(g.queue) as queues, array_agg(g.jobs) as jobs, array_agg(b.busy) as busy
    into v_counts
    from (
        select x.tenant_id, x.queue, sum(x.jobs)::int as jobs
        from (
            select f.tenant_id, f.queue, f.owed as jobs from ojs._fresh(p_slice) f
            where f.from_state = 'available' and f.to_state = 'active' and f.xid is distinct from pg_current_xact_id_if_assigned()
            union all
            select e.tenant_id, e.queue, -e.jobs from ojs._ends(p_slice.seen, p_slice.becomes) e
        ) x
        group by x.tenant_id, x.queue
    ) g
    cross join lateral (
        select coalesce(bool_or(u.spot is not null and l.spot is null), false) as busy
        from ojs.rule r
        left join lateral (select u.ctid as spot from ojs.usage u
            where u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid order by u.rev desc limit 1) u on true
        left join lateral (select u.ctid as spot from ojs.usage u
            where u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid
            order by u.rev desc limit 1 for update skip locked) l on true
        where r.tenant_id in (g.tenant_id, '') and r.queue in ('', g.queue) and r.most is not null
    ) b;
    if v_counts.tenants is not null then
        with given as materialized (
            select * from unnest(v_counts.tenants, v_counts.queues, v_counts.jobs, v_counts.busy) g(tenant_id, queue, jobs, busy)
        ), kept as (
            -- Another session has a count of these locked: write the ends into the journal again,
            -- for the next fold.
            insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, owed)
            select g.tenant_id, g.queue, 0, 'active', 'active', 0, -g.jobs from given g where g.busy
        )
        update ojs.usage u set rev = u.rev + 1, active = u.active + n.jobs
        from (
            select s.jobs, x.spot
            from (
                select g.tenant_id, '' as queue, sum(g.jobs) as jobs from given g where not g.busy group by g.tenant_id
                union all
                select '', g.queue, sum(g.jobs) from given g where not g.busy group by g.queue
                union all
                select g.tenant_id, g.queue, g.jobs from given g where not g.busy
            ) s
            cross join lateral (select r.tenant_id, r.queue, r.limit_xid from ojs.rule r
                where r.tenant_id = s.tenant_id and r.queue = s.queue and r.most is not null) r
            cross join lateral (select u.ctid as spot from ojs.usage u
                where u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid
                order by u.rev desc limit 1) x
            where s.jobs <> 0
        ) n
        where u.ctid = n.spot;
    end if;
    v_back := v_counts.tenants;
    if v_begin then
        perform ojs._begin_limits(v_first);
        v_back := v_back || v_first.o_changed_tenants;
    end if;
    -- Last, because capacity is asked with the new counts.
    perform ojs._return_to_ring(v_back) where exists (select from ojs.tenant_fairness f where f.at_limit);
    return p_slice;
end;
$$;
comment on function ojs._take_in_ends(ojs.slice, boolean, boolean) is
'Brings ojs.usage up to a slice of the journals: subtracts attempts that ended, adds jobs that were
handed out without the lane.
Then has tenants return to the ring that have capacity again.
p_ruled: rules have changed, too. New limits begin with a count, and the slice that is returned goes
up to its snapshot.
p_part: the slice is only a part of what is new, so no count can begin.';

create or replace function ojs._return_to_ring(p_tenants text[]) returns void
language plpgsql
as $$
begin
    -- One statement for all tenants: 10,000 take about a second.
    with back as materialized (
        select f.queue, f.priority, f.vtime, f.weight, f.spot, r.unit, r.levels, r.state_spot, l.low, l.joined,
            row_number() over (partition by f.queue, f.priority order by f.tenant_id) as nth
        from (select distinct t from unnest(p_tenants) t) t(tenant_id)
        cross join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f where f.at_limit and f.tenant_id = t.tenant_id) f
        cross join lateral ojs._rank(f.queue, 0, 0) r
        cross join lateral (select l.* from unnest(r.levels) l where l.priority = f.priority) l
        where (select c.jobs from ojs._capacity(f.queue, f.tenant_id) c) is distinct from 0
    ), placed as materialized (
        select b.*, case when b.unit = 'none' then b.vtime else ojs._join_at(b.vtime, b.low, b.weight, b.joined, b.nth) end as joins_at
        from back b
    ), joined as (
        update ojs.tenant_fairness f set rev = f.rev + 1, ready = true, at_limit = false, vtime = p.joins_at from placed p
        where f.ctid = p.spot
    ), changed as materialized (
        select n.state_spot, ojs._merged((select p.levels from placed p where p.queue = n.queue limit 1), array_agg(n.by),
            ojs.now()) as levels
        from (
            select p.queue, p.state_spot, row(p.priority, min(p.joins_at), count(*), count(*), -count(*), null)::ojs.level as by
            from placed p group by p.queue, p.state_spot, p.priority
        ) n
        group by n.queue, n.state_spot
    )
    update ojs.dispatch_state s set rev = s.rev + 1, levels = c.levels, idle_at = ojs._idle_at(c.levels)
    from changed c where s.ctid = c.state_spot;
end;
$$;
comment on function ojs._return_to_ring(text[]) is
'Has tenants at their limit return to the ring of each queue in which they have capacity now.
They keep their time, but join no earlier than at the low of the level, so that they have neither
credit nor loss.';

create or replace function ojs._rule_changes(p_slice ojs.slice) returns table (tenant_id text, queue text)
language sql stable rows 10
as $$
    select distinct f.tenant_id, f.queue from ojs._fresh(p_slice) f where f.from_state = 'active' and f.price is null
$$;
comment on function ojs._rule_changes(ojs.slice) is
'Returns the tenants and queues whose rules have changed, by a slice of the journal.';

-- Stable, so that all of its reads are of one snapshot.
create or replace function ojs._first_counts(
    p_slice ojs.slice, out o_slice ojs.slice, out o_changed_tenants text[], out o_changed_queues text[], out o_tenants text[],
    out o_queues text[], out o_limits xid8[], out o_jobs int[]
)
language plpgsql stable
as $$
begin
    p_slice.upto := ojs._snapshot();
    p_slice.becomes := p_slice.upto;
    o_slice := p_slice;
    select array_agg(c.tenant_id), array_agg(c.queue) into o_changed_tenants, o_changed_queues from ojs._rule_changes(p_slice) c;
    select array_agg(r.tenant_id), array_agg(r.queue), array_agg(r.limit_xid),
        array_agg(ojs._active_jobs(r.tenant_id, r.queue, p_slice.upto))
    into o_tenants, o_queues, o_limits, o_jobs
    from unnest(o_changed_tenants, o_changed_queues) c(tenant_id, queue)
    cross join lateral (select r.* from ojs.rule r where r.tenant_id = c.tenant_id and r.queue = c.queue and r.most is not null) r
    -- A limit that has a count keeps it, even if its number or something else of its rule has
    -- changed.
    where (select u.limit_xid = r.limit_xid from ojs._usage(r.tenant_id, r.queue) u) is not true;
end;
$$;
comment on function ojs._first_counts(ojs.slice) is
'Counts the active jobs for new limits, at the snapshot of this call.
o_slice: the slice up to that snapshot.
o_changed_tenants, o_changed_queues: whose rules have changed, by the slice, in step.
o_tenants, o_queues, o_limits, o_jobs: of these, the limits without a count, in step, with their
limit_xid and how many jobs are active.';

create or replace function ojs._active_jobs(p_tenant text, p_queue text, p_upto pg_snapshot) returns int
language plpgsql stable
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return (
        select coalesce(sum(n.jobs), 0)
        from (
            -- Two queries, because one plan for both would read the numbers of all tenants while
            -- other sessions wait for the lane.
            select t.tenant_id, t.queue, t.active as jobs from ojs.tally t where p_tenant <> '' and t.tenant_id = p_tenant
            union all
            select t.tenant_id, t.queue, t.active from ojs.tally t where p_tenant = ''
            union all
            select c.tenant_id, c.queue, c.active from ojs._changes(v_mark, p_upto) c
        ) n
        where p_tenant in ('', n.tenant_id) and p_queue in ('', n.queue));
end;
$$;
comment on function ojs._active_jobs(text, text, pg_snapshot) is
'Returns how many jobs of a tenant (empty: of all) in a queue (empty: in all) are active.
Counts by ojs.tally and the journals since, up to a snapshot (null: up to now).';

create or replace function ojs._begin_limits(p_first record) returns void
language plpgsql
as $$
declare
    v_later boolean[];
begin
    delete from ojs.usage u
    using (
        select l.spot from unnest(p_first.o_changed_tenants, p_first.o_changed_queues) c(tenant_id, queue)
        -- A row that another session has locked stays. It counts for no rule, and a later change
        -- removes it.
        cross join lateral (select u.ctid as spot from ojs.usage u
            where u.tenant_id = c.tenant_id and u.queue = c.queue
                and not exists (select from ojs.rule r where r.tenant_id = u.tenant_id and r.queue = u.queue and r.limit_xid = u.limit_xid)
            for update skip locked) l
    ) l
    where u.ctid = l.spot;
    -- The count already includes ends that this transaction has written back into the journal, and
    -- a later fold would subtract them once more. Such a limit is counted by a later fold.
    v_later := array(
        select exists (select from ojs.journal j
            where j.xid = pg_current_xact_id_if_assigned() and j.lo is null and j.price is null
                and j.from_state = 'active' and j.to_state = 'active'
                and f.tenant_id in ('', j.tenant_id) and f.queue in ('', j.queue))
        from unnest(p_first.o_tenants, p_first.o_queues) with ordinality f(tenant_id, queue, n) order by f.n);
    insert into ojs.usage (tenant_id, queue, rev, active, limit_xid)
    select f.tenant_id, f.queue, coalesce((select u.rev from ojs._usage(f.tenant_id, f.queue) u), 0) + 1, f.jobs, f.limit_xid
    from unnest(p_first.o_tenants, p_first.o_queues, p_first.o_limits, p_first.o_jobs, v_later) f(tenant_id, queue, limit_xid, jobs, later)
    where not f.later;
    perform ojs._rule_changed(f.tenant_id, f.queue) from unnest(p_first.o_tenants, p_first.o_queues, v_later) f(tenant_id, queue, later)
    where f.later;
end;
$$;
comment on function ojs._begin_limits(record) is
'Removes the counts of limits that are gone, and writes the first counts of new limits.
p_first: what ojs._first_counts returned.';

create or replace function ojs._rule_changed(p_tenant text, p_queue text) returns void
language plpgsql
as $$
begin
    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
    values (p_tenant, p_queue, 0, 'active', 'active', 0, 0, 0);
end;
$$;
comment on function ojs._rule_changed(text, text) is
'Writes into the journal that a rule about a tenant and a queue (empty: all) has changed.
The next fold counts for a limit that is new, and looks whether the tenant has capacity again.';

create or replace function ojs._notify_room(p_tenants text[], p_queues text[], p_pools int[]) returns void
language plpgsql
as $$
begin
    -- No worker waits, or nothing has a limit: the end of an attempt changes nothing for a waiting
    -- worker.
    if not exists (select from ojs.waiter) or not exists (select from ojs.rule) and not exists (select from ojs.pool) then
        return;
    end if;
    perform ojs._notify(array(
        select w.queue from (select distinct w.queue from ojs.waiter w) w
        where w.queue = any (p_queues)
          and exists (select from ojs.rule r where r.tenant_id = '' and r.queue = w.queue and r.most is not null)
            or exists (select from ojs.pool p where p.id = any (p_pools) and p.max_concurrency is not null
                and (p.queues is null or w.queue = any (p.queues)))
                and (exists (select from ojs._state(w.queue) s cross join lateral unnest(s.levels) l where l.ready > 0)
                    or exists (select from ojs._unfolded() u where u.queue = w.queue and u.to_state = 'available'))
            or exists (
                select from (select distinct t from unnest(p_tenants) t) t(tenant_id)
                where exists (select from ojs.rule r where r.tenant_id = t.tenant_id and r.most is not null)
                    and (exists (select from ojs.tenant_fairness f where f.at_limit and f.tenant_id = t.tenant_id and f.queue = w.queue)
                   -- A tenant in the ring, or with new jobs, counts as well: a decision that has
                   -- not committed yet may be about to find it at its limit.
                   or exists (select from ojs._state(w.queue) s cross join lateral unnest(s.levels) l
                        cross join lateral ojs._fair(w.queue, l.priority, t.tenant_id) f where f.ready)
                   or exists (select from ojs._unfolded() u where u.tenant_id = t.tenant_id and u.queue = w.queue
                        and u.to_state = 'available')))));
end;
$$;
comment on function ojs._notify_room(text[], text[], int[]) is
'Notifies servers whose workers wait for capacity that attempts may have freed by ending. p_tenants,
p_queues, p_pools: of the attempts that ended.';

create or replace function ojs._has_fetched() returns boolean
language sql stable
as $$
    -- In a logical copy ojs.lease has transaction ids of another cluster, and the running
    -- transaction may have one of them. It cannot have fetched: there FETCH is refused.
    select exists (select from ojs.lease l where l.xid = pg_current_xact_id_if_assigned())
        and not (select ojs._copied(f) from ojs._folded() f)
$$;
comment on function ojs._has_fetched() is
'Returns whether the running transaction has fetched jobs. No snapshot has them yet, so a count made
now would lack them.';

create or replace function ojs._fetched_nothing() returns void
language plpgsql
as $$
begin
    if ojs._has_fetched() then
        perform ojs._raise('OJ409', 'this transaction has fetched jobs: commit it first', '{"field": "transaction"}',
            'Change settings in a transaction of its own.');
    end if;
end;
$$;
comment on function ojs._fetched_nothing() is
'Raises conflict if the running transaction has fetched jobs.';
