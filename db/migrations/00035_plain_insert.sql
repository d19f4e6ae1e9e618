-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- With its caller's rights: who that is tells whether this is a plain insert. The enqueue functions know the tenant, and whether
-- max_attempts was given beside the policy. Only for rows that need it (the trigger's condition, which every statement reads
-- anew and which therefore is short), so that ordinary inserts call no function per row.
-- +goose StatementBegin
create function ojs._job_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if current_user <> 'ojs_owner' then
        new.state := ojs._first_state(new.state = 'pending', new.scheduled_at, ojs.now());
        if new.state <> 'available' then
            new.seq := null;
        end if;
        new.max_attempts := coalesce(ojs._retry_max_attempts(new.retry), new.max_attempts);
        if new.meta ? 'tenant_id' and new.tenant_id is distinct from new.meta ->> 'tenant_id' and ojs.current_tenant() is null
                and new.tenant_id = (select s.default_tenant from ojs.settings s) and jsonb_typeof(new.meta -> 'tenant_id') = 'string' then
            new.tenant_id := new.meta ->> 'tenant_id';
        end if;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_arriving() is 'Trigger: gives a new job the state, tenant and attempts that follow from its other attributes.';

create trigger job_arriving before insert on ojs.job for each row
    when (new.scheduled_at is not null or new.retry is not null or new.meta <> '{}') execute function ojs._job_arriving();

-- +goose StatementBegin
create function ojs._job_inserted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_line      record;
    v_queues    text[];
    v_scheduled boolean := false;
    v_latest    uuid;
begin
    -- Most statements insert one simple job, and for one job aggregates cost more than all the rest.
    insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
    select j.tenant_id, j.queue, j.priority, j.state, 1, j.seq, j.seq
    from inserted j
    where not exists (select from inserted offset 1) and j.state = 'available' and ojs._simple_names(j.tenant_id, j.type, j.queue, j.priority)
      and ojs._simple_rest(j.id, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra)
      and j.id <= ojs._latest_id()
    returning case when exists (select from ojs.waiter w where w.queue = k.queue) then array[k.queue] end into v_queues;
    if found then
        if v_queues is not null then
            perform ojs._notify(v_queues);
        end if;
        return null;
    end if;
    v_latest := ojs._latest_id();
    for v_line in
        insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, j.state, sum(j.jobs), min(j.lo), max(j.hi)
        from (
            -- What jobs have in common is looked at once.
            select j.tenant_id, j.queue, j.priority, j.state, j.type, count(*) as jobs, min(j.seq) as lo, max(j.seq) as hi
            from inserted j
            group by j.tenant_id, j.queue, j.priority, j.state, j.type
            having bool_and(ojs._simple_rest(j.id, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options,
                    j.extra) and j.id <= v_latest
                or ojs._check_job(j.tenant_id, j.id, j.type, j.queue, j.priority, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms,
                    j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra))
        ) j
        group by j.tenant_id, j.queue, j.priority, j.state
        having bool_and(ojs._simple_names(j.tenant_id, j.type, j.queue, j.priority)
            or ojs._check_job(j.tenant_id, null, j.type, j.queue, j.priority, 3, null, null, null, null, null, '[]', '{}', null, null, null))
        returning k.queue, k.to_state, exists (select from ojs.waiter w where w.queue = k.queue) as awaited
    loop
        if v_line.to_state = 'available' and v_line.awaited then
            v_queues := v_queues || v_line.queue;
        elsif v_line.to_state = 'scheduled' then
            v_scheduled := true;
        end if;
    end loop;
    if v_scheduled then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select j.scheduled_at, 'due', array_agg(j.tenant_id), array_agg(j.id)
        from (select j.*, row_number() over (partition by j.scheduled_at) / 1000 as part from inserted j where j.state = 'scheduled') j
        group by j.scheduled_at, j.part;
    end if;
    if exists (select from inserted j where j.expires_at is not null) then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select j.expires_at, 'expiry', array_agg(j.tenant_id), array_agg(j.id)
        from (select j.*, row_number() over (partition by j.expires_at) / 1000 as part from inserted j where j.expires_at is not null) j
        group by j.expires_at, j.part;
    end if;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_inserted() is
'Trigger: refuses a statement that inserts a job which breaks a rule, appends to the wake journal and notifies. The only thing a producer
writes besides its jobs.';

-- The enqueue functions do all of this themselves, because they know what they insert. As text, because every statement reads the condition
-- anew, and a constant of type name takes 64 numbers.
create trigger job_inserted after insert on ojs.job referencing new table as inserted for each statement
    when (current_user::text <> 'ojs_owner') execute function ojs._job_inserted();

create view ojs.jobs with (security_invoker = true) as
select j.tenant_id, j.id, j.type, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.args, j.meta, j.created_at, j.enqueued_at, j.scheduled_at, j.expires_at,
    j.started_at, j.lease_expires_at, j.finished_at, j.retry_at, j.worker_id, j.errors, j.result, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.retry, j.options, j.extra
from ojs.job j;
comment on view ojs.jobs is
'Jobs, for reading and for plain inserts: insert into ojs.jobs (type, args, queue, ...) in a transaction of your own enqueues like
ojs.enqueue, with the same rules and the same errors. May be given: id (of at most a day ahead), type, queue, priority, scheduled_at,
expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra; and tenant_id by a role that is no tenant''s. A
tenant''s role sees and inserts its own jobs only.';
reset role;
