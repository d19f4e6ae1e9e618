-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._check_fetch(p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[]) returns void
language plpgsql
as $$
begin
    if p_queues is null or cardinality(p_queues) not between 1 and 100 or array_ndims(p_queues) <> 1 or array_lower(p_queues, 1) <> 1 then
        perform ojs._raise('OJ400', 'queues must name between 1 and 100 queues', '{"field": "queues"}');
    end if;
    if exists (select from unnest(p_queues) q where q is null or q !~ '^[a-z0-9][a-z0-9.-]*$' or length(q) > 128) then
        perform ojs._raise('OJ400', 'queues must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters', '{"field": "queues"}');
    end if;
    if exists (select from unnest(p_counts) c where c is null or c < 1) or (select sum(c) from unnest(p_counts) c) is null or (select sum(c::bigint) from unnest(p_counts) c) > 10000 then
        perform ojs._raise('OJ400', 'count must be an integer between 1 and 10000', '{"field": "count"}');
    end if;
    if exists (select from unnest(p_visibility_timeouts_ms) v where v not between 1000 and 604800000 and v <> 0) then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    end if;
    if exists (select from unnest(p_worker_ids) w where length(w) > 255) then
        perform ojs._raise('OJ400', 'worker_id is longer than 255 characters', '{"field": "worker_id"}');
    end if;
    if cardinality(p_worker_ids) <> cardinality(p_counts) or cardinality(p_visibility_timeouts_ms) <> cardinality(p_counts)
            or array_ndims(p_counts) <> 1 or array_ndims(p_worker_ids) <> 1 or array_ndims(p_visibility_timeouts_ms) <> 1 then
        perform ojs._raise('OJ400', 'counts, worker_ids and visibility_timeouts_ms must be of one length', '{"field": "counts"}');
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform ojs._raise('OJ408', 'ojs.fetch needs a transaction of isolation level read committed', '{"field": "transaction_isolation"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_fetch(text[], int[], text[], int[]) is
'Raises why a FETCH is refused; else does nothing. 0 and empty text mean that nothing was given.';

-- +goose StatementBegin
create function ojs._aside(p_queues text[], p_count int, p_tenant text, p_above int default null, out o_ids uuid[], out o_rows tid[])
language plpgsql
as $$
declare
    c_line     constant bigint := 4611686018427387904;
    c_more     constant int := 100;
    v_now      timestamptz := ojs.now();
    v_ring     ojs.ring;
    v_priority int;
    v_want     int;
    v_got      record;
begin
    o_ids := '{}';
    o_rows := '{}';
    for q in 1 .. cardinality(p_queues) loop
        v_want := ceil((p_count - cardinality(o_ids)) / (cardinality(p_queues) - q + 1)::numeric);
        for v_priority in
            select p.priority
            from (
                select p.priority from ojs.queue_priority p where p.queue = p_queues[q]
                union
                select w.priority + coalesce(t.priority_boost, 0) from ojs._unfolded() w left join ojs.tenant t on t.tenant_id = w.tenant_id where w.queue = p_queues[q]
            ) p
            where (p.priority <= p_above) is not true
            order by p.priority desc
        loop
            exit when v_want <= 0;
            v_ring := ojs._ring(p_queues[q], v_priority);
            with fresh as materialized (
                select w.tenant_id, w.priority as job_priority, w.lo, w.hi, coalesce(t.weight, 1) as weight
                from ojs._unfolded() w left join ojs.tenant t on t.tenant_id = w.tenant_id
                where w.queue = p_queues[q] and w.priority + coalesce(t.priority_boost, 0) = v_priority and (p_tenant is null or w.tenant_id = p_tenant)
            ), shard as materialized (
                select f.tenant_id, f.job_priority, f.vtime, f.weight, f.head, f.reentry_head
                from unnest(v_ring.class, v_ring.class_head) c(class, head)
                cross join lateral (
                    select f.* from ojs.tenant_fairness f
                    where p_tenant is null and f.queue = p_queues[q] and f.priority = v_priority and f.class = c.class and f.backlogged and f.vtime >= c.head
                    order by f.vtime limit p_count + c_more
                ) f
                union all
                select f.tenant_id, f.job_priority, f.vtime, f.weight, f.head, f.reentry_head
                from (select f.* from ojs.tenant_fairness f
                    where p_tenant is not null and f.queue = p_queues[q] and f.priority = v_priority and f.tenant_id = p_tenant
                    order by f.rev desc limit 1) f
                where f.backlogged
                union all
                select w.tenant_id, w.job_priority, greatest(f.vtime - v_ring.drift, v_ring.v, 0), w.weight, coalesce(f.head, w.lo - 1), coalesce(f.reentry_head, 0)
                from (select w.tenant_id, w.job_priority, w.weight, min(w.lo) as lo from fresh w group by w.tenant_id, w.job_priority, w.weight) w
                left join lateral (select f.* from ojs.tenant_fairness f
                    where f.queue = p_queues[q] and f.priority = v_priority and f.tenant_id = w.tenant_id order by f.rev desc limit 1) f on true
                where f.backlogged is not true
            ), line as (
                -- Jobs on the small list, jobs that became visible behind the cursor, and the line.
                select s.tenant_id, s.vtime, s.weight, j.id, min(j.pos) as pos
                from shard s
                cross join lateral (
                    (select e.n as pos, j.id from ojs.reentry e
                    cross join lateral (select j.id from ojs.job j
                        where j.id = e.id and j.tenant_id = e.tenant_id and j.state = 'available' and (j.expires_at > v_now) is not false limit 1) j
                    where e.queue = p_queues[q] and e.priority = v_priority and e.tenant_id = s.tenant_id and e.n > s.reentry_head
                    order by e.n limit p_count + c_more)
                    union all
                    (select c_line + j.seq, j.id from fresh w
                    cross join lateral (select j.seq, j.id from ojs.job j
                        where j.queue = p_queues[q] and j.priority = s.job_priority and j.tenant_id = s.tenant_id and j.seq between w.lo and least(w.hi, s.head)
                          and j.state = 'available' and (j.expires_at > v_now) is not false
                        order by j.seq limit p_count + c_more) j
                    where w.tenant_id = s.tenant_id and w.lo <= s.head)
                    union all
                    (select c_line + j.seq, j.id from ojs.job j
                    where j.queue = p_queues[q] and j.priority = s.job_priority and j.tenant_id = s.tenant_id and j.seq > s.head and j.seq is not null
                      and j.state = 'available' and (j.expires_at > v_now) is not false
                    order by j.seq limit p_count + c_more)
                ) j
                group by s.tenant_id, s.vtime, s.weight, j.id
            ), due as (
                select l.id, l.tenant_id from line l order by l.vtime + row_number() over (partition by l.tenant_id order by l.pos) / l.weight
            )
            select coalesce(array_agg(x.id), '{}') as ids, coalesce(array_agg(x.row_at), '{}') as rows into v_got
            from (
                select d.id, j.row_at from due d
                cross join lateral (select j.ctid as row_at from ojs.job j
                    where j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'available' for update skip locked) j
                limit v_want
            ) x;
            o_ids := o_ids || v_got.ids;
            o_rows := o_rows || v_got.rows;
            v_want := v_want - cardinality(v_got.ids);
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._aside(text[], int, text, int) is
'Jobs for a caller that must not wait for a decision, or hold one up: those whose tenants are owed most as far as is known, locked, in
order, with the places of their rows; p_above: only those of a higher effective priority. Whoever takes them is to leave word that their
tenants are still to be charged. Writes nothing else; several callers at once take different jobs.';

-- +goose StatementBegin
create function ojs._unpaused(p_queues text[]) returns text[]
language plpgsql stable
as $$
begin
    return array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where not exists (select from ojs.queue c where c.queue = q.queue and c.paused) group by q.queue order by min(q.n));
