-- +goose Up
-- Admit: whether new jobs are within the limits of ojs.quota, asked by every way in, in the transaction that enqueues, and only where
-- ojs.settings says that there are limits. Tokens that a transaction has taken nobody else has, and a rollback gives them back.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._admit(
    p_tenants text[], p_queues text[], p_states ojs.job_state[], p_jobs int[], p_each boolean, p_new boolean default true
) returns table (tenant_id text, queue text, state ojs.job_state, room int, refusal ojs.refusal)
language plpgsql rows 10
as $$
declare
    v_jobs  int;
    v_most  record;
    v_quota ojs.quota;
begin
    for tenant_id, queue, state, v_jobs in
        select u.tenant_id, u.queue, u.state, u.jobs
        from unnest(p_tenants, p_queues, p_states, p_jobs) with ordinality u(tenant_id, queue, state, jobs, n)
        -- Statements that wait for stripes do so in one order, or they would wait for each other.
        order by case when not p_each then u.tenant_id end, case when not p_each then u.queue end, u.n
    loop
        room := v_jobs;
        refusal := null;
        if p_each then
            v_most := ojs._room_for(tenant_id, queue, state, v_jobs, p_new);
            room := v_most.room;
            refusal := v_most.refusal;
        end if;
        for v_quota in select q.* from ojs._quotas_of(tenant_id, queue, state, p_new) q where room > 0 loop
            if not ojs._take_tokens(v_quota, room, not p_each) then
                refusal := ojs._beyond(v_quota, tenant_id, queue, room, (
                    select sum(u.jobs) from unnest(p_tenants, p_queues, p_jobs) u(tenant_id, queue, jobs)
                    where u.tenant_id = v_quota.tenant_id and v_quota.queue in ('', u.queue)));
                room := 0;
                exit;
            end if;
        end loop;
        if refusal.sqlstate is not null then
            return next;
            exit when not p_each;
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._admit(text[], text[], ojs.job_state[], int[], boolean, boolean) is
'Takes the tokens of jobs from all limits that concern them: p_jobs[i] of a tenant, a queue and a first state. p_each: as many as there are
tokens for, and a row where that is not all: room, how many; refusal, why not more. It waits for nobody then. Else all, or one row with the
first refusal, which the caller has to raise. p_new: dead letters that come back are not, and rates do not concern them.';

-- +goose StatementBegin
create function ojs._admit_one(p_tenant text, p_queue text, p_state ojs.job_state) returns void
language plpgsql
as $$
declare
    v_quota ojs.quota;
begin
    for v_quota in select q.* from ojs._quotas_of(p_tenant, p_queue, p_state, true) q loop
        if not ojs._take_tokens(v_quota, 1, true) then
            perform ojs._refuse(ojs._beyond(v_quota, p_tenant, p_queue, 1, 1));
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._admit_one(text, text, ojs.job_state) is 'Takes the tokens of a new job, or raises why it is refused.';

create type ojs._new_place as (n int, tenant_id text, queue text, state ojs.job_state);
comment on type ojs._new_place is 'Of a new job, which of several it is, its tenant, its queue and its first state.';

-- +goose StatementBegin
create function ojs._beyond_limits(p_places ojs._new_place[], p_each boolean, p_new boolean default true)
returns table (n int, refusal ojs.refusal)
language sql rows 10
as $$
    with places as materialized (
        select p.*, row_number() over (partition by p.tenant_id, p.queue, p.state order by p.n) as nth from unnest(p_places) p
    ), admitted as materialized (
        select a.* from (
            select array_agg(g.tenant_id) as tenants, array_agg(g.queue) as queues, array_agg(g.state) as states, array_agg(g.jobs) as jobs
            from (select p.tenant_id, p.queue, p.state, count(*)::int as jobs from places p group by p.tenant_id, p.queue, p.state
                order by min(p.n)) g
        ) g cross join lateral ojs._admit(g.tenants, g.queues, g.states, g.jobs, p_each, p_new) a
    )
    select p.n, case when p_each then ojs._indexed(a.refusal, p.n) else a.refusal end from places p
    join admitted a on a.tenant_id = p.tenant_id and a.queue = p.queue and a.state = p.state
    where p.nth > a.room
$$;
-- +goose StatementEnd
comment on function ojs._beyond_limits(ojs._new_place[], boolean, boolean) is
'Takes the tokens of jobs, and returns those that limits refuse: with p_each the last ones of each tenant and queue, else all of
one tenant and queue, with the refusal that the caller has to raise. p_new: as for ojs._admit.';

-- +goose StatementBegin
create function ojs._room_for(p_tenant text, p_queue text, p_state ojs.job_state, p_jobs int, p_new boolean, out room int,
    out refusal ojs.refusal)
language plpgsql
as $$
declare
    v_quota  ojs.quota;
    v_tokens float8;
