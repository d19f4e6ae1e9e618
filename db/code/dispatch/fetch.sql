-- FETCH. ojs.fetch is for one caller. ojs.fetch_many is for servers, which combine the requests of
-- their workers into one call.

-- Serves several FETCH requests over the same queues with one decision.
-- Locks ojs.lane until the end of the transaction, then rows of ojs.usage and jobs, with skip
-- locked.
-- Writes ojs.job, ojs.lease, the state of fairness (dispatch/state.sql), ojs.timer for jobs that
-- are locked, and without the lane ojs.journal.
create or replace function ojs.fetch_many(
    p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[], p_tenant text default null,
    p_max_bytes bigint default 16777216, p_strategy text default null, p_weights jsonb default null, p_pool text default null
) returns setof ojs._handed
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz;
    v_ask  ojs.ask := ojs._ask(p_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms, p_tenant, p_max_bytes, p_strategy, p_weights,
        p_pool);
    v_done ojs.decided;
    v_base bigint;
    v_needed boolean := false;
    v_cold boolean := v_ask.count > 0 and current_setting('ojs.prepared', true) is distinct from 'on';
begin
    -- A session plans its statements when it first executes them, and all other sessions would wait
    -- for that if it held the lane. So a new session first executes them with nothing to do (round
    -- 1).
    if v_cold then
        perform ojs._prepare(v_ask);
    end if;
    for v_round in case when v_cold then 1 else 2 end .. case when v_ask.count > 0 then 2 else 0 end loop
        if v_round = 1 then
            v_done := ojs._nothing();
        else
            if v_ask.no_lane or not ojs._enter_lane(-1) then
                -- Without the lane this call gets no jobs of a queue or for a pool with a
                -- max_concurrency.
                v_needed := (v_ask.pool_limited is true or exists (select from ojs.rule r
                    where r.tenant_id = '' and r.queue = any (v_ask.queues) and r.most is not null)) and ojs.current_tenant() is null;
                if not v_ask.no_lane then
                    v_ask.no_lane := not ojs._wait_for_lane(v_needed);
                    -- While this call waited, a queue may have been paused, or dispatch held.
                    v_ask.queues := (select o.queues from ojs._open_queues(v_ask.queues) o);
                    exit when v_ask.queues = '{}';
                end if;
            end if;
            if v_ask.strategy = 'least-loaded' then
                v_ask := ojs._by_load(v_ask);
                exit when v_ask.count = 0;
            end if;
            v_done := case when v_ask.no_lane then ojs._fetch_without_lane(v_ask, v_ask.count) else ojs._decide(v_ask, v_ask.count) end;
            -- With the lane the next call may find more: answer that it should ask again.
            v_done.cut := v_done.cut or v_needed and v_ask.no_lane;
            exit when v_done.ids = '{}';
            v_base := nextval('ojs.decision_seq') * 10000 - 1;
        end if;
        -- Read the time only now: the call may have waited for the lane, and leases begin at this
        -- time.
        v_now := ojs.now();
        -- A statement of its own, so that it sees the versions of the jobs that were locked, also
        -- where another session changed a job just before. The rows go to the caller from here, and
        -- through no other function.
        return query
        with given as materialized (
            select g.id, g.place, g.charged, g.n, coalesce(v_ask.requests[r.at], r.at) as request,
                nullif(v_ask.workers[r.at], '') as worker_id, nullif(v_ask.lease_ms[r.at], 0) as lease_ms
            from unnest(v_done.ids, v_done.places, v_done.charged) with ordinality g(id, place, charged, n)
            cross join lateral (select width_bucket(g.n::int, v_ask.starts) as at) r
        ), taken as (
            update ojs.job j
            set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = g.worker_id,
                pool = v_ask.pool, charged = g.charged,
                lease_expires_at = ojs._lease_end(v_now, coalesce(g.lease_ms, j.visibility_timeout_ms), v_now, nullif(j.timeout_ms, 0))
            from given g
            where j.ctid = g.place and j.id = g.id and j.state = 'available'
            returning g.n, g.request, j.*
        ), leased as (
            -- At most 128 jobs in a row, so that PostgreSQL need not compress or move its lists.
            -- The jobs of a row follow one another in the order of decisions.
            insert into ojs.lease (due_at, queue, priority, jobs, ids, tenants, waits, turn, at, pool)
            select t.lease_expires_at, t.queue, t.priority, count(*), array_agg(t.id), array_agg(t.tenant_id),
                array_agg(greatest(ojs._seconds(v_now - t.enqueued_at), 0)), v_base + min(t.n), v_now, v_ask.pool
            from taken t group by t.lease_expires_at, t.queue, t.priority, (t.n - 1) / 128
        )
        select t.request, t.state, t.attempt, t.lease, t.started_at, t.lease_expires_at, t.finished_at, t.retry_at, t.enqueued_at,
            t.worker_id, t.pool, t.charged, t.errors, t.result, t.seq, t.tenant_id, t.id, t.queue, t.type, t.priority, t.max_attempts,
            t.created_at, t.scheduled_at, t.expires_at, t.timeout_ms, t.visibility_timeout_ms, t.tags, t.args, t.meta, t.retry, t.options,
            t.extra
        from taken t order by t.n;
    end loop;
    if v_ask.strategy = 'least-loaded' and v_done.ids <> '{}' then
        perform ojs._note_loads(v_done.ids, v_ask);
    end if;
    if v_ask.others is not null or v_done.cut and cardinality(v_done.ids) < v_ask.count then
        return query select * from ojs._no_jobs(v_ask.others, v_done.cut is true and cardinality(v_done.ids) < v_ask.count);
    end if;
