-- Room: the tick compares each limit on how many jobs there are with the jobs that count and the tokens it has, and makes up the
-- difference where jobs have left. A transaction that commits turns tokens into jobs at one moment. So in every snapshot jobs, tokens and
-- what is missing are the maximum in sum, and what uncommitted transactions have taken counts as tokens.

create or replace function ojs._counting(p_resource text, p_counts ojs.tally) returns bigint
language sql immutable
as $$
    select case p_resource when 'max_scheduled' then p_counts.scheduled
        when 'max_queue_depth' then p_counts.scheduled + p_counts.available + p_counts.pending
        when 'max_depth' then p_counts.scheduled + p_counts.available + p_counts.pending + p_counts.active + p_counts.retryable
        else 0 end
$$;
comment on function ojs._counting(text, ojs.tally) is
'How many jobs count against a limit, of those in p_counts. Becomes part of the expression that asks.';

create or replace function ojs._use_quotas(p_from pg_snapshot) returns void
language plpgsql
as $$
declare
    v_to pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    if not exists (select from ojs.allowance) then
        return;
    end if;
    update ojs.quota q set used = q.used + case when q.period is null then u.jobs else 0 end, due = true
    from (
        select q.tenant_id, q.queue, q.resource, sum(case when q.period is null then ojs._counting(q.resource, c) else c.total end) as jobs
        from ojs._changes(p_from, v_to) c cross join lateral ojs._quotas_for(c.tenant_id, c.queue) q
        group by q.tenant_id, q.queue, q.resource
    ) u
    -- A job that came and went has changed no count. Its token is gone nevertheless.
    where q.tenant_id = u.tenant_id and q.queue = u.queue and q.resource = u.resource;
end;
$$;
comment on function ojs._use_quotas(pg_snapshot) is
'Adds to ojs.quota.used what lies between a snapshot and that of ojs.tally_mark, whose row the caller has locked.';

create or replace function ojs._count_quotas() returns void
language sql
as $$
    update ojs.quota q
    set due = true, used = coalesce((select sum(ojs._counting(q.resource, t)) from ojs.tally t
        where q.tenant_id in ('', t.tenant_id) and q.queue in ('', t.queue)), 0)
    where q.nth is not null and q.period is null and q.resource <> 'max_stored_bytes'
$$;
comment on function ojs._count_quotas() is 'Makes ojs.quota.used anew from ojs.tally. The caller has locked the row of ojs.tally_mark.';

-- Gives limits the tokens they lack, and takes those they have too many.
-- Locks the row of ojs.tally_mark, if nobody else has, and stripes that nobody else has; waits for nobody.
-- Writes stripe, quota, notice; nothing where no job has come or gone.
create or replace function ojs._give_room(p_now timestamptz) returns int
language plpgsql
as $$
declare
    v_mark  pg_snapshot;
    v_looks ojs.quota_look[];
begin
    if not exists (select from ojs.allowance) then
        return null;
    end if;
    -- Two at it at once would give the same tokens twice.
    select t.snapshot into v_mark from ojs.tally_mark t
    where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if not found or ojs._foreign(v_mark) then
        return 250;
    end if;
    v_looks := array(select l from ojs._look_at_quotas(v_mark) l);
    if v_looks = '{}' then
        return 1000;
    end if;
    with granted as materialized (
        select l.tenant_id, l.queue, l.nth, ojs._grant(l) <> 0 as due from unnest(v_looks) l
    )
    update ojs.quota q set due = g.due from granted g
    where q.tenant_id = g.tenant_id and q.queue = g.queue and q.nth = g.nth and q.due <> g.due;
    perform ojs._warn(v_looks, p_now);
    return 250;
end;
$$;
comment on function ojs._give_room(timestamptz) is
'Makes the tokens of limits as many as there is room for more jobs, and returns in how many milliseconds to come again; null: there are no
limits. A limit of which jobs leave has their tokens with the next look, a quarter of a second later while anything happens.';
comment on type ojs.quota_look is
'A limit at one moment: how many tokens it lacks (negative: has too many), how much counts against it, and which part of it that is.';

create or replace function ojs._look_at_quotas(p_mark pg_snapshot) returns setof ojs.quota_look
language sql stable rows 10
as $$
    with recent as materialized (
        select q.tenant_id, q.queue, q.resource, sum(ojs._counting(q.resource, c)) as jobs from ojs._changes(p_mark, null) c
        cross join lateral ojs._quotas_for(c.tenant_id, c.queue) q group by q.tenant_id, q.queue, q.resource
    ), asked as materialized (
        select q, r.jobs as more from recent r
        join ojs.quota q on q.tenant_id = r.tenant_id and q.queue = r.queue and q.resource = r.resource
        union all
        select q, 0 from ojs.quota q
        where (q.due or q.warned_at is not null and q.period is not null) and q.nth is not null and not exists (
            select from recent r where r.tenant_id = q.tenant_id and r.queue = q.queue and r.resource = q.resource)
    )
    select (a.q).tenant_id, (a.q).queue, (a.q).nth,
        case when c.by_itself then 0 else (a.q).maximum - u.used - t.tokens end::bigint,
        case when c.by_itself then ceil(c.most - t.tokens - 1e-6) else u.used end::bigint,
        case when c.by_itself then (c.most - floor(t.tokens + 1e-6)) / c.most
            when (a.q).maximum > 0 then u.used / (a.q).maximum::float8 else 1 end
    from asked a
    -- Tokens of a rate grow, and ojs._measure gives those of bytes.
    cross join lateral (select (a.q).period is not null or (a.q).resource = 'max_stored_bytes' as by_itself,
        coalesce((a.q).burst, (a.q).maximum) as most) c
    cross join lateral (select (a.q).used + a.more as used) u
    join ojs._quota_use t on t.tenant_id = (a.q).tenant_id and t.queue = (a.q).queue and t.resource = (a.q).resource
