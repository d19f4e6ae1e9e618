-- Runs with its caller's rights, because current_user then distinguishes a plain insert from an
-- insert by an enqueue function. The enqueue functions have set tenant and max_attempts already;
-- setting them again would overrule a max_attempts that was given besides the retry policy. The
-- trigger's condition keeps ordinary rows from calling this function; it is short, because
-- PostgreSQL reads it anew for every statement.
--
-- The function cannot know whether the default tenant was given or filled in by the rule. For that
-- the rule would have to name meta twice, or to read a subquery, which costs a fifth of a
-- statement.
create or replace function ojs._job_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if current_user <> 'ojs_owner' then
        new.state := ojs._first_state(new.state = 'pending', new.scheduled_at, ojs.now());
        if new.state <> 'available' then
            new.seq := null;
        end if;
        new.max_attempts := coalesce(ojs._retry_max_attempts(new.retry), new.max_attempts);
        if new.tenant_id is null then
            new.tenant_id := ojs._required_tenant(new.meta);
        elsif new.meta ? 'tenant_id' and new.tenant_id is distinct from new.meta ->> 'tenant_id' and ojs.current_tenant() is null
                and new.tenant_id = (select s.default_tenant from ojs.settings s) and jsonb_typeof(new.meta -> 'tenant_id') = 'string' then
            new.tenant_id := new.meta ->> 'tenant_id';
        end if;
    end if;
    return new;
end;
$$;
comment on function ojs._job_arriving() is
'Trigger: sets the state, tenant and attempts of a new job that follow from its other attributes.';

create or replace function ojs._required_tenant(p_meta jsonb) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return ojs._unnamed_tenant(p_meta);
end;
$$;
comment on function ojs._required_tenant(jsonb) is
'Does what ojs._unnamed_tenant does, for inserts into ojs.jobs.';

-- Most statements insert one ordinary job; for them the aggregates in the second half would cost
-- more than all the rest. Many jobs are grouped by their names, so that each name is checked once.
--
-- A job that breaks a rule is left out of the journal, and the error is raised afterwards by a
-- short statement, because an error shows the statement that raised it. An id that was too far
-- ahead may be valid a moment later, when it is checked again. Its job has no row in the journal
-- and would never be handed out, so the statement is refused in any case (40001).
create or replace function ojs._job_inserted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queues text[];
    v_latest uuid := ojs._latest_id();
    v_limits ojs.allowance[];
    v_noted  bigint;
begin
    insert into ojs.journal as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
    select j.tenant_id, j.queue, j.priority, j.state, 1, j.seq, j.seq from inserted j
    where not exists (select from inserted offset 1)
      and num_nonnulls(j.tags, j.retry, j.options, j.extra, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms) = 0
      and ojs._bare_job(j.tenant_id, j.type, j.queue, j.priority, j.args, j.meta) and ojs._v7(j.id) and j.id <= v_latest
    returning case when exists (select from ojs.waiter w where w.queue = k.queue) then array[k.queue] end,
        (select array_agg(a) from ojs.allowance a where a.tenant_id in ('', k.tenant_id) and a.queue in ('', k.queue))
        into v_queues, v_limits;
    if found then
        if v_limits is not null then
            perform ojs._admit_one(v_limits, i.tenant_id, i.queue, i.state, ojs._size(i.args, i.meta)) from inserted i;
        end if;
        if v_queues is not null then
            perform ojs._notify(v_queues);
        end if;
        return null;
    end if;
    with noted as (
        insert into ojs.journal as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, j.state, sum(j.jobs), min(j.lo), max(j.hi)
        from (select j.tenant_id, j.queue, j.priority, j.state, j.type, count(*) as jobs, min(j.seq) as lo, max(j.seq) as hi
            from inserted j
            group by j.tenant_id, j.queue, j.priority, j.state, j.type having bool_and(
                ojs._ordinary_id(j.id, v_latest) and ojs._ordinary_rest(j.tenant_id, j.priority, j.max_attempts, j.scheduled_at,
                    j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra)
                or ojs._job_violation(j.tenant_id, j.id, j.type, j.queue, j.priority, j.max_attempts, j.scheduled_at, j.expires_at,
                    j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra) is null)
        ) j group by j.tenant_id, j.queue, j.priority, j.state
        having bool_and(ojs._ordinary_names(j.tenant_id, j.type, j.queue)
            or ojs._job_violation(j.tenant_id, null, j.type, j.queue, j.priority, 3, null, null, null, null, null, '[]', '{}', null, null,
                null) is null)
        returning k.jobs, case when k.to_state = 'available' then k.queue end as awaited
    )
    select array_agg(distinct n.awaited) filter (where n.awaited is not null), sum(n.jobs) into v_queues, v_noted from noted n;
    if coalesce(v_noted, 0) <> (select count(*) from inserted) then
        perform ojs._check_job(i.tenant_id, i.id, i.type, i.queue, i.priority, i.max_attempts, i.scheduled_at, i.expires_at, i.timeout_ms,
            i.visibility_timeout_ms, i.tags, i.args, i.meta, i.retry, i.options, i.extra) from inserted i;
        perform ojs._raise('40001', 'a job was refused for a time that has come since');
    end if;
    perform ojs._refuse(a.refusal) from ojs._admit(array(
        select row(j.tenant_id, j.queue, j.state, count(*), sum(ojs._size(j.args, j.meta, j.tags, j.retry, j.options, j.extra)), null)
            ::ojs._new_group from inserted j group by j.tenant_id, j.queue, j.state), false) a where exists (select from ojs.allowance);
    perform ojs._remind('due', array_agg(j.scheduled_at), array_agg(j.tenant_id), array_agg(j.id))
    from (select j.*, row_number() over () / 100000 as part from inserted j where j.state = 'scheduled') j group by j.part;
    perform ojs._remind('expiry', array_agg(j.expires_at), array_agg(j.tenant_id), array_agg(j.id))
    from (select j.*, row_number() over () / 100000 as part from inserted j where j.expires_at is not null) j group by j.part;
    perform ojs._notify(v_queues);
    return null;
