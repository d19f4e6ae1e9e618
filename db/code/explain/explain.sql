-- Why a job waits: its state, the rules that hold it back, and which jobs come before it
-- (explain/standing.sql). It only reads and locks nothing, so asking often makes no session wait.

comment on type ojs.explanation is
'Why a job waits (ojs.explain).
reasons: what holds it back, a sentence each; held_by: the same as a JSON array of objects {cause,
text, ...}.
The numbers are null unless the job is available.
tenant_ahead: how many jobs of its tenant, queue and effective priority come before it.
higher_ahead: how many jobs of a higher effective priority in its queue.
dispatches_ahead: how many jobs of its queue will be handed out before it; null if unknown,
because its tenant may not be given more jobs until other jobs end.
certainty of these numbers: exact (while no job comes, ends or changes; tenants that are due at
the same time may change places), estimate, or at_least.';

-- Returns why a job waits, and which jobs come before it.
-- Locks nothing.
-- Reads only: the tenants of its queue and their numbers, and at most some ten thousand jobs of the
-- tenant.
create or replace function ojs.explain(p_id uuid, p_tenant text default null) returns ojs.explanation
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_job    ojs.job := ojs._job_for(p_id, v_tenant);
    v_says   ojs.explanation;
    v_stands ojs.standing;
begin
    v_says.tenant_id := v_job.tenant_id;
    v_says.id := v_job.id;
    v_says.queue := v_job.queue;
    v_says.priority := v_job.priority;
    select r.priority into v_says.effective_priority from ojs._rank(v_job.queue, v_job.priority,
        (select t.priority_boost from ojs.tenant t where t.tenant_id = v_job.tenant_id)) r;
    v_says.state := v_job.state;
    v_says.held_by := ojs._held_by_state(v_job);
    if not ojs._ended(v_job.state) and v_job.state <> 'active' then
        v_says.held_by := v_says.held_by || ojs._held_by_pauses(v_job, v_tenant is null);
    end if;
    if v_job.state = 'available' then
        v_stands := ojs._standing(v_job, v_says.effective_priority);
        v_says.tenant_ahead := v_stands.tenant_ahead;
        v_says.higher_ahead := v_stands.higher_ahead;
        v_says.dispatches_ahead := v_stands.dispatches_ahead;
        -- Jobs of tenants with an isolated pool of their own count as ahead, although other workers
        -- never get them. So the number is an estimate.
        v_says.certainty := case when v_stands.certainty = 'exact'
            and exists (select from ojs.pool p where p.isolated and p.tenants is not null) then 'estimate' else v_stands.certainty end;
        v_says.held_by := v_says.held_by || ojs._held_by_limits(v_job, v_tenant is null) || ojs._held_by_pools(v_job, v_tenant is null);
        -- Which queues have work, and which workers rest, would tell a tenant about other tenants,
        -- so only operators learn it.
        if v_tenant is null then
            v_says.held_by := v_says.held_by || ojs._held_by_rest(v_job.queue) || ojs._held_by_rotation(v_job.queue);
        end if;
        v_says.held_by := v_says.held_by || ojs._held_by_line(v_job, v_stands, v_says.held_by);
        if v_says.held_by = '[]' then
            v_says.held_by := jsonb_build_array(jsonb_build_object('cause', 'next',
                'text', format('Nothing holds it back: the next worker that asks for queue %s gets it.', v_job.queue)));
        end if;
    end if;
    v_says.reasons := array(select h.value ->> 'text' from jsonb_array_elements(v_says.held_by) with ordinality h(value, n) order by h.n);
    return v_says;
end;
$$;
comment on function ojs.explain(uuid, text) is
'Returns why a job waits: everything that holds it back, and how many jobs come before it.
The numbers come from the functions that decide (ojs._due); beyond 1000 dispatches they are
estimated from weights. The work is bounded, however many jobs wait.
p_tenant: the answer says of other tenants only how many of their jobs come first: no names,
limits or workers. The same for a tenant''s login. Null: an operator learns everything.
Raises not_found, also for a job of another tenant; ambiguous_job.';

