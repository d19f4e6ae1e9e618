-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._dead(p_tenant text, p_queue text, p_type text, p_error_type text, p_since timestamptz, p_until timestamptz) returns setof ojs.dead_letter
language sql stable
as $$
    select d.* from ojs.dead_letter d
    where (p_tenant is null or d.tenant_id = p_tenant) and (p_queue is null or d.queue = p_queue) and (p_type is null or d.type = p_type)
      and (p_error_type is null or p_error_type in (d.error_type, d.error_code)) and (p_since is null or d.at >= p_since) and (p_until is null or d.at < p_until)
$$;
-- +goose StatementEnd
comment on function ojs._dead(text, text, text, text, timestamptz, timestamptz) is
'The dead letters that a filter lets pass; null lets all pass. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._dead_for(p_id uuid, p_tenant text) returns ojs.dead_letter
language plpgsql
as $$
declare
    v_dead    ojs.dead_letter;
    v_found   ojs.dead_letter;
    v_refusal ojs.refusal;
begin
    if p_id is null then
        perform ojs._raise('OJ400', 'id is required', '{"field": "id"}');
    end if;
    for v_found in select d.* from ojs.dead_letter d where d.id = p_id and (d.tenant_id = p_tenant) is not false limit 2 loop
        if v_dead.id is not null then
            v_refusal := ojs._ambiguous(p_id);
            perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
        end if;
        v_dead := v_found;
    end loop;
    if v_dead.id is null then
        perform ojs._raise('OJ404', format('dead letter job %s not found', p_id), jsonb_build_object('resource_type', 'dead_letter_job', 'resource_id', p_id));
    end if;
    return v_dead;
end;
$$;
-- +goose StatementEnd
comment on function ojs._dead_for(uuid, text) is
'The dead letter with that id of a tenant, or of any tenant for null. Raises not_found, ambiguous_job.';

-- +goose StatementBegin
create function ojs.dead_letters(
    p_queue text default null, p_type text default null, p_error_type text default null, p_since timestamptz default null, p_until timestamptz default null,
    p_limit int default 50, p_offset int default 0, p_tenant text default null, p_max_bytes bigint default null
) returns setof ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_bytes  bigint := 0;
    v_first  boolean := true;
    v_job    ojs.job;
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        perform ojs._raise('OJ400', 'limit must be an integer between 1 and 1000', '{"field": "limit"}');
    elsif p_offset is null or p_offset < 0 then
        perform ojs._raise('OJ400', 'offset must not be negative', '{"field": "offset"}');
    end if;
    for v_job in
        select j.*
        from (select d.* from ojs._dead(v_tenant, p_queue, p_type, p_error_type, p_since, p_until) d order by d.at desc, d.tenant_id desc, d.id desc limit p_limit offset p_offset) d
        cross join lateral (
            select j.* from ojs.job j where not d.aside and j.id = d.id and j.tenant_id = d.tenant_id
            union all select k.* from ojs.dead_job k where d.aside and k.id = d.id and k.tenant_id = d.tenant_id limit 1) j
        order by d.at desc, d.tenant_id desc, d.id desc
    loop
        -- What is wide; a thousand of the rest is less than a megabyte.
        if p_max_bytes is not null then
            v_bytes := v_bytes + octet_length(concat(v_job.args, v_job.meta, v_job.errors, v_job.result, v_job.options, v_job.extra, v_job.retry, v_job.tags));
            exit when v_bytes > p_max_bytes and not v_first;
            v_first := false;
        end if;
        return next v_job;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.dead_letters(text, text, text, timestamptz, timestamptz, int, int, text, bigint) is
'The jobs in the dead letter queue, the latest first (ojs-dead-letter section 9): of a queue, of a job type, with a type or code of their
last error, discarded from p_since on and before p_until. p_limit 1 to 1000. p_max_bytes: the list ends before the job with which its
JSON would have more than that, but not before the first. A tenant''s login role sees its own; others name p_tenant, or see all. Raises
invalid_request.';