end;
$$;
comment on function ojs.fetch_many(text[], int[], text[], int[], text, bigint, text, jsonb, text) is
'Serves several FETCH requests over the same queues with one decision; each row names its request.
p_counts, p_worker_ids, p_visibility_timeouts_ms: request n is for p_counts[n] jobs for worker
p_worker_ids[n] (empty: none named) under a lease of p_visibility_timeouts_ms[n] (0: none given).
The counts are 10000 in sum at most.
p_max_bytes: the bytes of the jobs in sum (default 16 MiB); at least one job is returned.
p_tenant, p_strategy, p_weights, p_pool, and what fewer jobs prove: as for ojs.fetch.
The order of the rows is that of ojs.fetch; the last requests get fewer jobs, or none. By strategy
least-loaded the requests of workers with the fewest active jobs come first, in the order listed
where these are equal. A worker''s earlier requests count against its later ones. Unregistered
workers are last.
Rows without a job:
- request 0: the call ended early (bytes, many ended jobs, much to fold); ask again.
- request, worker_id, attempt: the worker''s concurrency allows at most so many jobs (attempt).
- worker_id alone: the worker is to get nothing (ojs.direct_worker).
- worker_id and meta: the worker has registered with the pool, strategy or weights in meta, which
differ from the first request''s; make its requests again with these.
Commit at once. Raises what ojs.fetch raises.';

create or replace function ojs._prepare(p_ask ojs.ask) returns void
language plpgsql
as $$
declare
    -- A snapshot that no cluster reaches, so that no row is new. With an earlier one the session
    -- would read all of the journals.
    c_none  constant pg_snapshot := '9000000000000000000:9000000000000000000:';
    v_state ojs.dispatch_state;
begin
    v_state.levels := array[row(0, 0, 0, 0, 0, null)::ojs.level];
    p_ask.tenants := '{}';
    perform ojs._look('{}'), ojs._step(v_state, 1, 1, p_ask, false, null, ojs._nothing());
    -- ojs._take_in always reads the rows of its own transaction, and would fold them without the
    -- lane. So it is executed only if there can be none.
    perform ojs._take_in(row(c_none, c_none, null, null, null, c_none), true) where pg_current_xact_id_if_assigned() is null;
    perform set_config('ojs.prepared', 'on', false);
end;
$$;
comment on function ojs._prepare(ojs.ask) is
'Has the session plan the statements of a decision, without the lane and with nothing to decide.';

create or replace function ojs._no_jobs(p_others jsonb, p_cut boolean) returns setof ojs._handed
language sql stable
as $$
    select h.* from jsonb_populate_recordset(null::ojs._handed, p_others) h
    union all
    select h.* from jsonb_populate_record(null::ojs._handed, '{"request": 0}') h where p_cut
$$;
comment on function ojs._no_jobs(jsonb, boolean) is
'Returns the rows without a job with which ojs.fetch_many ends. p_cut: with the row of request 0.';

-- Hands out jobs to one worker.
-- Locks what ojs.fetch_many does. In a transaction older than 20 ms, and for tenants, it does not
-- lock ojs.lane.
-- Writes what ojs.fetch_many does.
create or replace function ojs.fetch(
    p_queues text[], p_count int default 1, p_worker_id text default null, p_visibility_timeout_ms int default null,
    p_tenant text default null, p_strategy text default null, p_weights anycompatible default null,
    p_pool text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_weights));
    v_weights jsonb := p_weights::jsonb;