create or replace function ojs._in_words(p_at timestamptz) returns text
language sql stable
as $$ select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"') $$;
comment on function ojs._in_words(timestamptz) is 'Formats a time for a sentence.';

create or replace function ojs._held_by_state(p_job ojs.job) returns jsonb
language plpgsql stable
as $$
declare
    v_until timestamptz := case p_job.state when 'scheduled' then p_job.scheduled_at when 'retryable' then p_job.retry_at
        when 'active' then p_job.lease_expires_at end;
    v_text  text := case p_job.state
        when 'scheduled' then format('It is scheduled for %s.', ojs._in_words(v_until))
        when 'retryable' then format('Attempt %s failed: it is to be tried again at %s.', p_job.attempt, ojs._in_words(v_until))
        when 'pending' then 'It is pending: it waits for a call of ojs.activate.'
        when 'active' then format('It runs: %s has it since %s, under a lease until %s.',
            coalesce('worker ' || p_job.worker_id, 'a worker without a name'), ojs._in_words(p_job.started_at), ojs._in_words(v_until))
        when 'available' then case when p_job.expires_at <= ojs.now() then
            format('It expired at %s, and is about to be discarded.', ojs._in_words(p_job.expires_at)) end
        else format('It has ended: %s at %s.', p_job.state, ojs._in_words(p_job.finished_at)) end;
begin
    if v_text is null then
        return '[]';
    elsif v_until <= ojs.now() then
        v_text := v_text || ' That time has come: the clock is about to see to it.';
    end if;
    return jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'cause', case when ojs._ended(p_job.state) then 'ended' when p_job.state = 'available' then 'expired' else p_job.state::text end,
        'until', ojs._utc(v_until), 'worker_id', case when p_job.state = 'active' then p_job.worker_id end, 'text', v_text)));
end;
$$;
comment on function ojs._held_by_state(ojs.job) is
'Why the state of a job keeps it from being handed out: entries of held_by.';

create or replace function ojs._held_by_pauses(p_job ojs.job, p_all boolean) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(h.why) order by h.n, h.scope), '[]')
    from (
        select 1 as n, '' as scope, jsonb_build_object('cause', 'dispatch_held', 'since', ojs._utc(s.held_at),
            'text', format('Dispatch is held since %s, of all queues, and the clock stands still (ojs.hold_dispatch).',
                ojs._in_words(s.held_at))) as why
        from ojs.settings s where s.held_at is not null
        union all
        select 2, c.scope, jsonb_build_object('cause', 'paused', 'scope', c.scope, 'since', ojs._utc(r.paused_at),
            'by', case when p_all then r.paused_by end, 'because', case when p_all then r.reason end,
            'text', format('%s is paused since %s%s%s.', c.said, ojs._in_words(r.paused_at),
                case when p_all then ' by ' || r.paused_by end, case when p_all then ': ' || r.reason end))
        from ojs.rule r cross join lateral ojs._scope(r.tenant_id, r.queue) c
        where r.tenant_id in ('', p_job.tenant_id) and r.queue in ('', p_job.queue) and r.paused_at is not null
        union all
        select 3, '', jsonb_build_object('cause', 'rebuild',
            'text', 'The jobs come from another cluster, and dispatch has not begun here: the next tick begins it, or ojs.rebuild.')
        from ojs._folded() f where ojs._copied(f)
    ) h);
end;
$$;
comment on function ojs._held_by_pauses(ojs.job, boolean) is
'The pauses and holds that stop dispatch of a job altogether: entries of held_by. p_all: also who
set them, and why.';

create or replace function ojs._scope(p_tenant text, p_queue text) returns table (scope text, said text)
language sql immutable rows 1
as $$
    select case when p_tenant <> '' and p_queue <> '' then 'tenant_in_queue' when p_tenant <> '' then 'tenant'
            when p_queue <> '' then 'queue' else 'everything' end,
        case when p_tenant <> '' and p_queue <> '' then format('Tenant %s in queue %s', p_tenant, p_queue)
            when p_tenant <> '' then 'Tenant ' || p_tenant when p_queue <> '' then 'Queue ' || p_queue else 'Everything' end
$$;
comment on function ojs._scope(text, text) is
'The scope of a rule, as a word and as the subject of a sentence.';

