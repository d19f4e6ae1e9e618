-- +goose Up
-- Due: who gets what next at one level of a queue, and in which order. It only reads, so that a decision, a decision taken ahead and a
-- caller beside decisions ask the same question. Tenants go by their own virtual time: a job is due at the time its tenant has when the
-- job is handed out, the lowest first (docs/design/0002-fair-decision.md). Everything here is made of SQL functions
-- that become part of the query that asks.
set local role ojs_owner;
set local check_function_bodies = off;

-- Measured and rejected: choosing the largest deficit first, which favours tenants that come with single jobs and delays those with a
-- backlog by up to 128 jobs; and reading all jobs of the tenants at the front, which costs a decision as many reads as there are tenants
-- times jobs asked for.
-- +goose StatementBegin
create function ojs._due(
    p_queue text, p_priority int, p_low numeric, p_count int, p_only text[], p_but text[], p_beside boolean, p_unit ojs.unit,
    p_now timestamptz
) returns table (
    turn int, spot tid, tenant_id text, vtime numeric, served boolean, more boolean, edge numeric, dealt boolean, again boolean,
    seq bigint, id uuid, place tid, bytes int, price float8, limited boolean, room int
)
language sql stable rows 100
as $$
    with front as materialized (
        -- While nobody runs out of jobs, no tenant can be due more of them than its part of p_count and one; first in, first out one may
        -- be due all, of which a part is read at a time. Whether more tenants follow, the last tells.
        select f.*, (f.lines[1]).works as lined, (f.vtime - p_low)::float8 as own, 1 + case when p_unit = 'none' then p_count / 8
            else floor(p_count * f.weight / sum(f.weight) over ())::int end as share,
            case when count(*) over () > p_count then max(f.vtime) over () end as edge,
            -- A subquery, so that nothing is asked about a tenant without a rule.
            case when f.limited then (select case when p_beside and r.counted then 0 else r.jobs end
                from ojs._room(p_queue, f.tenant_id) r) end as room
        from ojs._front(p_queue, p_priority, p_low, p_count, p_only, p_but, p_beside) f
    ), seen as materialized (
        select f.spot, f.tenant_id, f.vtime, f.edge, f.limited, f.room, l.again, l.seq, l.id, l.place, l.bytes, l.price,
            coalesce(l.last, false) as last, f.own + (l.upto - l.price) / f.weight as tag,
            -- Nobody waits for what a tenant may not have.
            case when coalesce(l.nth, 0) = f.room then null when l.id is null then f.own
                when l.last or f.lined and l.nth = l.found then f.own + l.upto / f.weight end as beyond
        from front f
        left join lateral (
            -- Behind the last one that was read there may be more: of a tenant that is to look again, only one range is read.
            select x.*, x.nth = least(f.share, f.room) or f.behind and x.nth = x.found as last
            from (
                select y.*, row_number() over (order by y.seq) as nth, count(*) over () as found,
                    case when p_unit = 'none' then y.seq - min(y.seq) over () + 1
                        else sum(y.price) over (order by y.seq rows unbounded preceding) end as upto
                from ojs._line(p_queue, f.job_priority, f.tenant_id, f.head, f.behind, f.again_lo, f.again_seq,
                    least(f.share, f.room), p_beside, p_unit, f.seconds, p_now) y
            ) x
        ) l on true
    ), known as materialized (
        -- From this time on, somebody who was not looked at may be due: a job behind a tenant's last one that was read, or behind what it
        -- was to look at again in vain, or a tenant behind the front.
        select least(min(s.beyond), (min(s.edge) - p_low)::float8) as until from seen s
    ), ranked as (
        select s.*, (row_number() over (order by s.tag, s.tenant_id))::int as turn from seen s
    ), dealt as (
        select r.*, r.id is not null and r.turn <= p_count and (r.tag <= k.until) is not false as dealt from ranked r, known k
    )
    select d.turn, d.spot, d.tenant_id, d.vtime, bool_or(d.dealt or d.id is null) over mine,
        bool_or(d.last or d.id is not null and not d.dealt) over mine, d.edge, d.dealt, d.again,
        d.seq, d.id, d.place, d.bytes, d.price, d.limited, d.room
    from dealt d
    window mine as (partition by d.tenant_id)
