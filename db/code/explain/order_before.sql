-- How many jobs of other tenants come before a job, and the sentences that say so.

create or replace function ojs._order_before(
    p_job ojs.job, p_priority int, p_fair ojs.tenant_fairness, p_stand ojs.standing, p_line bigint, p_news boolean, p_certainty text
) returns ojs.standing
language plpgsql stable
as $$
declare
    v_unit   ojs.unit := coalesce((select s.unit from ojs._state(p_job.queue) s), 'jobs');
    -- Servers ask one decision for at most this many jobs. For more, _due would read more than the
    -- answer is worth.
    c_dealt  constant int := 1000;
    v_weight numeric := (select w.weight from (select 1) one
        left join ojs.tenant t on t.tenant_id = p_job.tenant_id
        cross join lateral ojs._weight_in(p_job.queue, p_job.tenant_id, t.weight, t.throttle) w);
    v_low    numeric := coalesce((select l.low from ojs._level(p_job.queue, p_priority) l), 0);
    v_uncounted ojs.uncounted := ojs._uncounted(p_job.queue);
    v_now    timestamptz := ojs.now();
    v_until  float8;
    v_all    boolean;
    v_own    bigint;
    v_others numeric;
    v_nth    bigint;
begin
    select h.jobs, h.own, h.counted into p_stand.higher_ahead, v_own, v_all
    from ojs._jobs_before(p_job, p_priority + 1, 2147483647, p_news, null, null) h;
    p_stand.certainty := case when p_certainty = 'exact' and not v_all then 'estimate' else p_certainty end;
    if p_stand.passed or ojs._capacity_now(p_job.queue, p_job.tenant_id, v_uncounted) - v_own <= p_line then
        return p_stand;
    end if;
    v_until := case when p_fair.ready then p_fair.vtime else greatest(coalesce(p_fair.vtime, 0), v_low) + 0.5 / v_weight end - v_low
        + p_line / v_weight;
    v_others := (select o.jobs from ojs._jobs_before(p_job, p_priority, p_priority, p_news, v_low, v_until) o);
    if p_stand.certainty = 'exact' then
        if v_others + p_line < c_dealt then
            select d.nth - 1 into v_nth
            from ojs._due(p_job.queue, p_priority, v_low, c_dealt, null, null, false, true, v_uncounted, v_unit, v_now) d
            where d.dealt and d.id = p_job.id and d.tenant_id = p_job.tenant_id;
        end if;
        if v_nth is null then
            p_stand.certainty := 'estimate';
        else
            v_others := v_nth - p_line;
        end if;
    end if;
    p_stand.others_ahead := v_others + p_line - p_stand.tenant_ahead;
    p_stand.dispatches_ahead := p_stand.higher_ahead + v_others + p_line;
    return p_stand;
end;
$$;
comment on function ojs._order_before(ojs.job, int, ojs.tenant_fairness, ojs.standing, bigint, boolean, text) is
'Adds to p_stand how many jobs of other tenants come before a job, and the sum. p_line: jobs of its
own tenant that come before it. p_news: the journal has work that no decision has folded in and
that may come before it.';

create or replace function ojs._jobs_before(
    p_job ojs.job, p_from int, p_to int, p_news boolean, p_low numeric, p_until float8,
    out jobs bigint, out own bigint, out counted boolean
)
language plpgsql stable
as $$
begin
    -- A tenant's jobs are due at its time and at steps of 1 / weight from there. A job within 1e-9
    -- steps of p_until counts as due at p_until: float8 is not exact.
    select round(coalesce(sum(c.many * case when p_until is null then c.jobs else least(c.jobs,
            greatest(ceil((p_until - (c.vtime - p_low)::float8) * c.weight::float8 - 1e-9), 0)) end), 0)),
        coalesce(sum(c.jobs) filter (where c.tenant_id = p_job.tenant_id), 0), coalesce(bool_and(c.many = 1 and not c.limited), true)
    into jobs, own, counted
    from ojs._crowd(p_job.queue, p_from, p_to, p_news, p_low) c
    where p_until is null or c.tenant_id <> p_job.tenant_id;
end;
$$;
comment on function ojs._jobs_before(ojs.job, int, int, boolean, numeric, float8) is
'How many jobs at effective priorities from p_from to p_to come before a job. p_until null: all;
else those of other tenants that are due until p_until, counted from p_low.
own: how many of them are of its own tenant.
counted: every tenant was read, and none has a limit. With a limit, jobs that a tenant gets at a
higher priority are missing at a lower one; that is not worked out.';

create or replace function ojs._crowd(p_queue text, p_from int, p_to int, p_news boolean, p_low numeric)
returns table (tenant_id text, vtime numeric, weight numeric, jobs bigint, many numeric, limited boolean)
language plpgsql stable rows 100
as $$
declare
    c_most  constant int := 1000;
    v_tally pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_state ojs.dispatch_state := (select s from ojs._state(p_queue) s);
    v_stand bigint := (select coalesce(sum(l.ready), 0) from unnest(v_state.levels) l where l.priority between p_from and p_to);
    v_own   boolean := coalesce(v_state.own_order, false);
    v_uncounted ojs.uncounted := ojs._uncounted(p_queue);
