-- Admits new jobs: checks them against the limits of ojs.quota and takes their tokens. Every
-- function that enqueues does this in its own transaction, where the tenant or the queue has an
-- allowance. No other session has the tokens that a transaction has taken; a rollback returns them.

comment on type ojs._new_group is
'New jobs of a tenant, a queue and a first state: how many (jobs), and their size in sum (bytes).
sizes: the size of the first job, of the first two, and so on; null if the jobs go in together.';

create or replace function ojs._admit(p_groups ojs._new_group[], p_each boolean, p_new boolean default true)
returns table (tenant_id text, queue text, state ojs.job_state, fit int, refusal ojs.refusal)
language plpgsql rows 10
as $$
declare
    v_group   ojs._new_group;
    v_want    float8[];
    v_from    ojs.allowance[];
    v_short   ojs.allowance[];
    v_most    record;
    v_refusal ojs.refusal;
begin
    for v_group in
        select u.tenant_id, u.queue, u.state, u.jobs, u.bytes, u.sizes from unnest(p_groups) with ordinality u
        -- In one order, or statements that wait for stripes could wait for each other.
        order by case when not p_each then u.tenant_id end, case when not p_each then u.queue end, u.ordinality
    loop
        v_want := ojs._wanted(v_group.jobs, v_group.state, v_group.bytes, p_new);
        v_from := ojs._allowances(v_group.tenant_id, v_group.queue);
        v_short := ojs._take_at_once(v_from, v_want);
        -- All tokens are taken: nearly always the case.
        continue when v_short is null;
        select v_group.tenant_id, v_group.queue, v_group.state, v_group.jobs into tenant_id, queue, state, fit;
        refusal := null;
        if p_each then
            v_most := ojs._fit(v_group, v_want, v_short);
            fit := v_most.fit;
            refusal := v_most.refusal;
            v_want := ojs._wanted(fit, state, coalesce(v_group.sizes[fit], 0), p_new);
        end if;
        if fit > 0 then
            v_refusal := ojs._take(v_short, tenant_id, queue, v_want, not p_each, case when not p_each then p_groups end);
            if v_refusal.sqlstate is not null then
                fit := 0;
                refusal := v_refusal;
            end if;
        end if;
        if refusal.sqlstate is not null then
            return next;
            exit when not p_each;
            -- The allowances that are not short have given tokens for all jobs, also for those now
            -- refused.
            perform ojs._give_back(array(select a from unnest(v_from) a where a <> all (v_short)),
                ojs._wanted(v_group.jobs - fit, state, v_group.bytes - coalesce(v_group.sizes[fit], 0), p_new));
        end if;
    end loop;
end;
$$;
comment on function ojs._admit(ojs._new_group[], boolean, boolean) is
'Takes the tokens of jobs from all limits that concern them, and returns what is refused.
p_each: false: takes all tokens, or returns one row with the first refusal, which the caller has to
raise. true: takes as many as there are, without waiting; returns a row for each group that does not
get all: fit, how many jobs it gets, and refusal, why not more.
p_new: false: dead letters that come back, to which rates do not apply.';

create or replace function ojs._admit_one(p_from ojs.allowance[], p_tenant text, p_queue text, p_state ojs.job_state, p_bytes bigint)
returns void
language plpgsql
as $$
declare
    v_want    float8[] := ojs._wanted(1, p_state, p_bytes, true);
    v_short   ojs.allowance[] := ojs._take_at_once(p_from, v_want);
    v_refusal ojs.refusal;
begin
    if v_short is not null then
        v_refusal := ojs._take(v_short, p_tenant, p_queue, v_want, true, null);
        perform ojs._refuse(v_refusal) where v_refusal.sqlstate is not null;
    end if;
end;
$$;
comment on function ojs._admit_one(ojs.allowance[], text, text, ojs.job_state, bigint) is
'Takes the tokens of a new job from its allowances, or raises why the job is refused.';

create or replace function ojs._allowances(p_tenant text, p_queue text) returns ojs.allowance[]
language plpgsql stable
as $$
begin
    -- In PL/pgSQL, because a function in SQL would be planned anew with each call.
    return array(select a from ojs.allowance a where a.tenant_id in ('', p_tenant) and a.queue in ('', p_queue));
end;
$$;
comment on function ojs._allowances(text, text) is
'Returns the allowances of jobs of a tenant in a queue: of the tenant, of the tenant in the queue,
and of the queue.';
comment on type ojs._new_place is
'A new job: its number in the call, tenant, queue, first state, and size.';

create or replace function ojs._beyond_limits(p_places ojs._new_place[], p_each boolean, p_new boolean default true)
returns table (n int, refusal ojs.refusal)
language sql rows 10
as $$
    with places as materialized (
        select p.*, row_number() over w as nth, sum(p.bytes) over w as so_far from unnest(p_places) p
        window w as (partition by p.tenant_id, p.queue, p.state order by p.n)
    ), admitted as materialized (
        select a.* from ojs._admit(array(
            select row(p.tenant_id, p.queue, p.state, count(*), max(p.so_far), case when p_each then array_agg(p.so_far order by p.n) end)
                ::ojs._new_group
            from places p group by p.tenant_id, p.queue, p.state order by min(p.n)
        ), p_each, p_new) a
    )
    select p.n, case when p_each then ojs._indexed(a.refusal, p.n) else a.refusal end from places p
    join admitted a on a.tenant_id = p.tenant_id and a.queue = p.queue and a.state = p.state
    where p.nth > a.fit
