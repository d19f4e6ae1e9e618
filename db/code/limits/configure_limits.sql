-- Setting limits, and showing how much of them is used.

-- The numbers come from the stripes, so that a reader sees at once what was just enqueued.
create or replace view ojs._quota_use as
select q.tenant_id, q.queue, q.resource, q.maximum, q.period, q.burst, q.soft,
    case when q.nth is not null
        then greatest(coalesce(q.burst, q.maximum) - u.whole, case when u.whole <= 0 then q.used end) end as current,
    q.reason, t.tokens
from ojs.quota q
cross join lateral (
    -- The same as ojs._sums, which only the owner of the tables may call.
    select coalesce(sum(greatest(ojs._grown(a, q.nth, s.n, s.tokens, s.at, c.now), case when a.hard[q.nth] then 0 end)), 0) as tokens
    from ojs.allowance a join ojs.stripe s on s.tenant_id = a.tenant_id and s.queue = a.queue
    -- Offset 0, so that the clock is a column: an expression that reads the clock would keep
    -- PostgreSQL from making _grown part of this query.
    cross join (select ojs.now() as now offset 0) c
    where a.tenant_id = q.tenant_id and a.queue = q.queue
) t
cross join lateral (select floor(t.tokens + 1e-6)::bigint as whole) u;
comment on view ojs._quota_use is 'Limits with how much counts against them.';

create or replace view ojs._own_quota as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs._quota_use r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_quota is 'The limits of the tenant that reads; no rows for other roles.';

create or replace view ojs.limits as
select l.tenant_id, l.queue, l.resource, l.maximum, l.period, l.burst, l.soft, l.current,
    round(l.current / nullif(coalesce(l.burst, l.maximum), 0)::numeric, 3) as used_up,
    case when (select ojs._reads_all()) then l.reason end as reason
from (
    select q.tenant_id, q.queue, q.resource, q.maximum, q.period, q.burst, q.soft, q.current, q.reason
    from (select * from ojs._quota_use where ojs._reads_all() union all select * from ojs._own_quota) q
    union all
    select r.tenant_id, r.queue, 'max_concurrency', r.max_concurrency, null, null, false, r.active, r.limit_reason
    from ojs.rule_stats r where r.max_concurrency is not null
) l;
comment on view ojs.limits is
'Limits of tenants, of tenants in queues, and of queues, and how much of them is used.
A tenant sees its own. Set by ojs.configure_limits.';
comment on column ojs.limits.tenant_id is 'The tenant; empty: all tenants together.';
comment on column ojs.limits.queue is 'The queue; empty: all queues together.';
comment on column ojs.limits.resource is
'What is limited: max_concurrency, active jobs; max_enqueue_rate, new jobs in a period;
max_queue_depth, jobs that are available, scheduled or pending; max_scheduled, scheduled jobs;
max_depth, of a queue, jobs that have not ended; max_stored_bytes, the size of the jobs until
retention drops them; on each server max_in_flight_requests, max_waiting_polls and max_request_rate.';
comment on column ojs.limits.maximum is 'How many.';
comment on column ojs.limits.period is 'Of a rate, the period; else null.';
comment on column ojs.limits.burst is
'Of a rate, how many jobs may be enqueued at once after a time without any; else null.';
comment on column ojs.limits.soft is
'Whether jobs beyond it are accepted, and cause only an event (tenant.limit_exceeded).';
comment on column ojs.limits.current is
'How much counts against it now, jobs of open transactions included, and for a quarter of a second
also jobs that have just left. Of a rate: how much of the burst is used. Of max_stored_bytes: the
size when it was measured, and of the jobs since. Of max_concurrency: ojs.rule_stats.active, the
jobs that the last decision counted. Null: only the servers know.';
comment on column ojs.limits.used_up is 'Which part of the limit that is.';
comment on column ojs.limits.reason is
'The reason that was given with the last change; null for a tenant.';

create or replace function ojs._iso_duration(p_interval interval) returns text
language sql stable set intervalstyle = 'iso_8601'
as $$ select p_interval::text $$;
comment on function ojs._iso_duration(interval) is
'Returns an interval as an ISO 8601 duration such as PT1M.';

