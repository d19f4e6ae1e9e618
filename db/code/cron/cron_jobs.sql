-- The list ojs.cron.open: jobs that a cron job made and that may not have ended, and what the
-- overlap policies ask about them.
-- Called by cron/cron.sql and cron/fire.sql, under the lock of the cron job's row.

create or replace function ojs._cron_meta(p_meta jsonb, p_name text, p_due timestamptz, p_now timestamptz) returns jsonb
language sql immutable
as $$
    select p_meta || jsonb_build_object('cron_name', p_name,
        'cron_scheduled_at', to_char(p_due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'cron_triggered_at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
$$;
comment on function ojs._cron_meta(jsonb, text, timestamptz, timestamptz) is
'The meta of a job that a cron job makes (ojs-cron section 6.3).';

create or replace function ojs._cron_most_open() returns int
language sql immutable
as $$ select 100 $$;
comment on function ojs._cron_most_open() is
'How many of a cron job''s jobs ojs.cron.open lists, and so how many may wait for the run before.';

create or replace function ojs._open_jobs(p_cron ojs.cron, p_ids uuid[]) returns table (id uuid, n bigint, state ojs.job_state)
language sql stable
as $$
    select o.id, o.n, j.state
    from unnest(p_ids) with ordinality o(id, n)
    cross join lateral (
        select j.state from ojs.job j where j.id = o.id and j.tenant_id = p_cron.tenant_id and not ojs._ended(j.state) limit 1
    ) j
$$;
comment on function ojs._open_jobs(ojs.cron, uuid[]) is
'The jobs of a cron job that have not ended: waiting, running, or to be retried. n: their position
in p_ids. In the order of p_ids, so that limit 1 reads no further than the first. Becomes part of
the query that asks.';

create or replace function ojs._cron_open(p_cron ojs.cron) returns uuid[]
language sql stable
as $$ select coalesce(array_agg(o.id order by o.n), '{}') from ojs._open_jobs(p_cron, p_cron.open) o $$;
comment on function ojs._cron_open(ojs.cron) is 'The jobs that a cron job made and that have not ended, oldest first.';

create or replace function ojs._from_first_open(p_cron ojs.cron) returns uuid[]
language sql stable
as $$ select coalesce(p_cron.open[(select o.n from ojs._open_jobs(p_cron, p_cron.open) o limit 1):], '{}') $$;
comment on function ojs._from_first_open(ojs.cron) is
'The list of jobs that a cron job made, from the oldest job on that has not ended; later jobs may
have ended. Empty: all have ended.';

create or replace function ojs._jobs_before(p_cron ojs.cron) returns uuid[]
language plpgsql stable
as $$
declare
    v_open uuid[];
begin
    if p_cron.overlap_policy = 'allow' then
        return p_cron.open;
    elsif p_cron.overlap_policy = 'cancel_previous' then
        return ojs._cron_open(p_cron);
    end if;
    v_open := ojs._from_first_open(p_cron);
    if p_cron.overlap_policy = 'enqueue' and cardinality(v_open) >= ojs._cron_most_open() then
        -- The list is full. Jobs after the first may have ended: count exactly before the run is
        -- refused.
        return ojs._cron_open(p_cron);
    end if;
    return v_open;
end;
$$;
comment on function ojs._jobs_before(ojs.cron) is
'The jobs of the runs before, as far as the overlap policy asks about them.
allow: the whole list.
cancel_previous: the jobs that have not ended.
skip, enqueue: the list from the first job on that has not ended.';

create or replace function ojs._waits_for_run(p_cron ojs.cron, p_open uuid[]) returns boolean
language sql immutable
as $$ select p_open <> '{}' and p_cron.overlap_policy = 'enqueue' $$;
comment on function ojs._waits_for_run(ojs.cron, uuid[]) is
'Whether a new job has to wait, pending, for the run before to end. The tick makes it available
then (_call_next_run).';

create or replace function ojs._lock_open(p_cron ojs.cron, p_ids uuid[]) returns boolean
language sql
as $$
    select count(*) = cardinality(p_ids)
    from (
        select from ojs.job j
        where j.id = any (p_ids) and j.tenant_id = p_cron.tenant_id and not ojs._ended(j.state) for update skip locked
    ) j
$$;
comment on function ojs._lock_open(ojs.cron, uuid[]) is
'Locks the jobs of a cron job that have not ended (skip locked), and returns whether all of them
are locked.';

create or replace function ojs._call_next_run(p_cron ojs.cron) returns boolean
language plpgsql
as $$
declare
    v_open uuid[] := ojs._from_first_open(p_cron);
begin
    -- Only the oldest job that has not ended may start: runs come one after the other (ojs-cron
    -- section 6.1, enqueue).
    perform ojs.activate(j.id, j.tenant_id)
    from (
        select j.id, j.tenant_id from ojs.job j
        where j.id = v_open[1] and j.tenant_id = p_cron.tenant_id and j.state = 'pending' for update skip locked
    ) j;
    return exists (select from ojs._open_jobs(p_cron, v_open) o where o.state = 'pending');
end;
$$;
comment on function ojs._call_next_run(ojs.cron) is
'Makes the next waiting job of a cron job available if the run before has ended. Returns whether
more jobs wait.';

create or replace function ojs._note_cron_job(p_cron ojs.cron, p_run ojs.cron_run, p_open uuid[]) returns void
language plpgsql
as $$
declare
    v_open  uuid[] := case when p_cron.overlap_policy = 'cancel_previous' then '{}' else p_open end || p_run.job_id;
    v_waits boolean := ojs._waits_for_run(p_cron, p_open);
begin
    if cardinality(v_open) > ojs._cron_most_open() then
        -- Keep the latest 50 jobs that have not ended, and every pending job. Pending jobs are kept
        -- under any policy, because the policy may have been "enqueue" before: a pending job that
        -- is no longer on the list is never made available.
        v_open := array(
            select x.id
            from (select o.*, row_number() over (order by o.n desc) as back from ojs._open_jobs(p_cron, v_open) o) x
            where x.back <= ojs._cron_most_open() / 2 or x.state = 'pending'
            order by x.n);
    end if;
    update ojs.cron c
    set rev = c.rev + 1, open = v_open, waiting = c.waiting or v_waits, run_count = c.run_count + 1, last_run_at = p_run.at,
        look_at = case when v_waits then ojs._cron_look(c, p_run.at + interval '1 second') else c.look_at end
    where c.id = p_cron.id;
end;
$$;
comment on function ojs._note_cron_job(ojs.cron, ojs.cron_run, uuid[]) is
'Adds a job to the cron job''s list of jobs that may not have ended, and counts the run.';

create or replace function ojs._trim_cron_runs(p_tenant text, p_name text) returns void
language sql
as $$
    delete from ojs.cron_run r
    using (
        select k.due_at from ojs.cron_run k
        where k.tenant_id = p_tenant and k.name = p_name
          and k.due_at < (
            select l.due_at from ojs.cron_run l
            where l.tenant_id = p_tenant and l.name = p_name order by l.due_at desc offset 1000 limit 1)
        order by k.due_at limit 1000
    ) old
    where r.tenant_id = p_tenant and r.name = p_name and r.due_at = old.due_at
$$;
comment on function ojs._trim_cron_runs(text, text) is
'Deletes up to 1000 rows of a cron job''s history, the oldest first, and keeps the latest 1000.';
