-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._serve_queue(p_queue text, p_count int, p_tenant text, p_reentry_max bigint, p_skim int, out o_ids uuid[], out o_rows tid[], out o_skimmed int)
language plpgsql
as $$
declare
    v_ring   ojs.ring;
    v_left   int := p_count;
    v_served record;
begin
    o_ids := '{}';
    o_rows := '{}';
    o_skimmed := 0;
    for v_ring in
        select r.* from ojs.queue_priority q
        cross join lateral (select r.* from ojs.ring r where r.queue = q.queue and r.priority = q.priority order by r.rev desc limit 1) r
        where q.queue = p_queue and r.members > 0 order by q.priority desc
    loop
        loop
            v_served := ojs._serve(v_ring, v_left, p_tenant, p_reentry_max, true);
            v_ring := v_served.o_ring;
            o_ids := o_ids || v_served.o_ids;
            o_rows := o_rows || v_served.o_rows;
            o_skimmed := o_skimmed + v_served.o_skimmed;
            v_left := p_count - cardinality(o_ids);
            exit when v_left <= 0 or v_ring.members = 0 or not v_served.o_progress or o_skimmed > p_skim;
        end loop;
        perform ojs._ring_changed(v_ring);
        exit when v_left <= 0 or o_skimmed > p_skim;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_queue(text, int, text, bigint, int) is
'The next p_count jobs of one queue, of one tenant or of all, locked and in fair order, with the places of their rows, and how many ended
or locked jobs were passed over: when these are more than p_skim, there may be more. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._decide(p_queues text[], p_count int, p_tenant text, out o_ids uuid[], out o_rows tid[])
language plpgsql
as $$
declare
    c_skim     constant int := 200000;
    v_behind   boolean;
    v_runs     text[];
    v_n        int := cardinality(p_queues);
    v_more     boolean;
    v_max      bigint;
    v_served   record;
    v_total    int := 0;
    v_skimmed  int := 0;
    -- The round over several queues.
    v_rotation ojs.rotation;
    v_queues   text[];
    v_share    int[];
    v_want     int;
    v_got      int;
    v_left     int;
    v_open     int;
    v_at       int;
    v_turn     int[];
    v_empty    boolean[];
begin
    o_ids := '{}';
    o_rows := '{}';
    select pg_snapshot_xmax(f.snapshot) > pg_snapshot_xmax(pg_current_snapshot()), array(select q.queue from unnest(p_queues) q(queue)
        where case when (select m.rev from ojs.run_mark m where m.queue = q.queue order by m.rev desc limit 1) is not null then ojs._has_run(q.queue) end)
    into v_behind, v_runs
    from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f;
    if v_behind then
        perform ojs.rebuild();
    elsif v_runs <> '{}' then
        -- What was decided ahead for direct callers is decided again.
        perform ojs._revoke(q.queue) from unnest(v_runs) q(queue);
    elsif v_runs is null then
        -- Dispatch is held since this call began.
        return;
    end if;
    -- One job from each queue per turn, beginning where the last decision over the same queues stopped.
    if v_n > 1 then
        select * into v_rotation from ojs.rotation r where r.queues = p_queues order by r.rev desc limit 1;
        v_at := coalesce(v_rotation.next, 1);
        v_queues := p_queues[v_at:] || p_queues[:v_at - 1];
        v_share := array_fill(0, array[v_n]);
        v_turn := '{}';
    end if;
    loop
        v_more := ojs._fold();
        select s.last_value into v_max from ojs.reentry_n_seq s;
        if v_n = 1 then
            v_served := ojs._serve_queue(p_queues[1], p_count - v_total, p_tenant, v_max, c_skim - v_skimmed);
            o_ids := o_ids || v_served.o_ids;
            o_rows := o_rows || v_served.o_rows;
            v_skimmed := v_skimmed + v_served.o_skimmed;
            v_total := cardinality(o_ids);
        else
            v_empty := array_fill(false, array[v_n]);
            while v_total < p_count and false = any (v_empty) loop
                v_left := p_count - v_total;
                v_open := (select count(*) from unnest(v_empty) e where not e)::int;
                v_at := 0;
                for q in 1 .. v_n loop
                    continue when v_empty[q];
                    v_at := v_at + 1;
                    v_want := v_left / v_open + case when v_at <= v_left % v_open then 1 else 0 end;
                    exit when v_want = 0;
                    v_served := ojs._serve_queue(v_queues[q], v_want, p_tenant, v_max, c_skim - v_skimmed);
                    v_got := cardinality(v_served.o_ids);
                    o_ids := o_ids || v_served.o_ids;
                    o_rows := o_rows || v_served.o_rows;
                    v_turn := v_turn || array(select (v_share[q] + t) * v_n + q from generate_subscripts(v_served.o_ids, 1) t);
                    v_share[q] := v_share[q] + v_got;
                    v_skimmed := v_skimmed + v_served.o_skimmed;
                    v_empty[q] := v_got < v_want;
                    v_total := v_total + v_got;
                end loop;
            end loop;
        end if;
        exit when v_total >= p_count or not v_more or v_skimmed > c_skim;
    end loop;
    if v_skimmed > c_skim and v_total < p_count then
        -- Enough for one decision: others wait. What was passed over stays passed over, and whoever waits is told to come again.
        perform ojs._notify(p_queues);
    end if;

    if v_n > 1 and v_total > 0 then
        -- The next turn is that of the queue after the one that had the last.
        select (m.turn - 1) % v_n + 1 into v_at from unnest(v_turn) m(turn) order by m.turn desc limit 1;
        v_at := (coalesce(v_rotation.next, 1) - 1 + v_at) % v_n + 1;
        if v_rotation.queues is null then
            insert into ojs.rotation (queues, rev, next) values (p_queues, 1, v_at);
        elsif v_rotation.next <> v_at then
            update ojs.rotation r set rev = r.rev + 1, next = v_at where r.queues = v_rotation.queues and r.rev = v_rotation.rev;
        end if;
        select array_agg(g.id order by g.turn), array_agg(g.row_at order by g.turn) into o_ids, o_rows from unnest(o_ids, o_rows, v_turn) g(id, row_at, turn);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._decide(text[], int, text) is