$$;
comment on function ojs._beyond_limits(ojs._new_place[], boolean, boolean) is
'Takes the tokens of jobs, and returns the jobs that limits refuse.
p_each: true: of each tenant and queue the last ones; false: all jobs of one tenant and queue, with
the refusal that the caller has to raise. p_new: as for ojs._admit.';

create or replace function ojs._wanted(p_jobs int, p_state ojs.job_state, p_bytes bigint, p_new boolean) returns float8[]
language sql immutable
as $$
    select array[p_jobs * p_new::int, p_jobs, p_jobs * (p_state = 'scheduled')::int, p_bytes * p_new::int, p_jobs * p_new::int]::float8[]
$$;
comment on function ojs._wanted(int, ojs.job_state, bigint, boolean) is
'Returns how many tokens of each limit (ojs.quota.nth) jobs need whose size in sum is p_bytes.
Becomes part of the expression that asks.';

create or replace function ojs._fit(p_group ojs._new_group, p_want float8[], p_from ojs.allowance[], out fit int, out refusal ojs.refusal)
language plpgsql
as $$
declare
    v_of      ojs.allowance;
    v_got     float8[];
    v_refusal ojs.refusal;
    v_fit     int;
begin
    fit := p_group.jobs;
    -- Lock stripes of all allowances before tokens are taken from any, because the scarcest one
    -- says for how many jobs there are tokens.
    foreach v_of in array p_from loop
        v_got := (ojs._gather(v_of, p_want, true, false)).got;
        for k in 1 .. 5 loop
            continue when not (v_of.hard[k] and p_want[k] > 0);
            v_fit := case k when 4 then (select count(*) from unnest(p_group.sizes) s where s <= v_got[k])
                else floor(least(v_got[k] + 1e-6, fit)) end;
            if v_fit < fit then
                v_refusal := ojs._beyond(v_of, k, p_group.tenant_id, p_group.queue,
                    case k when 4 then p_group.sizes[v_fit + 1] else v_fit + 1 end, null);
                if v_refusal.sqlstate is not null then
                    fit := v_fit;
                    refusal := v_refusal;
                end if;
            end if;
        end loop;
    end loop;
end;
$$;
comment on function ojs._fit(ojs._new_group, float8[], ojs.allowance[]) is
'Locks stripes, and returns for how many of the jobs they have tokens of all limits, and why not for
more. Never waits.';

create or replace function ojs._quotas_for(p_tenant text, p_queue text) returns setof ojs.quota
language sql stable rows 2
as $$
    select q.* from (values (p_tenant, ''), (p_tenant, p_queue), ('', p_queue)) o(tenant_id, queue)
    cross join lateral (select q.* from ojs.quota q where q.tenant_id = o.tenant_id and q.queue = o.queue and q.nth is not null) q
$$;
comment on function ojs._quotas_for(text, text) is
'Returns the limits on enqueueing that concern a tenant and a queue. Becomes part of the query that
asks.';

create or replace function ojs._grown(p_of ojs.allowance, p_nth int, p_n int, p_tokens float8[], p_at timestamptz, p_now timestamptz)
returns float8
language sql immutable
as $$
    select case when p_of.growth[p_nth] > 0 and p_n >= p_of.stripes then 0
        else least(p_of.caps[p_nth], p_tokens[p_nth] + p_of.growth[p_nth] * ojs._growing(p_at, p_now)) end
$$;
comment on function ojs._grown(ojs.allowance, int, int, float8[], timestamptz, timestamptz) is
'Returns the tokens of a limit that a stripe has at p_now. Becomes part of the expression that
asks.';

create or replace function ojs._growing(p_at timestamptz, p_now timestamptz) returns float8
language sql immutable
as $$
    -- Sessions read the clock at slightly different times, so a stripe may have been used after
    -- p_now. Ten seconds or more after p_now, the clock was ahead and has been set back. Without
    -- this case the stripe would get no tokens until the clock has caught up. A refused enqueue
    -- writes nothing, so it cannot correct the mark; the next job that is accepted does.
    select case when p_at - p_now < interval '10 seconds' then greatest(0, date_part('epoch', p_now - p_at)) else 1e12 end
$$;
comment on function ojs._growing(timestamptz, timestamptz) is
'Returns for how many seconds the tokens of rates in a stripe have grown since p_at, when it was used
last. If p_at is 10 seconds or more in the future, the clock was set back: so long that the stripe
is full. Becomes part of the expression that asks.';