$$;
-- +goose StatementEnd
comment on function ojs._due(text, int, numeric, int, text[], text[], boolean, ojs.unit, timestamptz) is
'Who gets what next at one level, of some tenants (p_only; null: of all) but not of others (p_but; null: of none): up to p_count jobs with
dealt, in the order of turn; behind them jobs that were seen and are not due yet, and tenants that were to be served and have no job within
reach (id null: what lies there is not to be had, and their cursors have to pass it). spot: the tenant''s row of ojs.tenant_fairness; vtime:
its time; served: whether any of its rows is dealt, or it has no job; more: it may have more jobs than are dealt; edge: from this time on
there may be tenants who were not looked at; again: the job was found behind its tenant''s cursor; place: the job''s row; bytes: as
stored; limited: rules are about the tenant; room: what they allow, as ojs._room says. Fewer than p_count dealt does not mean
that there are no more: charge, and ask again. p_beside: for a caller who must not wait for a decision, looks at what decisions have not
taken in, too; but tenants whose jobs decisions count have no room.';

-- +goose StatementBegin
create function ojs._room(p_queue text, p_tenant text) returns table (jobs int, counted boolean)
language sql stable rows 1
as $$
    select min(case when r.paused_at is not null then 0 else greatest(r.most - u.active, 0) end),
        bool_or(r.most is not null)
    from ojs.rule r left join lateral ojs._usage(r.tenant_id, r.queue) u on true
    where r.tenant_id = p_tenant and r.queue in ('', p_queue)
$$;
-- +goose StatementEnd
comment on function ojs._room(text, text) is
'Eligibility, the one place: how many more jobs of a tenant (empty: of all tenants together) may be handed out from a queue now, by the
rules about it; null: as many as there are. counted: it depends on how many run, and is exact under the row of ojs.lane, once the ends of
attempts are taken in. Paused queues are left out by ojs._open_queues, before anything is read.';

-- +goose StatementBegin
create function ojs._price(p_unit ojs.unit, p_extra json, p_seconds real) returns float8
language sql immutable
as $$ select case p_unit when 'cost' then coalesce((p_extra ->> 'cost')::float8, 1) when 'time' then p_seconds else 1 end $$;
-- +goose StatementEnd
comment on function ojs._price(ojs.unit, json, real) is
'Price, the one place: what a job costs its tenant when it is handed out, in the unit of its queue: 1, what the job says, or how long it is
expected to run. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._front(p_queue text, p_priority int, p_low numeric, p_count int, p_only text[], p_but text[], p_beside boolean)
returns table (
    spot tid, tenant_id text, job_priority int, seconds real, head bigint, behind boolean, again_lo bigint, again_seq bigint,
    weight float8, vtime numeric, limited boolean, lines ojs.cursor[]
)
language sql stable rows 10
as $$
    (select f.ctid, f.tenant_id, f.job_priority, f.seconds, f.head, f.behind, f.again_lo, f.again_seq, f.weight::float8, f.vtime, f.limited,
        f.lines
    from ojs.tenant_fairness f
    where p_only is null and f.queue = p_queue and f.priority = p_priority and f.ready and f.vtime >= p_low
        and (p_but is null or f.tenant_id <> all (p_but))
    order by f.vtime limit p_count + 1)
    union all
    (select f.spot, f.tenant_id, f.job_priority, f.seconds, f.head, f.behind, f.again_lo, f.again_seq, f.weight::float8, f.vtime, f.limited,
        f.lines
    from unnest(p_only) o(tenant_id)
    cross join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = o.tenant_id order by f.rev desc limit 1) f
    where f.ready and (p_but is null or f.tenant_id <> all (p_but))
    order by f.vtime limit p_count + 1)
    union all
    select null, w.tenant_id, w.job_priority, coalesce(f.seconds, 1), coalesce(f.head, w.lo - 1), coalesce(f.behind, false),
        coalesce(f.again_lo, 0), coalesce(f.again_seq, 0), w.weight::float8, greatest(f.vtime, p_low), w.limited, null
    from ojs._waiting() w
    left join lateral ojs._fair(w.queue, w.priority, w.tenant_id) f on true
    where p_beside and w.queue = p_queue and w.priority = p_priority and (p_only is null or w.tenant_id = any (p_only))
        and (p_but is null or w.tenant_id <> all (p_but)) and f.ready is not true
$$;
-- +goose StatementEnd
comment on function ojs._front(text, int, numeric, int, text[], text[], boolean) is
'The tenants whose turn comes first at one level: p_count and one more, of p_only (null: all) without p_but. p_beside: those, too, whose
jobs no decision has taken in yet.';

