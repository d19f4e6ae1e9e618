-- Due: which tenant gets which job next at one level of a queue. These functions only read, so a
-- decision, a caller without the lane and ojs.explain ask the same question. A job is due at the
-- virtual time that its tenant has when the job is handed out; the lowest time is first
-- (docs/design/0002-fair-decision.md). Most are SQL functions that become part of the query that
-- asks.

-- Two other ways were measured and rejected. To choose the largest deficit first favours tenants
-- that come with single jobs, and delays tenants with many jobs waiting by up to 128 jobs. To read
-- all jobs of the tenants at the front costs as many reads as tenants times jobs asked for.
create or replace function ojs._due(
    p_queue text, p_priority int, p_low numeric, p_count int, p_only text[], p_but text[], p_no_lane boolean, p_rules boolean,
    p_uncounted ojs.uncounted, p_unit ojs.unit, p_now timestamptz
) returns table (
    nth bigint, spot tid, tenant_id text, vtime numeric, last boolean, edge numeric, dealt boolean, revisited boolean,
    seq bigint, id uuid, place tid, bytes int, price float8, capacity int
)
language sql stable rows 100
as $$
    with front as materialized (
        -- share: how many jobs of the tenant to read. While no tenant runs out of jobs, a tenant
        -- can be due its part of p_count by weight, and one job more, but not more than that. First
        -- in, first out one tenant may be due all p_count jobs; an eighth of them is read at a
        -- time. edge: _front reads one tenant more than p_count, and the time of the last one is a
        -- bound for all tenants behind it.
        select f.*, (f.cursors[1]).works as has_next, (f.vtime - p_low)::float8 as own, 1 + case when p_unit = 'none' then p_count / 8
            else floor(p_count * f.weight / sum(f.weight) over ())::int end as share,
            case when count(*) over () > p_count then max(f.vtime) over () end as edge,
            -- A subquery, so that ojs._capacity is not called where there are no rules.
            case when p_rules then (select c.jobs from ojs._capacity(p_queue, f.tenant_id, p_uncounted) c) end as capacity
        from ojs._front(p_queue, p_priority, p_low, p_count, p_only, p_but, p_no_lane) f
    ), seen as materialized (
        select f.spot, f.tenant_id, f.vtime, f.edge, f.capacity, l.revisited, l.seq, l.id, l.place, l.bytes, l.price,
            coalesce(l.last, false) as last, f.own + (l.upto - l.price) / f.weight as tag,
            -- From this time on, a job that was not read may be due: one behind the last job read
            -- of the tenant, or behind a range in which no job was found. A tenant at its limit
            -- sets no bound: jobs of other tenants behind its next one may be dealt.
            case when coalesce(l.nth, 0) = f.capacity then null when l.id is null then f.own
                when l.last or f.has_next and l.nth = l.found then f.own + l.upto / f.weight end as beyond
        from front f
        left join lateral (
            -- last: the tenant may have more jobs behind this one. Of a tenant with ranges to
            -- revisit, only the first range is read.
            select x.*, x.nth = least(f.share, f.capacity) or f.revisit_lo is not null and x.nth = x.found as last
            from (
                select y.*, row_number() over w as nth, count(*) over () as found,
                    case when p_unit = 'none' then y.seq - min(y.seq) over () + 1 else sum(y.price) over w end as upto
                from ojs._line(p_queue, f.job_priority, f.tenant_id, f.head, f.revisit_lo, f.revisit_seq, least(f.share, f.capacity),
                    p_no_lane, p_unit, f.seconds, p_now) y
                window w as (order by y.seq rows unbounded preceding)
            ) x
        ) l on true
    ), ranked as materialized (
        -- until: up to this time no job or tenant that was not read can be due. Tags are float8, so
        -- jobs of one tenant may have equal tags; seq orders them, because the cursor passes all
        -- jobs before one that is dealt.
        select s.*, row_number() over (order by s.tag, s.tenant_id, s.seq) as nth,
            least(min(s.beyond) over (), (min(s.edge) over () - p_low)::float8) as until
        from seen s
    )
    select r.nth, r.spot, r.tenant_id, r.vtime, r.last, r.edge, r.id is not null and r.nth <= p_count and (r.tag <= r.until) is not false,
        r.revisited, r.seq, r.id, r.place, r.bytes, r.price, r.capacity
    from ranked r