-- +goose StatementBegin
create function ojs.dead_letter_count(
    p_queue text default null, p_type text default null, p_error_type text default null, p_since timestamptz default null, p_until timestamptz default null, p_tenant text default null
) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    return (select count(*) from ojs._dead(v_tenant, p_queue, p_type, p_error_type, p_since, p_until) d);
end;
$$;
-- +goose StatementEnd
comment on function ojs.dead_letter_count(text, text, text, timestamptz, timestamptz, text) is
'How many jobs ojs.dead_letters would list without a limit: what a retry or purge with the same filter is about.';

-- +goose StatementBegin
create function ojs.dead_letter_info(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_dead ojs.dead_letter := ojs._dead_for(p_id, ojs._session_tenant(p_tenant));
    v_job  ojs.job;
begin
    if v_dead.aside then
        select k.* into v_job from ojs.dead_job k where k.id = v_dead.id and k.tenant_id = v_dead.tenant_id;
    else
        select j.* into v_job from ojs.job j where j.id = v_dead.id and j.tenant_id = v_dead.tenant_id;
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.dead_letter_info(uuid, text) is
'The job with that id in the dead letter queue, with all its errors, also when retention has removed its contemporaries. Raises not_found,
ambiguous_job.';

-- +goose StatementBegin
create function ojs._hold_dead(
    p_tenant text, p_queue text, p_type text, p_error_type text, p_since timestamptz, p_until timestamptz, p_limit int, p_alive boolean, out o_tenants text[], out o_ids uuid[]
)
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
begin
    select array_agg(h.tenant_id), array_agg(h.id) into o_tenants, o_ids
    from (
        select j.tenant_id, j.id
        from (select d.* from ojs._dead(p_tenant, p_queue, p_type, p_error_type, p_since, p_until) d order by d.at, d.tenant_id, d.id limit 2147483647) d
        cross join lateral (
            select * from (select j.tenant_id, j.id, j.expires_at from ojs.job j where not d.aside and j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'discarded'
                and (not p_alive or (j.expires_at > v_now) is not false) for update skip locked) j
            union all
            select * from (select k.tenant_id, k.id, k.expires_at from ojs.dead_job k where d.aside and k.id = d.id and k.tenant_id = d.tenant_id
                and (not p_alive or (k.expires_at > v_now) is not false) for update skip locked) k
        ) j
        limit p_limit
    ) h;
end;
$$;
-- +goose StatementEnd
comment on function ojs._hold_dead(text, text, text, text, timestamptz, timestamptz, int, boolean) is
'Locks the oldest p_limit dead letters that a filter lets pass and nobody else has locked. p_alive: without those whose expires_at has
passed.';

-- +goose StatementBegin
create function ojs._drop_dead(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    v_jobs int;
begin
    with asked as materialized (
        select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
    ), held as materialized (
        select j.id, j.tenant_id, false as aside from asked a
        cross join lateral (select j.id, j.tenant_id from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'discarded' for update skip locked) j
    ), old as materialized (
        select k.id, k.tenant_id, true as aside from asked a
        cross join lateral (select k.id, k.tenant_id from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id for update skip locked) k
    ), gone as (
        delete from ojs.dead_letter d using (select * from held union all select * from old) h where d.id = h.id and d.tenant_id = h.tenant_id and d.aside = h.aside
        returning d.id, d.tenant_id, d.aside
    ), deleted as (
        delete from ojs.job j using gone g where not g.aside and j.id = g.id and j.tenant_id = g.tenant_id
    ), dropped as (
        delete from ojs.dead_job k using gone g where g.aside and k.id = g.id and k.tenant_id = g.tenant_id
    )
    select count(*) into v_jobs from gone;
    return v_jobs;
end;
$$;
-- +goose StatementEnd
comment on function ojs._drop_dead(text[], uuid[]) is
'Deletes those of the jobs that lie in the dead letter queue and nobody else has locked. Returns how many. Statistics keep counting them.';

-- +goose StatementBegin
create function ojs._lock_dead(p_id uuid, p_tenant text) returns ojs.job
language plpgsql
as $$
declare
    v_dead ojs.dead_letter := ojs._dead_for(p_id, p_tenant);
    v_job  ojs.job;
begin
    for i in 1 .. 10 loop
        perform ojs._return_dead(array[v_dead.tenant_id], array[v_dead.id]);
        select * into v_job from ojs.job j where j.id = v_dead.id and j.tenant_id = v_dead.tenant_id for update;
        -- Whoever had it locked may have retried, deleted or moved it.
        v_dead := ojs._dead_for(p_id, v_dead.tenant_id);
        if v_job.id is not null and not v_dead.aside then
            return v_job;
        end if;
    end loop;
    perform ojs._raise('OJ409', format('job %s cannot be taken out of the dead letter queue: another job has got its id since', p_id), jsonb_build_object('job_id', p_id));
end;
$$;
-- +goose StatementEnd
comment on function ojs._lock_dead(uuid, text) is
'Locks a job in the dead letter queue, in ojs.job, and returns it. Raises not_found, ambiguous_job, conflict (the id is another job''s by
now).';

-- +goose StatementBegin
create function ojs.delete_dead_letter(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._lock_dead(p_id, ojs._session_tenant(p_tenant));
begin
    perform ojs._drop_dead(array[v_job.tenant_id], array[v_job.id]);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.delete_dead_letter(uuid, text) is
'Deletes a job in the dead letter queue for good and returns what it was. Statistics keep counting it. Raises not_found, ambiguous_job.
Locks the job row.';

-- +goose StatementBegin
create function ojs.purge_dead_letters(
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
    v_held := ojs._hold_dead(ojs._session_tenant(p_tenant), p_queue, p_type, p_error_type, p_since, p_until, p_limit, false);
    return case when v_held.o_ids is null then 0 else ojs._drop_dead(v_held.o_tenants, v_held.o_ids) end;
end;
$$;
-- +goose StatementEnd
comment on function ojs.purge_dead_letters(text, text, text, timestamptz, timestamptz, int, text) is
'Deletes for good the oldest p_limit (1 to 10000) of the jobs that ojs.dead_letters would list, and returns how many: call it again until
it returns 0. Skips those that another session is at. Raises invalid_request.';

-- +goose StatementBegin
create function ojs.dead_letter_stats(p_tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    return (
        with line as materialized (
            select d.queue, d.type, d.error_type, count(*) as jobs, min(d.at) as oldest_at, max(d.at) as newest_at
            from ojs._dead(v_tenant, null, null, null, null, null) d group by d.queue, d.type, d.error_type
        )
        select jsonb_build_object(
            'total', coalesce((select sum(l.jobs) from line l), 0),
            'by_queue', coalesce((select jsonb_object_agg(x.queue, x.jobs) from (select l.queue, sum(l.jobs) as jobs from line l group by l.queue order by 2 desc limit 1000) x), '{}'),
            'by_type', coalesce((select jsonb_object_agg(x.type, x.jobs) from (select l.type, sum(l.jobs) as jobs from line l group by l.type order by 2 desc limit 1000) x), '{}'),
            'by_error_type', coalesce((select jsonb_object_agg(x.error_type, x.jobs)
                from (select l.error_type, sum(l.jobs) as jobs from line l group by l.error_type order by 2 desc limit 1000) x), '{}'),
            'oldest_at', (select ojs._utc(min(l.oldest_at)) from line l), 'newest_at', (select ojs._utc(max(l.newest_at)) from line l),
            'retention', (select jsonb_build_object('max_age', s.dead_letter_max_age::text, 'max_count', s.dead_letter_max_count,
                    'next_prune_at', ojs._utc(greatest(ojs.now(), (select m.next_at from ojs.dead_letter_mark m order by m.rev desc limit 1))))
                from ojs.settings s)));
end;
$$;
-- +goose StatementEnd
comment on function ojs.dead_letter_stats(text) is
'The dead letter queue in numbers, as the JSON object of ojs-dead-letter section 10.1: total, by_queue, by_type, by_error_type (of each
the 1000 largest), oldest_at, newest_at, retention. A tenant''s login role counts its own; others p_tenant''s, or all. Costs as much as
there are dead letters.';

-- +goose StatementBegin
create function ojs.configure_dead_letters(p_max_age interval default null, p_max_count int default null) returns ojs.settings
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_settings ojs.settings;
begin
    if p_max_age not between interval '1 minute' and interval '100 years' then
        perform ojs._raise('OJ400', 'max_age must be between a minute and 100 years', '{"field": "max_age"}');
    elsif p_max_count not between 1 and 1000000 then
        perform ojs._raise('OJ400', 'max_count must be between 1 and 1000000', '{"field": "max_count"}');
    end if;
    update ojs.settings s
    set dead_letter_max_age = coalesce(p_max_age, s.dead_letter_max_age), dead_letter_max_count = coalesce(p_max_count, s.dead_letter_max_count)
    returning * into v_settings;
    update ojs.dead_letter_mark m set rev = m.rev + 1, next_at = '-infinity', tenant_id = '';
    return v_settings;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure_dead_letters(interval, int) is
'Sets how long jobs stay in the dead letter queue (p_max_age, default 180 days) and how many of each tenant (p_max_count, default 10000),
and returns the settings; null leaves a value as it is. What is beyond either is deleted by the tick, the oldest first, in rounds every
five minutes; the next begins at once. Raises invalid_request.';

-- +goose StatementBegin
create function ojs._prune_dead_letters(p_limit int) returns boolean
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_mark   ojs.dead_letter_mark;
    v_set    ojs.settings;
    v_held   record;
    v_tenant text;
    v_jobs   bigint;
    v_left   bigint := 100 * p_limit;
    v_more   boolean := false;
begin
    select m.* into v_mark from ojs.dead_letter_mark m order by m.rev desc limit 1;
    perform from ojs.dead_letter_mark m where m.rev = v_mark.rev for update skip locked;
    if not found then
        return false;
    end if;
    select * into v_set from ojs.settings;
    v_held := ojs._hold_dead(null, null, null, null, null, v_now - v_set.dead_letter_max_age, p_limit, false);
    perform ojs._drop_dead(v_held.o_tenants, v_held.o_ids);
    v_more := cardinality(v_held.o_ids) >= p_limit;
    -- Tenant after tenant, until many have been counted.
    while v_more is not true loop
        v_tenant := (select d.tenant_id from ojs.dead_letter d where d.tenant_id > v_mark.tenant_id order by d.tenant_id limit 1);
        exit when v_tenant is null;
        v_jobs := (select count(*) from ojs.dead_letter d where d.tenant_id = v_tenant);
        v_left := v_left - v_jobs;
        if v_jobs > v_set.dead_letter_max_count then
            v_held := ojs._hold_dead(v_tenant, null, null, null, null, null, least(p_limit, v_jobs - v_set.dead_letter_max_count)::int, false);
            perform ojs._drop_dead(v_held.o_tenants, v_held.o_ids);
            v_more := cardinality(v_held.o_ids) >= p_limit;
        end if;
        if v_more is not true then
            v_mark.tenant_id := v_tenant;
            v_more := v_left <= 0;
        end if;
    end loop;
    update ojs.dead_letter_mark m
    set rev = m.rev + 1, tenant_id = case when v_more then v_mark.tenant_id else '' end, next_at = case when v_more then v_mark.next_at else v_now + interval '5 minutes' end
    where m.rev = v_mark.rev;
    return coalesce(v_more, false);
end;
$$;
-- +goose StatementEnd
comment on function ojs._prune_dead_letters(int) is
'A step of removing dead letters beyond their age or number: deletes up to about p_limit and returns whether there may be more. When done,
the next round is due in five minutes. Another session at it: does nothing.';
reset role;