-- +goose StatementBegin
create function ojs._line(
    p_queue text, p_job_priority int, p_tenant text, p_head bigint, p_behind boolean, p_again_lo bigint, p_again_seq bigint, p_look int,
    p_beside boolean, p_unit ojs.unit, p_seconds real, p_now timestamptz
) returns table (again boolean, seq bigint, id uuid, place tid, bytes int, price float8)
language sql stable rows 10
as $$
    (select true, j.seq, j.id, j.place, j.bytes, j.price
    from ojs._ranges(p_queue, p_job_priority, p_tenant, p_head, p_behind, p_again_lo, p_again_seq, p_look, p_beside) r
    cross join lateral (
        select j.seq, j.id, j.ctid as place, j.state, j.expires_at,
            ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes,
            ojs._price(p_unit, j.extra, p_seconds) as price
        from ojs.job j
        where j.queue = p_queue and j.priority = p_job_priority and j.tenant_id = p_tenant and j.seq between r.lo and r.hi
        order by j.seq limit p_look + case when p_beside then 1000000 else 64 end
    ) j
    where j.state = 'available' and (j.expires_at > p_now) is not false
    group by j.seq, j.id, j.place, j.bytes, j.price order by j.seq limit p_look)
    union all
    (select false, j.seq, j.id, j.place, j.bytes, j.price
    from (
        select j.seq, j.id, j.ctid as place, j.state, j.expires_at,
            ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes,
            ojs._price(p_unit, j.extra, p_seconds) as price
        from ojs.job j
        -- What came back goes first, all of it.
        where (p_beside or not p_behind) and j.queue = p_queue and j.priority = p_job_priority and j.tenant_id = p_tenant and j.seq > p_head
            and j.seq is not null
        order by j.seq limit p_look + case when p_beside then 1000000 else 64 end
    ) j
    where j.state = 'available' and (j.expires_at > p_now) is not false
    limit p_look)
    limit p_look
$$;
-- +goose StatementEnd
comment on function ojs._line(text, int, text, bigint, boolean, bigint, bigint, int, boolean, ojs.unit, real, timestamptz) is
'A tenant''s first p_look jobs that can be had: those behind its cursor that are to be looked at again, and when there are none those
ahead of it. Looks past 64 jobs that ended; behind longer runs of them ojs._skim moves the cursor.';

-- +goose StatementBegin
create function ojs._bytes(
    p_args json, p_meta jsonb, p_options json, p_extra json, p_errors jsonb, p_retry jsonb, p_tags text[]
) returns int
language sql stable
as $$
    select pg_column_size(p_args) + pg_column_size(p_meta) + coalesce(pg_column_size(p_options), 0) + coalesce(pg_column_size(p_extra), 0)
        + coalesce(pg_column_size(p_errors), 0) + coalesce(pg_column_size(p_retry), 0) + coalesce(pg_column_size(p_tags), 0)
$$;
-- +goose StatementEnd
comment on function ojs._bytes(json, jsonb, json, json, jsonb, jsonb, text[]) is
'How large a job is as stored, which is less than it takes in an answer where PostgreSQL has compressed it. Reads nothing but the row.';

-- +goose StatementBegin
create function ojs._answer_bytes(p_id uuid, p_place tid) returns bigint
language plpgsql stable
as $$
begin
    return (select octet_length(j.args::text) + octet_length(j.meta::text) + coalesce(octet_length(j.options::text), 0)
            + coalesce(octet_length(j.extra::text), 0) + coalesce(octet_length(j.errors::text), 0)
            + coalesce(octet_length(j.retry::text), 0) + coalesce(octet_length(j.tags::text), 0)
        from ojs.job j where j.ctid = p_place and j.id = p_id);
end;
$$;
-- +goose StatementEnd
comment on function ojs._answer_bytes(uuid, tid) is 'How large a job is in an answer. Reads all of it, uncompressed.';

-- +goose StatementBegin
create function ojs._ranges(
    p_queue text, p_job_priority int, p_tenant text, p_head bigint, p_behind boolean, p_again_lo bigint, p_again_seq bigint, p_look int,
    p_beside boolean
) returns table (lo bigint, hi bigint)
language sql stable rows 2
as $$
    (select greatest(a.lo, p_again_seq + 1), a.hi
    from ojs.again a
    where p_behind and a.queue = p_queue and a.priority = p_job_priority and a.tenant_id = p_tenant and a.lo >= p_again_lo
        and a.hi > p_again_seq
    -- One at a time: jobs of a second one could lie behind jobs of the first that were not read, and the cursor would pass those.
    order by a.lo limit case when p_beside then 10000 else 1 end)
    union all
    select u.lo, least(u.hi, p_head)
    from ojs._unfolded() u
    where p_beside and u.queue = p_queue and u.tenant_id = p_tenant and u.priority = p_job_priority and u.lo <= p_head
