-- Reading the dead letter queue: list, count, show one, numbers. The job of a dead letter is in
-- ojs.job, or, once its partition has been dropped (aside), in ojs.dead_job. Called by tenants and
-- operators, over HTTP and in SQL.

-- Lists the dead letters that match a filter, the latest first.
-- Reads only.
create or replace function ojs.dead_letters(
    p_queue text default null, p_type text default null, p_error_type text default null,
    p_since timestamptz default null, p_until timestamptz default null,
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
    perform ojs._check_limit(p_limit, 1000);
    if p_offset is null or p_offset < 0 then
        perform ojs._raise('OJ400', 'offset must not be negative', '{"field": "offset"}');
    end if;
    for v_job in
        select j.*
        from (
            select d.* from ojs._dead_matching(v_tenant, p_queue, p_type, p_error_type, p_since, p_until) d
            order by d.at desc, d.tenant_id desc, d.id desc limit p_limit offset p_offset
        ) d
        cross join lateral ojs._dead_letter_job(d.id, d.tenant_id, d.aside) j
        order by d.at desc, d.tenant_id desc, d.id desc
    loop
        if p_max_bytes is not null then
            -- Count only the columns that may be large: the rest of a thousand jobs is less than a
            -- megabyte.
            v_bytes := v_bytes + octet_length(concat(
                v_job.args, v_job.meta, v_job.errors, v_job.result, v_job.options, v_job.extra, v_job.retry, v_job.tags));
            exit when v_bytes > p_max_bytes and not v_first;
            v_first := false;
        end if;
        return next v_job;
    end loop;
end;
$$;
comment on function ojs.dead_letters(text, text, text, timestamptz, timestamptz, int, int, text, bigint) is
'Lists the jobs in the dead letter queue, the latest first (ojs-dead-letter section 9).
p_queue, p_type: of this queue, of this job type.
p_error_type: with this type or code of the last error.
p_since, p_until: discarded from p_since on and before p_until.
p_limit: 1 to 1000.
p_max_bytes: the list ends before the job that would make its JSON larger, but has at least one.
p_tenant: of this tenant; null: of all. A tenant''s login role sees its own.
Raises invalid_request.';

-- Counts the dead letters that match a filter.
-- Reads only.
create or replace function ojs.dead_letter_count(
    p_queue text default null, p_type text default null, p_error_type text default null,
    p_since timestamptz default null, p_until timestamptz default null, p_tenant text default null
) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    return (select count(*) from ojs._dead_matching(v_tenant, p_queue, p_type, p_error_type, p_since, p_until) d);
end;
$$;
comment on function ojs.dead_letter_count(text, text, text, timestamptz, timestamptz, text) is
'Counts the jobs that ojs.dead_letters would list without a limit.
A retry or purge with the same filter is about these jobs.';

-- Returns one dead letter.
-- Reads only.
create or replace function ojs.dead_letter_info(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_dead ojs.dead_letter := ojs._dead_for(p_id, ojs._session_tenant(p_tenant));
    v_job  ojs.job;
begin
    select * into v_job from ojs._dead_letter_job(v_dead.id, v_dead.tenant_id, v_dead.aside);
    return v_job;
end;
$$;
comment on function ojs.dead_letter_info(uuid, text) is
'Returns the job with that id in the dead letter queue, with all its errors.
Also when the partition that held it has been dropped.
Raises not_found, ambiguous_job.';

-- Returns the dead letter queue in numbers.
-- Reads only, all dead letters of the tenant.
create or replace function ojs.dead_letter_stats(p_tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set intervalstyle = iso_8601
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    return (
        with line as materialized (
            select d.queue, d.type, d.error_type, count(*) as jobs, min(d.at) as oldest_at, max(d.at) as newest_at
            from ojs._dead_matching(v_tenant, null, null, null, null, null) d group by d.queue, d.type, d.error_type
        ), counted as (
            select g.field, g.name, sum(l.jobs) as jobs, row_number() over (partition by g.field order by sum(l.jobs) desc) as place
            from line l
            cross join lateral (values ('by_queue', l.queue), ('by_type', l.type), ('by_error_type', l.error_type)) g(field, name)
            group by g.field, g.name
        ), largest as (
            select c.field, jsonb_object_agg(c.name, c.jobs) as jobs from counted c where c.place <= 1000 group by c.field
        )
        select jsonb_build_object(
            'total', coalesce((select sum(l.jobs) from line l), 0),
            'by_queue', '{}'::jsonb, 'by_type', '{}'::jsonb, 'by_error_type', '{}'::jsonb,
            'oldest_at', (select ojs._utc(min(l.oldest_at)) from line l), 'newest_at', (select ojs._utc(max(l.newest_at)) from line l),
            'retention', jsonb_build_object('max_age', s.dead_letter_max_age::text, 'max_count', s.dead_letter_max_count,
                'next_prune_at', ojs._utc(greatest(ojs.now(), (select m.next_at from ojs.dead_letter_mark m)))))
            || coalesce((select jsonb_object_agg(l.field, l.jobs) from largest l), '{}')
        from ojs.settings s);
end;
$$;
comment on function ojs.dead_letter_stats(text) is
'Returns the dead letter queue in numbers (ojs-dead-letter section 10.1).
A JSON object: total, by_queue, by_type, by_error_type (of each the 1000 largest), oldest_at,
newest_at, retention. It reads every dead letter that it counts.
p_tenant: of this tenant; null: of all. A tenant''s login role counts its own.';

create or replace function ojs._dead_matching(
    p_tenant text, p_queue text, p_type text, p_error_type text, p_since timestamptz, p_until timestamptz
) returns setof ojs.dead_letter
language sql stable
as $$
    select d.* from ojs.dead_letter d
    where (p_tenant is null or d.tenant_id = p_tenant)
      and (p_queue is null or d.queue = p_queue)
      and (p_type is null or d.type = p_type)
      and (p_error_type is null or p_error_type in (d.error_type, d.error_code))
      and (p_since is null or d.at >= p_since)
      and (p_until is null or d.at < p_until)
$$;
comment on function ojs._dead_matching(text, text, text, text, timestamptz, timestamptz) is
'The dead letters that match a filter; a parameter that is null matches all. Becomes part of the
query that asks.';

create or replace function ojs._dead_letter_job(p_id uuid, p_tenant text, p_aside boolean) returns setof ojs.job
language sql stable
as $$
    select j.* from ojs.job j where not p_aside and j.id = p_id and j.tenant_id = p_tenant
    union all
    select k.* from ojs.dead_job k where p_aside and k.id = p_id and k.tenant_id = p_tenant
    limit 1
$$;
comment on function ojs._dead_letter_job(uuid, text, boolean) is
'The job of a dead letter, from ojs.dead_job (p_aside) or ojs.job. Becomes part of the query that
asks.';

create or replace function ojs._dead_for(p_id uuid, p_tenant text) returns ojs.dead_letter
language plpgsql
as $$
declare
    v_found ojs.dead_letter[];
begin
    if p_id is null then
        perform ojs._raise('OJ400', 'id is required', '{"field": "id"}');
    end if;
    v_found := array(select d from ojs.dead_letter d where d.id = p_id and (d.tenant_id = p_tenant) is not false limit 2);
    if cardinality(v_found) > 1 then
        perform ojs._refuse(ojs._ambiguous(p_id));
    elsif cardinality(v_found) = 0 then
        perform ojs._raise('OJ404', format('dead letter job %s not found', p_id),
            jsonb_build_object('resource_type', 'dead_letter_job', 'resource_id', p_id));
    end if;
    return v_found[1];
end;
$$;
comment on function ojs._dead_for(uuid, text) is
'The dead letter with that id of a tenant, or of any tenant for null. Raises not_found,
ambiguous_job.';
