-- +goose Up
-- What of other tenants comes before a job, and sentences about it.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._order_before(
    p_job ojs.job, p_priority int, p_fair ojs.tenant_fairness, p_stand ojs.standing, p_line bigint, p_news boolean, p_turns bigint,
    p_turns_higher bigint, p_certainty text
) returns ojs.standing
language plpgsql stable
as $$
declare
    v_unit   ojs.unit := coalesce((select b.unit from ojs._backlog(p_job.queue) b), 'jobs');
    -- As many as one decision is asked for at most by servers; beyond, _due would look at more than anybody waits for.
    c_dealt  constant int := 1000;
    v_back   bigint := (select count(*) from ojs.turn t where p_news and t.queue = p_job.queue and t.tenant_id = p_job.tenant_id
        and t.job_priority = p_job.priority);
    v_room   bigint := ojs._room_soon(p_job.queue, p_job.tenant_id, p_news) + v_back;
    v_weight numeric := (select w.weight from (select 1) one
        left join ojs.tenant t on t.tenant_id = p_job.tenant_id
        cross join lateral ojs._weight_in(p_job.queue, p_job.tenant_id, t.weight, t.throttle) w);
    v_now    timestamptz := ojs.now();
    v_low    numeric;
    v_until  float8;
    v_all    boolean;
    v_own    bigint;
    v_others numeric;
    v_turn   bigint;
    v_turned bigint := 0;
begin
    select h.jobs, h.own, h.counted into p_stand.higher_ahead, v_own, v_all
    from ojs._jobs_before(p_job, p_priority + 1, 2147483647, p_news, null, null) h;
    p_stand.certainty := case when p_certainty = 'exact' and not v_all then 'estimate' else p_certainty end;
    if not p_news then
        p_stand.higher_ahead := p_stand.higher_ahead + p_turns_higher;
        v_turned := p_turns - p_turns_higher;
    end if;
    if p_stand.passed or v_room - v_own <= p_line then
        return p_stand;
    end if;
    v_low := ojs._low_before(p_job.queue, p_priority, p_news);
    v_until := case when p_fair.ready or v_back > 0 then p_fair.vtime - v_back / v_weight
        else greatest(coalesce(p_fair.vtime, 0), v_low) + 0.5 / v_weight end - v_low + p_line / v_weight;
    v_others := (select o.jobs from ojs._jobs_before(p_job, p_priority, p_priority, p_news, v_low, v_until) o);
    if p_stand.certainty = 'exact' then
        if v_others + p_line < c_dealt then
            select d.turn - 1 into v_turn
            from ojs._due(p_job.queue, p_priority, v_low, c_dealt, null, null, false, v_unit, v_now) d
            where d.dealt and d.id = p_job.id and d.tenant_id = p_job.tenant_id;
        end if;
        if v_turn is null then
            p_stand.certainty := 'estimate';
        else
            v_others := v_turn - p_line;
        end if;
    end if;
    p_stand.others_ahead := v_others + p_line + v_turned - p_stand.tenant_ahead;
    p_stand.dispatches_ahead := p_stand.higher_ahead + v_others + p_line + v_turned;
    return p_stand;
end;
$$;
-- +goose StatementEnd
comment on function ojs._order_before(ojs.job, int, ojs.tenant_fairness, ojs.standing, bigint, boolean, bigint, bigint, text) is
'Adds to p_stand how many jobs of other tenants come before a job, and how many in sum. p_line: jobs of its tenant that come before it,
apart from those decided ahead, of which there are p_turns, p_turns_higher of a higher priority; p_news: these are decided again.';

