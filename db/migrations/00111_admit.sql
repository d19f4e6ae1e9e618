-- +goose Up
-- Admit: whether new jobs are within the limits of ojs.quota, asked by every way in, in the transaction that enqueues, and only where
-- ojs.settings says that there are limits. Tokens that a transaction has taken nobody else has, and a rollback gives them back.
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs._new_group as (tenant_id text, queue text, state ojs.job_state, jobs int, bytes bigint, sizes bigint[]);
comment on type ojs._new_group is
'New jobs of a tenant, a queue and a first state: how many, and what they take up. sizes: what the first one takes up, the first two, and so
on; null where they go in together.';

-- +goose StatementBegin
create function ojs._admit(p_groups ojs._new_group[], p_each boolean, p_new boolean default true)
returns table (tenant_id text, queue text, state ojs.job_state, room int, refusal ojs.refusal)
language plpgsql rows 10
as $$
declare
    v_group ojs._new_group;
    v_most  record;
    v_quota ojs.quota;
    v_want  bigint;
begin
    for v_group in
        select u.tenant_id, u.queue, u.state, u.jobs, u.bytes, u.sizes from unnest(p_groups) with ordinality u
        -- Statements that wait for stripes do so in one order, or they would wait for each other.
        order by case when not p_each then u.tenant_id end, case when not p_each then u.queue end, u.ordinality
    loop
        select v_group.tenant_id, v_group.queue, v_group.state, v_group.jobs into tenant_id, queue, state, room;
        refusal := null;
        if p_each then
            v_most := ojs._room_for(v_group, p_new);
            room := v_most.room;
            refusal := v_most.refusal;
            v_group.bytes := v_group.sizes[room];
        end if;
        for v_quota in select q.* from ojs._quotas_of(tenant_id, queue, state, p_new) q where room > 0 loop
            v_want := ojs._tokens_for(v_quota, room, v_group.bytes);
            if not ojs._take_tokens(v_quota, v_want, not p_each) then
                refusal := ojs._beyond(v_quota, tenant_id, queue, v_want, (select sum(u.jobs) from unnest(p_groups) u
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
comment on function ojs._admit(ojs._new_group[], boolean, boolean) is
'Takes the tokens of jobs from all limits that concern them. p_each: as many as there are tokens for, and a row where that is not all: room,
how many; refusal, why not more. It waits for nobody then. Else all, or one row with the first refusal, which the caller has to raise.
p_new: dead letters that come back are not, and rates do not concern them.';

-- +goose StatementBegin
create function ojs._admit_one(p_tenant text, p_queue text, p_state ojs.job_state, p_bytes bigint) returns void
language plpgsql
as $$
declare
    v_quota ojs.quota;
    v_want  bigint;
begin
    for v_quota in select q.* from ojs._quotas_of(p_tenant, p_queue, p_state, true) q loop
        v_want := ojs._tokens_for(v_quota, 1, p_bytes);
        if not ojs._take_tokens(v_quota, v_want, true) then
            perform ojs._refuse(ojs._beyond(v_quota, p_tenant, p_queue, v_want, 1));
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._admit_one(text, text, ojs.job_state, bigint) is 'Takes the tokens of a new job, or raises why it is refused.';

create type ojs._new_place as (n int, tenant_id text, queue text, state ojs.job_state, bytes bigint);
comment on type ojs._new_place is 'Of a new job, which of several it is, its tenant, its queue, its first state, and what it takes up.';

-- +goose StatementBegin
create function ojs._beyond_limits(p_places ojs._new_place[], p_each boolean, p_new boolean default true)
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
    where p.nth > a.room
$$;
-- +goose StatementEnd
comment on function ojs._beyond_limits(ojs._new_place[], boolean, boolean) is
'Takes the tokens of jobs, and returns those that limits refuse: with p_each the last ones of each tenant and queue, else all of
one tenant and queue, with the refusal that the caller has to raise. p_new: as for ojs._admit.';

-- +goose StatementBegin
create function ojs._room_for(p_group ojs._new_group, p_new boolean, out room int, out refusal ojs.refusal)
language plpgsql
as $$
declare
    v_quota ojs.quota;
    v_fit   float8;
begin
    room := p_group.jobs;
    -- All are locked before one is taken from, because the scarcest says how many of the jobs there are tokens for.
    for v_quota in select q.* from ojs._quotas_of(p_group.tenant_id, p_group.queue, p_group.state, p_new) q where not q.soft loop
        select floor(coalesce(sum(s.tokens), 0) + 1e-6) into v_fit
        from ojs._gather(v_quota, ojs._tokens_for(v_quota, p_group.jobs, p_group.bytes), true, false) s;
        if v_quota.resource = 'max_stored_bytes' then
            v_fit := (select count(*) from unnest(p_group.sizes) s where s <= v_fit);
        end if;
        if v_fit < room then
            room := greatest(v_fit, 0);
            refusal := ojs._beyond(v_quota, p_group.tenant_id, p_group.queue,
                ojs._tokens_for(v_quota, room + 1, p_group.sizes[room + 1]), null);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._room_for(ojs._new_group, boolean) is
'For how many of the jobs all limits have tokens, which are locked then, and why not for more.';

-- +goose StatementBegin
create function ojs._tokens_for(p_quota ojs.quota, p_jobs int, p_bytes bigint) returns bigint
language sql immutable
as $$ select case p_quota.resource when 'max_stored_bytes' then p_bytes else p_jobs end $$;
-- +goose StatementEnd
comment on function ojs._tokens_for(ojs.quota, int, bigint) is
'How many tokens of a limit jobs take that take up so many bytes. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._quotas_of(p_tenant text, p_queue text, p_state ojs.job_state, p_new boolean) returns setof ojs.quota
language sql stable rows 2
as $$
    select q.* from ojs._quotas_for(p_tenant, p_queue) q
    where case when q.resource in ('max_enqueue_rate', 'throttled_rate', 'max_stored_bytes') then p_new
        when q.resource = 'max_scheduled' then p_state = 'scheduled' else true end
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
create function ojs._beyond(p_quota ojs.quota, p_tenant text, p_queue text, p_want bigint, p_together bigint) returns ojs.refusal
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_left float8 := (select coalesce(sum(ojs._grown(p_quota, s.tokens, s.at, v_now)), 0) from ojs.stripe s where s.quota = p_quota.id);
    -- Where the limit was lowered, more may count against it than it is.
    v_used bigint := greatest(ceil(greatest(0, coalesce(p_quota.burst, p_quota.maximum) - v_left - 1e-6)),
        case when v_left < 1 then p_quota.used end);
    -- Others have what is missing locked, and may give it back.
    v_busy boolean := nullif(v_left + 1e-6 >= p_want, false);
    v_wait int := case when v_busy then 1 when p_together > p_quota.burst and p_quota.resource = 'throttled_rate'
        then (select ceil(extract(epoch from h.until - v_now)) from ojs.throttle h where h.tenant_id = p_tenant)
        when p_quota.period is not null
        then least(2147483647, greatest(1, ceil((p_want - v_left - 1e-6) * date_part('epoch', p_quota.period) / p_quota.maximum)))
        when p_quota.resource = 'max_stored_bytes' then null
        else greatest(1, least(300, coalesce(ceil((p_want - v_left) / nullif(ojs._leaving(p_quota.tenant_id, p_quota.queue), 0)), 30))) end;
begin
    if p_together > p_quota.burst and p_quota.resource = 'max_enqueue_rate' then
        return row('OJ422', format('jobs may be at most %s at once, by max_enqueue_rate of tenant ''%s''', p_quota.burst, p_tenant),
            jsonb_build_object('field', 'jobs', 'limit', p_quota.burst))::ojs.refusal;
    elsif p_quota.resource = 'max_depth' then
        return row('OJ430', format(case when v_busy then 'Others are using what is left of queue ''%s'' below its depth bound (%s)'
                else 'Queue ''%s'' has reached its depth bound (%s)' end, p_queue, p_quota.maximum),
            -- How many jobs others have there is none of a tenant's business.
            jsonb_strip_nulls(jsonb_build_object('queue', p_queue, 'bound', p_quota.maximum, 'strategy', 'reject', 'depth',
                case when ojs._session_tenant(null) is null then v_used else p_quota.maximum end, 'retry_after', v_wait,
                'busy', v_busy)))::ojs.refusal;
    end if;
    return row(case when v_wait is null then 'OJ507' else 'OJ429' end,
        format(case when v_busy then 'Other transactions of tenant ''%s'' are using what is left of %s (%s)'
            else 'Tenant ''%s'' has exceeded %s (%s)' end, p_tenant, p_quota.resource, p_quota.maximum),
        jsonb_strip_nulls(jsonb_build_object('tenant_id', p_tenant, 'queue', nullif(p_quota.queue, ''), 'limit', p_quota.resource,
            'current', v_used, 'maximum', coalesce(p_quota.burst, p_quota.maximum), 'retry_after', v_wait, 'busy', v_busy)))::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beyond(ojs.quota, text, text, bigint, bigint) is
'Why jobs that take so many tokens are refused by a limit, and in how many seconds to try again: 1 where others have locked what is missing
(busy), of a rate exactly, of bytes never, else estimated by what was handed out in the last minute, 1 to 300. p_together: how many go in
together, in all queues of the limit; null: each is by itself.';
reset role;
