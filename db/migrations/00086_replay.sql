-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._return_dead(p_tenants text[], p_ids uuid[]) returns void
language sql
as $$
    with asked as materialized (
        -- Its producer may have used the id again; then the job comes first in the order of locks, and this one stays.
        select a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id) where not exists (select from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id)
    ), held as materialized (
        select k.id, k.tenant_id from asked a
        cross join lateral (select k.id, k.tenant_id from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id for update skip locked) k
    ), moved as (
        delete from ojs.dead_job k using held h where k.id = h.id and k.tenant_id = h.tenant_id returning k.*
    ), back as (
        insert into ojs.job select m.* from moved m
    )
    update ojs.dead_letter d set aside = false from held h where d.id = h.id and d.tenant_id = h.tenant_id
$$;
-- +goose StatementEnd
comment on function ojs._return_dead(text[], uuid[]) is 'Moves those of the dead letters that were put aside back into ojs.job.';

-- +goose StatementBegin
create function ojs._replay_count(p_meta jsonb) returns int
language sql immutable
as $$ select case when jsonb_typeof(p_meta -> 'ojs.replay_count') = 'number' and p_meta ->> 'ojs.replay_count' ~ '^\d{1,8}$' then (p_meta ->> 'ojs.replay_count')::int else 0 end $$;
-- +goose StatementEnd
comment on function ojs._replay_count(jsonb) is 'How many times a job has been retried by rules, as its meta says.';

-- +goose StatementBegin
create function ojs._retry_dead(p_tenants text[], p_ids uuid[], p_rules text[] default '{}') returns int
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_queues text[];
    v_jobs   int;
