-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- A tenant's policy is written as = any (array[...]) because PostgreSQL then asks it before any condition of the reader's own: it is
-- estimated at half an operator. After such a condition, explain analyze would tell whether anybody's row has met it.
-- Row security, forced so that it holds for the owner too. The owner is the functions; the service and operators are admitted
-- by policies of their own and need no BYPASSRLS.
-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array array['job', 'job_all', 'wake', 'lease', 'release', 'tally', 'tenant', 'tenant_fairness', 'tenant_role', 'reentry', 'timer',
                                   'ring', 'queue', 'queue_priority', 'tally_mark', 'waiter', 'rotation', 'run', 'run_mark', 'sleeper', 'duty', 'clock_mark', 'cut',
                                   'idempotency',
                                   'replay_rule', 'worker', 'worker_beat',
                                   'dead_letter', 'dead_job', 'dead_letter_mark', 'upkeep_task', 'cron', 'cron_run'] loop
        execute format('alter table ojs.%I enable row level security', v_table);
        execute format('alter table ojs.%I force row level security', v_table);
        execute format('create policy functions on ojs.%I to ojs_owner using (true) with check (true)', v_table);
    end loop;
    foreach v_table in array array['job', 'wake', 'lease', 'release', 'tally', 'tenant', 'tenant_fairness', 'reentry', 'run', 'ring', 'queue', 'tally_mark',
                                   'replay_rule', 'worker', 'worker_beat',
                                   'dead_letter', 'dead_job', 'cut', 'upkeep_task', 'cron', 'cron_run'] loop
        execute format('create policy staff on ojs.%I for select to ojs_service, ojs_operator using (true)', v_table);
        execute format('grant select on ojs.%I to ojs_service, ojs_operator', v_table);
    end loop;
    foreach v_table in array array['wake', 'lease', 'release', 'tally', 'tenant', 'worker', 'worker_beat', 'cron', 'cron_run'] loop
        execute format('create policy tenant on ojs.%I for select to ojs_tenant using (tenant_id = any (array[(select ojs.current_tenant())]))', v_table);
        execute format('grant select on ojs.%I to ojs_tenant', v_table);
    end loop;
    -- Read by the views everybody shares; a queue's configuration is everybody's.
    foreach v_table in array array['queue', 'tally_mark'] loop
        execute format('create policy everybody on ojs.%I for select to ojs_tenant using (true)', v_table);
        execute format('grant select on ojs.%I to ojs_tenant', v_table);
    end loop;
    create policy staff on ojs.duty for select to ojs_service, ojs_operator using (true);
    grant select (backend, since, expires_at) on ojs.duty to ojs_service, ojs_operator;
    grant select on ojs.fold to ojs_service, ojs_operator, ojs_tenant;
end;
$$;
-- +goose StatementEnd

create policy tenant on ojs.job to ojs_tenant
    using (tenant_id = any (array[(select ojs.current_tenant())])) with check (tenant_id = any (array[(select ojs.current_tenant())]));

create policy staff_insert on ojs.job for insert to ojs_service, ojs_operator with check (true);

-- Jobs are validated when they are all there, by a trigger; but what no index could hold is met before. A policy is part of the plan, and
-- costs an insert less than a trigger's condition, which every statement reads anew.
-- +goose StatementBegin
create function ojs._refuse_long(p_queue text, p_tenant text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if length(p_queue) > 128 then
        perform ojs._raise('OJ400', 'queue is longer than 128 characters', '{"field": "queue"}');
    elsif octet_length(p_tenant) > 256 then
        perform ojs._raise('OJ400', 'the tenant is longer than 256 bytes', '{"field": "tenant"}');
    end if;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._refuse_long(text, text) is 'True, or raises that the queue or the tenant is too long.';

create policy indexable on ojs.job as restrictive for insert to ojs_service, ojs_operator, ojs_tenant
    with check ((octet_length(queue || tenant_id) > 384) is not true or ojs._refuse_long(queue, tenant_id));
grant select (state, attempt, started_at, lease_expires_at, finished_at, retry_at, enqueued_at, worker_id, errors, result, seq, tenant_id, id, queue, type, priority,
              max_attempts, created_at, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra),
      insert (id, queue, type, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.job to ojs_tenant;
grant insert (tenant_id, id, queue, type, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.job to ojs_service, ojs_operator;
grant usage on sequence ojs.job_seq to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.problem to ojs_service, ojs_operator, ojs_tenant;

-- The planner's estimates are no secret: EXPLAIN would tell a tenant how many rows hold any value it asks for, whosever they are. So no
-- statistics are kept of columns that tell tenants apart; the hot queries are forced into index order and need none.
-- +goose StatementBegin
do $$
declare
    v_column record;
begin
    for v_column in
        select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
          and (has_any_column_privilege('ojs_tenant', c.oid, 'select') or c.relispartition) and a.attname not in ('xid', 'seq', 'at', 'n')
    loop
        execute format('alter table ojs.%I alter column %I set statistics 0', v_column.relname, v_column.attname);
    end loop;
end;
$$;
-- +goose StatementEnd
grant select on ojs.settings to ojs_service, ojs_operator, ojs_tenant;
reset role;
