-- +goose Up
-- FETCH. ojs.fetch_many is for servers, which combine the requests of their workers into one call; ojs.fetch is the same for one caller.
-- Both compose the parts of decide, ahead and beside, and end in ojs._hand_out.
set local role ojs_owner;
set local check_function_bodies = off;

-- fetch_many: one decision for several FETCH requests over the same queues. Locks jobs decided ahead; else ojs.lane until the end of the
-- transaction, and then jobs; all with skip locked but the lane. Writes ojs.job, ojs.lease, the state of fairness (00013), ojs.timer for
-- jobs that are locked, and beside decisions ojs.journal.
-- +goose StatementBegin
create function ojs.fetch_many(
    p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[], p_tenant text default null,
    p_ahead boolean default null, p_max_bytes bigint default 16777216, p_strategy text default null, p_weights jsonb default null,
    p_pool text default null
) returns setof ojs._handed
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_waits constant int := 3;
    v_ask   ojs.ask := ojs._ask(p_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms, p_tenant, p_max_bytes, p_strategy,
        p_weights, p_pool);
    v_done  ojs.decided;
    v_got   int := 0;
    v_lane  boolean := false;
    v_end   boolean := v_ask.count = 0;
    v_waits int := 0;
begin
    while not v_end loop
        v_done := ojs._decided_already(v_ask, v_got);
        if coalesce(v_done.ids, '{}') = '{}' then
            exit when not ojs._anything_for(v_ask);
            v_lane := not v_ask.aside and ojs._enter_lane(case when v_waits < c_waits then -1 else 1000 end);
            if not v_lane and not v_ask.aside then
                -- Whoever decides at this moment may well decide ahead for this caller, too.
                v_ask.aside := v_waits = c_waits or not ojs._await_lane(1000);
                v_waits := v_waits + 1;
                -- While this call waited, a queue may have been paused.
                v_ask.queues := ojs._open_queues(v_ask.queues);
                exit when v_ask.queues = '{}';
                continue when not v_ask.aside;
            end if;
            if v_ask.strategy = 'least-loaded' then
                v_ask := ojs._by_load(v_ask);
                exit when v_ask.count = 0;
            end if;
            if v_lane then
                v_done := ojs._decide(v_ask, v_ask.count - v_got);
            else
                v_done := ojs._beside_all(v_ask, v_ask.count - v_got);
                -- What is counted only decisions hand out, and whoever held this one up may be through soon.
                v_done.cut := v_done.cut or (v_ask.counts or v_ask.limited) and v_waits > 0;
            end if;
            v_end := true;
        end if;
        if v_done.ids <> '{}' then
            return query select * from ojs._hand_out(v_done, v_ask, v_got);
            if v_ask.strategy = 'least-loaded' then
                perform ojs._note_loads(v_done.ids, v_ask, v_got);
            end if;
            v_got := v_got + cardinality(v_done.ids);
            v_ask.max_bytes := v_ask.max_bytes - v_done.bytes;
        end if;
        v_end := v_end or v_got = v_ask.count or v_done.cut is true;
    end loop;
    return query select * from ojs._no_jobs(v_ask, v_got < v_ask.count and v_done.cut is true);
    if coalesce(p_ahead, v_ask.count < 2 * cardinality(p_counts)) and v_got > 0 and v_got = v_ask.count and not v_ask.aside then
        perform ojs._refill(v_ask, v_lane);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch_many(text[], int[], text[], int[], text, boolean, bigint, text, jsonb, text) is