begin
    room := p_jobs;
    -- All are locked before one is taken from, because the scarcest says how many of the jobs there are tokens for.
    for v_quota in select q.* from ojs._quotas_of(p_tenant, p_queue, p_state, p_new) q where not q.soft loop
        select floor(coalesce(sum(s.tokens), 0) + 1e-6) into v_tokens from ojs._gather(v_quota, p_jobs, true, false) s;
        if v_tokens < room then
            room := greatest(v_tokens, 0);
            refusal := ojs._beyond(v_quota, p_tenant, p_queue, room + 1, null);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._room_for(text, text, ojs.job_state, int, boolean) is
'For how many of p_jobs all limits have tokens, which are locked then, and why not for more.';

-- +goose StatementBegin
create function ojs._quotas_of(p_tenant text, p_queue text, p_state ojs.job_state, p_new boolean) returns setof ojs.quota
language sql stable rows 2
as $$
    select q.* from ojs._quotas_for(p_tenant, p_queue) q
    where case q.resource when 'max_enqueue_rate' then p_new when 'max_scheduled' then p_state = 'scheduled' else true end
    order by q.tenant_id, q.queue, q.resource
$$;
-- +goose StatementEnd
comment on function ojs._quotas_of(text, text, ojs.job_state, boolean) is
'The limits that concern jobs of a tenant, a queue and a first state.';

-- +goose StatementBegin
create function ojs._quotas_for(p_tenant text, p_queue text) returns setof ojs.quota
language sql stable rows 2
as $$
    select q.* from (values (p_tenant, ''), (p_tenant, p_queue), ('', p_queue)) o(tenant_id, queue)
    cross join lateral (select q.* from ojs.quota q where q.tenant_id = o.tenant_id and q.queue = o.queue and q.stripes > 0) q
$$;
-- +goose StatementEnd
comment on function ojs._quotas_for(text, text) is
'The limits on enqueueing that concern a tenant and a queue. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._grown(p_quota ojs.quota, p_tokens float8, p_at timestamptz, p_now timestamptz) returns float8
language sql immutable
as $$
    select case when p_quota.period is null then p_tokens
        else least(p_quota.burst::float8 / p_quota.stripes, p_tokens + greatest(0, date_part('epoch', p_now - p_at))
            * p_quota.maximum / date_part('epoch', p_quota.period) / p_quota.stripes) end
$$;
-- +goose StatementEnd
comment on function ojs._grown(ojs.quota, float8, timestamptz, timestamptz) is
'The tokens of a stripe by now. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._stripe(p_quota ojs.quota, p_n int, p_now timestamptz) returns ojs.stripe
language plpgsql
as $$
declare
    v_stripe ojs.stripe;
begin
    -- As a function in SQL this would be planned anew with each call.
    select s.quota, s.n, s.rev, ojs._grown(p_quota, s.tokens, s.at, p_now), ojs._seen_at(s.at, p_now), s.uses into v_stripe
    from (select s.* from ojs.stripe s where s.quota = p_quota.id and s.n = p_n
        order by s.rev desc limit 1 for update skip locked) s;
    return v_stripe;
end;
$$;
-- +goose StatementEnd
comment on function ojs._stripe(ojs.quota, int, timestamptz) is
'A stripe as it is by now, locked; nulls if another transaction has it.';

-- +goose StatementBegin
create function ojs._gather(p_quota ojs.quota, p_jobs int, p_part boolean, p_wait boolean) returns setof ojs.stripe
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_stripe ojs.stripe;
    v_rest   int[];
    v_sum    float8;
    v_got    float8 := 0;
begin
    select array_agg(s.n order by s.tokens desc, s.n), sum(s.tokens) into v_rest, v_sum
    from (select s.n, ojs._grown(p_quota, s.tokens, s.at, v_now) as tokens from ojs.stripe s where s.quota = p_quota.id) s;
    -- There are none of a limit that somebody has just removed.
    if v_rest is null or v_sum + 1e-6 < p_jobs and not p_part and not p_quota.soft then
        return;
    end if;
    -- Nobody waits for a soft limit, nor for other tenants, who share the bound of a queue.
    for v_try in 1 .. case when p_wait and not p_quota.soft and p_quota.tenant_id <> '' then 3 else 1 end loop
        if v_try = 2 then
            -- One that has enough: whoever waits for all keeps those that come free from the others.
            perform ojs._await_stripes(p_quota.id, array(select s.n from ojs.stripe s where s.quota = p_quota.id and s.n = any (v_rest)
                and ojs._grown(p_quota, s.tokens, s.at, v_now) + v_got >= p_jobs order by (s.n + pg_backend_pid()) % 16 limit 1));
        elsif v_try = 3 then
            perform ojs._await_stripes(p_quota.id, v_rest);
        end if;
        for i in 1 .. cardinality(v_rest) loop
            exit when v_got + 1e-6 >= p_jobs;
            v_stripe := ojs._stripe(p_quota, v_rest[i], v_now);
            if v_stripe.n is not null then
                v_got := v_got + v_stripe.tokens;
                v_rest[i] := null;
                return next v_stripe;
            end if;
        end loop;
        v_rest := array_remove(v_rest, null);
        exit when v_got + 1e-6 >= p_jobs or v_rest = '{}';
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._gather(ojs.quota, int, boolean, boolean) is
'Locks the fewest stripes of a limit that hold tokens for so many jobs, and returns them as of now. If there are too few tokens, returns
nothing; with p_part, or of a soft limit, as many as it can. p_wait: waits for other transactions of the tenant for a moment, if they have
what is missing.';