-- +goose StatementBegin
create function ojs._jobs_before(
    p_job ojs.job, p_from int, p_to int, p_news boolean, p_low numeric, p_until float8,
    out jobs bigint, out own bigint, out counted boolean
)
language plpgsql stable
as $$
begin
    -- A tenant's jobs are due at its time, and at steps of 1 / weight from there. What is a hair's breadth before p_until is on it.
    select round(coalesce(sum(c.many * case when p_until is null then c.jobs else least(c.jobs,
            greatest(ceil((p_until - (c.vtime - p_low)::float8) * c.weight::float8 - 1e-9), 0)) end), 0)),
        coalesce(sum(c.jobs) filter (where c.tenant_id = p_job.tenant_id), 0), coalesce(bool_and(c.many = 1 and not c.limited), true)
    into jobs, own, counted
    from ojs._crowd(p_job.queue, p_from, p_to, p_news, p_low) c
    where p_until is null or c.tenant_id <> p_job.tenant_id;
end;
$$;
-- +goose StatementEnd
comment on function ojs._jobs_before(ojs.job, int, int, boolean, numeric, float8) is
'How many jobs at effective priorities from p_from to p_to come before a job: all, or of other tenants those that are due until p_until,
counted from p_low. own: those of them that are of its own tenant; counted: it has looked at all tenants, and none has a limit: what that
one gets at a higher priority it does not get at a lower one, which is not worked out.';

-- +goose StatementBegin
create function ojs._room_soon(p_queue text, p_tenant text, p_news boolean) returns bigint
language plpgsql stable
as $$
begin
    return (select case when p_news and r.counted and not exists (select from ojs.rule p
            where p.tenant_id = p_tenant and p.queue in ('', p_queue) and p.paused_at is not null)
        then r.jobs + coalesce((select sum(e.jobs) from ojs._slot_mark() m cross join lateral ojs._ends(m.ended, null) e
            where e.tenant_id = p_tenant), 0) else r.jobs end
    from ojs._room(p_queue, p_tenant) r);
end;
$$;
-- +goose StatementEnd
comment on function ojs._room_soon(text, text, boolean) is
'How many more jobs a tenant may have from a queue, as ojs._room says; p_news: with what its attempts that ended since the last decision may
give back.';

-- +goose StatementBegin
create function ojs._tenants_at(p_queue text, p_from int, p_to int) returns bigint
language plpgsql stable
as $$
begin
    return (select coalesce(sum(l.tenants), 0) from ojs._backlog(p_queue) b cross join lateral unnest(b.priorities) p(priority)
        cross join lateral ojs._level(p_queue, p.priority) l where p.priority between p_from and p_to);
end;
$$;
-- +goose StatementEnd
comment on function ojs._tenants_at(text, int, int) is
'How many tenants take turns at effective priorities from p_from to p_to of a queue, one counted once for each priority.';

-- +goose StatementBegin
create function ojs._low_before(p_queue text, p_priority int, p_news boolean) returns numeric
language plpgsql stable
as $$
begin
    return least(coalesce((select l.low from ojs._level(p_queue, p_priority) l), 0), (
        select min(f.vtime - t.jobs / f.weight)
        from (select t.tenant_id, count(*) as jobs from ojs.turn t where p_news and t.queue = p_queue and t.priority = p_priority
            group by t.tenant_id) t
        cross join lateral ojs._fair(p_queue, p_priority, t.tenant_id) f));
end;
$$;
-- +goose StatementEnd
comment on function ojs._low_before(text, int, boolean) is
'The lower bound of the times at one level, as it will be when (p_news) what was decided ahead has been taken back.';

-- +goose StatementBegin
create function ojs._crowd(p_queue text, p_from int, p_to int, p_news boolean, p_low numeric)
returns table (tenant_id text, vtime numeric, weight numeric, jobs bigint, many numeric, limited boolean)
language plpgsql stable rows 100
as $$
declare
    c_most  constant int := 1000;
    v_tally pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_stand bigint := ojs._tenants_at(p_queue, p_from, p_to);
    v_own   boolean := coalesce((select b.own_order from ojs._backlog(p_queue) b), false);
