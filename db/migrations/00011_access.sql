-- +goose Up
-- Row security, what the groups may do with tables, and API keys.
set local role ojs_owner;

-- Row security, forced so that it holds for the owner too. The owner is the functions; the service and operators are admitted
-- by policies of their own and need no BYPASSRLS.
-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array array[
        'job', 'job_all', 'journal', 'lease', 'release', 'tally', 'pool_tally', 'pace', 'history', 'notice', 'tenant', 'pool',
        'tenant_fairness', 'tenant_role', 'revisit', 'timer', 'dispatch_state', 'rule', 'usage', 'queue',
        'queue_weight', 'tally_mark', 'waiter', 'rotation', 'sleeper', 'duty', 'clock_mark', 'cut', 'idempotency', 'replay_rule', 'worker',
        'worker_beat', 'worker_load', 'dead_letter', 'dead_job', 'dead_letter_mark', 'upkeep_task', 'cron', 'cron_run',
        'neighbour_watch', 'neighbour', 'throttle'] loop
        execute format('alter table ojs.%I enable row level security', v_table);
        execute format('alter table ojs.%I force row level security', v_table);
        execute format('create policy functions on ojs.%I to ojs_owner using (true) with check (true)', v_table);
    end loop;
    foreach v_table in array array[
        'job', 'journal', 'lease', 'release', 'tally', 'pool_tally', 'pace', 'history', 'notice', 'tenant', 'pool', 'tenant_fairness',
        'revisit', 'dispatch_state', 'rule', 'usage', 'queue', 'queue_weight', 'tally_mark', 'replay_rule', 'worker',
        'worker_beat', 'dead_letter', 'dead_job', 'cut', 'upkeep_task', 'cron', 'cron_run', 'neighbour_watch', 'neighbour',
        'throttle'] loop
        execute format('create policy staff on ojs.%I for select to ojs_service, ojs_operator using (true)', v_table);
        execute format('grant select on ojs.%I to ojs_service, ojs_operator', v_table);
    end loop;
    -- Everybody may read the configuration of queues, which belongs to no tenant.
    create policy everybody on ojs.queue for select to ojs_tenant, ojs_producer using (true);
    grant select on ojs.queue to ojs_tenant, ojs_producer;
    -- Producers read jobs through the view ojs.jobs, and of all else what views with their owner's rights show.
    create policy producers on ojs.job for select to ojs_producer using (true);
    create policy staff on ojs.duty for select to ojs_service, ojs_operator using (true);
    grant select (backend, since, expires_at) on ojs.duty to ojs_service, ojs_operator;
    grant select on ojs.fold to ojs_service, ojs_operator;
end;
$$;
-- +goose StatementEnd

create policy indexable on ojs.job as restrictive for insert to ojs_owner
    with check ((octet_length(queue || tenant_id) > 384) is not true or ojs._refuse_long(queue, tenant_id));

-- The view ojs.jobs reads the table with the rights of its reader. So a tenant's login needs them, although no policy lets it see a row of
-- the table; with a policy for tenants, everybody else's plans would have a condition more. A tenant's own plan reads no partition,
-- because without a policy its condition is false.
grant select (state, attempt, started_at, lease_expires_at, finished_at, retry_at, enqueued_at, worker_id, errors, result, seq, tenant_id,
    id, queue, type, priority, max_attempts, created_at, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta,
    retry, options, extra)
    on ojs.job to ojs_tenant, ojs_producer;

grant usage on sequence ojs.job_seq to ojs_service, ojs_operator, ojs_producer, ojs_tenant;

grant select on ojs.problem to ojs_service, ojs_operator, ojs_producer, ojs_worker, ojs_tenant;

-- EXPLAIN shows the planner's estimates to everybody, of tables behind a view too. From statistics it would tell a tenant how many rows of
-- other tenants hold any value it asks for. So no statistics are kept of columns that tell tenants apart; the hot queries are forced into
-- index order and need none.
-- +goose StatementBegin
do $$
declare
    v_column record;
begin
    for v_column in
        select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
          and (c.relname in ('job', 'journal', 'lease', 'release', 'tally', 'pool_tally', 'pace', 'history', 'tally_mark', 'fold',
                'tenant', 'pool', 'rule', 'queue_weight', 'usage', 'worker', 'worker_beat', 'worker_load', 'cron', 'cron_run',
                'queue', 'problem', 'neighbour', 'throttle', 'tenant_fairness', 'dispatch_state')
            or c.relispartition) and a.attname not in ('xid', 'seq', 'at', 'n')
    loop
        execute format('alter table ojs.%I alter column %I set statistics 0', v_column.relname, v_column.attname);
    end loop;
end;
$$;
-- +goose StatementEnd

grant select on ojs.settings to ojs_service, ojs_operator, ojs_producer, ojs_tenant;

create table ojs.api_key (
    id           uuid primary key default ojs._uuid_v7(),
    prefix       text collate "C" not null,
    hash         bytea not null unique,
    tenant_id    text collate "C",
    scopes       text[] not null,
    queues       text[] collate "C",
    name         text not null default '',
    created_at   timestamptz not null default ojs.now(),
    created_by   text not null default session_user,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    reason       text,
    last_used_at timestamptz,
    rotated_to   uuid
);

create index api_key_tenant_idx on ojs.api_key (tenant_id);

alter table ojs.api_key enable row level security;

alter table ojs.api_key force row level security;

create policy functions on ojs.api_key to ojs_owner using (true) with check (true);

create policy staff on ojs.api_key for select to ojs_service, ojs_operator using (true);

grant select (id, prefix, tenant_id, scopes, queues, name, created_at, created_by, expires_at, revoked_at, reason, last_used_at, rotated_to)
    on ojs.api_key to ojs_service, ojs_operator;
reset role;