begin
    return query select * from ojs._fetch_one(p_queues, p_count, p_worker_id, p_visibility_timeout_ms, p_tenant, p_strategy, v_weights,
        p_pool);
end;
$$;
comment on function ojs.fetch(text[], int, text, int, text, text, anycompatible, text) is
'Hands out up to p_count jobs of the queues in fair order and returns them (ojs-core section 7.2).
Within a queue: the highest effective priority first, then tenants by weight, then the oldest job.
Each job is active when the transaction commits; the attempt counts.
p_queues: 1 to 100 names.
p_count: 1 to 10000.
p_worker_id: the worker that gets the jobs.
p_visibility_timeout_ms: the lease; default the job''s own, else 30000 ms. Heartbeats extend it, but
not beyond the job''s timeout_ms.
p_tenant: jobs of this tenant only; a tenant''s login role always gets its own.
p_strategy, over several queues: round-robin (one job of each in turn; default), weighted (by
p_weights), strict (all of the first queue, then of the second), least-loaded (each job from the
queue with most jobs; a worker registered with a concurrency gets at most that many less its active
jobs).
p_weights: such as {"mail": 3}; 1 to 1000000, 1 for queues that it does not name.
p_pool: the pool of a worker that has registered with none; default: default. The strategy and its
weights are those of the first of these that has one: ojs.configure_pool for all FETCHes;
ojs.configure_pool for the pool; the worker''s registration; these arguments.
Fewer jobs than p_count: no other job was available and committed before the call began. Exceptions:
- jobs that another session had locked; the tick brings them back after a second;
- jobs that rules hold back;
- a worker that drains or rests (ojs.direct_worker), or a pool or worker at its concurrency;
- a call that ended early, after which the next one goes on: at 16 MiB of jobs, at 20000 rows of
ended jobs, when thousands of statements had committed since the last decision, or at 100000 / n
jobs of n queues, unless the strategy is strict without a min_dispatch_ratio.
Commit soon: while the transaction stays open, each other session waits 100 ms for it once, and then
fetches for 10 seconds outside the common order of decisions. PostgreSQL ends the session when it
idles for 10 seconds. A caller that has been in its transaction for 20 ms does not take the lane; it
holds up only tenants and queues whose limits count its jobs.
Needs read committed. Raises invalid_request, unsupported, TENANT_ACCESS_DENIED; conflict in a
transaction that has enqueued jobs by more than 2000 statements; backend_unavailable after a logical
restore until ojs.rebuild.';

-- A function of its own for the list of columns: the context of an error shows the whole statement
-- that raised it.
create or replace function ojs._fetch_one(
    p_queues text[], p_count int, p_worker_id text, p_visibility_timeout_ms int, p_tenant text,
    p_strategy text,
    p_weights jsonb, p_pool text) returns setof ojs.job
language sql stable
as $$
    -- ojs.fetch_many takes a timeout of 0 as not given. From a caller it is an error, so -1 is
    -- passed on.
    select f.state, f.attempt, f.lease, f.started_at, f.lease_expires_at, f.finished_at, f.retry_at, f.enqueued_at, f.worker_id, f.pool,
        f.charged, f.errors, f.result, f.seq, f.tenant_id, f.id, f.queue, f.type, f.priority, f.max_attempts, f.created_at, f.scheduled_at,
        f.expires_at, f.timeout_ms, f.visibility_timeout_ms, f.tags, f.args, f.meta, f.retry, f.options, f.extra
    from ojs.fetch_many(p_queues, array[p_count], array[p_worker_id],
        array[case when p_visibility_timeout_ms = 0 then -1 else p_visibility_timeout_ms end], p_tenant,
        p_strategy => p_strategy, p_weights => p_weights, p_pool => p_pool) f
    where f.id is not null
$$;
comment on function ojs._fetch_one(text[], int, text, int, text, text, jsonb, text) is
'Calls ojs.fetch_many for one caller. It writes, but is declared stable, or it could not be inlined.
Becomes part of the query that asks.';

create or replace function ojs._ask(p_queues text[], p_counts int[], p_worker_ids text[], p_timeouts_ms int[], p_tenant text,
    p_max_bytes bigint, p_strategy text, p_weights jsonb, p_pool text) returns ojs.ask
language plpgsql
as $$
declare
    v_ask     ojs.ask;
    v_trusted boolean;
    v_fault   text;
    v_apart   boolean;
    v_news    boolean;
    v_pools   boolean;
    v_foreign boolean;
    v_ready   boolean;
    v_at_limit boolean;
    v_fresh   boolean;