-- +goose StatementBegin
create function ojs._await_stripes(p_quota bigint, p_stripes int[]) returns void
language plpgsql set lock_timeout = '100ms'
as $$
begin
    perform from ojs.stripe s where s.quota = p_quota and s.n = any (p_stripes) order by s.n for update;
exception when lock_not_available or deadlock_detected then
    null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._await_stripes(bigint, int[]) is
'Waits until nobody else has these stripes locked, a tenth of a second for each at most.';

-- +goose StatementBegin
create function ojs._take_tokens(p_quota ojs.quota, p_jobs int, p_wait boolean) returns boolean
language plpgsql
as $$
declare
    v_stripes ojs.stripe[];
    v_stripe  ojs.stripe;
    v_left    float8 := p_jobs;
begin
    if ojs._take_at_once(p_quota, p_jobs) then
        return true;
    end if;
    v_stripes := array(select s from ojs._gather(p_quota, p_jobs, false, p_wait) s);
    if not p_quota.soft and (select coalesce(sum(s.tokens), 0) from unnest(v_stripes) s) + 1e-6 < p_jobs then
        return false;
    end if;
    foreach v_stripe in array v_stripes loop
        -- The last one may go a trifle below zero, so that no rounding makes tokens, and far below of a soft limit.
        update ojs.stripe s
        set tokens = v_stripe.tokens - case when v_stripe = v_stripes[cardinality(v_stripes)] then v_left
                else greatest(0, least(v_left, v_stripe.tokens)) end,
            at = v_stripe.at, uses = s.uses + 1, rev = s.rev + (s.uses % 64 = 63)::int
        where s.quota = v_stripe.quota and s.n = v_stripe.n and s.rev = v_stripe.rev;
        v_left := v_left - greatest(0, least(v_left, v_stripe.tokens));
    end loop;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_tokens(ojs.quota, int, boolean) is
'Takes tokens for so many jobs, and returns whether there were as many; a soft limit has always as many.';

-- +goose StatementBegin
create function ojs._beyond(p_quota ojs.quota, p_tenant text, p_queue text, p_jobs int, p_together bigint) returns ojs.refusal
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_left float8 := (select coalesce(sum(ojs._grown(p_quota, s.tokens, s.at, v_now)), 0) from ojs.stripe s where s.quota = p_quota.id);
    v_used bigint := ceil(greatest(0, coalesce(p_quota.burst, p_quota.maximum) - v_left - 1e-6));
    -- Others have what is missing locked, and may give it back.
    v_busy boolean := nullif(v_left + 1e-6 >= p_jobs, false);
    v_wait int := case when v_busy then 1 when p_quota.period is not null
        then least(2147483647, greatest(1, ceil((p_jobs - v_left - 1e-6) * date_part('epoch', p_quota.period) / p_quota.maximum)))
        else greatest(1, least(300, coalesce(ceil((p_jobs - v_left) / nullif(ojs._leaving(p_quota.tenant_id, p_quota.queue), 0)), 30))) end;
begin
    if p_together > p_quota.burst then
        return row('OJ422', format('jobs may be at most %s at once, by max_enqueue_rate of tenant ''%s''', p_quota.burst, p_tenant),
            jsonb_build_object('field', 'jobs', 'limit', p_quota.burst))::ojs.refusal;
    elsif p_quota.resource = 'max_depth' then
        return row('OJ430', format('Queue ''%s'' has reached its depth bound (%s)', p_queue, p_quota.maximum),
            jsonb_strip_nulls(jsonb_build_object('queue', p_queue, 'depth', v_used, 'bound', p_quota.maximum, 'strategy', 'reject',
                'retry_after', v_wait, 'busy', v_busy)))::ojs.refusal;
    end if;
    return row('OJ429', format('Tenant ''%s'' has exceeded %s (%s)', p_tenant, p_quota.resource, p_quota.maximum),
        jsonb_strip_nulls(jsonb_build_object('tenant_id', p_tenant, 'queue', nullif(p_quota.queue, ''), 'limit', p_quota.resource,
            'current', v_used, 'maximum', coalesce(p_quota.burst, p_quota.maximum), 'retry_after', v_wait, 'busy', v_busy)))::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beyond(ojs.quota, text, text, int, bigint) is
'Why p_jobs are refused by a limit, and in how many seconds to try again: 1 where others have locked what is missing (busy), of a rate
exactly, else estimated by what was handed out in the last minute, 1 to 300. p_together: how many go in together, in all queues of the
limit; null: each is by itself.';
reset role;
