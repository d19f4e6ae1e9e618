-- +goose Up
-- Room: the tick compares each limit on how many jobs there are with the jobs there are and the tokens it has, and makes up the difference
-- where jobs have left. A transaction that commits turns tokens into jobs at one moment, so that in every snapshot jobs, tokens and room
-- are the maximum in sum, and what uncommitted transactions have taken counts as tokens.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._counting(p_resource text, p_counts ojs.tally) returns bigint
language sql immutable
as $$
    select case p_resource when 'max_scheduled' then p_counts.scheduled
        when 'max_queue_depth' then p_counts.scheduled + p_counts.available + p_counts.pending
        when 'max_depth' then p_counts.scheduled + p_counts.available + p_counts.pending + p_counts.active + p_counts.retryable
        else 0 end
$$;
-- +goose StatementEnd
comment on function ojs._counting(text, ojs.tally) is
'How many jobs count against a limit, of those in p_counts. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._use_quotas(p_from pg_snapshot) returns void
language plpgsql
as $$
declare
    v_to pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    if not (select s.limits from ojs.settings s) then
        return;
    end if;
    update ojs.quota q set used = q.used + case when q.period is null then u.jobs else 0 end, due = true
    from (
        select q.id, sum(case when q.period is null then ojs._counting(q.resource, c) else c.total end) as jobs
        from ojs._changes(p_from, v_to) c cross join lateral ojs._quotas_for(c.tenant_id, c.queue) q group by q.id
    ) u
    -- A job that came and went has changed no count. Its token is gone nevertheless.
    where q.id = u.id;
end;
$$;
-- +goose StatementEnd
comment on function ojs._use_quotas(pg_snapshot) is
'Adds to ojs.quota.used what lies between a snapshot and that of ojs.tally_mark, whose row the caller has locked.';

-- +goose StatementBegin
create function ojs._count_quotas() returns void
language sql
as $$
    update ojs.quota q
    set due = true, used = coalesce((select sum(ojs._counting(q.resource, t)) from ojs.tally t
        where q.tenant_id in ('', t.tenant_id) and q.queue in ('', t.queue)), 0)
    where q.stripes > 0 and q.period is null and q.resource <> 'max_stored_bytes'
$$;
-- +goose StatementEnd
comment on function ojs._count_quotas() is 'Makes ojs.quota.used anew from ojs.tally. The caller has locked the row of ojs.tally_mark.';

-- +goose StatementBegin
create function ojs._give_back(p_tenant text, p_queue text, p_state ojs.job_state, p_bytes bigint) returns void
language plpgsql
as $$
declare
    v_quota  ojs.quota;
    v_stripe ojs.stripe;
begin
    for v_quota in select q.* from ojs._quotas_of(p_tenant, p_queue, p_state, true) q loop
        select s.* into v_stripe from generate_series(0, v_quota.stripes - 1) n
        cross join lateral ojs._stripe(v_quota, (pg_backend_pid() + n) % v_quota.stripes, ojs.now()) s
        where s.n is not null limit 1;
        update ojs.stripe s
        set tokens = v_stripe.tokens + ojs._tokens_for(v_quota, 1, p_bytes), at = v_stripe.at, uses = s.uses + 1,
            rev = s.rev + (s.uses % 64 = 63)::int
        where s.quota = v_stripe.quota and s.n = v_stripe.n and s.rev = v_stripe.rev;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._give_back(text, text, ojs.job_state, bigint) is
'Gives back tokens that this transaction has taken for a job which was not made. The tick would not: it looks where jobs have come or
gone.';

-- Gives limits the tokens they lack, and takes those they have too many.
-- Locks the row of ojs.tally_mark, if nobody else has, and stripes that nobody else has; waits for nobody.
-- Writes stripe, quota, notice; nothing where no job has come or gone.
-- +goose StatementBegin
create function ojs._give_room(p_now timestamptz) returns int
language plpgsql
as $$
declare
    v_mark  pg_snapshot;
    v_looks ojs.quota_look[];
    v_left  bigint[];
begin
    if not (select s.limits from ojs.settings s) then
        return null;
    end if;
    -- Two at it at once would give the same room twice.
    select t.snapshot into v_mark from ojs.tally_mark t
    where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if not found or ojs._foreign(v_mark) then
        return 250;
    end if;
    v_looks := array(select l from ojs._look_at_quotas(v_mark, p_now) l);
    if v_looks = '{}' then
        return 1000;
    end if;
    v_left := array(select g from ojs._grant(v_looks) g);
    update ojs.quota q set due = q.id = any (v_left)
    from unnest(v_looks) l where q.id = l.id and q.due <> (q.id = any (v_left));
    perform ojs._warn(v_looks, p_now);
    return 250;
