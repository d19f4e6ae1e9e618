-- How dead letters are deleted: one, all that match a filter, and, by the tick, those beyond the
-- configured age or number. Statistics keep counting deleted jobs. Called by tenants and operators;
-- _prune_dead_letters by the tick.

-- Deletes one dead letter for good.
-- Locks the job row.
-- Writes ojs.dead_letter, ojs.job, ojs.dead_job.
create or replace function ojs.delete_dead_letter(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._lock_dead(p_id, ojs._session_tenant(p_tenant));
begin
    perform ojs._delete_dead(array[v_job.tenant_id], array[v_job.id]);
    return v_job;
end;
$$;
comment on function ojs.delete_dead_letter(uuid, text) is
'Deletes a job in the dead letter queue for good and returns what it was.
Statistics keep counting it.
Raises not_found, ambiguous_job.
Locks the job row.';

-- Deletes the oldest dead letters that match a filter.
-- Locks the job rows (skip locked).
-- Writes ojs.dead_letter, ojs.job, ojs.dead_job.
create or replace function ojs.purge_dead_letters(
    p_queue text default null, p_type text default null, p_error_type text default null,
    p_since timestamptz default null, p_until timestamptz default null, p_limit int default 1000, p_tenant text default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_held   record;
    v_jobs   int;
begin
    perform ojs._check_limit(p_limit, 10000);
    v_held := ojs._lock_matching(v_tenant, p_queue, p_type, p_error_type, p_since, p_until, p_limit, false);
    v_jobs := ojs._delete_dead(v_held.o_tenants, v_held.o_ids);
    perform ojs._audit(v_tenant, 'dead_letters', p_queue, 'purged', null, jsonb_build_object('jobs', v_jobs, 'type', p_type,
        'error_type', p_error_type, 'since', ojs._utc(p_since), 'until', ojs._utc(p_until))) where v_jobs > 0;
    return v_jobs;
end;
$$;
comment on function ojs.purge_dead_letters(text, text, text, timestamptz, timestamptz, int, text) is
'Deletes for good the oldest of the jobs that ojs.dead_letters would list, and returns how many.
Call it again until it returns 0. Skips jobs that another session has locked.
p_limit: 1 to 10000.
Raises invalid_request.';

-- Sets how long, and how many, dead letters are kept.
-- Locks the rows of ojs.settings and ojs.dead_letter_mark.
-- Writes both.
create or replace function ojs.configure_dead_letters(p_max_age interval default null, p_max_count int default null) returns ojs.settings
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
    set dead_letter_max_age = coalesce(p_max_age, s.dead_letter_max_age),
        dead_letter_max_count = coalesce(p_max_count, s.dead_letter_max_count)
    returning * into v_settings;
    -- A new round begins at the next tick, with the first tenant: a stricter bound acts at once.
    update ojs.dead_letter_mark m set next_at = '-infinity', tenant_id = '';
    return v_settings;
end;
$$;
comment on function ojs.configure_dead_letters(interval, int) is
'Sets how long jobs stay in the dead letter queue, and how many, and returns the settings.
The tick deletes the rest, the oldest first, in rounds every 5 minutes; the next round begins at
once.
p_max_age: default 180 days.
p_max_count: of each tenant, default 10000.
Null leaves a value as it is.
Raises invalid_request.';

create or replace function ojs._prune_dead_letters(p_limit int) returns boolean
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_mark   ojs.dead_letter_mark;
    v_set    ojs.settings;
    v_full   boolean;
    v_tenant text;
    v_jobs   bigint;
    v_left   bigint := 100 * p_limit;
begin
    -- This row makes rounds run in one session at a time. Its tenant_id is where the last step
    -- stopped.
    select m.* into v_mark from ojs.dead_letter_mark m for update skip locked;
    if not found then
        return false;
    end if;
    select * into v_set from ojs.settings;
    v_full := ojs._delete_oldest(null, v_now - v_set.dead_letter_max_age, p_limit) >= p_limit;
    -- Go on with the next tenant until p_limit dead letters are deleted, or 100 times as many are
    -- counted: counting without deleting would take as long.
    while not v_full loop
        v_tenant := (select d.tenant_id from ojs.dead_letter d where d.tenant_id > v_mark.tenant_id order by d.tenant_id limit 1);
        exit when v_tenant is null;
        v_jobs := (select count(*) from ojs.dead_letter d where d.tenant_id = v_tenant);
        v_left := v_left - v_jobs;
        if v_jobs > v_set.dead_letter_max_count then
            v_full := ojs._delete_oldest(v_tenant, null, least(p_limit, v_jobs - v_set.dead_letter_max_count)::int) >= p_limit;
        end if;
        if not v_full then
            v_mark.tenant_id := v_tenant;
            v_full := v_left <= 0;
        end if;
    end loop;
    update ojs.dead_letter_mark m
    set tenant_id = case when v_full then v_mark.tenant_id else '' end,
        next_at = case when v_full then v_mark.next_at else v_now + interval '5 minutes' end;
    return v_full;
end;
$$;
comment on function ojs._prune_dead_letters(int) is
'One step of removing dead letters beyond their age or number. Deletes up to about p_limit, and
returns whether there may be more. When a round is done, the next one is due in 5 minutes. If
another session runs a step, it does nothing.';

create or replace function ojs._delete_oldest(p_tenant text, p_until timestamptz, p_limit int) returns int
language plpgsql
as $$
declare
    v_held record := ojs._lock_matching(p_tenant, null, null, null, null, p_until, p_limit, false);
begin
    perform ojs._delete_dead(v_held.o_tenants, v_held.o_ids);
    return coalesce(cardinality(v_held.o_ids), 0);
end;
$$;
comment on function ojs._delete_oldest(text, timestamptz, int) is
'Deletes up to p_limit dead letters of a tenant (null: of all), discarded before p_until (null: at
any time), and returns how many it has locked for it.';

create or replace function ojs._lock_dead(p_id uuid, p_tenant text) returns ojs.job
language plpgsql
as $$
declare
    v_dead ojs.dead_letter := ojs._dead_for(p_id, p_tenant);
    v_job  ojs.job;
begin
    for i in 1 .. 10 loop
        perform ojs._restore_dead(array[v_dead.tenant_id], array[v_dead.id]);
        select * into v_job from ojs.job j where j.id = v_dead.id and j.tenant_id = v_dead.tenant_id for update;
        -- While this call waited for the lock, the session that held it may have retried, deleted
        -- or moved the job. Look again.
        v_dead := ojs._dead_for(p_id, v_dead.tenant_id);
        if v_job.id is not null and not v_dead.aside then
            return v_job;
        end if;
    end loop;
    perform ojs._raise('OJ409', format('job %s cannot be taken out of the dead letter queue: another job has got its id since', p_id),
        jsonb_build_object('job_id', p_id));
end;
$$;
comment on function ojs._lock_dead(uuid, text) is
'Locks a job in the dead letter queue, moves it from ojs.dead_job to ojs.job if need be, and
returns it. Raises not_found, ambiguous_job, conflict (another job has the id by now).';

create or replace function ojs._lock_matching(
    p_tenant text, p_queue text, p_type text, p_error_type text, p_since timestamptz, p_until timestamptz, p_limit int, p_alive boolean,
    out o_tenants text[], out o_ids uuid[]
)
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
begin
    select array_agg(h.tenant_id), array_agg(h.id) into o_tenants, o_ids
    from (
        select j.tenant_id, j.id
        from (
            select d.* from ojs._dead_matching(p_tenant, p_queue, p_type, p_error_type, p_since, p_until) d
            -- This limit keeps the direction of the join: the oldest dead letters first, then one
            -- index lookup of each job.
            order by d.at, d.tenant_id, d.id limit 2147483647
        ) d
        cross join lateral (
            select * from (
                select j.tenant_id, j.id from ojs.job j
                where not d.aside and j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'discarded'
                  and (not p_alive or (j.expires_at > v_now) is not false) for update skip locked
            ) j
            union all
            select * from (
                select k.tenant_id, k.id from ojs.dead_job k
                where d.aside and k.id = d.id and k.tenant_id = d.tenant_id
                  and (not p_alive or (k.expires_at > v_now) is not false) for update skip locked
            ) k
        ) j
        limit p_limit
    ) h;
end;
$$;
comment on function ojs._lock_matching(text, text, text, text, timestamptz, timestamptz, int, boolean) is
'Locks the oldest p_limit dead letters that match a filter and that no other session has locked.
p_alive: leaves out jobs whose expires_at has passed.';

create or replace function ojs._delete_dead(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    v_jobs int;
begin
    with asked as materialized (
        select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
    ), here as materialized (
        select j.id, j.tenant_id, false as aside from asked a
        cross join lateral (
            select j.id, j.tenant_id from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'discarded' for update skip locked
        ) j
    ), aside as materialized (
        select k.id, k.tenant_id, true as aside from asked a
        cross join lateral (
            select k.id, k.tenant_id from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id for update skip locked
        ) k
    -- Only a row whose aside still fits is deleted: the job may have been moved or retried since.
    ), gone as (
        delete from ojs.dead_letter d using (select * from here union all select * from aside) h
        where d.id = h.id and d.tenant_id = h.tenant_id and d.aside = h.aside
        returning d.id, d.tenant_id, d.aside
    ), deleted as (
        delete from ojs.job j using gone g where not g.aside and j.id = g.id and j.tenant_id = g.tenant_id
    ), deleted_aside as (
        delete from ojs.dead_job k using gone g where g.aside and k.id = g.id and k.tenant_id = g.tenant_id
    )
    select count(*) into v_jobs from gone;
    return v_jobs;
end;
$$;
comment on function ojs._delete_dead(text[], uuid[]) is
'Deletes the given jobs that are in the dead letter queue and that no other session has locked.
Returns how many. Statistics keep counting them.';