'One decision for several FETCH requests over the same queues: p_counts[n] jobs for worker p_worker_ids[n] under a lease of
p_visibility_timeouts_ms[n] (0, empty text: none given; the counts sum to 10000 at most). Each row names its request; the order is that of
ojs.fetch, and the last requests get fewer, or none. By strategy least-loaded the requests of workers with the fewest active jobs come
first, in the order listed where these are alike; what a worker''s request may get counts for those of its own behind it, and who has not
registered is last. A request that its worker''s concurrency leaves room for fewer jobs than it asks for has a row that is null but for
request, worker_id and, in attempt, how many it may have. Requests of workers that are to get nothing (ojs.direct_worker) are left out: for
each such worker there is one row that is null but for worker_id. So are those of workers that have registered with another pool, strategy
or weights than the first one''s: their rows have these in meta. p_max_bytes: the jobs have so many bytes in sum (default 16 MiB), or a job
more, and there is one at least; where that, a long run of ended jobs, or more commits than could be taken in at once stopped the call
early, there is one row with request 0: ask again. p_ahead: decide ahead for later calls, too; by default where the requests ask for about
one job each. p_strategy, p_weights and p_pool, and what fewer than asked proves, are explained at ojs.fetch. Commit at once. Raises what
ojs.fetch raises.';