begin
    -- One statement reads all that has to be known before, because beginning a statement costs more
    -- than these reads.
    select ojs._trusted() and p_tenant is null, ojs._copied(f),
        exists (select from ojs.worker w where w.apart and w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)
            and (w.resting or w.pool is distinct from coalesce(p_pool, 'default') or num_nonnulls(w.strategy, w.weights) > 0)),
        exists (select from ojs.worker w where w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)
            and (p_pool is not null and w.pool is null or ojs._asks_anew(w.queues, w.asks, w.asked_at, p_queues))),
        exists (select from ojs.pool), q.queues, least(r.jobs, 10001), r.starts,
        -- Of one snapshot: with two, a decision in between could move a job from a list that the
        -- second read looks at to one that the first has looked at, and the call would end as if
        -- there were none.
        coalesce(l.ready, false), coalesce(l.at_limit, false), f.part_xid is not null or exists (
            select from ojs._since(f.snapshot, null, true) u
            where u.to_state = 'available' and u.queue = any (q.queues) or u.from_state = 'active'),
        case when cardinality(p_queues) not between 1 and 100 or p_queues is null or array_ndims(p_queues) <> 1
                    or array_lower(p_queues, 1) <> 1 then 'queues'
            when x.bad then 'names'
            when r.no_count or r.jobs not between 1 and 10000 then 'count'
            when r.bad_timeout then 'visibility_timeout_ms'
            when r.long_name then 'worker_id'
            when (p_max_bytes > 0) is not true then 'max_bytes'
            when current_setting('transaction_isolation') <> 'read committed' then 'isolation'
            when (array_ndims(p_counts) = 1 and array_ndims(p_worker_ids) = 1 and array_ndims(p_timeouts_ms) = 1
                and cardinality(p_worker_ids) = cardinality(p_counts) and cardinality(p_timeouts_ms) = cardinality(p_counts)) is not true
                then 'lengths' end
    into v_trusted, v_foreign, v_apart, v_news, v_pools, v_ask.queues, v_ask.count, v_ask.starts, v_ready, v_at_limit, v_fresh, v_fault
    from ojs._folded() f
    cross join (select o.queues from ojs._open_queues(p_queues) o offset 0) q
    cross join lateral (select coalesce(bool_or(ojs._queue_name(x) is not true), false) as bad from unnest(p_queues) x) x
    cross join lateral (
        select coalesce(sum(r.jobs::bigint), 0) as jobs, coalesce(bool_or((r.jobs > 0) is not true), true) as no_count,
            coalesce(bool_or(r.timeout_ms not between 1000 and 604800000 and r.timeout_ms <> 0), false) as bad_timeout,
            coalesce(bool_or(length(r.worker_id) > 255), false) as long_name, array_agg(least(r.start, 10001)::int order by r.n) as starts
        from (
            select r.*, sum(r.jobs::bigint) over (order by r.n) - r.jobs + 1 as start
            from unnest(p_counts, p_worker_ids, p_timeouts_ms) with ordinality r(jobs, worker_id, timeout_ms, n)
        ) r
    ) r
    cross join lateral (
        select bool_or(l.ready > 0) as ready, bool_or(l.at_limit > 0) as at_limit
        from unnest(q.queues) x(queue) cross join lateral ojs._state(x.queue) s cross join lateral unnest(s.levels) l
    ) l;
    if v_fault is not null then
        perform ojs._refuse_fetch(v_fault);
    elsif v_foreign then
        perform ojs._raise('OJ503', 'the jobs come from another cluster, and dispatch has not begun here', null,
            'The next tick begins it, or select ojs.rebuild().');
    end if;
    v_ask.workers := p_worker_ids;
    v_ask.lease_ms := p_timeouts_ms;
    v_ask.max_bytes := p_max_bytes;
    if num_nonnulls(p_strategy, p_weights, p_pool) > 0 then
        perform ojs._check_strategy(p_strategy, p_weights), ojs._check_pool_name(coalesce(p_pool, 'default'));
        v_ask.strategy := p_strategy;
        v_ask.weights := p_weights;
    end if;
    v_ask.no_lane := false;
    if not v_trusted then
        v_ask.tenant := ojs._session_tenant(p_tenant);
        v_ask.tenants := case when v_ask.tenant is not null then array[v_ask.tenant] end;
        -- A tenant's login does not take the lane: it could keep the sessions of all tenants
        -- waiting.
        v_ask.no_lane := ojs.current_tenant() is not null;
    end if;
    -- A caller that stays in its transaction does not, either, unless it holds the lane already.
    v_ask.no_lane := v_ask.no_lane or ojs._lingers() and current_setting('ojs.lane', true) is distinct from 'held';
    if v_apart or v_ask.no_lane then
        v_ask := ojs._without_others(v_ask, p_counts, p_queues, p_pool);
    end if;
    if v_pools and v_ask.count > 0 then
        v_ask := ojs._in_pool(v_ask, p_queues, p_pool);
    end if;
    if v_news and not v_ask.no_lane and not ojs._lingers() then
        perform ojs._note_fetch(coalesce(v_ask.tenant, ''), p_worker_ids, p_pool, p_queues);
    end if;
    -- No job is possible, so the call ends here and writes nothing. A tenant at its limit and a
    -- choice of tenants need a closer look (ojs._work_for).
    if v_ask.queues = '{}' or not (v_ready or v_at_limit or v_fresh)
            or not v_fresh and (v_at_limit or coalesce(v_ask.tenants, v_ask.except_tenants) is not null) and not ojs._work_for(v_ask)
            or v_ask.pool_limited is true and ojs._pool_room(v_ask.pool) = 0 then
        v_ask.count := 0;
    end if;
    return v_ask;