create or replace function ojs._limit_json(p_limit ojs.limits) returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(jsonb_build_object('limit', p_limit.maximum, 'period', ojs._iso_duration(p_limit.period),
        'burst', nullif(p_limit.burst, p_limit.maximum), 'soft', nullif(p_limit.soft, false), 'current', p_limit.current))
$$;
comment on function ojs._limit_json(ojs.limits) is
'Returns a limit as the Admin API shows it (multi-tenancy section 10.2): {limit, current, period,
burst, soft}.';

-- Sets a tenant's limits.
-- Locks ojs.queue against other sessions that configure, and ojs.tally_mark; with max_concurrency
-- what ojs.limit_concurrency locks.
-- Writes quota, allowance, stripe, tenant, audit; with max_concurrency what ojs.limit_concurrency
-- writes.
create or replace function ojs.configure_limits(
    p_tenant text, p_limits anycompatible, p_queue text default null, p_reason text default null
)
returns setof ojs.limits
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_limits));
    v_limits jsonb := ojs._limit_fields(p_limits::jsonb, p_queue);
    v_queue  text := nullif(ojs._check_scope(p_tenant, p_queue), '');
    v_before text := ojs._because(p_reason);
begin
    perform ojs._check_tenant(p_tenant);
    perform ojs._alone_with_queues();
    if v_limits - 'max_concurrency' <> '{}' then
        perform ojs._know(p_tenant);
        perform ojs._alone_with_tally();
        perform ojs._set_quota(p_tenant, coalesce(v_queue, ''), l.key, nullif(l.value, 'null'), p_reason)
        from jsonb_each(v_limits - 'max_concurrency') l order by l.key;
        perform ojs._give_room(ojs.now());
    end if;
    -- By ojs.limit_concurrency, because decisions read of a change of this limit in ojs.journal.
    if v_limits ? 'max_concurrency' then
        perform ojs.limit_concurrency((v_limits #>> '{max_concurrency,limit}')::int, p_tenant, v_queue, p_reason);
    end if;
    perform set_config('ojs.reason', v_before, true);
    return query select l.* from ojs.limits l where l.tenant_id = p_tenant and l.queue = coalesce(v_queue, '') order by l.resource;
end;
$$;
comment on function ojs.configure_limits(text, anycompatible, text, text) is
'Sets limits of a tenant, or of a tenant in a queue, and returns its limits.
The limits are those of multi-tenancy section 8.
p_tenant, p_queue: with p_queue the limits are of the tenant in that queue.
p_reason: kept, and shown later.
p_limits: an object; a limit that it does not name stays, null removes one. A limit is a number, 0
to 1000000000, of bytes 1 to 1000000000000000, or {"limit": 50000, "soft": true}: jobs beyond a soft
limit are accepted, and cause an event.
- max_enqueue_rate: {"limit": 1000, "period": "PT1M", "burst": 1000}; burst by default as limit,
period PT1S to P31D. In any time T at most burst + limit * T / period jobs are enqueued.
- max_queue_depth: how many jobs may be available, scheduled or pending. Only retries, requeues and
promotions exceed it, because they are never refused.
- max_scheduled: how many may be scheduled.
- max_concurrency: as ojs.limit_concurrency.
- without a queue, max_stored_bytes: the size of the tenant''s jobs until retention drops them, with
results, errors, and 512 bytes for each.
- without a queue, max_in_flight_requests, max_waiting_polls and max_request_rate ({limit, period,
burst}, of requests over HTTP): on each server.
Other spellings: concurrency, enqueue_rate and max_jobs_per_second (a number per second),
queue_depth, scheduled_jobs, max_concurrent_jobs.
Jobs beyond a limit are refused with TENANT_LIMIT_EXCEEDED, by every function that enqueues. Jobs
that are enqueued together go in all or not at all; more at once than burst are refused with
validation_error. Dead letters that are retried count against depth.
An open transaction keeps the tokens that it took, and has the other tokens of the same rows locked:
up to 16, or a sixteenth of the limit. Only producers of the same tenant wait for it, 100 ms for
each row. A rollback gives the tokens back.
Takes effect when the transaction commits; jobs that are being enqueued at that moment may be
counted late. Raises invalid_request, validation_error, unsupported, and with max_concurrency what
ojs.limit_concurrency raises.';

create or replace function ojs._know(p_tenant text) returns void
language sql
as $$
    insert into ojs.tenant as t (tenant_id, created_at) values (p_tenant, ojs.now())
    on conflict (tenant_id) do update set created_at = excluded.created_at where t.created_at is null
$$;
comment on function ojs._know(text) is
'Notes that a tenant has been configured, from the first time on.';

create or replace function ojs._limit_fields(p_limits jsonb, p_queue text) returns jsonb
language plpgsql
as $$
declare
    c_known  constant text[] := '{max_concurrency, max_enqueue_rate, max_queue_depth, max_scheduled, max_stored_bytes,
        max_in_flight_requests, max_waiting_polls, max_request_rate}';
    v_fields jsonb := '{}';
    v_field  record;
    v_value  jsonb;
begin
    if (jsonb_typeof(p_limits) = 'object') is not true then
        perform ojs._raise('OJ400', 'limits must be an object', '{"field": "limits"}');
    end if;
    for v_field in
        select e.key, e.value, coalesce(a.name, e.key) as name, a.name is not null and a.name = 'max_enqueue_rate' as per_second
        from jsonb_each(p_limits) e
        left join (values ('concurrency', 'max_concurrency'), ('max_concurrent_jobs', 'max_concurrency'),
            ('enqueue_rate', 'max_enqueue_rate'), ('max_jobs_per_second', 'max_enqueue_rate'), ('queue_depth', 'max_queue_depth'),
            ('scheduled_jobs', 'max_scheduled')) a(field, name) on a.field = e.key
        order by e.key
    loop
        if v_field.name <> all (c_known) then
            perform ojs._not_a_setting(v_field.key, c_known, 'The limits are ' || array_to_string(c_known, ', ') || '.');
        elsif p_queue is not null
                and v_field.name in ('max_stored_bytes', 'max_in_flight_requests', 'max_waiting_polls', 'max_request_rate') then
            perform ojs._raise('OJ422', format('%s is of a tenant, not of a queue', v_field.key), jsonb_build_object('field', v_field.key));
        end if;
        v_value := ojs._limit_value(v_field.key, v_field.name, v_field.value, v_field.per_second);
        if v_fields ? v_field.name and v_fields -> v_field.name <> v_value then
            perform ojs._raise('OJ422', format('%s disagrees with another spelling of %s', v_field.key, v_field.name),
                jsonb_build_object('field', v_field.key));
        end if;
        v_fields := v_fields || jsonb_build_object(v_field.name, v_value);
    end loop;
    return v_fields;
end;
$$;
comment on function ojs._limit_fields(jsonb, text) is
'Returns limits under their canonical names, each {limit, period, burst, soft} or null. Raises what
is wrong with them.';

create or replace function ojs._limit_value(p_field text, p_name text, p_value jsonb, p_per_second boolean) returns jsonb
language plpgsql immutable
as $$
declare
    v_value jsonb := case when jsonb_typeof(p_value) = 'number' then jsonb_build_object('limit', p_value) else p_value end;
    v_rate  boolean := p_name in ('max_enqueue_rate', 'max_request_rate');
    v_bad   text;
begin
    if p_value = 'null' then
        return p_value;
    elsif p_per_second then
        v_value := '{"period": "PT1S"}' || v_value;
    end if;
    if jsonb_typeof(v_value) <> 'object' or not v_value ? 'limit' or v_rate and not v_value ? 'period' then
        perform ojs._raise('OJ422', format('%s must be %s', p_field, case when v_rate and not p_per_second
            then 'an object with limit and period, or null' else 'an integer, an object with limit, or null' end),
            jsonb_build_object('field', p_field));
    end if;
    v_bad := (select min(f.key) from jsonb_each(v_value) f where case
        when f.key = 'limit' or f.key = 'burst' and v_rate then
            jsonb_typeof(f.value) <> 'number' or (f.value #>> '{}') !~ '^[0-9]{1,16}$' or f.value::text::bigint > ojs._most(p_name)
        when f.key = 'period' and v_rate then jsonb_typeof(f.value) <> 'string' or ojs._duration(f.value #>> '{}') is null
        when f.key = 'soft' and p_name not in ('max_concurrency', 'max_in_flight_requests', 'max_waiting_polls', 'max_request_rate') then
            jsonb_typeof(f.value) <> 'boolean'
        else true end);
    if v_bad is not null then
        perform ojs._raise('OJ422', format('%s.%s %s', p_field, left(v_bad, 100), case v_bad
                when 'limit' then format('must be an integer of at most %s', ojs._most(p_name))
                when 'burst' then format('must be an integer of at most %s', ojs._most(p_name))
                when 'period' then 'must be an ISO 8601 duration such as PT1M' when 'soft' then 'must be true or false'
                else 'is not known' end),
            jsonb_build_object('field', p_field || '.' || left(v_bad, 100)));
    end if;
    return v_value;
end;
$$;
comment on function ojs._limit_value(text, text, jsonb, boolean) is
'Returns a limit as {limit, period, burst, soft}, or null. Raises what is wrong with it.';

create or replace function ojs._alone_with_tally() returns void
language plpgsql
as $$
begin
    -- A roll-up at the same time would not see the new limit, and not count for it the jobs that it
    -- rolls up. The row moves to a new rev with each roll-up, so the row that this statement finds
    -- may be gone when it has the lock: try again.
    loop
        perform from ojs.tally_mark t where t.rev = (select max(n.rev) from ojs.tally_mark n) for update;
        exit when found;
    end loop;
end;
$$;
comment on function ojs._alone_with_tally() is
'Waits for a roll-up to end, and keeps other sessions from one until the transaction ends.';

create or replace function ojs._set_quota(p_tenant text, p_queue text, p_resource text, p_value jsonb, p_reason text) returns void
language plpgsql
as $$
declare
    c_bytes constant int := (p_resource = 'max_stored_bytes')::int;
    v_quota ojs.quota;
begin
    if p_value is null then
        delete from ojs.quota q where q.tenant_id = p_tenant and q.queue = p_queue and q.resource = p_resource;
    else
        v_quota.maximum := (p_value ->> 'limit')::bigint;
        v_quota.period := ojs._duration(p_value ->> 'period');
        insert into ojs.quota as q (tenant_id, queue, resource, maximum, period, burst, soft, warn_from, reason, used, missing)
        values (p_tenant, p_queue, p_resource, v_quota.maximum, v_quota.period,
            case when v_quota.period is not null then coalesce((p_value ->> 'burst')::bigint, greatest(v_quota.maximum, 1)) end,
            coalesce((p_value ->> 'soft')::boolean, false), coalesce((p_value ->> 'warn_from')::numeric, 0.8), left(p_reason, 1000),
            case when v_quota.period is null then coalesce((select sum(ojs._counting(p_resource, t)) from ojs.tally t
                where p_tenant in ('', t.tenant_id) and p_queue in ('', t.queue)), 0) else 0 end, v_quota.maximum * c_bytes)
        on conflict (tenant_id, queue, resource) do update
        set maximum = excluded.maximum, period = excluded.period, burst = excluded.burst, soft = excluded.soft, reason = excluded.reason,
            warn_from = excluded.warn_from, due = true, measure_at = null,
            missing = q.missing + (excluded.maximum - q.maximum) * c_bytes;
    end if;
    perform ojs._allow(p_tenant, p_queue);
    if p_resource = 'max_stored_bytes' then
        -- A lower maximum may not have taken all tokens, because sessions had stripes locked or
        -- jobs take the bytes up. A higher maximum must not give these: missing carries the
        -- difference.
        with granted as materialized (
            select ojs._grant(row(q.tenant_id, q.queue, q.nth, q.missing, 0, 0)::ojs.quota_look) as missing from ojs.quota q
            where q.tenant_id = p_tenant and q.resource = p_resource
        )
        update ojs.quota q set missing = g.missing from granted g where q.tenant_id = p_tenant and q.resource = p_resource;
        perform ojs._wake('upkeep');
    end if;
end;
$$;
comment on function ojs._set_quota(text, text, text, jsonb, text) is
'Sets or removes (p_value null) one limit. The caller has locked the row of ojs.tally_mark.';

create or replace function ojs._allow(p_tenant text, p_queue text) returns void
language plpgsql
as $$
declare
    v_now   timestamptz := ojs.now();
    v_was   ojs.allowance;
    v_of    ojs.allowance;
    v_held  int[];
    v_parts float8[];
begin
    delete from ojs.allowance a where a.tenant_id = p_tenant and a.queue = p_queue returning * into v_was;
    insert into ojs.allowance (tenant_id, queue, stripes, hard, caps, growth)
    select p_tenant, p_queue, m.stripes, array_agg(not q.soft order by k),
        array_agg(coalesce(q.burst / m.stripes::float8, 'infinity') order by k),
        array_agg(coalesce(q.maximum / date_part('epoch', q.period) / m.stripes, 0) order by k)
    -- The smallest limit says how many stripes have tokens, so that one of them has a token for a
    -- job. Soft limits and max_scheduled (nth 3) do not count, because they do not refuse every
    -- job.
    from (
        select coalesce(min(o.stripes) filter (where not o.soft and o.nth <> 3), max(o.stripes)) as stripes
        from (select l.*, greatest(1, least(16, coalesce(l.burst, l.maximum) / 8)) as stripes from ojs.quota l
            where l.tenant_id = p_tenant and l.queue = p_queue and l.nth is not null) o
    ) m
    cross join generate_series(1, 5) k left join ojs.quota q on q.tenant_id = p_tenant and q.queue = p_queue and q.nth = k
    where m.stripes is not null group by m.stripes
    returning * into v_of;
    if v_of is not distinct from v_was or v_of.hard is null then
        return;
    end if;
    insert into ojs.stripe (tenant_id, queue, n, at)
    select p_tenant, p_queue, n, v_now from generate_series(0, 15) n
    where not exists (select from ojs.stripe s where s.tenant_id = p_tenant and s.queue = p_queue and s.n = n.n);
    -- Skip locked, so that this does not wait for an open transaction. A stripe that another
    -- session has locked stays as it is.
    v_held := array(select s.n from ojs.stripe s where s.tenant_id = p_tenant and s.queue = p_queue for update skip locked);
    -- The tokens of a limit that is new or changed are divided again; null: it is as it was. What
    -- was used of a rate stays used, or each change would allow a full burst. Other limits begin
    -- with no tokens, and get them from ojs._give_room or ojs._set_quota.
    v_parts := array(
        select case when (v_of.hard[k], v_of.caps[k], v_of.growth[k]) is not distinct from (v_was.hard[k], v_was.caps[k], v_was.growth[k])
                then null
            when v_of.growth[k] > 0 then greatest(0, v_of.stripes * v_of.caps[k]
                + coalesce(sum(ojs._grown(v_was, k, s.n, s.tokens, s.at, v_now)) - v_was.stripes * nullif(v_was.caps[k], 'infinity'), 0))
                / nullif(count(*) filter (where s.n < v_of.stripes), 0)
            else 0 end
        from generate_series(1, 5) k join ojs.stripe s on s.tenant_id = p_tenant and s.queue = p_queue and s.n = any (v_held)
        group by k order by k);
    -- Bytes beyond a soft limit count when the limit becomes hard.
    update ojs.quota q set missing = q.missing + (select sum(case when s.n = any (v_held) then s.tokens[4] else least(0, s.tokens[4]) end)
        from ojs.stripe s where s.tenant_id = p_tenant and s.queue = p_queue)
    where q.tenant_id = p_tenant and q.queue = p_queue and q.nth = 4 and v_was.hard[4] <> v_of.hard[4];
    update ojs.stripe s
    set tokens = array(select coalesce(v_parts[k], ojs._grown(v_was, k, s.n, s.tokens, s.at, v_now)) from generate_series(1, 5) k),
        at = ojs._used_at(s.at, v_now), uses = s.uses + 1, rev = s.rev + s.uses % 64 / 63
    where s.tenant_id = p_tenant and s.queue = p_queue and s.n = any (v_held);
end;
$$;
comment on function ojs._allow(text, text) is
'Makes a row of ojs.allowance from ojs.quota, or removes it, and divides the tokens of changed
limits among the stripes. Only after ojs._alone_with_tally.';