$$;
comment on function ojs._due(text, int, numeric, int, text[], text[], boolean, boolean, ojs.uncounted, ojs.unit, timestamptz) is
'Returns the next jobs at one level, in the order in which they are due (nth).
dealt: the job is due; up to p_count jobs are. Other rows are jobs that were read and are not due
yet, and tenants in whose reach no job can be handed out (id null), so that their cursors have to
pass what lies there. Fewer than p_count dealt jobs do not prove that there are no more: charge, and
ask again.
spot, vtime: the tenant''s row of ojs.tenant_fairness (ctid), and its time; last: the tenant may
have more jobs behind this one; edge: from this time on there may be tenants that were not read;
revisited: the job lies behind its tenant''s cursor; place: the job''s row (ctid); bytes: its size;
capacity: how many more jobs the rules allow the tenant (null: no limit).
p_only, p_but: only these tenants (null: all), and not these (null: no exception).
p_no_lane: for a caller without the lane: reads tenants at their limit and jobs that no decision has
folded, too.
p_rules: there are rules about tenants; p_uncounted: what ojs._lock_usage returned.';

create or replace function ojs._uncounted(p_queue text, p_busy text[] default null, p_locked text[] default null) returns ojs.uncounted
language plpgsql stable
as $$
begin
    return (select row(p_busy, p_locked, jsonb_object_agg(coalesce(u.tenant_id, ''), u.anywhere),
        jsonb_object_agg(coalesce(u.tenant_id, ''), u.here))::ojs.uncounted
    from (
        select x.tenant_id, sum(x.jobs) as anywhere, sum(x.jobs) filter (where x.queue = p_queue) as here
        from (
            select t.tenant_id, t.queue, t.owed as jobs from ojs._unfolded() t where t.from_state = 'available' and t.to_state = 'active'
            union all
            select e.tenant_id, e.queue, -e.jobs from ojs._folded() f cross join lateral ojs._ends(f.snapshot, null) e
        ) x
        group by grouping sets ((x.tenant_id), ())
    ) u);
end;
$$;
comment on function ojs._uncounted(text, text[], text[]) is
'Returns what the counts of ojs.usage lack for a queue: jobs handed out without the lane, less
attempts that ended, since the last fold.
p_busy, p_locked: put into the result.';

create or replace function ojs._capacity(p_queue text, p_tenant text, p_uncounted ojs.uncounted default null)
returns table (jobs int, counted boolean)
language sql stable rows 1
as $$
    select min(case when r.paused_at is not null then 0 when r.most is null then null
            when u.limit_xid is distinct from r.limit_xid or r.tenant_id = any ((p_uncounted).busy)
                or ojs._limit_key(r) <> all ((p_uncounted).locked) then 0
            else greatest(r.most - u.active
                - coalesce((case when r.queue = '' then (p_uncounted).anywhere else (p_uncounted).here end ->> r.tenant_id)::int, 0),
                0) end),
        bool_or(r.most is not null)
    from ojs.rule r left join lateral ojs._usage(r.tenant_id, r.queue) u on true
    where r.tenant_id = p_tenant and r.queue in ('', p_queue)
$$;
comment on function ojs._capacity(text, text, ojs.uncounted) is
'Returns how many more jobs of a tenant may be handed out from a queue now, by all rules about it.
This is the one place that says so. p_tenant: empty: all tenants together. jobs: null: no limit.
counted: the answer depends on how many jobs run; it is exact for a session that has the rows of
ojs.usage locked. Pauses of queues are not looked at here, but in ojs._open_queues.';

create or replace function ojs._ends(p_from pg_snapshot, p_to pg_snapshot) returns table (tenant_id text, queue text, jobs int)
language sql stable rows 100
as $$
    select m.tenant_id, m.queue, m.jobs + m.owed from ojs._movement m
    where m.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(m.xid, p_to) is not false
      and m.lo is null and m.from_state = 'active'
    union all
    select m.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral (select m.tenant_id, m.queue, m.jobs + m.owed from ojs._movement m
        where m.xid = x.xid and m.lo is null and m.from_state = 'active' offset 0) m
    where pg_visible_in_snapshot(x.xid, coalesce(p_to, (select pg_current_snapshot())))
$$;
comment on function ojs._ends(pg_snapshot, pg_snapshot) is
'Returns the attempts that ended between two snapshots: in each row of the journals, how many.
p_to: null: up to now. Arguments as for ojs._since.';

create or replace function ojs._price(p_unit ojs.unit, p_extra json, p_seconds real) returns float8
language sql immutable
as $$ select case p_unit when 'cost' then coalesce((p_extra ->> 'cost')::float8, 1) when 'time' then p_seconds else 1 end $$;
comment on function ojs._price(ojs.unit, json, real) is
'Returns the price of a job, which its tenant is charged when the job is handed out.
This is the one place that says so. By p_unit: 1, the cost that the job says, or how many seconds it
is expected to run. Becomes part of the query that asks.';

