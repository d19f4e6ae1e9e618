-- +goose Up
-- Standing: what comes before an available job. The order is asked of ojs._due, which decides; only what lies further ahead than it looks
-- at once is worked out from the same virtual times, and says so.
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.standing as (
    fresh boolean, ahead boolean, passed boolean, parked boolean, idle boolean, tenant_ahead bigint, higher_ahead bigint,
    others_ahead bigint, dispatches_ahead bigint, certainty text
);
comment on type ojs.standing is
'Where an available job stands: fresh: no decision has taken it in yet; ahead: it is decided ahead; passed: somebody had it locked when its
turn came; parked: its tenant waits for room; idle: nobody asks for its queue; then jobs that come before it: of its tenant, of higher
effective priorities, of other tenants at its own, and in sum (null: unknown); and how certain these are, as in ojs.explanation.';

-- +goose StatementBegin
create function ojs._standing(p_job ojs.job, p_priority int) returns ojs.standing
language plpgsql stable
as $$
declare
    c_most  constant int := 10000;
    v_stand ojs.standing;
    v_fold  ojs.fold;
    v_fair  ojs.tenant_fairness;
    v_news  boolean;
    v_turns record;
    v_line  record;
begin
    select * into v_fold from ojs._folded();
    select * into v_fair from ojs._fair(p_job.queue, p_priority, p_job.tenant_id);
    v_stand.fresh := exists (select from ojs._unfolded() u where u.queue = p_job.queue and u.tenant_id = p_job.tenant_id
        and u.priority = p_job.priority and p_job.seq between u.lo and u.hi);
    -- Where work has come that joins the round or lies behind a cursor, or a tenant has room again, what was decided ahead is decided
    -- again.
    v_news := exists (
        select from ojs._came(v_fold.snapshot, null, v_fold.part_xid, v_fold.part_lo, 9223372036854775807) w
        cross join lateral ojs._unforeseen(w.queue, w.priority, w.tenant_id, w.lo)
        where w.queue = p_job.queue and w.priority >= p_priority)
        -- Where priorities order a tenant's own jobs, those that come before this one may not have been taken in.
        or exists (select from ojs._unfolded() u cross join lateral ojs._rank(u.queue, u.priority, 0) r
            where u.queue = p_job.queue and u.tenant_id = p_job.tenant_id and u.priority > p_job.priority and r.own_order)
        or v_fold.counts and ojs._room_may_be_back(array[p_job.queue]);
    select * into v_turns from ojs._turns_before(p_job, p_priority);
    v_stand.ahead := v_turns.o_turn is not null;
    v_stand.parked := coalesce(v_fair.parked, false);
    v_stand.idle := ojs._nobody_asks(p_job.queue);
    if v_stand.ahead and not v_news then
        v_stand.tenant_ahead := v_turns.o_own;
        v_stand.higher_ahead := v_turns.o_higher;
        v_stand.others_ahead := v_turns.o_jobs - v_turns.o_own - v_turns.o_higher;
        v_stand.dispatches_ahead := v_turns.o_jobs;
        v_stand.certainty := case when v_turns.o_held or v_turns.o_gone then 'estimate' else 'exact' end;
        return v_stand;
    end if;
    v_fair := ojs._at_priority(v_fair, p_job.priority);
    if v_fair.head is null then
        v_fair.head := (select min(u.lo) - 1 from ojs._unfolded() u
            where u.queue = p_job.queue and u.tenant_id = p_job.tenant_id and u.priority = p_job.priority);
    end if;
    select * into v_line from ojs._line_before(p_job, p_priority, v_fair, v_news, c_most);
    v_stand.passed := v_line.o_passed and not v_stand.ahead and not v_stand.fresh;
    v_line.o_jobs := v_line.o_jobs + ojs._own_above(p_job);
    v_stand.tenant_ahead := least(v_line.o_jobs + case when v_news then 0 else v_turns.o_own end, c_most);
    return ojs._order_before(p_job, p_priority, v_fair, v_stand, v_line.o_jobs, v_news, v_turns.o_jobs, v_turns.o_higher,
        case when v_line.o_more or v_line.o_jobs >= c_most then 'at_least' when v_news or v_turns.o_gone then 'estimate'
            else 'exact' end);
end;
$$;
-- +goose StatementEnd
comment on function ojs._standing(ojs.job, int) is 'Where an available job stands whose effective priority is p_priority.';

-- +goose StatementBegin
create function ojs._turns_before(
    p_job ojs.job, p_priority int, out o_turn bigint, out o_held boolean, out o_jobs bigint, out o_own bigint, out o_higher bigint,
    out o_gone boolean
)
language plpgsql stable
as $$
declare
    v_lo  bigint := (select m.lo from ojs._turn_mark(p_job.queue) m);
    v_now timestamptz := ojs.now();
begin
    o_turn := (select t.n from ojs.turn t where t.queue = p_job.queue and t.id = p_job.id and t.tenant_id = p_job.tenant_id limit 1);
    o_held := coalesce(o_turn < v_lo, false);
    select count(*) filter (where t.waits and t.n < p.place),
        count(*) filter (where t.waits and t.n < p.place and t.tenant_id = p_job.tenant_id and t.priority = p_priority),
        count(*) filter (where t.waits and t.n < p.place and t.priority > p_priority),
        coalesce(bool_or(not t.waits and t.priority = p_priority), false)
    into o_jobs, o_own, o_higher, o_gone
    from (select coalesce(o_turn, 9223372036854775807) as place) p
    cross join lateral (select t.*, exists (select from ojs.job j where j.id = t.id and j.tenant_id = t.tenant_id
            and j.state = 'available' and (j.expires_at > v_now) is not false) as waits
        from ojs.turn t where t.queue = p_job.queue and t.n >= v_lo) t;
