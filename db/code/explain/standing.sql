-- Standing: which jobs come before an available job. The order comes from ojs._due, which decides.
-- Jobs further ahead than ojs._due reads in one call are estimated from the same virtual times, and
-- the result says so.

comment on type ojs.standing is
'Where an available job stands.
fresh: no decision has folded it in yet.
passed: another session had it locked when it was due.
at_limit: its tenant was at its limit at the last decision.
idle: no worker asks for its queue.
tenant_ahead, higher_ahead, others_ahead: jobs that come before it, of its tenant, of higher
effective priorities, and of other tenants at its own. dispatches_ahead: their sum, null if
unknown.
certainty: how exact these are, as in ojs.explanation.';

create or replace function ojs._standing(p_job ojs.job, p_priority int) returns ojs.standing
language plpgsql stable
as $$
declare
    c_most  constant int := 10000;
    v_stand ojs.standing;
    v_fair  ojs.tenant_fairness;
    v_uncounted ojs.uncounted := ojs._uncounted(p_job.queue);
    v_news  boolean;
    v_line  record;
    v_own   bigint;
begin
    select * into v_fair from ojs._fair(p_job.queue, p_priority, p_job.tenant_id);
    v_stand.fresh := exists (select from ojs._unfolded() u where u.to_state = 'available' and u.queue = p_job.queue
        and u.tenant_id = p_job.tenant_id and u.priority = p_job.priority and p_job.seq between u.lo and u.hi);
    -- Three kinds of work may come before the job once a decision has folded them in: work that
    -- joins the ring, work behind a cursor, and tenants that have capacity again.
    v_news := exists (
        select from ojs._waiting() w left join lateral ojs._fair(w.queue, w.priority, w.tenant_id) f on true
        where w.queue = p_job.queue and w.priority >= p_priority and ((f.ready or f.at_limit) is not true or w.lo <= f.head))
        -- Where priorities order a tenant's own jobs, jobs of a higher priority may not be folded
        -- in yet.
        or exists (select from ojs._unfolded() u cross join lateral ojs._rank(u.queue, u.priority, 0) r
            where u.to_state = 'available' and u.queue = p_job.queue and u.tenant_id = p_job.tenant_id and u.priority > p_job.priority
                and r.own_order)
        or exists (select from ojs._state(p_job.queue) s cross join lateral unnest(s.levels) l where l.at_limit > 0)
            and exists (select from ojs.tenant_fairness f where f.at_limit and not f.ready and f.queue = p_job.queue
                and ojs._capacity_now(f.queue, f.tenant_id, v_uncounted) is distinct from 0);
    v_stand.at_limit := coalesce(v_fair.at_limit, false);
    v_stand.idle := ojs._nobody_asks(p_job.queue);
    v_fair := ojs._at_priority(v_fair, p_job.priority);
    if v_fair.head is null then
        v_fair.head := (select min(u.lo) - 1 from ojs._unfolded() u where u.to_state = 'available'
            and u.queue = p_job.queue and u.tenant_id = p_job.tenant_id and u.priority = p_job.priority);
    end if;
    select * into v_line from ojs._line_before(p_job, v_fair, c_most);
    v_stand.passed := v_line.o_passed and not v_stand.fresh;
    v_own := v_line.o_jobs + ojs._own_above(p_job);
    v_stand.tenant_ahead := least(v_own, c_most);
    return ojs._order_before(p_job, p_priority, v_fair, v_stand, v_own, v_news,
        case when v_line.o_more or v_own >= c_most then 'at_least' when v_news then 'estimate' else 'exact' end);
end;
$$;
comment on function ojs._standing(ojs.job, int) is
'Where an available job with effective priority p_priority stands.';

create or replace function ojs._capacity_now(p_queue text, p_tenant text, p_uncounted ojs.uncounted) returns int
language plpgsql stable
as $$
begin
    return (select c.jobs from ojs._capacity(p_queue, p_tenant, p_uncounted) c);
end;
$$;
comment on function ojs._capacity_now(text, text, ojs.uncounted) is
'How many more jobs a tenant may be given from a queue (ojs._capacity). p_uncounted: the changes
since the last decision, from ojs._uncounted, which is called once for all tenants.';

create or replace function ojs._nobody_asks(p_queue text) returns boolean
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
comment on function ojs._nobody_asks(text) is
'Whether no server has a worker waiting for a queue, and no job of it was handed out in the last 5
minutes.';

-- The bound counts rows read, not only available jobs: a series of ended jobs costs as much.
create or replace function ojs._line_before(
    p_job ojs.job, p_fair ojs.tenant_fairness, p_most int, out o_jobs bigint, out o_more boolean, out o_passed boolean
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
        select r.lo, r.hi from ojs._ranges(p_job.queue, p_job.priority, p_job.tenant_id, p_fair.revisit_lo,
            coalesce(p_fair.revisit_seq, 0), p_most) r
        union all
        select u.lo, least(u.hi, v_head) from ojs._unfolded() u
        where u.to_state = 'available' and u.queue = p_job.queue and u.tenant_id = p_job.tenant_id and u.priority = p_job.priority
            and u.lo <= v_head
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
comment on function ojs._line_before(ojs.job, ojs.tenant_fairness, int) is
'How many jobs of its own tenant come before a job, at most p_most. o_more: there may be more,
because it stopped at p_most jobs or twice as many rows. o_passed: the cursor has passed the job,
and no range leads to it; only a timer of the clock will bring it back.';

create or replace function ojs._at_priority(p_fair ojs.tenant_fairness, p_priority int) returns ojs.tenant_fairness
language plpgsql stable
as $$
declare
    v_cursor ojs.cursor;
begin
    if p_fair.job_priority = p_priority then
        return p_fair;
    end if;
    select * into v_cursor from unnest(p_fair.cursors) c where c.job_priority = p_priority;
    p_fair.head := v_cursor.head;
    p_fair.revisit_lo := v_cursor.revisit_lo;
    p_fair.revisit_seq := v_cursor.revisit_seq;
    return p_fair;
end;
$$;
comment on function ojs._at_priority(ojs.tenant_fairness, int) is
'A tenant''s row with its cursor for jobs of priority p_priority; null where it has none.';

create or replace function ojs._own_above(p_job ojs.job) returns bigint
language plpgsql stable
as $$
declare
    v_tally pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    if (select s.own_order from ojs._state(p_job.queue) s) is not true then
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
comment on function ojs._own_above(ojs.job) is
'Where priorities order a tenant''s own jobs only: how many jobs of its tenant come before a job
because their priority is higher.';