begin
    return query
    with turned as materialized (
        -- Those that were cancelled meanwhile wait no more, and are given back all the same.
        select t.tenant_id, t.job_priority, count(*) as jobs, count(*) filter (where exists (select from ojs.job j
            where j.id = t.id and j.tenant_id = t.tenant_id and j.state = 'available')) as waits
        from ojs._turn_mark(p_queue) m cross join lateral (select t.* from ojs.turn t where t.queue = p_queue and t.n >= m.lo) t
        where t.priority between p_from and p_to group by t.tenant_id, t.job_priority
    ), crowd as materialized (
        (select f.tenant_id, f.job_priority, f.vtime, f.weight, f.limited, true as stood, v_stand as total
        from ojs._backlog(p_queue) b cross join lateral unnest(b.priorities) p(priority)
        cross join lateral ojs._level(p_queue, p.priority) l
        cross join lateral (select f.* from ojs.tenant_fairness f where f.queue = p_queue and f.priority = p.priority and f.ready
            and f.vtime >= l.low order by f.vtime limit c_most) f
        where p.priority between p_from and p_to limit c_most)
        union all
        (select j.*, false, count(*) over () from ojs._joining(p_queue, p_from, p_to, p_low) j where p_news limit c_most)
    ), counted as (
        select u.tenant_id, max(u.vtime) as vtime, max(u.weight) as weight, bool_or(u.limited) as limited, bool_or(u.stood) as stood,
            max(u.total) as total, greatest(sum(u.available), 0)::bigint as available,
            case when p_news then sum(u.turned) else 0 end::bigint as back
        from (
            select c.*, 0 as available, 0 as turned from crowd c
            union all
            select c.tenant_id, c.job_priority, null, null, null, null, null, n.available, 0 from crowd c
            cross join lateral (select distinct on (n.priority) n.available from ojs.tally n
                where n.tenant_id = c.tenant_id and n.queue = p_queue and (v_own or n.priority = c.job_priority)
                order by n.priority, n.rev desc) n
            union all
            select r.tenant_id, r.priority, null, null, null, null, null, r.available, 0
            from ojs._changes(v_tally, null) r where r.queue = p_queue
            union all
            select t.tenant_id, t.job_priority, null, null, null, null, null, -t.waits * (not p_news)::int, t.jobs from turned t
        ) u
        group by u.tenant_id, case when not v_own then u.job_priority end having max(u.weight) is not null
    )
    select c.tenant_id, c.vtime - c.back / c.weight, c.weight, least(c.available,
        case when c.limited then ojs._room_soon(p_queue, c.tenant_id, p_news) + c.back end),
        greatest(1, c.total::numeric / count(*) over (partition by c.stood)), c.limited
    from counted c;
end;
$$;
-- +goose StatementEnd
comment on function ojs._crowd(text, int, int, boolean, numeric) is
'Tenants with work at effective priorities from p_from to p_to of a queue, a thousand of those that take turns, the first ones, with the
jobs that they may have, by the statistics, without those decided ahead. many: for how many each stands, where there are more. limited:
rules are about it. p_news: as they will be when what was decided ahead has been taken back, and with a thousand that are new. p_low:
where these join.';