create or replace function ojs._held_by_limits(p_job ojs.job, p_all boolean) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('cause', 'limit', 'scope', c.scope, 'text', c.said || ' is at its limit'
        || case when s.shown then format(': %s of at most %s jobs are active.', s.active, s.max) else '.' end,
        'max_concurrency', case when s.shown then s.max end, 'active', case when s.shown then s.active end,
        'held_by', case when p_all then ojs._running_jobs(s.tenant_id, s.queue) end)) order by c.scope), '[]')
    from (
        -- A limit of all tenants together, and its count, tell about other tenants: only shown if
        -- p_all.
        select r.tenant_id, r.queue, r.most as max, p_all or r.tenant_id <> '' as shown,
            ojs._active_jobs(r.tenant_id, r.queue, null) as active
        from ojs.rule r
        where r.tenant_id in ('', p_job.tenant_id) and r.queue in ('', p_job.queue) and r.most is not null
    ) s cross join lateral ojs._scope(s.tenant_id, s.queue) c
    where s.active >= s.max);
end;
$$;
comment on function ojs._held_by_limits(ojs.job, boolean) is
'Limits on active jobs that hold a job back: entries of held_by. p_all: also the numbers of limits
that all tenants share, and for each limit the jobs that run.';

create or replace function ojs._held_by_pools(p_job ojs.job, p_all boolean) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('cause', 'pool', 'pool', case when p_all then p.name end,
        'max_concurrency', case when p_all then p.max_concurrency end, 'active', case when p_all then p.active end, 'text', case
            when p.active = 0 and p_all then format('Only workers of pool %s may have it: none is registered, and none runs a job.', p.name)
            when p.active = 0 then 'Only certain workers may have it, and none of them is registered or runs a job.'
            when not p_all then 'The workers that may have it run as many jobs as they may.'
            else format('Only workers of pool %s may have it, and they run %s of at most %s jobs.', p.name, p.active,
                p.max_concurrency) end))
        order by p.name), '[]')
    from (
        select p.name, p.max_concurrency, ojs._pool_active(p.id) as active from ojs.pool p
        where p.isolated and case when p.tenants is null then p_job.queue = any (p.queues) else p_job.tenant_id = any (p.tenants) end
    ) p
    where p.active >= p.max_concurrency or p.active = 0 and not exists (select from ojs.worker w where w.pool = p.name));
end;
$$;
comment on function ojs._held_by_pools(ojs.job, boolean) is
'Isolated pools that hold a job back, because they are at their max_concurrency or have no workers:
entries of held_by. p_all: with their names and numbers.';

create or replace function ojs._held_by_rest(p_queue text) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('cause', 'workers_rest', 'since', ojs._utc(r.told_at),
        'by', r.told_by, 'text', concat_ws(' ', case when r.workers > 0
                then format('The %s of queue %s %s.', case r.workers when 1 then '1 worker' else r.workers || ' workers' end, p_queue,
                    case r.workers when 1 then 'rests or ends' else 'all rest or end' end)
                else format('No worker asks for queue %s.', p_queue) end,
            r.told_by || format(' told the workers to %s at %s.',
                case r.directive when 'quiet' then 'rest (quiet)' else 'end (terminate)' end, ojs._in_words(r.told_at)),
            case r.directive when 'terminate' then 'Start workers again: terminate is final.' end)))), '[]')
    from (
        select r.workers, r.told_at, r.told_by, r.directive from ojs._resting_queues(p_queue) r
        union all
        -- Workers that were told to end have ended, and no other has come since. Later, a worker
        -- that polls now and then may serve the queue.
        select 0, d.at, d.by, d.directive from ojs._told() d
        where d.directive <> 'running' and d.at > ojs.now() - interval '1 hour'
          and not exists (select from ojs._waiting_servers() s where s.queue = p_queue)
          and not exists (select from ojs.worker w where p_queue = any (ojs._serves(w.queues, w.asks)))
          and not exists (select from (select l.queue, l.at from ojs.lease l order by l.at desc limit 1000) l
            where l.queue = p_queue and l.at > d.at + interval '1 second')
    ) r);
