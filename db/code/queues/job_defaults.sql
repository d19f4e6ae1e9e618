-- Defaults of new jobs, from their queue or the deployment. enqueue/job_ruled.sql fills them in.

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

create or replace function ojs._gives(p_config jsonb) returns boolean
language sql immutable
as $$ select p_config ?| '{visibility_timeout,default_timeout,default_retry}' $$;
comment on function ojs._gives(jsonb) is
'Returns whether the configuration of a queue has defaults for new jobs. Becomes part of the query
that asks.';