begin
    perform ojs._return_dead(p_tenants, p_ids);
    with held as materialized (
        select j.*, a.rule from (select a.id, a.tenant_id, min(a.rule) as rule from unnest(p_ids, p_tenants, p_rules) a(id, tenant_id, rule) group by a.id, a.tenant_id) a
        cross join lateral (select j.id, j.tenant_id, j.queue, j.priority, j.type, j.attempt from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'discarded' and (j.expires_at > v_now) is not false
            for update skip locked) j
    ), gone as (
        delete from ojs.dead_letter d using held h where d.id = h.id and d.tenant_id = h.tenant_id and not d.aside returning d.at, h.*
    ), numbered as materialized (
        select g.*, nextval('ojs.job_seq') as seq from (select * from gone order by at, id) g
    ), retried as (
        update ojs.job j
        set state = 'available', attempt = 0, seq = n.seq, enqueued_at = v_now, started_at = null, finished_at = null, retry_at = null, worker_id = null,
            meta = case when n.rule is null then j.meta else j.meta || jsonb_build_object('ojs.replay_count', ojs._replay_count(j.meta) + 1, 'ojs.replay_rule', n.rule,
                'ojs.last_replayed_at', to_char(v_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) end
        from numbered n where j.id = n.id and j.tenant_id = n.tenant_id
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
        select n.tenant_id, n.queue, n.priority, n.id, n.type, n.attempt, 'discarded', 'available' from numbered n
    ), woken as (
        -- Behind all that is available; the release journal tells which state they left.
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select n.tenant_id, n.queue, n.priority, 'available', 'available', 1, n.seq, n.seq from numbered n order by n.seq
        returning queue
    )
    select (select array_agg(distinct w.queue) from woken w), (select count(*) from numbered) into v_queues, v_jobs;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return v_jobs;
end;
$$;
-- +goose StatementEnd
comment on function ojs._retry_dead(text[], uuid[], text[]) is
'Makes those of the jobs that lie in the dead letter queue, nobody else has locked and have not expired available again, behind what is
available. Returns how many. p_rules: by which rule each, noted in its meta; empty: by a person.';

-- +goose StatementBegin
create function ojs._override(p_job ojs.job, p_override json) returns ojs.job
language plpgsql
as $$
declare
    v_job  ojs.job := p_job;
    v_new  jsonb := p_override::jsonb;
    v_name text;
    v_kind text;
    v_bad  ojs.violation;
begin
    if jsonb_typeof(v_new) <> 'object' then
        perform ojs._raise('OJ400', 'override must be a JSON object', '{"field": "override"}');
    end if;
    for v_name, v_kind in select k.key, jsonb_typeof(k.value) from jsonb_each(v_new) k loop
        if v_name not in ('queue', 'priority', 'args', 'meta', 'retry', 'max_attempts', 'expires_at') then
            perform ojs._raise('OJ400', format('override.%s cannot be changed', left(v_name, 100)), jsonb_build_object('field', 'override.' || left(v_name, 100)));
        elsif v_kind <> (case v_name when 'queue' then 'string' when 'args' then 'array' when 'meta' then 'object' when 'retry' then 'object' when 'expires_at' then 'string' else 'number' end)
                and not (v_name = 'expires_at' and v_kind = 'null') or v_kind = 'number' and v_new ->> v_name !~ '^-?\d{1,9}$' then
            perform ojs._raise('OJ400', format('override.%s has a value of the wrong kind', v_name), jsonb_build_object('field', 'override.' || v_name));
        end if;
    end loop;
    v_job.queue := coalesce(v_new ->> 'queue', v_job.queue);
    v_job.priority := coalesce((v_new ->> 'priority')::int, v_job.priority);
    v_job.args := coalesce(p_override -> 'args', v_job.args);
    v_job.meta := v_job.meta || coalesce(v_new -> 'meta', '{}');
    v_job.retry := case when v_new ? 'retry' then coalesce(v_job.retry, '{}') || (v_new -> 'retry') else v_job.retry end;
    v_job.max_attempts := coalesce((v_new ->> 'max_attempts')::int, ojs._retry_max_attempts(v_new -> 'retry'), v_job.max_attempts);
    if v_new ? 'expires_at' then
        begin
            v_job.expires_at := case when ojs._tells_time(v_new ->> 'expires_at') then ojs._when(v_new ->> 'expires_at', ojs.now()) end;
        exception when data_exception then
            v_job.expires_at := null;
        end;
        if v_job.expires_at is null and v_new -> 'expires_at' <> 'null' then
            perform ojs._raise('OJ400', 'override.expires_at must be a time with an offset, or + and an ISO 8601 duration such as +PT90S', '{"field": "override.expires_at"}');
        end if;
    end if;
    v_bad := ojs._job_violation(v_job.tenant_id, v_job.id, v_job.type, v_job.queue, v_job.priority, v_job.max_attempts, v_job.scheduled_at, v_job.expires_at, v_job.timeout_ms,
        v_job.visibility_timeout_ms, v_job.tags, v_job.args, v_job.meta, v_job.retry, v_job.options, v_job.extra);
    if v_bad.sqlstate is not null then
        perform ojs._raise(v_bad.sqlstate, 'override.' || v_bad.message, jsonb_build_object('field', 'override.' || v_bad.field, 'job_id', v_job.id));
    end if;
    if v_job.queue <> p_job.queue or v_job.priority <> p_job.priority then
        -- Another line of the statistics.
        insert into ojs.wake (tenant_id, queue, priority, to_state, jobs)
        values (p_job.tenant_id, p_job.queue, p_job.priority, 'discarded', -1), (p_job.tenant_id, v_job.queue, v_job.priority, 'discarded', 1);
    end if;
    if v_job.expires_at is distinct from p_job.expires_at and v_job.expires_at is not null then
        insert into ojs.timer (due_at, kind, tenant_ids, ids) values (v_job.expires_at, 'expiry', array[v_job.tenant_id], array[v_job.id]);
    end if;
    update ojs.job j
    set queue = v_job.queue, priority = v_job.priority, args = v_job.args, meta = v_job.meta, retry = v_job.retry, max_attempts = v_job.max_attempts, expires_at = v_job.expires_at
    where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs._override(ojs.job, json) is
'Changes attributes of a job that is about to be retried, and returns it as it is then. Raises what ojs.enqueue would raise about them.';

-- +goose StatementBegin
create function ojs.retry_dead_letter(p_id uuid, p_override json default null, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._lock_dead(p_id, ojs._session_tenant(p_tenant));
begin
    if p_override is not null then
        v_job := ojs._override(v_job, p_override);
    end if;
    if v_job.expires_at <= ojs.now() then
        perform ojs._raise('OJ409', format('cannot retry job %s: it expired at %s', p_id, to_char(v_job.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
            jsonb_build_object('job_id', p_id, 'field', 'override.expires_at'), 'Override expires_at with a later time, or with null.');
    end if;
    perform ojs._retry_dead(array[v_job.tenant_id], array[v_job.id]);
    select * into v_job from ojs.job j where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.retry_dead_letter(uuid, json, text) is
'Takes a job out of the dead letter queue and returns it (ojs-dead-letter section 6.1): available at once, behind what is available,
attempt 0, its errors kept, its place in the fair order that of a new job. p_override: an object of attributes to change before (section
6.3): queue, priority, args, meta (merged), retry (merged), max_attempts, expires_at (null: never). Raises not_found, ambiguous_job,
conflict (expired), and what ojs.enqueue raises about an override. Locks the job row.';

-- +goose StatementBegin
create function ojs.retry_dead_letters(
    p_queue text default null, p_type text default null, p_error_type text default null, p_since timestamptz default null, p_until timestamptz default null,
    p_limit int default 1000, p_tenant text default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_held record;
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform ojs._raise('OJ400', 'limit must be an integer between 1 and 10000', '{"field": "limit"}');
    end if;
    v_held := ojs._hold_dead(ojs._session_tenant(p_tenant), p_queue, p_type, p_error_type, p_since, p_until, p_limit, true);
    return case when v_held.o_ids is null then 0 else ojs._retry_dead(v_held.o_tenants, v_held.o_ids) end;
end;
$$;
-- +goose StatementEnd
comment on function ojs.retry_dead_letters(text, text, text, timestamptz, timestamptz, int, text) is
'Retries, as ojs.retry_dead_letter does, the oldest p_limit (1 to 10000) of the jobs that ojs.dead_letters would list, and returns how
many (ojs-dead-letter section 6.2). Call it again until it returns 0, with p_until in the past, or jobs that fail again are retried
again. Leaves out jobs that have expired, and skips those that another session is at. Raises invalid_request.';

-- +goose StatementBegin
create function ojs.set_replay_rule(
    p_name text, p_delay interval default '1 hour', p_max_replays int default 3, p_queue text default null, p_type text default null, p_error_type text default null,
    p_of_tenant text default null, p_enabled boolean default true
) returns ojs.replay_rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.replay_rule;
begin
    if p_name is null or p_name = '' or length(p_name) > 128 then
        perform ojs._raise('OJ400', 'name is required and has at most 128 characters', '{"field": "name"}');
    elsif p_delay is null or p_delay not between interval '1 second' and interval '180 days' then
        perform ojs._raise('OJ400', 'delay must be between a second and 180 days', '{"field": "delay"}');
    elsif p_max_replays is null or p_max_replays not between 1 and 1000 then
        perform ojs._raise('OJ400', 'max_replays must be an integer between 1 and 1000', '{"field": "max_replays"}');
    elsif not ojs._tenant_valid(p_of_tenant) then
        perform ojs._raise('OJ400', 'of_tenant is no valid tenant', '{"field": "of_tenant"}');
    elsif p_enabled is null then
        perform ojs._raise('OJ400', 'enabled must be true or false', '{"field": "enabled"}');
    end if;
    insert into ojs.replay_rule as r (name, tenant_id, queue, type, error_type, delay, max_replays, enabled)
    values (p_name, p_of_tenant, p_queue, p_type, p_error_type, p_delay, p_max_replays, p_enabled)
    on conflict (name) do update set tenant_id = excluded.tenant_id, queue = excluded.queue, type = excluded.type, error_type = excluded.error_type, delay = excluded.delay,
        max_replays = excluded.max_replays, enabled = excluded.enabled, seen = null, caught_up = false
    returning * into v_rule;
    return v_rule;
end;
$$;
-- +goose StatementEnd
comment on function ojs.set_replay_rule(text, interval, int, text, text, text, text, boolean) is
'Sets a rule, new or with the name of an old one, and returns it (ojs-dead-letter section 7): dead letters of p_queue, p_type, with
p_error_type as type or code of the last error, of tenant p_of_tenant, null being any, are retried by the clock p_delay (a second to 180
days) after they were discarded, until rules have retried them p_max_replays (1 to 1000) times. What is in the queue already is included,
once the transactions that are open now have ended. The meta of a job that is retried gets ojs.replay_count, ojs.last_replayed_at,
ojs.replay_rule. Rules stand in ojs.replay_rule. Raises invalid_request.';

-- +goose StatementBegin
create function ojs.delete_replay_rule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from ojs.replay_rule r where r.name = p_name;
    if not found then
        perform ojs._raise('OJ404', format('replay rule %s not found', p_name), jsonb_build_object('resource_type', 'replay_rule', 'resource_id', p_name));
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.delete_replay_rule(text) is 'Deletes a rule of ojs.set_replay_rule. Raises not_found.';

-- +goose StatementBegin
create function ojs._catch_up_replays() returns void
language plpgsql
as $$
declare
    v_rule ojs.replay_rule;
begin
    for v_rule in select * from ojs.replay_rule r where not r.caught_up for update skip locked loop
        if v_rule.seen is null or v_rule.seen > pg_snapshot_xmax(pg_current_snapshot()) then
            update ojs.replay_rule r set seen = pg_snapshot_xmax(pg_current_snapshot()) where r.name = v_rule.name;
        elsif v_rule.seen <= pg_snapshot_xmin(pg_current_snapshot()) then
            -- Whoever did not know the rule has ended: all that they left is visible, and the others told the clock themselves.
            insert into ojs.timer (due_at, kind, tenant_ids, ids)
            select max(d.at) + v_rule.delay, 'replay', array_agg(d.tenant_id), array_agg(d.id)
            from (select d.*, date_trunc('minute', d.at) as minute, row_number() over (order by d.at) / 1000 as part from ojs.dead_letter d where v_rule.enabled and ojs._ruled(v_rule, d)) d
            group by d.minute, d.part;
            update ojs.replay_rule r set caught_up = true where r.name = v_rule.name;
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._catch_up_replays() is
'Tells the clock of the dead letters that new rules are for, as soon as no transaction is open that may not have known them.';

-- +goose StatementBegin
create function ojs._replay(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_dead record;
begin
    select array_agg(x.tenant_id) as tenants, array_agg(x.id) as ids, array_agg(x.name) as rules into v_dead
    from (
        select distinct on (d.id, d.tenant_id) d.id, d.tenant_id, r.name
        from unnest(p_ids, p_tenants) a(id, tenant_id)
        join ojs.dead_letter d on d.id = a.id and d.tenant_id = a.tenant_id
        join ojs.replay_rule r on r.enabled and ojs._ruled(r, d) and d.at + r.delay <= v_now
        cross join lateral (
            select j.meta, j.expires_at from ojs.job j where not d.aside and j.id = d.id and j.tenant_id = d.tenant_id
            union all
            select k.meta, k.expires_at from ojs.dead_job k where d.aside and k.id = d.id and k.tenant_id = d.tenant_id
            limit 1) j
        where ojs._replay_count(j.meta) < r.max_replays and (j.expires_at > v_now) is not false
        order by d.id, d.tenant_id, r.delay, r.name
    ) x;
    if v_dead.ids is not null and ojs._retry_dead(v_dead.tenants, v_dead.ids, v_dead.rules) < cardinality(v_dead.ids) then
        -- Locked by somebody just now: look again. Put aside, and another job has got its id since: nothing tells when that one is gone.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select v_now + l.wait, 'replay', array_agg(l.tenant_id), array_agg(l.id)
        from (
            select d.tenant_id, d.id, case when d.aside and exists (select from ojs.job j where j.id = d.id and j.tenant_id = d.tenant_id) then interval '1 hour' else interval '1 second' end as wait
            from unnest(v_dead.ids, v_dead.tenants) a(id, tenant_id) join ojs.dead_letter d on d.id = a.id and d.tenant_id = a.tenant_id
        ) l
        group by l.wait;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._replay(text[], uuid[]) is 'Retries those of the dead letters for which a rule says that it is time.';
reset role;