create or replace function ojs._front(
    p_queue text, p_priority int, p_low numeric, p_count int, p_only text[], p_but text[], p_no_lane boolean
)
returns table (
    spot tid, tenant_id text, job_priority int, seconds real, head bigint, revisit_lo bigint, revisit_seq bigint,
    weight float8, vtime numeric, cursors ojs.cursor[]
)
language sql stable rows 10
as $$
    -- vtime and low are compared as numeric. As float8 the low may come out above a tenant's time
    -- in the 15th digit, and this scan would lose the tenant for ever.
    (select f.ctid, f.tenant_id, f.job_priority, f.seconds, f.head, f.revisit_lo, f.revisit_seq, f.weight::float8, f.vtime, f.cursors
    from ojs.tenant_fairness f
    where p_only is null and f.queue = p_queue and f.priority = p_priority and f.ready and f.vtime >= p_low
        and (p_but is null or f.tenant_id <> all (p_but))
    order by f.vtime limit p_count + 1)
    union all
    (select f.spot, f.tenant_id, f.job_priority, f.seconds, f.head, f.revisit_lo, f.revisit_seq, f.weight::float8, f.vtime, f.cursors
    from unnest(p_only) o(tenant_id)
    cross join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = o.tenant_id order by f.rev desc limit 1) f
    where (f.ready or p_no_lane and f.at_limit) and (p_but is null or f.tenant_id <> all (p_but))
    order by f.vtime limit p_count + 1)
    union all
    (select f.ctid, f.tenant_id, f.job_priority, f.seconds, f.head, f.revisit_lo, f.revisit_seq, f.weight::float8,
        greatest(f.vtime, p_low), f.cursors
    from ojs.tenant_fairness f
    where p_no_lane and p_only is null and f.queue = p_queue and f.priority = p_priority and f.at_limit and not f.ready
        and (p_but is null or f.tenant_id <> all (p_but))
    limit 1000)
    union all
    select null, w.tenant_id, w.job_priority, coalesce(f.seconds, 1), coalesce(f.head, w.lo - 1), f.revisit_lo,
        coalesce(f.revisit_seq, 0), w.weight::float8, greatest(f.vtime, p_low), null
    from ojs._waiting() w
    left join lateral ojs._fair(w.queue, w.priority, w.tenant_id) f on true
    where p_no_lane and w.queue = p_queue and w.priority = p_priority and (p_only is null or w.tenant_id = any (p_only))
        and (p_but is null or w.tenant_id <> all (p_but)) and (f.ready or f.at_limit) is not true
$$;
comment on function ojs._front(text, int, numeric, int, text[], text[], boolean) is
'Returns the tenants that are first at one level, by virtual time: p_count and one more.
p_only, p_but: only these tenants (null: all), and not these (null: no exception).
p_no_lane: also up to 1000 tenants that were at their limit at the last decision, and tenants whose
jobs no decision has folded yet.';

create or replace function ojs._line(
    p_queue text, p_job_priority int, p_tenant text, p_head bigint, p_revisit_lo bigint, p_revisit_seq bigint, p_look int,
    p_no_lane boolean, p_unit ojs.unit, p_seconds real, p_now timestamptz
) returns table (revisited boolean, seq bigint, id uuid, place tid, bytes int, price float8)
language sql stable rows 10
as $$
    (select r.lo is not null, j.seq, j.id, j.place, j.bytes, j.price
    -- One range at a time. Jobs of a second range could lie behind jobs of the first one that were
    -- not read, and the cursor would pass the latter.
    from (select 1) one
    left join lateral ojs._ranges(p_queue, p_job_priority, p_tenant, p_revisit_lo, p_revisit_seq, 1) r on true
    cross join lateral (
        select j.seq, j.id, j.ctid as place, j.state, j.expires_at,
            ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes,
            ojs._price(p_unit, j.extra, p_seconds) as price
        from ojs.job j
        where not p_no_lane and j.queue = p_queue and j.priority = p_job_priority and j.tenant_id = p_tenant
            and j.seq >= coalesce(r.lo, p_head + 1) and j.seq <= coalesce(r.hi, 9223372036854775807)
        order by j.seq limit p_look + 64
    ) j
    where j.state = 'available' and (j.expires_at > p_now) is not false
    limit p_look)
    union all
    (select x.revisited, x.seq, x.id, x.place, x.bytes, x.price
    from (
        select distinct on (j.seq) j.*
        from (
            select true as revisited, r.lo, r.hi from ojs._ranges(p_queue, p_job_priority, p_tenant, p_revisit_lo, p_revisit_seq, 10000) r
            union all
            select true, u.lo, least(u.hi, p_head) from ojs._unfolded() u
            where u.to_state = 'available' and u.queue = p_queue and u.tenant_id = p_tenant and u.priority = p_job_priority
                and u.lo <= p_head
            union all
            select false, p_head + 1, 9223372036854775807
        ) r
        cross join lateral (
            select r.revisited, j.seq, j.id, j.ctid as place, j.state, j.expires_at,
                ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes,
                ojs._price(p_unit, j.extra, p_seconds) as price
            from ojs.job j
            where j.queue = p_queue and j.priority = p_job_priority and j.tenant_id = p_tenant and j.seq between r.lo and r.hi
            order by j.seq limit p_look + 1000000
        ) j
        where j.state = 'available' and (j.expires_at > p_now) is not false
        order by j.seq limit p_look
    ) x
    where p_no_lane)