end;
$$;
comment on function ojs._ask(text[], int[], text[], int[], text, bigint, text, jsonb, text) is
'Checks a FETCH and returns what it asks for; count 0: there is certainly no job for it.
Writes nothing for a poll that finds no job, but for a registered worker that asks for other queues
than before (ojs._note_fetch). Raises why a FETCH is refused.';

create or replace function ojs._work_for(p_ask ojs.ask) returns boolean
language plpgsql stable
as $$
begin
    return exists (
            select from unnest(p_ask.queues) q(queue) cross join lateral ojs._state(q.queue) s cross join lateral unnest(s.levels) l
            cross join lateral ojs._front(q.queue, l.priority, l.low, 1, p_ask.tenants, p_ask.except_tenants, p_ask.no_lane) f
            where l.ready > 0 or p_ask.no_lane and l.at_limit > 0)
        or exists (select from ojs._folded() f cross join lateral ojs._ends(f.snapshot, null))
            and exists (select from ojs.rule r where r.most is not null);
end;
$$;
comment on function ojs._work_for(ojs.ask) is
'Returns whether a FETCH may find a job although the journal has no new ones.
That is if a tenant it may serve is in a ring (without the lane: or at its limit), or if attempts
have ended under a limit, so that a tenant may be below its limit again.';

create or replace function ojs._open_queues(p_queues text[]) returns table (queues text[])
language sql stable rows 1
as $$
    select case when (select s.held_at from ojs.settings s) is null then array(
        select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where not exists (select from ojs.rule r where r.tenant_id = '' and r.queue in ('', q.queue) and r.paused_at is not null)
        group by q.queue order by min(q.n)) else '{}'::text[] end
$$;
comment on function ojs._open_queues(text[]) is
'Returns the queues from which jobs may be handed out now, each once, without paused ones.
This is the one place for pauses of queues. No queue while dispatch is held. Becomes part of the
query that asks.';

create or replace function ojs._refuse_fetch(p_fault text) returns void
language plpgsql
as $$
begin
    case p_fault
        when 'queues' then perform ojs._raise('OJ400', 'queues must name between 1 and 100 queues', '{"field": "queues"}');
        when 'names' then perform ojs._raise('OJ400',
            'queues must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queues"}');
        when 'count' then perform ojs._raise('OJ400', 'count must be an integer between 1 and 10000', '{"field": "count"}');
        when 'visibility_timeout_ms' then
            perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
        when 'worker_id' then perform ojs._raise('OJ400', 'worker_id is longer than 255 characters', '{"field": "worker_id"}');
        when 'max_bytes' then perform ojs._raise('OJ400', 'max_bytes must be more than 0', '{"field": "max_bytes"}');
        when 'isolation' then perform ojs._raise('OJ408', 'ojs.fetch needs a transaction of isolation level read committed',
            '{"field": "transaction_isolation"}');
        else perform ojs._raise('OJ400', 'counts, worker_ids and visibility_timeouts_ms must be of one length', '{"field": "counts"}');
    end case;
end;
$$;
comment on function ojs._refuse_fetch(text) is
'Raises why a FETCH is refused. p_fault: as ojs._ask found it.';