end;
$$;
-- +goose StatementEnd
comment on function ojs._give_room(timestamptz) is
'Makes the tokens of limits as many as there is room for more jobs, and returns in how many milliseconds to come again; null: there are no
limits. A limit of which jobs leave has their tokens with the next look, a quarter of a second later while anything happens.';

create type ojs.quota_look as (id bigint, room bigint, used bigint, used_up float8);
comment on type ojs.quota_look is
'A limit at one moment: how many tokens it lacks (negative: has too many), how much counts against it, and which part of it that is.';

-- +goose StatementBegin
create function ojs._look_at_quotas(p_mark pg_snapshot, p_now timestamptz) returns setof ojs.quota_look
language sql stable rows 10
as $$
    with recent as materialized (
        select q.id, sum(ojs._counting(q.resource, c)) as jobs from ojs._changes(p_mark, null) c
        cross join lateral ojs._quotas_for(c.tenant_id, c.queue) q group by q.id
    ), asked as materialized (
        select q, coalesce(r.jobs, 0) as more from recent r join ojs.quota q on q.id = r.id
        union all
        select q, 0 from ojs.quota q
        where (q.due or q.warned_at is not null and q.period is not null) and q.stripes > 0
            and not exists (select from recent r where r.id = q.id)
    )
    select (a.q).id, case when c.by_itself then 0 else (a.q).maximum - u.used - t.tokens end::bigint,
        case when c.by_itself then ceil(c.most - t.tokens - 1e-6) else u.used end::bigint,
        case when c.by_itself then (c.most - floor(t.tokens + 1e-6)) / c.most
            when (a.q).maximum > 0 then u.used / (a.q).maximum::float8 else 1 end
    from asked a
    -- Tokens of a rate grow, and ojs._measure gives those of bytes.
    cross join lateral (select (a.q).period is not null or (a.q).resource = 'max_stored_bytes' as by_itself,
        coalesce((a.q).burst, (a.q).maximum) as most) c
    cross join lateral (select (a.q).used + a.more as used) u
    cross join lateral (
        select coalesce(sum(ojs._grown(a.q, s.tokens, s.at, p_now)), 0) as tokens from ojs.stripe s where s.quota = (a.q).id
    ) t
$$;
-- +goose StatementEnd
comment on function ojs._look_at_quotas(pg_snapshot, timestamptz) is
'How limits stand whose jobs have come or gone since p_mark, that of ojs.tally_mark, and those that are to be looked at.';

-- +goose StatementBegin
create function ojs._grant(p_looks ojs.quota_look[]) returns setof bigint
language sql
as $$
    with asked as materialized (
        select l.* from unnest(p_looks) l where l.room <> 0
    ), held as materialized (
        -- Half of them get tokens, the emptier ones, so that the others are there for whoever enqueues meanwhile; all, where none has any.
        select a.id, a.room, s.n, s.tokens from asked a
        cross join lateral (
            select s.n, s.tokens from ojs.stripe s where s.quota = a.id order by s.tokens, s.n
            limit case when a.room > 0 then (select nullif((count(*) filter (where o.tokens > 0) > 0)::int * (count(*) + 1) / 2, 0)
                from ojs.stripe o where o.quota = a.id) end
            for update skip locked
        ) s
    ), shares as (
        select h.id, h.n, case
            when h.room > 0 then h.room / h.among + (row_number() over (mine order by h.tokens, h.n) <= h.room % h.among)::int
            else -least(greatest(h.tokens, 0), greatest(0, -h.room - coalesce(sum(greatest(h.tokens, 0)) over (
                mine order by h.tokens desc, h.n rows between unbounded preceding and 1 preceding), 0))) end as tokens
        from (select h.*, count(*) over (partition by h.id) as among from held h) h window mine as (partition by h.id)
    ), given as (
        update ojs.stripe s set tokens = s.tokens + h.tokens, uses = s.uses + 1, rev = s.rev + (s.uses % 64 = 63)::int
        from shares h where s.quota = h.id and s.n = h.n and h.tokens <> 0
        returning s.quota, h.tokens
    )
    select a.id from asked a where a.room <> (select coalesce(sum(g.tokens), 0) from given g where g.quota = a.id)
$$;
-- +goose StatementEnd
comment on function ojs._grant(ojs.quota_look[]) is
'Gives stripes that nobody has locked the tokens their limits lack, in equal parts, or takes what is too much from the fullest. Returns the
limits of which something is left.';