$$;
comment on function ojs._look_at_quotas(pg_snapshot) is
'How limits stand whose jobs have come or gone since p_mark, that of ojs.tally_mark, and those that are to be looked at.';

create or replace function ojs._grant(p_look ojs.quota_look) returns bigint
language plpgsql
as $$
declare
    v_stripes int := (select a.stripes from ojs.allowance a where a.tenant_id = p_look.tenant_id and a.queue = p_look.queue);
    v_left    bigint;
begin
    with held as materialized (
        -- Half of them get tokens, the emptier ones, so that the others stay free for sessions that enqueue meanwhile; all of them do
        -- where none has any.
        select s.n, s.tokens[p_look.nth] as tokens from ojs.stripe s
        where s.tenant_id = p_look.tenant_id and s.queue = p_look.queue and (s.n < v_stripes or p_look.missing < 0)
        order by s.tokens[p_look.nth], s.n
        limit case when p_look.missing > 0 then (
            select nullif((count(*) filter (where o.tokens[p_look.nth] > 0) > 0)::int * (count(*) + 1) / 2, 0)
            from ojs.stripe o where o.tenant_id = p_look.tenant_id and o.queue = p_look.queue and o.n < v_stripes) end
        for update skip locked
    ), shares as (
        select h.n, case when p_look.missing > 0
            then p_look.missing / count(*) over () + (row_number() over (order by h.tokens, h.n) <= p_look.missing % count(*) over ())::int
            else -least(greatest(h.tokens, 0), greatest(0, -p_look.missing - coalesce(sum(greatest(h.tokens, 0)) over (
                order by h.tokens desc, h.n rows between unbounded preceding and 1 preceding), 0))) end as tokens
        from held h
    ), given as (
        update ojs.stripe s
        set tokens[p_look.nth] = s.tokens[p_look.nth] + h.tokens, uses = s.uses + 1, rev = s.rev + s.uses % 64 / 63
        from shares h where s.tenant_id = p_look.tenant_id and s.queue = p_look.queue and s.n = h.n and h.tokens <> 0
        returning h.tokens
    )
    select p_look.missing - coalesce(sum(g.tokens), 0) into v_left from given g where p_look.missing <> 0;
    return v_left;
end;
$$;
comment on function ojs._grant(ojs.quota_look) is
'Gives stripes that nobody has locked the tokens that a limit lacks, in equal parts, or takes what is too much from the fullest. Returns
how many it still lacks (negative: has too many), because sessions have stripes locked, or no tokens are left.';

create or replace function ojs._warn(p_looks ojs.quota_look[], p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_quota record;
    v_level int;
begin
    for v_quota in
        select q.*, l.used as now_used, l.used_up from unnest(p_looks) l
        join ojs.quota q on q.tenant_id = l.tenant_id and q.queue = l.queue and q.nth = l.nth
        where q.warned_at is not null or l.used_up >= q.warn_from
    loop
        v_level := case when v_quota.used_up >= 1 + (v_quota.soft and v_quota.period is null)::int * 1e-9 then 2
            when v_quota.used_up >= v_quota.warn_from then 1
            -- What goes up and down about the threshold is told once.
            when v_quota.used_up >= v_quota.warn_from * 0.9 then least(v_quota.warned, 1) else 0 end;
        continue when v_level = v_quota.warned;
        update ojs.quota q set warned = v_level, warned_at = case when v_level > 0 then coalesce(q.warned_at, p_now) end
        where q.tenant_id = v_quota.tenant_id and q.queue = v_quota.queue and q.resource = v_quota.resource;
        perform ojs._tell_of_limit(t.type, v_quota.tenant_id, v_quota.queue, v_quota.resource, v_quota.now_used,
            coalesce(v_quota.burst, v_quota.maximum), v_quota.soft, null, p_now)
        from ojs._warning(v_quota.resource, v_quota.warned, v_level) t(type) where t.type is not null;
    end loop;
end;
$$;
comment on function ojs._warn(ojs.quota_look[], timestamptz) is
'Tells of limits that are nearly or wholly used up, once for as long as it lasts.';

create or replace function ojs._tell_of_limit(
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
comment on function ojs._tell_of_limit(text, text, text, text, bigint, bigint, boolean, bigint, timestamptz) is
'Tells of a limit. Of what was told within the last minute only how many requests were refused is added up.';

create or replace function ojs._warning(p_resource text, p_was int, p_is int) returns text
language sql immutable
as $$
    select case when p_is = 2 then case when p_resource = 'max_depth' then 'backpressure.rejected' else 'tenant.limit_exceeded' end
        when p_is = 1 and p_was = 0 then case when p_resource = 'max_depth' then 'backpressure.warning' else 'tenant.limit_approaching' end
        when p_is = 0 and p_resource = 'max_depth' then 'backpressure.cleared' end
$$;
comment on function ojs._warning(text, int, int) is
'The event that tells of a limit of which more or less is used up than before: 0 little, 1 nearly all, 2 all; null: none.';
