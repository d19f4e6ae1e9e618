-- Rules that new jobs meet where they are configured: suspended and unknown tenants, max_priority,
-- and defaults of queues and of the deployment. They hold for every function that enqueues and for
-- plain inserts, because a trigger on ojs.job applies them.
--
-- While there is such a rule, the empty type ojs._job_rules exists. The condition of the trigger asks
-- for it by name, in PostgreSQL's cache of the catalog; while it does not exist, the trigger's
-- function is not called. To make or drop a trigger instead would need a lock on ojs.job, and any
-- open transaction that has enqueued would keep an operator from suspending a tenant.

create or replace function ojs._arm_job_rules() returns void
language plpgsql
as $$
declare
    v_wanted boolean := exists (
        select from ojs.settings s where s.bars or num_nonnulls(s.lowest_max_priority, s.default_retry) > 0)
        or exists (select from ojs.queue q where ojs._gives(q.config));
begin
    if v_wanted and not ojs._ruled() then
        create type ojs._job_rules as ();
        revoke all on type ojs._job_rules from public;
        comment on type ojs._job_rules is
            'Exists while there are rules for new jobs that are checked one by one (ojs._arm_job_rules).';
    elsif not v_wanted and ojs._ruled() then
        drop type ojs._job_rules;
    end if;
end;
$$;
comment on function ojs._arm_job_rules() is
'Has ojs._job_ruled apply the rules for new jobs while there are any: makes ojs._job_rules, or drops
it. A transaction that begins later obeys. One that is open may not see the change before
it ends. Only after ojs._alone_with_queues.';

create or replace function ojs._ruled() returns boolean
language sql stable
as $$ select to_regclass('ojs._job_rules') is not null $$;
comment on function ojs._ruled() is
'Returns whether there are rules for new jobs that are checked one by one. The condition of the
trigger job_ruled asks the same. Becomes part of the expression that asks.';

-- Stable, so that it reads with the snapshot of the statement that enqueues: all jobs of a statement
-- meet the same rules, and ojs._insert_jobs returns them as they are stored.
create or replace function ojs._job_ruled() returns trigger
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules record;
    v_has   ojs._defaults;
begin
    -- A dead letter that moves back from ojs.dead_job is inserted, too, but is not a new job.
    if new.state = 'discarded' then
        return new;
    end if;
    select s.bars, s.lowest_max_priority as lowest, s.default_retry is not null and new.retry is null
            or exists (select from ojs.queue q where q.queue = new.queue and ojs._gives(q.config)) as gives
    into v_rules from ojs.settings s;
    if v_rules.bars then
        perform ojs._refuse(r) from ojs._barred(new.tenant_id, null) r where r is not null;
    end if;
    if v_rules.gives then
        v_has := ojs._defaulted(new.queue, row(new.max_attempts, new.retry, new.timeout_ms, new.visibility_timeout_ms));
        new.max_attempts := v_has.max_attempts;
        new.retry := v_has.retry;
        new.timeout_ms := v_has.timeout_ms;
        new.visibility_timeout_ms := v_has.visibility_timeout_ms;
    end if;
    -- Priorities above 100 are refused anyway, with another error.
    if new.priority > v_rules.lowest and new.priority <= 100 then
        perform ojs._refuse(r) from ojs._too_high(new.tenant_id, new.priority, null) r where r is not null;
        new.priority := ojs._clamped(new.tenant_id, new.priority);
    end if;
    return new;
end;
$$;
comment on function ojs._job_ruled() is
'Trigger: applies the rules for new jobs, however the job is enqueued. Refuses jobs of tenants that
are suspended or not known, and priorities above the tenant''s max_priority, or lowers the priority
to it; fills in defaults of the queue or the deployment. Functions that enqueue several jobs have
checked before, so that one refused job does not undo the other jobs.';