begin
    return query
    with crowd as materialized (
        (select f.tenant_id, f.job_priority, f.vtime, f.weight, true as stood, v_stand as total
        from unnest(v_state.levels) l
        cross join lateral (select f.* from ojs.tenant_fairness f where f.queue = p_queue and f.priority = l.priority and f.ready
            and f.vtime >= l.low order by f.vtime limit c_most) f
        where l.priority between p_from and p_to limit c_most)
        union all
        (select j.*, false, count(*) over () from ojs._joining(p_queue, p_from, p_to, p_low, v_uncounted) j where p_news limit c_most)
    ), counted as (
        select u.tenant_id, max(u.vtime) as vtime, max(u.weight) as weight, bool_or(u.stood) as stood, max(u.total) as total,
            greatest(sum(u.available), 0)::bigint as available
        from (
            select c.*, 0 as available from crowd c
            union all
            select c.tenant_id, c.job_priority, null, null, null, null, n.available from crowd c
            cross join lateral (select distinct on (n.priority) n.available from ojs.tally n
                where n.tenant_id = c.tenant_id and n.queue = p_queue and (v_own or n.priority = c.job_priority)
                order by n.priority, n.rev desc) n
            union all
            select r.tenant_id, r.priority, null, null, null, null, r.available from ojs._changes(v_tally, null) r where r.queue = p_queue
        ) u
        group by u.tenant_id, case when not v_own then u.job_priority end having max(u.weight) is not null
    )
    select c.tenant_id, c.vtime, c.weight, least(c.available, ojs._capacity_now(p_queue, c.tenant_id, v_uncounted)),
        greatest(1, c.total::numeric / count(*) over (partition by c.stood)),
        exists (select from ojs.rule r where r.tenant_id = c.tenant_id)
    from counted c;
end;
$$;
comment on function ojs._crowd(text, int, int, boolean, numeric) is
'Tenants with work at effective priorities from p_from to p_to of a queue, with the jobs that they
may have, by the statistics: the first 1000 of the ring.
many: for how many tenants each row stands, if there are more.
limited: rules are about the tenant.
p_news: with up to 1000 tenants that the next decision will add. p_low: the time at which these
join.';

create or replace function ojs._joining(p_queue text, p_from int, p_to int, p_low numeric, p_uncounted ojs.uncounted)
returns table (tenant_id text, job_priority int, vtime numeric, weight numeric)
language sql stable rows 10
as $$
    -- A tenant without a row joins within one step of the lowest time; take the middle of the step.
    select u.tenant_id, u.job_priority, greatest(coalesce(f.vtime, 0), p_low) + 0.5 / n.weight, n.weight
    from (
        select w.tenant_id, w.priority, w.job_priority from ojs._waiting() w where w.queue = p_queue
        union
        (select f.tenant_id, f.priority, f.job_priority from ojs.tenant_fairness f
        where f.at_limit and not f.ready and f.queue = p_queue and f.priority between p_from and p_to limit 1000)
    ) u
    left join ojs.tenant t on t.tenant_id = u.tenant_id
    cross join lateral ojs._weight_in(p_queue, u.tenant_id, t.weight, t.throttle) n
    left join lateral ojs._fair(p_queue, u.priority, u.tenant_id) f on true
    where u.priority between p_from and p_to and f.ready is not true
        and (f.at_limit is not true or ojs._capacity_now(p_queue, u.tenant_id, p_uncounted) is distinct from 0)
$$;
comment on function ojs._joining(text, int, int, numeric, ojs.uncounted) is
'Tenants that the next decision will add to the ring at effective priorities from p_from to p_to of
a queue, and their time: tenants with new work, and tenants that have capacity again. p_low: the
time at which a new tenant joins.';

create or replace function ojs._held_by_line(p_job ojs.job, p_stand ojs.standing, p_held jsonb) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('cause', h.cause, 'jobs', h.jobs, 'text', h.said)) order by h.n), '[]')
    from (values
        (1, 'not_taken_in', p_stand.fresh, null,
            format('No decision has taken it in yet: the next worker that asks for queue %s brings that about.', p_job.queue)),
        (2, 'passed_over', p_stand.passed, null,
            'Another session had it locked when its turn came: it is looked at again within about a second.'),
        (3, 'room_again', p_stand.at_limit and not exists (select from jsonb_array_elements(p_held) e
            where e ->> 'cause' in ('limit', 'paused')), null, 'Its tenant has room again, which the next decision takes in.'),
        (4, 'priority', p_stand.higher_ahead > 0, p_stand.higher_ahead,
            format('Before it in queue %s: %s of a higher priority.', p_job.queue, ojs._so_many(p_stand.higher_ahead, p_stand.certainty))),
        (5, 'turns', p_stand.others_ahead > 0, p_stand.others_ahead, format('Before it, because it is their turn: %s of other tenants.',
            ojs._so_many(p_stand.others_ahead, p_stand.certainty))),
        (6, 'line', p_stand.tenant_ahead > 0, p_stand.tenant_ahead,
            format('Before it in line: %s of its own tenant.', ojs._so_many(p_stand.tenant_ahead,
                case when p_stand.certainty = 'at_least' then p_stand.certainty end))),
        (7, 'no_worker', p_stand.idle and not exists (select from jsonb_array_elements(p_held) e
            where e ->> 'cause' = 'workers_rest'), null, format(
            'No worker seems to ask for queue %s: none waits, and nothing was handed out of it in the last five minutes.', p_job.queue))
    ) h(n, cause, holds, jobs, said)
    where h.holds);
end;
$$;
comment on function ojs._held_by_line(ojs.job, ojs.standing, jsonb) is
'What holds an available job back because of where it stands: entries of held_by. p_held: what else
holds it back.';

create or replace function ojs._so_many(p_jobs bigint, p_certainty text) returns text
language sql immutable
as $$
    select case p_certainty when 'estimate' then 'about ' when 'at_least' then 'at least ' else '' end || p_jobs
        || case when p_jobs = 1 then ' job' else ' jobs' end
$$;
comment on function ojs._so_many(bigint, text) is
'A number of jobs in a sentence, with "about" or "at least" by its certainty.';