end;
$$;
-- +goose StatementEnd
comment on function ojs._unpaused(text[]) is 'Those of the queues that are not paused, each once, in the order given.';

-- +goose StatementBegin
create function ojs.fetch_many(
    p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[], p_tenant text default null, p_ahead boolean default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_patience_ms constant int := 1000;
    c_waits       constant int := 3;
    -- Deciding ahead pays where few jobs are asked for at once: enough then to keep sixteen callers going while one of them decides.
    c_few         constant int := 16;
    v_count       int;
    v_tenant      text;
    v_own         text;
    v_paused      boolean;
    v_resting     boolean;
    v_awake       record;
    v_fresh       boolean;
    v_queues      text[] := p_queues;
    v_queue       text;
    v_single      boolean := cardinality(p_queues) = 1;
    -- Who stays in its transaction, and any tenant, must not keep others waiting.
    v_aside       boolean;
    v_in_lane     boolean := false;
    v_above       int;
    v_looked      boolean := false;
    v_mark        ojs.run_mark;
    v_seen        bigint;
    v_waits       int := 0;
    v_got         int := 0;
    v_rows        int;
    v_want        int;
    v_decided     boolean := false;
    v_ids         uuid[] := '{}';
    v_places      tid[] := '{}';
    v_turns       bigint[];
    v_now         timestamptz;
    v_plain       boolean;
    -- The request that each job is for; null when there is one request, or each asks for one job.
    v_request     int[];
    v_ones        boolean;
begin
    -- All that has to be known before, in one statement: each costs more to begin than to do.
    v_queue := p_queues[1];
    select (select least(sum(c), 10001) from unnest(p_counts) c), cardinality(p_queues) between 1 and 100 and array_ndims(p_queues) = 1 and array_lower(p_queues, 1) = 1 and octet_length(array_to_string(p_queues, '/')) <= 128
        and array_to_string(p_queues, '/', '') ~ '^[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)*$' and strpos(array_to_string(p_queues, ''), '/') = 0 and 0 < all (p_counts) and (0 = all (p_visibility_timeouts_ms)) is not false
        and (select coalesce(max(length(w)), 0) from unnest(p_worker_ids) w) <= 255 and cardinality(p_worker_ids) = cardinality(p_counts)
        and cardinality(p_visibility_timeouts_ms) = cardinality(p_counts) and array_ndims(p_counts) = 1 and array_ndims(p_worker_ids) = 1 and current_setting('transaction_isolation') = 'read committed',
        ojs.current_tenant(), exists (select from ojs.queue c where c.queue = v_queue and c.paused),
        exists (select from ojs.worker w where w.resting and w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)), m.*, m.queue is not null
        and (exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) and w.to_state = 'available' and w.queue = v_queue)
            or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' and w.queue = v_queue offset 0) w))
    into v_count, v_plain, v_own, v_paused, v_resting, v_mark.queue, v_mark.rev, v_mark.lo, v_mark.hi, v_mark.ahead, v_mark.held, v_fresh
    from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f
    left join lateral (select m.* from ojs.run_mark m where v_single and m.queue = v_queue and pg_snapshot_xmax(f.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
        order by m.rev desc limit 1) m on exists (select from ojs.run r where r.queue = m.queue and r.n >= m.lo);
    if (v_plain and v_count <= 10000) is not true then
        perform ojs._check_fetch(p_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms);
        if v_plain is null and exists (select from ojs.settings s where s.held_at is not null) then
            -- There is no fold to be found.
            return;
        end if;
    end if;
    v_ones := v_count = cardinality(p_counts);
    if not v_ones and cardinality(p_counts) > 1 then
        v_request := array(select r.n from unnest(p_counts) with ordinality r(jobs, n) cross join lateral generate_series(1, r.jobs) order by r.n);
    end if;
    if v_own is not null or p_tenant is not null or not pg_has_role(session_user, 'ojs_service', 'member') then
        v_tenant := ojs._session_tenant(p_tenant);
    end if;
    if v_resting or v_own is not null then
        -- Each gets its answer all the same.
        select array_agg(r.jobs order by r.n) as counts, array_agg(r.worker_id order by r.n) as worker_ids, array_agg(r.timeout order by r.n) as timeouts, count(*) as requests
        into v_awake
        from unnest(p_counts, p_worker_ids, p_visibility_timeouts_ms) with ordinality r(jobs, worker_id, timeout, n)
        where not exists (select from ojs.worker w where w.resting and w.tenant_id = coalesce(v_tenant, '') and w.worker_id = r.worker_id);
        if v_awake.requests < cardinality(p_counts) then
            if v_awake.requests > 0 then
                return query select * from ojs.fetch_many(p_queues, v_awake.counts, v_awake.worker_ids, v_awake.timeouts, p_tenant, p_ahead);
            end if;
            return query select j.* from (select distinct r.worker_id from unnest(p_worker_ids) r(worker_id) where (r.worker_id = any (v_awake.worker_ids)) is not true) w
                cross join lateral jsonb_populate_record(null::ojs.job, jsonb_build_object('worker_id', w.worker_id)) j;
            return;
        end if;
    end if;
    v_aside := v_own is not null or ojs._lingers() and current_setting('ojs.lane', true) is distinct from 'held';
    if not v_single then
        v_queues := ojs._unpaused(p_queues);
        if cardinality(v_queues) = 0 then
            return;
        elsif cardinality(v_queues) = 1 then
            return query select * from ojs.fetch_many(v_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms, p_tenant, p_ahead);
            return;
        elsif v_aside and cardinality(p_counts) = 1 then
            -- Beside a decision there is no round over queues: from each its part, and then from each what is missing.
            for v_turn in 1 .. 2 * cardinality(v_queues) loop
                exit when v_got = v_count;
                return query select * from ojs.fetch_many(array[v_queues[(v_turn - 1) % cardinality(v_queues) + 1]],
                    array[case when v_turn > cardinality(v_queues) then v_count - v_got else ceil((v_count - v_got) / (cardinality(v_queues) - v_turn + 1)::numeric)::int end],
                    p_worker_ids, p_visibility_timeouts_ms, p_tenant);
                get diagnostics v_rows = row_count;
                v_got := v_got + v_rows;
            end loop;
            return;
        end if;
    elsif v_paused then
        return;
    end if;
    while v_fresh and not v_aside and not v_in_lane and exists (select from ojs._stale_queues(v_queue)) loop
        -- Work has come that may go before what was decided ahead: whoever decides at this moment may well see to it.
        v_in_lane := ojs._enter_lane(case when v_waits < c_waits then -1 else c_patience_ms end);
        if v_in_lane then
            perform ojs._fold();
        else
            v_aside := v_waits = c_waits or not ojs._await_lane(c_patience_ms);
            v_waits := v_waits + 1;
        end if;
    end loop;

    loop
        if v_aside and v_mark.queue is not null and not v_looked then
            -- What was decided ahead cannot be revoked from here. Work that has come since and goes before it is taken first.
            v_looked := true;
            select max(r.priority) into v_above from ojs.run r where r.queue = v_queue and r.n >= v_mark.lo and exists (select from ojs._stale_queues(v_queue));
            if v_above is not null then
                select a.o_ids, a.o_rows into v_ids, v_places from ojs._aside(v_queues, v_count - v_got, v_tenant, v_above) a;
                v_decided := true;
                v_want := 0;
            end if;
        end if;
        if not v_decided then
            v_want := case when v_mark.queue is not null and (v_tenant is null or v_aside) then v_count - v_got else 0 end;
        end if;
        if v_want > 0 or v_decided then
            -- Handed out are the next v_want jobs of the run queue, or those that this transaction has just decided on and locked.
            v_now := ojs.now();
            if not v_decided then
                with free as materialized (
                    select r.n, r.id, r.ctid as place, j.row_at from ojs.run r
                    cross join lateral (select j.ctid as row_at from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available' limit 1) j
                    where r.queue = v_queue and r.n >= v_mark.lo and (v_tenant is null or r.tenant_id = v_tenant)
                    order by r.n limit v_want for update of r skip locked
                ), held as materialized (
                    select f.n, f.id, f.place, j.row_at from free f
                    cross join lateral (select j.ctid as row_at from ojs.job j
                        where j.ctid = f.row_at and j.id = f.id and j.state = 'available' and (j.expires_at > v_now) is not false for update skip locked) j
                ), gone as (
                    delete from ojs.run r using held h where r.ctid = h.place
                )
                select array_agg(h.id), array_agg(h.row_at), array_agg(h.n) into v_ids, v_places, v_turns from (select h.* from held h order by h.n) h;
            end if;
            if v_ids <> '{}' then
                -- A statement of its own: it sees what those who locked the jobs found, whoever changed them before.
                return query
                with given as materialized (
                    select g.*, case when v_ones then g.place else coalesce(v_request[g.place], 1) end as request
                    from (select g.id, g.row_at, coalesce(g.turn, nextval('ojs.run_n_seq')) as turn, v_got + g.n as place
                        from unnest(v_ids, v_places, v_turns) with ordinality g(id, row_at, turn, n)) g
                ), taken as (
                    update ojs.job j
                    set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = nullif(p_worker_ids[g.request], ''),
                        lease_expires_at = v_now + least(coalesce(nullif(p_visibility_timeouts_ms[g.request], 0), j.visibility_timeout_ms, 30000), nullif(j.timeout_ms, 0)) * interval '1 millisecond'
                    from given g
                    where j.ctid = g.row_at and j.id = g.id and j.state = 'available'
                    returning g.turn, g.place, j.*
                ), leased as (
                    insert into ojs.lease (tenant_id, queue, priority, jobs, owed, ids, turns, at)
                    select t.tenant_id, t.queue, t.priority, count(*), case when v_decided and v_aside then count(*) else 0 end, array_agg(t.id), array_agg(t.turn), v_now
                    -- Lists that fit into a row as they are: compressing them would cost more than it saves.
                    from taken t group by t.tenant_id, t.queue, t.priority, t.place / 128
                ), timed as (
                    insert into ojs.timer (due_at, kind, tenant_ids, ids)
                    select t.lease_expires_at, 'lease', array_agg(t.tenant_id), array_agg(t.id) from taken t group by t.lease_expires_at, t.place / 128
                )
                select t.state, t.attempt, t.lease, t.started_at, t.lease_expires_at, t.finished_at, t.retry_at, t.enqueued_at, t.worker_id, t.errors, t.result, t.seq, t.tenant_id, t.id,
                    t.queue, t.type, t.priority, t.max_attempts, t.created_at, t.scheduled_at, t.expires_at, t.timeout_ms, t.visibility_timeout_ms, t.tags, t.args, t.meta, t.retry, t.options,
                    t.extra
                from taken t order by t.turn;
                get diagnostics v_rows = row_count;
                v_got := v_got + v_rows;
                if v_in_lane and v_decided and v_rows < cardinality(v_ids) then
                    -- A job on the small list may stand in line, too, and a decision that reads on finds it again.
                    perform ojs._charge(x.queue, x.priority, x.tenant_id, -x.twice, (select -x.twice / nullif(r.weight, 0) from ojs._ring(x.queue, x.priority) r)::float8)
                    from (
                        select j.queue, j.priority + coalesce(t.priority_boost, 0) as priority, j.tenant_id, sum(g.n - 1)::int as twice
                        from (select g.id, count(*) as n from unnest(v_ids) g(id) group by g.id having count(*) > 1) g
                        cross join lateral (select j.* from ojs.job j where j.id = g.id and j.started_at = v_now limit 1) j
                        left join ojs.tenant t on t.tenant_id = j.tenant_id
                        group by j.queue, j.priority, t.priority_boost, j.tenant_id
                    ) x;
                end if;
            end if;
            exit when v_got = v_count or v_decided and v_above is null and (v_aside or v_rows = cardinality(v_ids));
            v_decided := false;
            v_turns := null;
            if v_above is not null then
                v_above := null;
                continue;
            end if;
        end if;
        if v_aside or v_in_lane and v_seen = v_mark.rev then
            if v_in_lane then
                select d.o_ids, d.o_rows into v_ids, v_places from ojs._decide(v_queues, v_count - v_got, v_tenant) d;
            else
                select a.o_ids, a.o_rows into v_ids, v_places from ojs._aside(v_queues, v_count - v_got, v_tenant) a;
            end if;
            exit when v_ids = '{}';
            v_decided := true;
            v_want := 0;
        else
            exit when not v_in_lane and not ojs._anything_for(v_queues, v_tenant);
            -- Whoever decides at this moment may well decide ahead for this caller, too.
            v_in_lane := v_in_lane or ojs._enter_lane(-1);
            if not v_in_lane then
                v_aside := not ojs._await_lane(c_patience_ms);
                v_waits := v_waits + 1;
                if v_waits > c_waits then
                    v_in_lane := ojs._enter_lane(c_patience_ms);
                    v_aside := not v_in_lane;
                end if;
            end if;
            v_seen := coalesce(v_mark.rev, 0);
            if v_single then
                select * into v_mark from (select m.* from ojs.run_mark m where m.queue = v_queue order by m.rev desc limit 1) m
                where exists (select from ojs.run r where r.queue = m.queue and r.n >= m.lo);
            end if;
            v_mark.rev := coalesce(v_mark.rev, 0);
        end if;
    end loop;

    if coalesce(p_ahead, v_count < 2 * cardinality(p_counts)) and v_got = v_count and v_count <= c_few and v_single and v_tenant is null and not v_aside
            and (v_decided or coalesce((select r.n > v_mark.hi - v_mark.ahead / 2 from ojs.run r where r.queue = v_queue and r.n >= v_mark.lo order by r.n limit 1), true)) then
        perform ojs._refill(v_queue, v_count, v_in_lane);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch_many(text[], int[], text[], int[], text, boolean) is
'One decision for several FETCH requests over the same queues: the first p_counts[1] rows are those of the first request, for worker
p_worker_ids[1] under a lease of p_visibility_timeouts_ms[1], the next p_counts[2] those of the second, and so on; only the last get
fewer, or none. Empty text and 0: none given. The counts sum to 10000 at most. Requests of workers that are to get nothing
(ojs.direct_worker) are left out: for each such worker there is, after the jobs, one row that is null but for worker_id. p_ahead: decide
ahead for later calls, too; by default where the requests ask for about one job each. The order is that of ojs.fetch, and so is what
fewer than asked proves. Commit at once. Raises what ojs.fetch raises.';

-- +goose StatementBegin
create function ojs.fetch(
    p_queues text[], p_count int default 1, p_worker_id text default null, p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark ojs.run_mark;
    v_now  timestamptz;
    v_one  record;
begin
    if p_count = 1 and cardinality(p_queues) = 1 and p_visibility_timeout_ms is null and p_tenant is null and (length(p_worker_id) > 255) is not true then
        -- As ordinary as can be. Most such calls find what they want in the run queue, and need little else.
        select m.*, ojs.now() into v_mark.queue, v_mark.rev, v_mark.lo, v_mark.hi, v_mark.ahead, v_mark.held, v_now
        from (select m.* from ojs.run_mark m where m.queue = p_queues[1] order by m.rev desc limit 1) m
        cross join lateral (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f
        where ojs._trusted() and current_setting('transaction_isolation') = 'read committed' and pg_snapshot_xmax(f.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
          and not exists (select from ojs.queue c where c.queue = m.queue and c.paused)
          and not exists (select from ojs.worker w where w.resting and w.tenant_id = '' and w.worker_id = p_worker_id)
          and not (case when exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) and w.to_state = 'available' and w.queue = m.queue)
                  or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' and w.queue = m.queue offset 0) w)
              then exists (select from ojs._stale_queues(m.queue)) else false end);
        if found then
            -- What ojs.fetch_many does, at half the cost for a single job.
            with free as materialized (
                select r.n, r.id, r.tenant_id, r.ctid as place from ojs.run r
                where r.queue = v_mark.queue and r.n >= v_mark.lo
                  and exists (select from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available')
                order by r.n limit 1 for update of r skip locked
            ), held as materialized (
                select f.n, f.id, f.tenant_id, f.place from free f
                cross join lateral (select j.id from ojs.job j
                    where j.id = f.id and j.tenant_id = f.tenant_id and j.state = 'available' and (j.expires_at > v_now) is not false for update skip locked) j
            ), gone as (
                delete from ojs.run r using held h where r.ctid = h.place
            ), taken as (
                update ojs.job j
                set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = nullif(p_worker_id, ''),
                    lease_expires_at = v_now + least(coalesce(j.visibility_timeout_ms, 30000), nullif(j.timeout_ms, 0)) * interval '1 millisecond'
                from held h where j.id = h.id and j.tenant_id = h.tenant_id
                returning h.n, j.tenant_id, j.queue, j.priority, j.id, j.lease_expires_at, j as job
            ), leased as (
                insert into ojs.lease (tenant_id, queue, priority, jobs, ids, turns, at)
                select t.tenant_id, t.queue, t.priority, 1, array[t.id], array[t.n], v_now from taken t
            ), timed as (
                insert into ojs.timer (due_at, kind, tenant_ids, ids) select t.lease_expires_at, 'lease', array[t.tenant_id], array[t.id] from taken t
            )
            select t.job, t.n into v_one from taken t;
            if found then
                return next v_one.job;
                if v_one.n > v_mark.hi - v_mark.ahead / 2 then
                    perform ojs._refill(v_mark.queue, 1);
                end if;
                return;
            end if;
        end if;
    end if;
    -- To fetch_many 0 means that nothing was given.
    return query select * from ojs.fetch_many(p_queues, array[p_count], array[p_worker_id], array[case when p_visibility_timeout_ms = 0 then -1 else p_visibility_timeout_ms end],
        p_tenant, true) f where f.id is not null;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch(text[], int, text, int, text) is
'Hands out up to p_count jobs (1 to 10000) of the queues and returns them in fair order (ojs-core section 7.2): highest effective priority
of a queue first, within it tenants by weight, within a tenant first in first out; over several queues one from each per turn. Each is
active from then on, attempt counted, under a lease of p_visibility_timeout_ms (else the job''s own, else 30000 ms) that heartbeats
extend, but never beyond the job''s timeout_ms. p_tenant: that tenant''s jobs only; a tenant''s login role always its own. A worker that
drains or was told to rest (ojs.direct_worker) gets none. The jobs are the caller''s when its transaction commits. Callers of one queue
take from a run queue that one of them fills ahead, so they need not wait for each other; a priority, a pause, a weight or a tenant that
comes acts on the next call all the same. Fewer than asked: no eligible job had committed before the call began, other than one that
somebody had locked when its turn came (the tick has it looked at again after a second), or 200000 ended jobs in a row lay in the way
(the next call goes on behind them). A caller may stay in its transaction: others then go on within a second, by what their tenants are
owed as far as is known, and the session is ended when it idles for 10 seconds while it keeps decisions waiting. Needs read committed.
Raises invalid_request, unsupported, TENANT_ACCESS_DENIED.';
reset role;