end;
$$;
-- +goose StatementEnd
comment on function ojs._turns_before(ojs.job, int) is
'The place of a job among those decided ahead (null: it is not), whether somebody has hold of it, and how many of these come before it,
all where it is none of them: in sum, of its tenant and effective priority, and of higher ones. o_gone: one of its level ended
otherwise, so that its tenant comes sooner if all are decided again.';

-- +goose StatementBegin
create function ojs._nobody_asks(p_queue text) returns boolean
language plpgsql stable
as $$
declare
    v_mark  pg_snapshot := (select t.pace_snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_since timestamptz := ojs.now() - interval '5 minutes';
    v_now   timestamptz := ojs.now();
begin
    return not exists (select from ojs.waiter w where w.queue = p_queue and w.expires_at > v_now)
        and not exists (select from ojs.pace p where p.kind = 'queue' and p.name = p_queue and p.at > v_since)
        and not exists (select from ojs._leases_since(v_mark) l where l.queue = p_queue and l.at > v_since);
end;
$$;
-- +goose StatementEnd
comment on function ojs._nobody_asks(text) is
'Whether no server has a worker waiting for a queue, and nothing was handed out of it in the last five minutes.';

-- Rows are counted that are looked at, not only those that wait: a run of ended jobs costs as much.
-- +goose StatementBegin
create function ojs._line_before(
    p_job ojs.job, p_priority int, p_fair ojs.tenant_fairness, p_news boolean, p_most int,
    out o_jobs bigint, out o_more boolean, out o_passed boolean
)
language plpgsql stable
as $$
declare
    v_now    timestamptz := ojs.now();
    v_head   bigint := coalesce(p_fair.head, 0);
    v_behind boolean := p_job.seq <= v_head;
    v_look   int := 2 * p_most;
begin
    with ranges as materialized (
        select r.lo, r.hi from ojs._ranges(p_job.queue, p_job.priority, p_job.tenant_id, v_head, coalesce(p_fair.behind, false),
            coalesce(p_fair.again_lo, 0), coalesce(p_fair.again_seq, 0), p_most, true) r
        union all
        -- What was decided ahead comes back behind the cursor.
        select t.seq, t.seq from ojs.turn t
        where p_news and t.queue = p_job.queue and t.tenant_id = p_job.tenant_id and t.job_priority = p_job.priority
    ), back as materialized (
        select j.seq, j.state, j.expires_at from ranges r
        cross join lateral (select j.seq, j.state, j.expires_at from ojs.job j
            where j.queue = p_job.queue and j.priority = p_job.priority and j.tenant_id = p_job.tenant_id
              and j.seq between r.lo and least(r.hi, case when v_behind then p_job.seq - 1 end) order by j.seq limit v_look) j
        limit v_look
    ), ahead as materialized (
        select j.state, j.expires_at from ojs.job j
        where not v_behind and j.queue = p_job.queue and j.priority = p_job.priority and j.tenant_id = p_job.tenant_id and j.seq > v_head
          and j.seq < p_job.seq order by j.seq limit v_look
    )
    select (select count(distinct b.seq) from back b where b.state = 'available' and (b.expires_at > v_now) is not false)
            + (select count(*) from ahead a where a.state = 'available' and (a.expires_at > v_now) is not false),
        (select count(*) from back) = v_look or (select count(*) from ahead) = v_look,
        v_behind and not exists (select from ranges r where p_job.seq between r.lo and r.hi)
    into o_jobs, o_more, o_passed;
    o_more := o_more or o_jobs > p_most;
    o_jobs := least(o_jobs, p_most);
end;
$$;
-- +goose StatementEnd
comment on function ojs._line_before(ojs.job, int, ojs.tenant_fairness, boolean, int) is
'How many jobs of its tenant come before a job in line, p_most at most, those decided ahead not counted; o_more: there may be more, because
it stopped at p_most jobs, or twice as many rows; o_passed: nothing leads to the job any more but a reminder of the clock. p_news: what was
decided ahead will be decided again, and is counted.';

-- +goose StatementBegin
create function ojs._at_priority(p_fair ojs.tenant_fairness, p_priority int) returns ojs.tenant_fairness
language plpgsql stable
as $$
declare
    v_cursor ojs.cursor;
begin
    if p_fair.job_priority = p_priority then
        return p_fair;
    end if;
    select * into v_cursor from unnest(p_fair.lines) c where c.job_priority = p_priority;
    p_fair.head := v_cursor.head;
    p_fair.behind := v_cursor.behind;
    p_fair.again_lo := v_cursor.again_lo;
    p_fair.again_seq := v_cursor.again_seq;
    return p_fair;
end;
$$;
-- +goose StatementEnd
comment on function ojs._at_priority(ojs.tenant_fairness, int) is
'A tenant''s row with its cursor at some priority of its jobs; null where it has none.';

-- +goose StatementBegin
create function ojs._own_above(p_job ojs.job) returns bigint
language plpgsql stable
as $$
declare
    v_tally pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    if (select b.own_order from ojs._backlog(p_job.queue) b) is not true then
        return 0;
    end if;
    return (select coalesce(sum(n.available), 0) from (
        (select distinct on (n.priority) n.available from ojs.tally n
        where n.tenant_id = p_job.tenant_id and n.queue = p_job.queue and n.priority > p_job.priority order by n.priority, n.rev desc)
        union all
        select r.available from ojs._changes(v_tally, null) r
        where r.tenant_id = p_job.tenant_id and r.queue = p_job.queue and r.priority > p_job.priority
    ) n);
end;
$$;
-- +goose StatementEnd
comment on function ojs._own_above(ojs.job) is
'Where priorities order a tenant''s own jobs only: how many of its tenant come before a job because they are of a higher priority.';
reset role;
