-- +goose Up
-- Hand out, and the ways in which ojs.fetch_many comes to jobs.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._hand_out(p_done ojs.decided, p_ask ojs.ask, p_got int) returns setof ojs._handed
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_base bigint;
begin
    if p_done.turns is null then
        v_base := nextval('ojs.decision_seq') * 10000 - 1;
    end if;
    -- A statement of its own: it sees the jobs as those who locked them found them, whoever changed them before.
    return query
    with given as materialized (
        select g.id, g.place, g.charged, coalesce(g.turn, v_base + g.n) as turn, g.n, coalesce(p_ask.requests[r.at], r.at) as request,
            nullif(p_ask.workers[r.at], '') as worker_id, nullif(p_ask.lease_ms[r.at], 0) as lease_ms
        from unnest(p_done.ids, p_done.places, p_done.charged, p_done.turns) with ordinality g(id, place, charged, turn, n)
        cross join lateral (select width_bucket(p_got + g.n::int, p_ask.starts) as at) r
    ), taken as (
        update ojs.job j
        set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = g.worker_id,
            pool = p_ask.pool, charged = g.charged,
            lease_expires_at = ojs._lease_end(v_now, coalesce(g.lease_ms, j.visibility_timeout_ms), v_now, nullif(j.timeout_ms, 0))
        from given g
        where j.ctid = g.place and j.id = g.id and j.state = 'available'
        returning g.n, g.turn, g.request, j.*
    ), leased as (
        -- Rows of at most 128 jobs, so that they need not be compressed or put aside; in each the turns follow one another.
        insert into ojs.lease (due_at, queue, priority, jobs, ids, tenants, waits, turn, at, pool)
        select t.lease_expires_at, t.queue, t.priority, count(*), array_agg(t.id), array_agg(t.tenant_id),
            array_agg(greatest(ojs._seconds(v_now - t.enqueued_at), 0)), min(t.turn), v_now, p_ask.pool
        from taken t group by t.lease_expires_at, t.queue, t.priority, (t.n - 1) / 128, t.turn - t.n
    )
    select t.request, t.state, t.attempt, t.lease, t.started_at, t.lease_expires_at, t.finished_at, t.retry_at, t.enqueued_at, t.worker_id,
        t.pool, t.charged, t.errors, t.result, t.seq, t.tenant_id, t.id, t.queue, t.type, t.priority, t.max_attempts, t.created_at,
        t.scheduled_at, t.expires_at, t.timeout_ms, t.visibility_timeout_ms, t.tags, t.args, t.meta, t.retry, t.options, t.extra
    from taken t order by t.n;
end;
$$;
-- +goose StatementEnd
comment on function ojs._hand_out(ojs.decided, ojs.ask, int) is
'Hands out jobs that the transaction has locked, and returns them in order: active, under leases that ojs.lease keeps for the reaper and
the statistics. p_got: how many places of the call are filled already.';

-- +goose StatementBegin
create function ojs._no_jobs(p_ask ojs.ask, p_cut boolean) returns setof ojs._handed
language sql stable
as $$
    select h.* from jsonb_populate_recordset(null::ojs._handed, p_ask.others) h
    union all
    select h.* from jsonb_populate_record(null::ojs._handed, '{"request": 0}') h where p_cut
$$;
-- +goose StatementEnd
comment on function ojs._no_jobs(ojs.ask, boolean) is 'The rows without a job that ojs.fetch_many ends with.';

-- +goose StatementBegin
create function ojs._decided_already(p_ask ojs.ask, p_got int) returns ojs.decided
language plpgsql
as $$
declare
    c_many   constant int := 32;
    c_most   constant int := 1000;
    v_queue text := p_ask.queues[1];
    v_mark  ojs.turn_mark;
    v_done  ojs.decided;
    v_above int;
    v_stale  boolean;
    v_unread bigint;
