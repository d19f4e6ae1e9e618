-- Lists of jobs for operators, a page at a time. No index has states or types. So a page looks at
-- 10,000 jobs, or a few more (jobs_floor), even if few of them match its filter. The next page
-- begins below the last job that this page looked at.

-- Lists jobs, the newest first.
-- Locks nothing.
-- Reads the jobs between two ids, or all of a tenant that has few.
create or replace function ojs.list_jobs(
    p_states text[] default null, p_queue text default null, p_type text default null, p_since timestamptz default null,
    p_until timestamptz default null, p_before uuid default null, p_floor uuid default null, p_skip int default 0, p_limit int default 50,
    p_tenant text default null
) returns setof ojs.job
language plpgsql stable security definer rows 50 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_before uuid := ojs._before(p_before, p_until);
    v_states ojs.job_state[] := p_states;
    v_prefix text := case when p_type like '%*' then left(p_type, -1) end;
begin
    perform ojs._check_limit(p_limit, 1000);
    if ojs._few_jobs(v_tenant) then
        return query
        select j.* from ojs._shards(v_tenant) s
        cross join lateral (
            select j.* from ojs.job j where j.queue = s.queue and j.priority = s.priority and j.tenant_id = v_tenant offset 0) j
        where j.id < v_before and (v_states is null or j.state = any (v_states)) and (p_queue is null or j.queue = p_queue)
            and (p_type is null or j.type = p_type or starts_with(j.type, v_prefix)) and (p_since is null or j.created_at >= p_since)
            and (p_until is null or j.created_at < p_until)
        order by j.id desc offset p_skip fetch first p_limit rows with ties;
        return;
    end if;
    return query
    select j.* from ojs.job j
    where j.id < v_before and j.id >= coalesce(p_floor, '00000000-0000-0000-0000-000000000000')
        and (v_tenant is null or j.tenant_id = v_tenant) and (v_states is null or j.state = any (v_states))
        and (p_queue is null or j.queue = p_queue) and (p_type is null or j.type = p_type or starts_with(j.type, v_prefix))
        and (p_since is null or j.created_at >= p_since) and (p_until is null or j.created_at < p_until)
    order by j.id desc offset p_skip fetch first p_limit rows with ties;
end;
$$;
comment on function ojs.list_jobs(text[], text, text, timestamptz, timestamptz, uuid, uuid, int, int, text) is
'Returns jobs by filters, those with the highest ids, which are the newest, first.
p_states, p_queue, p_type: only such jobs (null: all); a p_type that ends with * is a beginning.
p_since, p_until: created from one time on, and before another.
p_before, p_floor: with ids below one, and from the other on.
p_skip: leaves out so many jobs first.
p_limit: 1 to 1000. More rows are returned only where tenants use the same id.
p_tenant: only jobs of this tenant.
For pages: p_floor is ojs.jobs_floor of the same p_before, p_until and p_tenant. p_before of the
next page is the last id if the page is full, else that floor.
Raises invalid_request.';

-- Returns how far a page of ojs.list_jobs looks.
-- Locks nothing.
-- Reads 10,000 entries of an index.
create or replace function ojs.jobs_floor(p_before uuid default null, p_until timestamptz default null, p_tenant text default null)
returns uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_most   constant int := 10000;
    v_before uuid := ojs._before(p_before, p_until);
begin
    if ojs._few_jobs(ojs._session_tenant(p_tenant)) then
        return null;
    end if;
    -- Return only the time of the id, because the id may be another tenant's.
    return (
        select ojs._id_at(ojs._id_time(j.id)) from (
            select j.id from ojs.job j where j.id < v_before order by j.id desc offset c_most - 1 limit 1) j);
end;
$$;
comment on function ojs.jobs_floor(uuid, timestamptz, text) is
'Returns the id down to which a page of ojs.list_jobs looks.
Then the page looks at 10,000 jobs or a few more.
Null: it looks at all jobs, because there are fewer, or the tenant has fewer.';

create or replace function ojs._before(p_before uuid, p_until timestamptz) returns uuid
language sql immutable
as $$
    -- The id may be up to a day ahead of the time, because clients may choose such ids.
    select least(coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
        case when p_until is not null then ojs._id_at(p_until + interval '1 day') end)
$$;
comment on function ojs._before(uuid, timestamptz) is
'Returns the id below which all jobs are that were created before p_until, and not above p_before.';

create or replace function ojs._few_jobs(p_tenant text) returns boolean
language sql stable
as $$
    select p_tenant is not null and coalesce(sum(u.total), 0) <= 10000
    from (
        select t.total from ojs.tally t where t.tenant_id = p_tenant
        union all
        select r.total from ojs._recent() r where r.tenant_id = p_tenant
    ) u
$$;
comment on function ojs._few_jobs(text) is
'Returns whether a tenant has had at most 10,000 jobs, so that all of them can be read at once;
false for all tenants together.';

-- Cancels many jobs.
-- Locks their rows in the order of the ids, with skip locked.
-- Writes job, release, audit.
create or replace function ojs.cancel_many(p_ids uuid[], p_tenant text default null) returns setof ojs.refusal
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_done   int := 0;
    v_id     uuid;
    v_of     record;
    v_job    ojs.job;
begin
    if coalesce(cardinality(p_ids), 0) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'ids must name 1 to 10000 jobs', '{"field": "ids"}');
    end if;
    for v_id in select distinct i from unnest(p_ids) i order by i loop
        select count(*) as jobs, min(j.tenant_id) as tenant_id, min(j.state::text) as state into v_of
        from ojs.job j where j.id = v_id and (v_tenant is null or j.tenant_id = v_tenant);
        select * into v_job from ojs.job j
        where v_of.jobs = 1 and j.id = v_id and j.tenant_id = v_of.tenant_id and not ojs._ended(j.state) for update skip locked;
        if found then
            v_done := v_done + 1;
            update ojs.job j
            set state = 'cancelled', finished_at = ojs.now(), lease = null, lease_expires_at = null, retry_at = null
            where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
            perform ojs._released(v_job, 'cancelled', true);
        else
            return query select r.sqlstate, r.message, jsonb_build_object('job_id', v_id)
            from (select case when v_of.jobs = 0 then 'OJ404' when v_of.jobs > 1 then 'OJ411'
                    when ojs._ended(v_of.state::ojs.job_state) then 'OJ409' else '55P03' end as sqlstate,
                case when v_of.jobs = 0 then 'the job does not exist' when v_of.jobs > 1 then 'the id exists in more than one tenant'
                    when ojs._ended(v_of.state::ojs.job_state) then 'the job is ' || v_of.state || ' already'
                    else 'another transaction has the job locked' end as message) r;
        end if;
    end loop;
    perform ojs._audit(v_tenant, 'jobs', null, 'cancelled', null, jsonb_build_object('jobs', v_done)) where v_done > 0;
end;
$$;
comment on function ojs.cancel_many(uuid[], text) is
'Cancels jobs as ojs.cancel does, and returns a row for each job that it did not cancel.
The row says why; the detail has job_id.
p_ids: 1 to 10000; p_tenant: only jobs of this tenant.
Never waits: a job that another session has locked gets 55P03; try it again. Raises
invalid_request.';