$$;
comment on function ojs._line(text, int, text, bigint, bigint, bigint, int, boolean, ojs.unit, real, timestamptz) is
'Returns the first p_look jobs of a tenant that can be handed out, by job.seq.
These are jobs in the first range to revisit, or, without ranges, jobs ahead of the cursor. Reads
past 64 jobs that ended; where more of them follow one another, ojs._pass_ended moves the cursor.
p_no_lane: jobs of both kinds, and those that no decision has folded yet; reads past a million jobs
that ended or were handed out.';

create or replace function ojs._bytes(
    p_args json, p_meta jsonb, p_options json, p_extra json, p_errors jsonb, p_retry jsonb, p_tags text[]
) returns int
language sql stable
as $$
    select case when num_nonnulls(pg_column_compression(p_args), pg_column_compression(p_meta), pg_column_compression(p_options),
            pg_column_compression(p_extra), pg_column_compression(p_errors), pg_column_compression(p_retry),
            pg_column_compression(p_tags)) = 0
        then pg_column_size(p_args) + pg_column_size(p_meta) + coalesce(pg_column_size(p_options), 0)
            + coalesce(pg_column_size(p_extra), 0) + coalesce(pg_column_size(p_errors), 0) + coalesce(pg_column_size(p_retry), 0)
            + coalesce(pg_column_size(p_tags), 0)
        else octet_length(p_args::text) + octet_length(p_meta::text) + coalesce(octet_length(p_options::text), 0)
            + coalesce(octet_length(p_extra::text), 0) + coalesce(octet_length(p_errors::text), 0)
            + coalesce(octet_length(p_retry::text), 0) + coalesce(octet_length(p_tags::text), 0) end
$$;
comment on function ojs._bytes(json, jsonb, json, json, jsonb, jsonb, text[]) is
'Returns the size of a job in bytes: as stored, or as in an answer where PostgreSQL has compressed
some of it. In the second case the values are read. Becomes part of the query that asks.';

create or replace function ojs._ranges(
    p_queue text, p_job_priority int, p_tenant text, p_revisit_lo bigint, p_revisit_seq bigint, p_most int
) returns table (lo bigint, hi bigint)
language sql stable rows 2
as $$
    select greatest(r.lo, p_revisit_seq + 1), r.hi
    from ojs.revisit r
    where p_revisit_lo is not null and r.queue = p_queue and r.priority = p_job_priority and r.tenant_id = p_tenant
        and r.lo >= p_revisit_lo and r.hi > p_revisit_seq
    order by r.lo limit p_most
$$;
comment on function ojs._ranges(text, int, text, bigint, bigint, int) is
'Returns the first p_most ranges of job.seq behind a tenant''s cursor that are still to be
revisited.';

create or replace function ojs._unfolded() returns setof ojs._movement
language sql stable rows 10
as $$
    select s.* from ojs._folded() f cross join lateral ojs._since(f.snapshot, null, true) s
    union all
    select m.* from ojs._folded() f cross join lateral (
        select m.* from ojs._movement m where m.xid = f.part_xid and m.lo is not null and m.lo > f.part_lo) m
$$;
comment on function ojs._unfolded() is
'Returns the rows of ojs.journal with a lo that no decision has folded yet.
They are about jobs that became available (to_state available), attempts to be charged, and rules
that changed (to_state active).';

create or replace function ojs._waiting()
returns table (queue text, priority int, tenant_id text, job_priority int, weight numeric, lo bigint)
language sql stable rows 10
as $$
    select c.queue, r.priority, c.tenant_id, c.priority,
        (select w.weight from ojs._weight_in(c.queue, c.tenant_id, t.weight, t.throttle) w), c.lo
    from (
        select u.queue, u.priority, u.tenant_id, min(u.lo) as lo from ojs._unfolded() u
        where u.to_state = 'available' group by u.queue, u.priority, u.tenant_id
    ) c left join ojs.tenant t on t.tenant_id = c.tenant_id
    cross join lateral ojs._rank(c.queue, c.priority, t.priority_boost) r
$$;
comment on function ojs._waiting() is
'Returns the tenants with jobs that became available and that no decision has folded yet, per queue
and priority, with the first job.seq.';
