-- Defaults of new jobs: by a trigger that exists only where defaults are configured
-- (ojs._arm_defaults).

comment on type ojs._defaults is
'The attributes of a job that may have a default from its queue or the deployment.';

create or replace function ojs._defaulted(p_queue text, p_given ojs._defaults) returns ojs._defaults
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_config jsonb := (select q.config from ojs.queue q where q.queue = p_queue);
begin
    p_given.visibility_timeout_ms := coalesce(p_given.visibility_timeout_ms, (v_config ->> 'visibility_timeout')::int * 1000);
    p_given.timeout_ms := coalesce(p_given.timeout_ms, (v_config ->> 'default_timeout')::int * 1000);
    if p_given.retry is null then
        p_given.retry := coalesce(v_config -> 'default_retry', (select s.default_retry from ojs.settings s));
        if p_given.retry is not null and p_given.max_attempts = ojs._attempts(null, null) then
            p_given.max_attempts := ojs._attempts(null, p_given.retry);
        end if;
    end if;
    return p_given;
end;
$$;
comment on function ojs._defaulted(text, ojs._defaults) is
'Fills in attributes that a new job has not set, from its queue or else from the deployment. A job
without a retry policy and with max_attempts 3 counts as one that has not set max_attempts.';

create or replace function ojs._has_defaults() returns boolean
language plpgsql stable
as $$
begin
    return exists (select from pg_trigger t where t.tgrelid = 'ojs.job'::regclass and t.tgname = 'job_defaults');
end;
$$;
comment on function ojs._has_defaults() is
'Whether any queue or the deployment has defaults for new jobs.';

create or replace function ojs._job_defaults() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_has ojs._defaults;
begin
    -- A dead letter that moves back from ojs.dead_job is inserted, too, but is not a new job.
    if new.state <> 'discarded' then
        v_has := ojs._defaulted(new.queue, row(new.max_attempts, new.retry, new.timeout_ms, new.visibility_timeout_ms));
        new.max_attempts := v_has.max_attempts;
        new.retry := v_has.retry;
        new.timeout_ms := v_has.timeout_ms;
        new.visibility_timeout_ms := v_has.visibility_timeout_ms;
    end if;
    return new;
end;
$$;
comment on function ojs._job_defaults() is
'Trigger: fills in attributes that a new job has not set, from its queue or else from the
deployment.';