-- fetch: jobs for one worker. Locks and writes what ojs.fetch_many does; in a transaction that lasts, and for tenants, no ojs.lane.
-- +goose StatementBegin
create function ojs.fetch(
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
-- +goose StatementEnd
comment on function ojs.fetch(text[], int, text, int, text, text, anycompatible, text) is
'Hands out up to p_count jobs (1 to 10000) of the queues and returns them in fair order (ojs-core section 7.2): highest effective priority
of a queue first, within it tenants by weight, within a tenant first in first out. Over several queues by p_strategy: round-robin (one from
each in turn, the default), weighted (by p_weights, such as {"mail": 3}; 1 for those not in it, 1 to 1000000), strict (in the order listed:
later ones get what is left), least-loaded (from the queue with most jobs available; and a worker that has registered with a concurrency
gets no more than that less its active jobs, over one queue, too). p_pool: the pool of the worker, if it has not registered with one; by
default it is default. What ojs.configure_pool says of all FETCHes goes before what it says of the pool, that before what the worker has
registered with, and that before these arguments. Each is active from then on, attempt counted, under a lease of p_visibility_timeout_ms
(else the job''s own, else 30000 ms) that heartbeats extend, but never beyond the job''s timeout_ms. p_tenant: that tenant''s jobs only; a
tenant''s login role always its own. A worker that drains or was told to rest (ojs.direct_worker) gets none. The jobs are the caller''s when
its transaction commits. Callers of one queue take from what one of them has decided ahead, so they need not wait for each other; a
priority, a pause, a weight or a tenant that comes acts on the next call all the same. Fewer than asked: no eligible job had committed
before the call began, other than one that somebody had locked when its turn came (the tick has it looked at again after a second), or the
jobs have 16 MiB, or 20000 rows of ended jobs lay in the way, or thousands of statements had committed since the last decision (the next
call goes on behind them), or the pool is at its max_concurrency, or a least-loaded worker has no room for more, or hundreds of tenants had
room again at once (the next call goes on), or these are 20000 / n of n queues that are least-loaded or have a min_dispatch_ratio. A caller
may stay in its transaction: others then go on within a second, by what their tenants are owed as far as is known, and the session is ended
when it idles for 10 seconds while it keeps decisions waiting. The login of a tenant with a max_concurrency cannot fetch
(ojs.limit_concurrency). Needs read committed. Raises invalid_request, unsupported, TENANT_ACCESS_DENIED; backend_unavailable after a
logical restore until ojs.rebuild.';

-- An error shows the statement that it comes from; so the columns are listed here and not where fetch_many is called.
-- +goose StatementBegin
create function ojs._fetch_one(p_queues text[], p_count int, p_worker_id text, p_visibility_timeout_ms int, p_tenant text, p_strategy text,
    p_weights jsonb, p_pool text) returns setof ojs.job
language sql stable
as $$
    -- To fetch_many 0 means that nothing was given.
    select f.state, f.attempt, f.lease, f.started_at, f.lease_expires_at, f.finished_at, f.retry_at, f.enqueued_at, f.worker_id, f.pool,
        f.charged, f.errors, f.result, f.seq, f.tenant_id, f.id, f.queue, f.type, f.priority, f.max_attempts, f.created_at, f.scheduled_at,
        f.expires_at, f.timeout_ms, f.visibility_timeout_ms, f.tags, f.args, f.meta, f.retry, f.options, f.extra
    from ojs.fetch_many(p_queues, array[p_count], array[p_worker_id],
        array[case when p_visibility_timeout_ms = 0 then -1 else p_visibility_timeout_ms end], p_tenant, true,
        p_strategy => p_strategy, p_weights => p_weights, p_pool => p_pool) f
    where f.id is not null
$$;
-- +goose StatementEnd
comment on function ojs._fetch_one(text[], int, text, int, text, text, jsonb, text) is
'ojs.fetch_many for one caller. Becomes part of the query that asks, for which it is called stable.';

-- +goose StatementBegin
create function ojs._ask(p_queues text[], p_counts int[], p_worker_ids text[], p_timeouts_ms int[], p_tenant text,
    p_max_bytes bigint, p_strategy text, p_weights jsonb, p_pool text) returns ojs.ask
language plpgsql
as $$
declare
    v_ask     ojs.ask;
    v_trusted boolean;
    v_good    boolean;
    v_apart   boolean;
    v_news    boolean;
    v_pools   boolean;
    v_foreign boolean;
begin
    -- All that has to be known before, in one statement: each costs more to begin than to do.
    select ojs._trusted() and p_tenant is null, ojs._well_asked(p_queues, p_counts, p_worker_ids, p_timeouts_ms, p_max_bytes),
        ojs._copied(f), f.counts,
        exists (select from ojs.worker w where w.apart and w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)
            and (w.resting or w.pool is distinct from coalesce(p_pool, 'default') or num_nonnulls(w.strategy, w.weights) > 0)),
        exists (select from ojs.worker w where w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)
            and (p_pool is not null and w.pool is null or ojs._asks_anew(w.queues, w.asks, w.asked_at, p_queues))),
        exists (select from ojs.pool), ojs._open_queues(p_queues),
        (select least(sum(c), 10001) from unnest(p_counts) c),
        array(select least(sum(c.jobs) over (order by c.n) - c.jobs + 1, 10001)::int from unnest(p_counts) with ordinality c(jobs, n))
    into v_trusted, v_good, v_foreign, v_ask.counts, v_apart, v_news, v_pools, v_ask.queues, v_ask.count, v_ask.starts
    from ojs._folded() f;
    if v_good is not true then
        perform ojs._check_fetch(p_queues, p_counts, p_worker_ids, p_timeouts_ms, p_max_bytes);
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
    v_ask.aside := false;
    if not v_trusted then
        v_ask := ojs._for_tenant(v_ask, ojs._session_tenant(p_tenant));
    end if;
    -- Who stays in its transaction, and any tenant, must not keep others waiting. Where jobs are counted, only decisions hand them out, and
    -- whoever stays would get none.
    v_ask.aside := v_ask.aside or not v_ask.counts and ojs._lingers() and current_setting('ojs.lane', true) is distinct from 'held';
    if v_apart or v_ask.aside then
        v_ask := ojs._without_others(v_ask, p_counts, p_queues, p_pool);
    end if;
    if v_pools and v_ask.count > 0 then
        v_ask := ojs._in_pool(v_ask, p_queues, p_pool);
    end if;
    if v_news and not v_ask.aside and not ojs._lingers() then
        perform ojs._note_fetch(coalesce(v_ask.tenant, ''), p_worker_ids, p_pool, p_queues);
    end if;
    v_ask.count := case when v_ask.queues <> '{}' then v_ask.count else 0 end;
    return v_ask;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ask(text[], int[], text[], int[], text, bigint, text, jsonb, text) is
'What a FETCH asks for, once it may ask. Raises why not.';

-- +goose StatementBegin
create function ojs._for_tenant(p_ask ojs.ask, p_tenant text) returns ojs.ask
language plpgsql stable
as $$
begin
    p_ask.tenant := p_tenant;
    p_ask.tenants := case when p_tenant is not null then array[p_tenant] end;
    p_ask.aside := ojs.current_tenant() is not null;
    if p_ask.counts and p_ask.aside and exists (select from ojs.rule r where r.tenant_id = p_tenant and r.most is not null) then
        perform ojs._raise('OJ408', 'the login of a tenant with a max_concurrency cannot fetch', null, 'Its workers fetch over HTTP.');
    end if;
    return p_ask;