$$;
-- +goose StatementEnd
comment on function ojs._ranges(text, int, text, bigint, boolean, bigint, bigint, int, boolean) is
'Ranges of job.seq behind a tenant''s cursor that are still to be looked at. p_beside: those, too, that no decision has taken in yet.';

-- +goose StatementBegin
create function ojs._unfolded() returns setof ojs._movement
language sql stable rows 10
as $$
    select s.* from ojs._folded() f cross join lateral ojs._since(f.snapshot, null, true) s
    where s.to_state = 'available'
    union all
    select m.* from ojs._folded() f cross join lateral (
        select m.* from ojs._movement m where m.xid = f.part_xid and m.lo is not null and m.lo > f.part_lo and m.to_state = 'available') m
$$;
-- +goose StatementEnd
comment on function ojs._unfolded() is 'What ojs.journal says of jobs that became available and is not folded yet.';

-- +goose StatementBegin
create function ojs._waiting()
returns table (queue text, priority int, tenant_id text, job_priority int, weight numeric, limited boolean, lo bigint)
language sql stable rows 10
as $$
    select c.* from ojs._folded() f cross join lateral ojs._came(f.snapshot, null, f.part_xid, f.part_lo, 9223372036854775807) c
$$;
-- +goose StatementEnd
comment on function ojs._waiting() is
'Tenants with jobs that became available and are not folded yet, per queue and priority, with the first job.';

-- +goose StatementBegin
create function ojs._came(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint)
returns table (queue text, priority int, tenant_id text, job_priority int, weight numeric, limited boolean, lo bigint)
language sql stable rows 10
as $$
    select c.queue, r.priority, c.tenant_id, c.priority,
        (select w.weight from ojs._weight_in(c.queue, c.tenant_id, t.weight, t.throttle) w), coalesce(t.limited, false), c.lo
    from (
        select f.queue, f.priority, f.tenant_id, min(f.lo) as lo from ojs._fresh(p_from, p_to, p_xid, p_lo, p_hi) f
        where f.to_state = 'available' group by f.queue, f.priority, f.tenant_id
    ) c left join ojs.tenant t on t.tenant_id = c.tenant_id
    cross join lateral ojs._rank(c.queue, c.priority, t.priority_boost) r
$$;
-- +goose StatementEnd
comment on function ojs._came(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'Tenants with jobs that became available, per queue and priority, with the first job; of what ojs._fresh returns for these parameters.';

-- Jobs of one transaction become one range. It may cover jobs that were looked at before; these are passed over. A range per row would
-- keep everybody waiting when a transaction brings very many.
-- +goose StatementBegin
create function ojs._came_in(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint) returns table (
    queue text, tenant_id text, job_priority int, priority int, unit ojs.unit, own_order boolean, own_weight numeric, throttle numeric,
    limited boolean, lo bigint, los bigint[], his bigint[]
)
language sql stable rows 10
as $$
    select x.queue, x.tenant_id, x.priority, r.priority, r.unit, r.own_order, t.weight, t.throttle, coalesce(t.limited, false), x.lo, x.los,
        x.his
    from (
        select x.queue, x.tenant_id, x.priority, min(x.lo) as lo, array_agg(x.lo) as los, array_agg(x.hi) as his
        from (
            select f.queue, f.tenant_id, f.priority, min(f.lo) as lo, max(f.hi) as hi from ojs._fresh(p_from, p_to, p_xid, p_lo, p_hi) f
            where f.to_state = 'available' group by f.queue, f.tenant_id, f.priority, f.xid
        ) x
        group by x.queue, x.tenant_id, x.priority order by x.queue, x.tenant_id, x.priority desc
    ) x left join ojs.tenant t on t.tenant_id = x.tenant_id
    cross join lateral ojs._rank(x.queue, x.priority, t.priority_boost) r
$$;
-- +goose StatementEnd
comment on function ojs._came_in(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'As ojs._came, with the ranges of job.seq in which the jobs lie, one per transaction, and with the tenant''s own weight and throttle.';
reset role;