end;
$$;
comment on function ojs._job_inserted() is
'Trigger: refuses a statement that inserts a job which breaks a rule, appends to the journal, sets
timers and notifies.';

create or replace view ojs.jobs with (security_invoker = true) as
select j.tenant_id, j.id, j.type, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.args, j.meta, j.created_at, j.enqueued_at,
    j.scheduled_at, j.expires_at, j.started_at, j.lease_expires_at, j.finished_at, j.retry_at, j.worker_id, j.errors, j.result,
    j.timeout_ms, j.visibility_timeout_ms, j.tags, j.retry, j.options, j.extra
from ojs.job j
union all
select * from ojs._own_job;

create or replace function ojs._type_only(p_job jsonb) returns text
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_given text := (
        select k from unnest('{state, attempt, max_attempts, created_at, enqueued_at, started_at, lease_expires_at, finished_at, retry_at,
            worker_id, errors, result}'::text[]) k where p_job ->> k is not null limit 1);
begin
    if v_given is not null then
        perform ojs._raise('OJ400', format('%s cannot be given to a new job', v_given), jsonb_build_object('field', v_given), case v_given
            when 'max_attempts' then 'Write it into retry: {"max_attempts": 5}.'
            when 'state' then 'It follows from scheduled_at; ojs.enqueue(..., p_pending => true) makes a job that waits for ojs.activate.'
            else 'It says what has become of the job, and the functions that change it set it.' end);
    end if;
    return coalesce(p_job ->> 'type', ojs._no_type());
end;
$$;
comment on function ojs._type_only(jsonb) is
'Returns the type of a new job, a row of ojs.jobs. Raises invalid_request with the column''s name if
the row has a value in a column that producers may not set.';

create or replace function ojs._no_type() returns text
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform ojs._raise('OJ400', 'type is required', '{"field": "type"}');
    return null;
end;
$$;
comment on function ojs._no_type() is 'Raises that a new job has no type.';

-- An insert into the view becomes one into ojs.job with the rights of the view's owner, so that no
-- other role needs rights on the table. The grants on the view say which columns may be given. The
-- rule names each column once, because the expression for a column named twice would be evaluated
-- twice. The defaults are here and not at the view, because ORMs write null for a column that is
-- not given. The planner knows which columns an insert leaves out, so an insert without the
-- forbidden columns calls no function for them.
create or replace rule jobs_insert as on insert to ojs.jobs do instead
insert into ojs.job as j (tenant_id, id, type, queue, priority, args, meta, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms,
    tags, retry, options, extra)
values (coalesce(new.tenant_id, ojs._default_tenant()), coalesce(new.id, ojs._uuid_v7()),
    case when row(new.state, new.attempt, new.max_attempts, new.created_at, new.enqueued_at, new.started_at, new.lease_expires_at,
        new.finished_at, new.retry_at, new.worker_id, new.errors, new.result) is null then coalesce(new.type, ojs._no_type())
        else ojs._type_only(to_jsonb(new)) end,
    coalesce(new.queue, 'default'), coalesce(new.priority, 0), coalesce(new.args, '[]'), coalesce(new.meta, '{}'), new.scheduled_at,
    new.expires_at, new.timeout_ms, new.visibility_timeout_ms, new.tags, new.retry, new.options, new.extra)
returning j.tenant_id, j.id, j.type, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.args, j.meta, j.created_at, j.enqueued_at,
    j.scheduled_at, j.expires_at, j.started_at, j.lease_expires_at, j.finished_at, j.retry_at, j.worker_id, j.errors, j.result,
    j.timeout_ms, j.visibility_timeout_ms, j.tags, j.retry, j.options, j.extra;
comment on view ojs.jobs is
'Jobs, for reading and for plain inserts, which enqueue as ojs.enqueue does, with the same errors.
insert into ojs.jobs (type, args, queue, ...) in a transaction of your own enqueues. May be given:
id (of at most a day ahead), type, queue, priority, scheduled_at, expires_at, timeout_ms,
visibility_timeout_ms, tags, args, meta, retry, options, extra; and tenant_id by a role that is not
a tenant''s. Null counts as not given. The default tenant as tenant_id counts as not given, too, if
meta has a tenant_id.
A tenant''s role sees and inserts its own jobs only. Its queries read all jobs of the queues they
name, so use ojs.job_info for a single job.
An insert cannot have "on conflict"; ojs.enqueue_once enqueues once. COPY with a list of columns
works, and enqueues row by row. Only functions change jobs (ojs.help).';