-- +goose StatementBegin
create function ojs._warn(p_looks ojs.quota_look[], p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_quota record;
    v_level int;
begin
    for v_quota in
        select q.*, l.used as now_used, l.used_up from unnest(p_looks) l join ojs.quota q on q.id = l.id
        where q.warned_at is not null or l.used_up >= q.warn_from
    loop
        v_level := case when v_quota.used_up >= 1 + (v_quota.soft and v_quota.period is null)::int * 1e-9 then 2
            when v_quota.used_up >= v_quota.warn_from then 1
            -- What goes up and down about the threshold is told once.
            when v_quota.used_up >= v_quota.warn_from * 0.9 then least(v_quota.warned, 1) else 0 end;
        continue when v_level = v_quota.warned;
        update ojs.quota q set warned = v_level, warned_at = case when v_level > 0 then coalesce(q.warned_at, p_now) end
        where q.id = v_quota.id;
        perform ojs._tell_of_limit(t.type, v_quota.tenant_id, v_quota.queue, v_quota.resource, v_quota.now_used,
            coalesce(v_quota.burst, v_quota.maximum), v_quota.soft, null, p_now)
        from ojs._warning(v_quota.resource, v_quota.warned, v_level) t(type) where t.type is not null;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._warn(ojs.quota_look[], timestamptz) is
'Tells of limits that are nearly or wholly used up, once for as long as it lasts.';

-- +goose StatementBegin
create function ojs._tell_of_limit(
    p_type text, p_tenant text, p_queue text, p_resource text, p_used bigint, p_maximum bigint, p_soft boolean, p_refused bigint,
    p_now timestamptz
) returns void
language plpgsql
as $$
declare
    v_key jsonb := case when p_resource = 'max_depth' then jsonb_build_object('queue', p_queue)
        else jsonb_build_object('tenant_id', p_tenant, 'limit', p_resource) end;
begin
    update ojs.notice n
    set data = n.data || jsonb_strip_nulls(jsonb_build_object('refused', coalesce((n.data ->> 'refused')::bigint + p_refused, p_refused)))
    where n.at > p_now - interval '1 minute' and n.type = p_type and n.data @> v_key and coalesce(n.data ->> 'queue', '') = p_queue;
    if found then
        return;
    end if;
    insert into ojs.notice (at, ended_at, type, subject, data)
    values (p_now, p_now, p_type, coalesce(nullif(p_tenant, ''), p_queue), jsonb_strip_nulls(v_key || case
        when p_resource = 'max_depth' then jsonb_build_object('depth', p_used, 'bound', p_maximum, 'refused', p_refused)
        else jsonb_build_object('queue', nullif(p_queue, ''), 'current', p_used, 'maximum', p_maximum, 'soft', p_soft,
            'refused', p_refused) end));
end;
$$;
-- +goose StatementEnd
comment on function ojs._tell_of_limit(text, text, text, text, bigint, bigint, boolean, bigint, timestamptz) is
'Tells of a limit. Of what was told within the last minute only how many requests were refused is added up.';

-- +goose StatementBegin
create function ojs._warning(p_resource text, p_was int, p_is int) returns text
language sql immutable
as $$
    select case when p_is = 2 then case when p_resource = 'max_depth' then 'backpressure.rejected' else 'tenant.limit_exceeded' end
        when p_is = 1 and p_was = 0 then case when p_resource = 'max_depth' then 'backpressure.warning' else 'tenant.limit_approaching' end
        when p_is = 0 and p_resource = 'max_depth' then 'backpressure.cleared' end
$$;
-- +goose StatementEnd
comment on function ojs._warning(text, int, int) is
'The event that tells of a limit of which more or less is used up than before: 0 little, 1 nearly all, 2 all; null: none.';

-- +goose StatementBegin
create function ojs._quotas_changed() returns void
language plpgsql
as $$
begin
    perform ojs._say_limits();
    perform ojs._give_room(ojs.now());
end;
$$;
-- +goose StatementEnd
comment on function ojs._quotas_changed() is 'Has limits that were set act: says whether there are any, and gives them their tokens.';

-- +goose StatementBegin
create function ojs._say_limits(p_wait boolean default true) returns void
language plpgsql
as $$
declare
    v_limits boolean;
begin
    -- Of two at once the later one must see what the other has set or removed.
    if p_wait then
        perform from ojs.settings for update;
    else
        perform from ojs.settings for update skip locked;
    end if;
    if not found then
        return;
    end if;
    v_limits := exists (select from ojs.quota q where q.stripes > 0);
    update ojs.settings s set limits = v_limits where s.limits <> v_limits;
end;
$$;
-- +goose StatementEnd
comment on function ojs._say_limits(boolean) is
'Says whether there are limits on enqueueing. Others who change settings: p_wait waits for them, else it is left as it is, since a look at
limits that are not there costs time only.';
reset role;
