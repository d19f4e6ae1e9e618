-- How limits on the number of jobs get their tokens back. The tick compares each limit with the
-- jobs that count against it and the tokens it has, and adds the difference where jobs have left. A
-- transaction that commits turns tokens into jobs at one moment. So in every snapshot the jobs, the
-- tokens and the missing tokens of a limit are its maximum in sum; what uncommitted transactions
-- have taken still counts as tokens.

create or replace function ojs._counting(p_resource text, p_counts ojs.tally) returns bigint
language sql immutable
as $$
    select case p_resource when 'max_scheduled' then p_counts.scheduled
        when 'max_queue_depth' then p_counts.scheduled + p_counts.available + p_counts.pending
        when 'max_depth' then p_counts.scheduled + p_counts.available + p_counts.pending + p_counts.active + p_counts.retryable
        else 0 end
$$;
comment on function ojs._counting(text, ojs.tally) is
'Returns how many of the jobs in p_counts count against a limit. Becomes part of the expression that
asks.';

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
    -- due also where jobs came and went in between: the count is unchanged, but their tokens are
    -- gone.
    where q.tenant_id = u.tenant_id and q.queue = u.queue and q.resource = u.resource;
end;
$$;
comment on function ojs._use_quotas(pg_snapshot) is
'Adds to ojs.quota.used the jobs that came and went between a snapshot and that of ojs.tally_mark.
The caller has locked the row of ojs.tally_mark.';

create or replace function ojs._count_quotas() returns void
language sql
as $$
    update ojs.quota q
    set due = true, used = coalesce((select sum(ojs._counting(q.resource, t)) from ojs.tally t
        where q.tenant_id in ('', t.tenant_id) and q.queue in ('', t.queue)), 0)
    where q.nth is not null and q.period is null and q.resource <> 'max_stored_bytes'
$$;
comment on function ojs._count_quotas() is
'Makes ojs.quota.used anew from ojs.tally. The caller has locked the row of ojs.tally_mark.';

-- Gives limits the tokens that they lack, and takes tokens that are too many.
-- Locks the row of ojs.tally_mark and stripes with skip locked, and so never waits.
-- Writes stripe, quota, notice; nothing if no job has come or gone.
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
    -- Without the lock two sessions would give the same tokens twice.
    select t.snapshot into v_mark from ojs.tally_mark t
    where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if not found or ojs._foreign(v_mark) then
        return 250;
    end if;
    v_looks := array(select l from ojs._look_at_quotas(v_mark) l);
    -- Nothing has come or gone: look again in a second.
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
'Gives each limit as many tokens as jobs may still be enqueued, and returns in how many milliseconds
to call again.
Null: there are no limits. While jobs come and go that is 250 ms, so a limit has the tokens of a job
that left a quarter of a second later at most.';
comment on type ojs.quota_look is
'A limit at one moment.
missing: how many tokens it lacks (less than 0: has too many); used: how much counts against it;
used_up: which part of the limit that is.';

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
        case when (a.q).maximum = 0 then 1 when c.by_itself then (c.most - floor(t.tokens + 1e-6)) / c.most
            else u.used / (a.q).maximum::float8 end
    from asked a
    -- by_itself: no tokens are given here. The tokens of a rate grow with time, and ojs._measure
    -- gives the tokens of bytes.
    cross join lateral (select (a.q).period is not null or (a.q).resource = 'max_stored_bytes' as by_itself,
        coalesce((a.q).burst, (a.q).maximum) as most) c
    cross join lateral (select (a.q).used + a.more as used) u
    join ojs._quota_use t on t.tenant_id = (a.q).tenant_id and t.queue = (a.q).queue and t.resource = (a.q).resource
$$;
comment on function ojs._look_at_quotas(pg_snapshot) is
'Returns limits as they are now: those whose jobs have come or gone since p_mark, and those with
due. p_mark: the snapshot of ojs.tally_mark.';

create or replace function ojs._grant(p_look ojs.quota_look) returns bigint
language plpgsql
as $$
declare
    v_stripes int := (select a.stripes from ojs.allowance a where a.tenant_id = p_look.tenant_id and a.queue = p_look.queue);
    v_left    bigint;
begin
    with held as materialized (
        -- Half of the stripes get tokens, the emptiest first, so that the other half stays unlocked
        -- for sessions that enqueue meanwhile. If no stripe has a token, all get some.
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
'Gives stripes the tokens that a limit lacks, in equal parts, or takes tokens that are too many from
the fullest stripes.
Passes over stripes that other sessions have locked. Returns how many tokens the limit still lacks
(less than 0: has too many), because stripes are locked or have no tokens.';

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
            -- A limit whose use varies about the threshold causes one event: the level falls only
            -- below nine tenths of it.
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
'Writes events about limits that are nearly or wholly used up: one each time that a limit reaches
such a level.';

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
'Writes an event about a limit. If there is one like it of the last minute, only adds the refused
requests to that one.';

create or replace function ojs._warning(p_resource text, p_was int, p_is int) returns text
language sql immutable
as $$
    select case when p_is = 2 then case when p_resource = 'max_depth' then 'backpressure.rejected' else 'tenant.limit_exceeded' end
        when p_is = 1 and p_was = 0 then case when p_resource = 'max_depth' then 'backpressure.warning' else 'tenant.limit_approaching' end
        when p_is = 0 and p_resource = 'max_depth' then 'backpressure.cleared' end
$$;
comment on function ojs._warning(text, int, int) is
'Returns the type of the event when the use of a limit goes from one level to another; null: no
event.
The levels: 0 little, 1 nearly all, 2 all.';