'The decision: the next p_count jobs of the queues (unpaused ones, each once), of one tenant or of all, locked and in fair order, with the
places of their rows. Their tenants have been charged. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._plan(p_queue text, p_count int) returns void
language plpgsql
as $$
declare
    v_max      bigint;
    v_ahead    int;
    v_left     int;
    v_mark     ojs.run_mark;
    v_held     bigint[];
    v_lo       bigint;
    v_hi       bigint;
    v_priority int;
    v_ring     ojs.ring;
    v_served   record;
    v_added    record;
begin
    select s.last_value into v_max from ojs.reentry_n_seq s;
    select * into v_mark from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1;
    -- Whoever has hold of a row may keep it for long. One that was the first at the last refill, too, is remembered, and scans begin behind it; let go of
    -- untaken, it is revoked with all the rest, and so is one whose job has ended.
    if exists (select from unnest(v_mark.held) h(n) cross join lateral (select from ojs.run r where r.queue = p_queue and r.n = h.n limit 1 for update skip locked) r)
            or exists (select from (select r.id, r.tenant_id from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n limit 1) r
                where not exists (select from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available')) then
        perform ojs._revoke(p_queue);
        select * into v_mark from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1;
    end if;
    select r.n into v_lo from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n limit 1;
    v_held := array(select r.n from unnest(v_mark.held) h(n) cross join lateral (select r.n from ojs.run r where r.queue = p_queue and r.n = h.n limit 1) r);
    if v_lo = v_mark.lo then
        v_held := v_held || v_lo;
        perform ojs._look_again(array[r.tenant_id], array[r.id]) from ojs.run r where r.queue = p_queue and r.n = v_lo;
        select r.n into v_lo from ojs.run r where r.queue = p_queue and r.n > v_mark.lo order by r.n limit 1;
    end if;
    -- Further each time, and half as far after each revocation: what is decided ahead and not taken is decided twice.
    v_ahead := least(p_count, greatest(2 * v_mark.ahead, p_count / 8));
    v_left := v_ahead;
    for v_priority in select p.priority from ojs.queue_priority p where p.queue = p_queue order by p.priority desc loop
        v_ring := ojs._ring(p_queue, v_priority);
        continue when v_ring.members = 0;
        loop
            v_served := ojs._serve(v_ring, v_left, null, v_max, false);
            v_ring := v_served.o_ring;
            if cardinality(v_served.o_ids) > 0 then
                with added as (
                    insert into ojs.run (queue, priority, job_priority, tenant_id, id, pos, step, drift)
                    select p_queue, v_priority, v_priority - coalesce((select t.priority_boost from ojs.tenant t where t.tenant_id = s.tenant_id), 0), s.tenant_id, s.id, s.pos, s.step, s.drift
                    from unnest(v_served.o_ids, v_served.o_tenants, v_served.o_places, v_served.o_steps, v_served.o_drifts) s(id, tenant_id, pos, step, drift)
                    returning n
                )
                select min(a.n) as lo, max(a.n) as hi into v_added from added a;
                v_lo := coalesce(v_lo, v_added.lo);
                v_hi := v_added.hi;
                v_left := v_left - cardinality(v_served.o_ids);
            end if;
            exit when v_left <= 0 or v_ring.members = 0 or not v_served.o_progress or v_served.o_skimmed > 0;
        end loop;
        perform ojs._ring_changed(v_ring);
        -- Nothing of a lower priority goes before what is left here.
        exit when v_left <= 0 or v_ring.members > 0;
    end loop;
    if v_hi is null then
        return;
    elsif v_mark.queue is null then
        insert into ojs.run_mark (queue, rev, lo, hi, ahead) values (p_queue, 1, v_lo, v_hi, v_ahead);
    else
        update ojs.run_mark m set rev = m.rev + 1, lo = v_lo, hi = v_hi, ahead = v_ahead, held = v_held where m.queue = p_queue and m.rev = v_mark.rev;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._plan(text, int) is
'Decides up to p_count jobs ahead and appends them to the run queue of a queue, where direct callers take them without a decision of their
own. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._refill(p_queue text, p_count int, p_in_lane boolean default false) returns void
language plpgsql
as $$
begin
    -- Most often, under light load, there is nothing left.
    if ojs._has_work(array[p_queue]) and (p_in_lane or not ojs._lingers() and ojs._enter_lane(-1)) then
        perform ojs._fold();
        perform ojs._plan(p_queue, greatest(128, 32 * p_count));
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._refill(text, int, boolean) is
'Decides ahead for callers who ask for p_count jobs each, unless somebody decides at this moment. p_in_lane: the caller is the one.';
reset role;