-- +goose StatementBegin
create function ojs._joining(p_queue text, p_from int, p_to int, p_low numeric)
returns table (tenant_id text, job_priority int, vtime numeric, weight numeric, limited boolean)
language sql stable rows 10
as $$
    -- Who leaves because all its jobs are decided ahead comes back with the time it had. Who is new joins within a step of the lowest time.
    select w.tenant_id, w.job_priority, case when w.turned then f.vtime
            else greatest(coalesce(f.vtime, 0), p_low) + 0.5 / n.weight end, n.weight, coalesce(t.limited, false)
    from (
        select u.tenant_id, u.priority, u.job_priority, bool_or(u.turned) as turned
        from (
            select c.tenant_id, c.priority, c.job_priority, false as turned from ojs._waiting() c where c.queue = p_queue
            union all
            select t.tenant_id, t.priority, t.job_priority, true from ojs._turn_mark(p_queue) m
            cross join lateral (select t.* from ojs.turn t where t.queue = p_queue and t.n >= m.lo) t
            union all
            (select f.tenant_id, f.priority, f.job_priority, false from ojs.tenant_fairness f
            where f.parked and not f.ready and f.queue = p_queue and f.priority between p_from and p_to limit 1000)
        ) u
        where u.priority between p_from and p_to
        group by u.tenant_id, u.priority, u.job_priority
    ) w
    left join ojs.tenant t on t.tenant_id = w.tenant_id
    cross join lateral ojs._weight_in(p_queue, w.tenant_id, t.weight, t.throttle) n
    left join lateral ojs._fair(p_queue, w.priority, w.tenant_id) f on true
    where f.ready is not true and (f.parked is not true or ojs._room_soon(p_queue, w.tenant_id, true) is distinct from 0)
$$;
-- +goose StatementEnd
comment on function ojs._joining(text, int, int, numeric) is
'Tenants that the next decision will add to those that take turns at effective priorities from p_from to p_to of a queue, and with which
time: those with new work, those whose jobs it takes back, and those who have room again. p_low: where those join who are new.';

-- +goose StatementBegin
create function ojs._held_by_line(p_job ojs.job, p_stand ojs.standing, p_held jsonb) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('cause', h.cause, 'jobs', h.jobs, 'text', h.said)) order by h.n), '[]')
    from (values
        (1, 'not_taken_in', p_stand.fresh, null,
            format('No decision has taken it in yet: the next worker that asks for queue %s brings that about.', p_job.queue)),
        (2, 'passed_over', p_stand.passed, null,
            'Somebody had it locked when its turn came: it is looked at again within about a second.'),
        (3, 'decided_ahead', p_stand.ahead, null,
            format('It is decided ahead: the next workers that ask for queue %s get it.', p_job.queue)),
        (4, 'room_again', p_stand.parked and not p_stand.ahead and not exists (select from jsonb_array_elements(p_held) e
            where e ->> 'cause' in ('limit', 'paused')), null, 'Its tenant has room again, which the next decision takes in.'),
        (5, 'priority', p_stand.higher_ahead > 0, p_stand.higher_ahead,
            format('Before it in queue %s: %s of a higher priority.', p_job.queue, ojs._so_many(p_stand.higher_ahead, p_stand.certainty))),
        (6, 'turns', p_stand.others_ahead > 0, p_stand.others_ahead, format('Before it, because it is their turn: %s of other tenants.',
            ojs._so_many(p_stand.others_ahead, p_stand.certainty))),
        (7, 'line', p_stand.tenant_ahead > 0, p_stand.tenant_ahead,
            format('Before it in line: %s of its own tenant.', ojs._so_many(p_stand.tenant_ahead,
                case when p_stand.certainty = 'at_least' then p_stand.certainty end))),
        (8, 'no_worker', p_stand.idle, null, format(
            'No worker seems to ask for queue %s: none waits, and nothing was handed out of it in the last five minutes.', p_job.queue))
    ) h(n, cause, holds, jobs, said)
    where h.holds);
end;
$$;
-- +goose StatementEnd
comment on function ojs._held_by_line(ojs.job, ojs.standing, jsonb) is
'What holds an available job back where it stands: entries of held_by. p_held: what else does.';

-- +goose StatementBegin
create function ojs._so_many(p_jobs bigint, p_certainty text) returns text
language sql immutable
as $$
    select case p_certainty when 'estimate' then 'about ' when 'at_least' then 'at least ' else '' end || p_jobs
        || case when p_jobs = 1 then ' job' else ' jobs' end
$$;
-- +goose StatementEnd
comment on function ojs._so_many(bigint, text) is 'A number of jobs in a sentence.';
reset role;