end;
$$;
-- +goose StatementEnd
comment on function ojs._for_tenant(ojs.ask, text) is
'What a FETCH asks for on behalf of a tenant (null: of all), whose own login has no part in decisions. Raises unsupported.';

-- +goose StatementBegin
create function ojs._open_queues(p_queues text[]) returns text[]
language plpgsql stable
as $$
begin
    return (select case when s.held_at is null then array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where not exists (select from ojs.rule r where r.tenant_id = '' and r.queue in ('', q.queue) and r.paused_at is not null)
        group by q.queue order by min(q.n)) else '{}' end
    from ojs.settings s);
end;
$$;
-- +goose StatementEnd
comment on function ojs._open_queues(text[]) is
'Those of the queues from which jobs may be handed out now, each once: not paused, and none while dispatch is held.';

-- +goose StatementBegin
create function ojs._well_asked(p_queues text[], p_counts int[], p_worker_ids text[], p_timeouts_ms int[],
    p_max_bytes bigint) returns boolean
language plpgsql stable
as $$
begin
    return (
        select cardinality(p_queues) between 1 and 100 and array_ndims(p_queues) = 1 and array_lower(p_queues, 1) = 1
            and not exists (select from unnest(p_queues) q where ojs._queue_name(q) is not true)
            and array_ndims(p_counts) = 1 and array_ndims(p_worker_ids) = 1 and array_ndims(p_timeouts_ms) = 1
            and cardinality(p_worker_ids) = cardinality(p_counts) and cardinality(p_timeouts_ms) = cardinality(p_counts)
            and not exists (select from unnest(p_counts, p_worker_ids, p_timeouts_ms) r(jobs, worker_id, timeout_ms)
                where (r.jobs > 0) is not true or length(r.worker_id) > 255 or r.timeout_ms not between 1000 and 604800000
                    and r.timeout_ms <> 0)
            and (select sum(c::bigint) from unnest(p_counts) c) <= 10000 and p_max_bytes > 0
                and current_setting('transaction_isolation') = 'read committed');
end;
$$;
-- +goose StatementEnd
comment on function ojs._well_asked(text[], int[], text[], int[], bigint) is 'Whether a FETCH breaks no rule; ojs._check_fetch says which.';

-- +goose StatementBegin
create function ojs._check_fetch(p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[],
    p_max_bytes bigint) returns void
language plpgsql
as $$
begin
    if p_queues is null or cardinality(p_queues) not between 1 and 100 or array_ndims(p_queues) <> 1 or array_lower(p_queues, 1) <> 1 then
        perform ojs._raise('OJ400', 'queues must name between 1 and 100 queues', '{"field": "queues"}');
    elsif exists (select from unnest(p_queues) q where ojs._queue_name(q) is not true) then
        perform ojs._raise('OJ400',
            'queues must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queues"}');
    elsif exists (select from unnest(p_counts) c where c is null or c < 1) or (select sum(c::bigint) from unnest(p_counts) c) between 1
        and 10000 is not true then
        perform ojs._raise('OJ400', 'count must be an integer between 1 and 10000', '{"field": "count"}');
    elsif exists (select from unnest(p_visibility_timeouts_ms) v where v not between 1000 and 604800000 and v <> 0) then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    elsif exists (select from unnest(p_worker_ids) w where length(w) > 255) then
        perform ojs._raise('OJ400', 'worker_id is longer than 255 characters', '{"field": "worker_id"}');
    elsif (p_max_bytes > 0) is not true then
        perform ojs._raise('OJ400', 'max_bytes must be more than 0', '{"field": "max_bytes"}');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        perform ojs._raise('OJ408', 'ojs.fetch needs a transaction of isolation level read committed',
            '{"field": "transaction_isolation"}');
    end if;
    perform ojs._raise('OJ400', 'counts, worker_ids and visibility_timeouts_ms must be of one length', '{"field": "counts"}');
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_fetch(text[], int[], text[], int[], bigint) is 'Raises why a FETCH is refused.';

reset role;