begin
    if cardinality(p_ask.queues) > 1 or p_ask.count > 1000 or p_ask.tenants is not null and not p_ask.aside or p_ask.limited
            or p_ask.strategy = 'least-loaded' then
        return null;
    end if;
    select * into v_mark from ojs._turn_mark(v_queue) m where m.hi >= m.lo;
    if v_mark.queue is null or p_ask.counts and not p_ask.aside and ojs._room_may_be_back(p_ask.queues) then
        return null;
    end if;
    v_unread := (select count(*) from (select from ojs._unfolded() u where u.queue = v_queue limit c_most + 1) u);
    if v_unread > c_many and not p_ask.aside and ojs._enter_lane(-1) then
        -- Each caller would read all of it again, until somebody decides. With more to come nobody knows what goes first.
        if ojs._fold() then
            return null;
        end if;
        select * into v_mark from ojs._turn_mark(v_queue) m where m.hi >= m.lo;
        if v_mark.queue is null then
            return null;
        end if;
        v_unread := 0;
    end if;
    v_stale := v_unread > c_most;
    -- Beginning this statement costs more than most calls do; so it is not run for nothing.
    if v_unread between 1 and c_most then
        v_stale := exists (select from ojs._folded() f
            cross join lateral ojs._stale_queues(f.snapshot, null, f.part_xid, f.part_lo, 9223372036854775807, v_queue));
    end if;
    if not v_stale then
        return ojs._take(v_queue, p_ask.count - p_got, p_ask.tenants, p_ask.max_bytes, '{}');
    elsif not p_ask.aside then
        return null;
    end if;
    -- What was decided ahead cannot be taken back from here. Work that has come since and goes before it is taken first.
    select max(t.priority) into v_above from ojs.turn t where t.queue = v_queue and t.n >= v_mark.lo;
    v_done := ojs._nothing();
    v_done := ojs._beside(v_queue, p_ask.count - p_got, p_ask.tenants, p_ask.but, v_above, p_ask.max_bytes, v_done);
    if v_done.ids = '{}' then
        return ojs._take(v_queue, p_ask.count - p_got, p_ask.tenants, p_ask.max_bytes, '{}');
    end if;
    return v_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._decided_already(ojs.ask, int) is
'Jobs of those that were decided ahead; null: none may be taken. Nothing was, or work has come that may go before it, or the call is for
several queues, some tenants, a pool with a max_concurrency, strategy least-loaded, or more than 1000 jobs. Where much has come it folds
first, and keeps the lane.';

-- +goose StatementBegin
create function ojs._anything_for(p_ask ojs.ask) returns boolean
language plpgsql stable
as $$
begin
    -- All at one moment: between two looks a decision could take a job from where the second looks to where the first has looked.
    return (p_ask.limited is not true or ojs._pool_room(p_ask.pool) is distinct from 0) and (exists (
            select from unnest(p_ask.queues) q(queue)
            cross join lateral ojs._backlog(q.queue) b
            where b.priorities <> '{}' and (not b.limited or ojs._queue_has_room(q.queue))
                and (coalesce(p_ask.tenants, p_ask.but) is null or exists (select from unnest(b.priorities) p(priority)
                    cross join lateral ojs._front(q.queue, p.priority, '-Infinity', 1, p_ask.tenants, p_ask.but, false) f)))
        or exists (select from ojs._unfolded() u where u.queue = any (p_ask.queues))
        or exists (select from unnest(p_ask.queues) q(queue) cross join lateral ojs._turn_mark(q.queue) m
            where (m.hi >= m.lo or m.held > 0)
              and exists (select from ojs.turn t where t.queue = m.queue and t.n >= case when m.held > 0 then 0 else m.lo end))
        or exists (select from ojs._folded() f where f.counts and ojs._room_may_be_back(p_ask.queues)));
end;
$$;
-- +goose StatementEnd
comment on function ojs._anything_for(ojs.ask) is
'Whether a decision could find a job. Writes nothing, so that idle polling leaves no trace.';

-- +goose StatementBegin
create function ojs._refill(p_ask ojs.ask, p_in_lane boolean) returns void
language plpgsql
as $$
declare
    -- Deciding ahead pays where few jobs are asked for at once: enough then to keep sixteen callers going while one of them decides.
    c_few   constant int := 16;
    v_queue text := p_ask.queues[1];
begin
    -- Of tenants that have room again not all turns are back, the others would be decided ahead of them, and taken back.
    if cardinality(p_ask.queues) > 1 or p_ask.tenants is not null or p_ask.limited or p_ask.strategy = 'least-loaded'
            or p_ask.counts and exists (select from ojs._slot_mark() m where m.freed <> '{}')
            or p_ask.count > c_few or exists (select from ojs._turn_mark(v_queue) m cross join lateral (select t.n from ojs.turn t
                where t.queue = v_queue and t.n >= m.lo order by t.n limit 1) t where t.n <= m.hi - m.ahead / 2) then
        return;
    end if;
    -- Most often, under light load, there is nothing left. By time, and in a tenant's own order, what is decided ahead would have to be
    -- taken back with each attempt that ends, and with each job of a higher priority.
    if (select b.priorities <> '{}' and not b.own_order and b.unit <> 'time' from ojs._backlog(v_queue) b)
            and (p_in_lane or not ojs._lingers() and ojs._enter_lane(-1)) then
        if not p_in_lane then
            perform ojs._fold();
        end if;
        perform ojs._decide_ahead(v_queue, greatest(128, 32 * p_ask.count), p_ask.but);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._refill(ojs.ask, boolean) is
'Decides ahead for callers who ask for so many jobs each, once half of what was decided ahead is gone, unless somebody decides at this
moment. p_in_lane: the caller is the one.';
reset role;