end;
$$;
comment on function ojs._held_by_rest(text) is
'Whether all workers of a queue rest or end, or have ended as they were told: an entry of held_by,
with the login or principal that told them.';

create or replace function ojs._held_by_rotation(p_queue text) returns jsonb
language plpgsql stable
as $$
begin
    return (
    select coalesce(jsonb_agg(jsonb_build_object('cause', 'rotation', 'pool', o.pool, 'queues', o.owed,
        'text', format('Workers of pool %s that ask for several queues get jobs of these first, which are not to starve: %s.', o.pool,
            array_to_string(o.owed, ', '))) order by o.pool, o.queues), '[]')
    from (
        select coalesce(p.name, 'default') as pool, r.queues, array_agg(q.queue order by q.n) as owed
        from (select distinct on (r.key) r.* from ojs.rotation r where p_queue = any (r.queues) order by r.key, r.rev desc) r
        left join ojs.pool p on p.id = r.pool
        left join ojs.pool a on a.name = '*'
        cross join lateral unnest(r.queues, r.owed, r.served) with ordinality q(queue, owed, served, n)
        -- A list of queues that no worker has asked for within a minute decides nothing.
        where r.used_at > ojs.now() - interval '1 minute' and q.queue <> p_queue
            and (select o.queues from ojs._open_queues(array[q.queue]) o) <> '{}'
            and cardinality(ojs._with_work(array(select s::ojs.dispatch_state from ojs._state(q.queue) s))) = 1
            and (select x.jobs from ojs._capacity(q.queue, '') x) is distinct from 0
            and (q.owed >= 1 and coalesce(a.min_dispatch_ratio, p.min_dispatch_ratio) is not null
                or q.served <= ojs.now() - coalesce(a.rotation_interval, p.rotation_interval))
        group by 1, 2
    ) o);
end;
$$;
comment on function ojs._held_by_rotation(text) is
'Queues that are served before a queue, because they have waited for the rotation_interval or are
owed a job by min_dispatch_ratio: entries of held_by, one for each list of queues that workers ask
for.';

create or replace function ojs._running_jobs(p_tenant text, p_queue text) returns jsonb
language plpgsql stable
as $$
declare
    c_rows constant int := 2000;
    c_jobs constant int := 10;
    v_mark ojs.clock_mark := (select m from ojs.clock_mark m order by m.rev desc limit 1);
begin
    -- Active jobs are found by what tells the clock when they end: timers, if heartbeats have
    -- extended the lease, else rows of ojs.lease. Reading ojs.job by state would not be bounded.
    return (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('tenant_id', j.tenant_id, 'id', j.id, 'queue', j.queue,
        'worker_id', j.worker_id, 'started_at', ojs._utc(j.started_at), 'lease_expires_at', ojs._utc(j.lease_expires_at)))
        order by j.started_at, j.id), '[]')
    from (
        select j.* from (
            select x.tenant_id, x.id
            from (select m.* from ojs.timer m where m.due_at >= v_mark.due_at order by m.due_at limit c_rows) m
            cross join lateral unnest(m.tenant_ids, m.ids) x(tenant_id, id)
            where m.kind = 'lease' and p_tenant in ('', x.tenant_id)
            union
            (select x.tenant_id, x.id
            from (select l.* from ojs.lease l where l.due_at >= v_mark.lease_at order by l.due_at limit c_rows) l
            cross join lateral unnest(l.tenants, l.ids) x(tenant_id, id)
            where p_queue in ('', l.queue) and p_tenant in ('', x.tenant_id) limit c_rows)
        ) x
        cross join lateral (select j.tenant_id, j.id, j.queue, j.worker_id, j.started_at, j.lease_expires_at from ojs.job j
            where j.id = x.id and j.tenant_id = x.tenant_id and j.state = 'active' and p_queue in ('', j.queue) limit 1) j
        order by j.started_at, j.id limit c_jobs
    ) j);
end;
$$;
comment on function ojs._running_jobs(text, text) is
'Active jobs of a tenant (empty: of all) in a queue (empty: in all), and their workers: at most 10,
the oldest first. It reads only the 2000 timers and the 2000 leases that end next.';