create or replace function ojs._used_at(p_at timestamptz, p_now timestamptz) returns timestamptz
language sql stable
as $$ select greatest(p_now, case when p_at < p_now + interval '10 seconds' then p_at end) $$;
comment on function ojs._used_at(timestamptz, timestamptz) is
'Returns the mark of a stripe that is used at p_now and was used at p_at before. Another session may
have read the clock later, so the mark does not go back; unless the clock was set back, by 10
seconds or more. Becomes part of the expression that asks.';

create or replace function ojs._sums(p_of ojs.allowance, p_now timestamptz) returns float8[]
language plpgsql stable
as $$
begin
    return array(
        select coalesce((select sum(greatest(ojs._grown(p_of, k, s.n, s.tokens, s.at, p_now), case when p_of.hard[k] then 0 end))
            from ojs.stripe s where s.tenant_id = p_of.tenant_id and s.queue = p_of.queue and p_of.hard[k] is not null), 0)
        from generate_series(1, 5) k);
end;
$$;
comment on function ojs._sums(ojs.allowance, timestamptz) is
'Returns the tokens of each limit at p_now, in all stripes. Where a limit refuses jobs, a stripe
below zero counts as 0: it went there while the limit was soft.';

create or replace function ojs._beyond(p_of ojs.allowance, p_nth int, p_tenant text, p_queue text, p_want float8, p_groups ojs._new_group[])
returns ojs.refusal
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_quota ojs.quota := (select q from ojs.quota q where q.tenant_id = p_of.tenant_id and q.queue = p_of.queue and q.nth = p_nth);
    v_left float8 := (ojs._sums(p_of, v_now))[p_nth];
    v_together bigint := (select sum(u.jobs) from unnest(p_groups) u where u.tenant_id = p_tenant and v_quota.queue in ('', u.queue));
    -- If the limit was lowered, more than its maximum may count against it.
    v_used bigint := greatest(ceil(greatest(0, coalesce(v_quota.burst, v_quota.maximum) - v_left - 1e-6)),
        case when v_left < 1 then v_quota.used end);
    -- busy: there are enough tokens, but other sessions have them locked, and may give them back.
    v_busy boolean := nullif(v_left + 1e-6 >= p_want, false);
    v_wait int := case when v_busy then 1 when v_together > v_quota.burst and v_quota.resource = 'throttled_rate'
        then (select ceil(extract(epoch from h.until - v_now)) from ojs.throttle h where h.tenant_id = p_tenant)
        when v_quota.period is not null
        then least(2147483647, greatest(1, ceil((p_want - v_left - 1e-6) * date_part('epoch', v_quota.period) / v_quota.maximum)))
        when v_quota.resource = 'max_stored_bytes' then null
        else greatest(1, least(300, coalesce(ceil((p_want - v_left) / nullif(ojs._leaving(v_quota.tenant_id, v_quota.queue), 0)), 30))) end;
begin
    if v_quota.nth is null then
        return null;
    elsif v_together > v_quota.burst and v_quota.resource = 'max_enqueue_rate' then
        return row('OJ422', format('jobs may be at most %s at once, by max_enqueue_rate of tenant ''%s''', v_quota.burst, p_tenant),
            jsonb_build_object('field', 'jobs', 'limit', v_quota.burst))::ojs.refusal;
    elsif v_quota.resource = 'max_depth' then
        return row('OJ430', format(case when v_busy then 'Others are using what is left of queue ''%s'' below its depth bound (%s)'
                else 'Queue ''%s'' has reached its depth bound (%s)' end, p_queue, v_quota.maximum),
            -- A tenant does not learn how many jobs the other tenants have in the queue.
            jsonb_strip_nulls(jsonb_build_object('queue', p_queue, 'bound', v_quota.maximum, 'strategy', 'reject', 'depth',
                case when ojs._session_tenant(null) is null then v_used else v_quota.maximum end, 'retry_after', v_wait,
                'busy', v_busy)))::ojs.refusal;
    end if;
    return row(case when v_wait is null then 'OJ507' else 'OJ429' end,
        format(case when v_busy then 'Other transactions of tenant ''%s'' are using what is left of %s (%s)'
            else 'Tenant ''%s'' has exceeded %s (%s)' end, p_tenant, v_quota.resource, v_quota.maximum),
        jsonb_strip_nulls(jsonb_build_object('tenant_id', p_tenant, 'queue', nullif(v_quota.queue, ''), 'limit', v_quota.resource,
            'current', v_used, 'maximum', coalesce(v_quota.burst, v_quota.maximum), 'retry_after', v_wait, 'busy', v_busy)))::ojs.refusal;
end;
$$;
comment on function ojs._beyond(ojs.allowance, int, text, text, float8, ojs._new_group[]) is
'Returns why a limit refuses jobs that need p_want of its tokens, and after how many seconds to
retry; null: the limit was removed meanwhile.
The seconds: 1 if other sessions have the missing tokens locked (busy); exact for a rate; none for
bytes; else 1 to 300, by how many jobs were handed out in the last minute.
p_groups: the jobs that go in together; null: each is admitted alone.';
