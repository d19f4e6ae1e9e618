-- +goose Up
-- Who a session is. A tenant's login role is mapped to its tenant in a private table; no setting decides, because a session
-- can change settings. Inside these functions current_user is the owner, so identity is session_user: the role that logged in.
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._tenant_valid(p_tenant text) returns boolean
language sql immutable
as $$ select (p_tenant ~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]*$' or p_tenant in ('_default', '_other')) and octet_length(p_tenant) <= 256 $$;
-- +goose StatementEnd
comment on function ojs._tenant_valid(text) is 'Whether a text can be a tenant: the pattern of multi-tenancy section 5.2, at most 256 bytes, or one of the two reserved names.';

-- +goose StatementBegin
create function ojs.current_tenant() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.tenant_id from ojs.tenant_role r where r.role_name = session_user);
end;
$$;
-- +goose StatementEnd
comment on function ojs.current_tenant() is 'The tenant of the role that logged in; null for a role that is no tenant''s.';
grant execute on function ojs.current_tenant() to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._tenant_refusal(p_own text, p_tenant text) returns ojs.refusal
language sql immutable
as $$
    select case
        when p_tenant is null or p_tenant = p_own then null
        when p_own is not null then row('OJ403', 'this role may act for its own tenant only', jsonb_build_object('field', 'tenant', 'tenant_id', left(p_tenant, 256)))::ojs.refusal
        when not ojs._tenant_valid(p_tenant) then
            row('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}')::ojs.refusal
        end
$$;
-- +goose StatementEnd
comment on function ojs._tenant_refusal(text, text) is 'Why a call may not name p_tenant, or null. p_own: the tenant of the role that logged in; null for a role that is no tenant''s.';

-- +goose StatementBegin
create function ojs._trusted() returns boolean
language sql stable
as $$ select pg_has_role(session_user, 'ojs_service', 'member') and not pg_has_role(session_user, 'ojs_tenant', 'member') $$;
-- +goose StatementEnd
comment on function ojs._trusted() is
'Whether the role that logged in is the service''s and certainly no tenant''s (a tenant''s login role is a member of ojs_tenant). Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._session_tenant(p_tenant text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_own     text;
    v_refusal ojs.refusal;
begin
    -- A tenant's login role is always a member of the group, so that others need not be looked up.
    if pg_has_role(session_user, 'ojs_tenant', 'member') then
        v_own := (select r.tenant_id from ojs.tenant_role r where r.role_name = session_user);
    end if;
    if v_own is null and not (pg_has_role(session_user, 'ojs_service', 'member') or pg_has_role(session_user, 'ojs_operator', 'member')) then
        perform ojs._raise('OJ403', format('role %I is mapped to no tenant', session_user), null, 'An operator maps it with ojs.create_tenant_role(tenant, role).');
    end if;
    if p_tenant <> v_own or not ojs._tenant_valid(p_tenant) then
        v_refusal := ojs._tenant_refusal(v_own, p_tenant);
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
    return coalesce(v_own, p_tenant);
end;
$$;
-- +goose StatementEnd
comment on function ojs._session_tenant(text) is
'The tenant a call acts for: a tenant''s login role always its own; the service or an operator the one it names, or null for all.
Raises TENANT_ACCESS_DENIED for another tenant or an unmapped role, invalid_request for a malformed one.';

-- +goose StatementBegin
create function ojs._default_tenant() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_settings ojs.settings;
    v_own      text := ojs._session_tenant(null);
begin
    if v_own is not null then
        return v_own;
    end if;
    select * into v_settings from ojs.settings;
    if v_settings.tenant_required then
        perform ojs._raise('OJ402', 'a tenant is required', '{"field": "meta.tenant_id"}');
    end if;
    return v_settings.default_tenant;
end;
$$;
-- +goose StatementEnd
comment on function ojs._default_tenant() is 'The tenant of a job that names none: the caller''s own, else the default tenant. Raises TENANT_REQUIRED where tenants are required.';
grant execute on function ojs._default_tenant() to ojs_service, ojs_operator, ojs_tenant;

alter table ojs.job alter column tenant_id set default ojs._default_tenant();

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
    grant select (rev, backend, since, expires_at) on ojs.duty to ojs_service, ojs_operator;
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
grant execute on function ojs._refuse_long(text, text) to ojs_service, ojs_operator, ojs_tenant;
create policy indexable on ojs.job as restrictive for insert to ojs_service, ojs_operator, ojs_tenant
    with check ((octet_length(queue || tenant_id) > 384) is not true or ojs._refuse_long(queue, tenant_id));
grant select (state, attempt, started_at, lease_expires_at, finished_at, retry_at, enqueued_at, worker_id, errors, result, seq, tenant_id, id, queue, type, priority,
              max_attempts, created_at, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra),
      insert (id, queue, type, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.job to ojs_tenant;
grant insert (tenant_id, id, queue, type, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.job to ojs_service, ojs_operator;
grant usage on sequence ojs.job_seq to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._uuid_v7(), ojs._tenant_valid(text), ojs._raise(text, text, jsonb, text) to ojs_service, ojs_operator, ojs_tenant;
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

-- +goose StatementBegin
create function ojs.create_tenant_role(p_tenant text, p_role name, p_password text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    end if;
    if coalesce(p_role, '') = '' or p_role in ('ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_tenant') or p_role like 'pg\_%' then
        perform ojs._raise('OJ400', format('%s cannot be a tenant''s login role', coalesce(quote_ident(p_role), 'null')), '{"field": "role"}');
    end if;
    if not exists (select from pg_roles where rolname = p_role) then
        execute format('create role %I login', p_role);
    elsif exists (select from pg_roles where rolname = p_role and (rolsuper or rolbypassrls))
            or pg_has_role(p_role, 'ojs_service', 'member') or pg_has_role(p_role, 'ojs_operator', 'member') or pg_has_role(p_role, 'ojs_owner', 'member') then
        perform ojs._raise('OJ400', format('role %I sees more than one tenant', p_role), '{"field": "role"}');
    end if;
    if p_password is not null then
        execute format('alter role %I password %L', p_role, p_password);
    end if;
    execute format('grant ojs_tenant to %I', p_role);
    perform ojs._map_tenant_role(p_tenant, p_role);
end;
$$;
-- +goose StatementEnd
comment on function ojs.create_tenant_role(text, name, text) is
'Makes p_role a login role of tenant p_tenant: creates it if absent, sets p_password if given, grants ojs_tenant, and maps it. From then on
the role sees and writes that tenant''s jobs and no others. A tenant may have several roles; calling it again moves the role to another
tenant. Runs with the rights of its caller, who must be an operator that may create roles (and administer ojs_tenant), or a superuser.';

-- +goose StatementBegin
create function ojs._map_tenant_role(p_tenant text, p_role name) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.tenant_role (role_name, tenant_id) values (p_role, p_tenant)
    on conflict (role_name) do update set tenant_id = excluded.tenant_id
$$;
-- +goose StatementEnd
comment on function ojs._map_tenant_role(text, name) is 'Maps a login role to its tenant.';
grant execute on function ojs.create_tenant_role(text, name, text), ojs._map_tenant_role(text, name) to ojs_operator;

-- +goose StatementBegin
create function ojs.configure(
    p_default_tenant text default null, p_tenant_required boolean default null, p_retention interval default null, p_journal_retention interval default null,
    p_timeout_ms int default null, p_heartbeat_timeout_ms int default null,
    p_idempotency_window interval default null
) returns ojs.settings
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_settings ojs.settings;
begin
    if p_default_tenant is not null and not ojs._tenant_valid(p_default_tenant) then
        perform ojs._raise('OJ400', 'default_tenant is no valid tenant', '{"field": "default_tenant"}');
    end if;
    if p_timeout_ms < 0 then
        perform ojs._raise('OJ400', 'timeout_ms must not be negative', '{"field": "timeout_ms"}');
    end if;
    if p_heartbeat_timeout_ms not between 1000 and 86400000 then
        perform ojs._raise('OJ400', 'heartbeat_timeout_ms must be between 1000 and 86400000', '{"field": "heartbeat_timeout_ms"}');
    end if;
    if p_retention > '0' then
        perform ojs._alone_with_queues();
        perform ojs._check_retention(p_retention, array(select q.queue from ojs.queue q where q.config ? 'retention'));
    end if;
    update ojs.settings s
    set default_tenant = coalesce(p_default_tenant, s.default_tenant), tenant_required = coalesce(p_tenant_required, s.tenant_required),
        retention = coalesce(p_retention, s.retention), journal_retention = coalesce(p_journal_retention, s.journal_retention),
        timeout_ms = coalesce(p_timeout_ms, s.timeout_ms), heartbeat_timeout_ms = coalesce(p_heartbeat_timeout_ms, s.heartbeat_timeout_ms),
        idempotency_window = coalesce(p_idempotency_window, s.idempotency_window)
    returning * into v_settings;
    if p_retention is not null then
        perform pg_notify('ojs_wake', 'upkeep');
    end if;
    return v_settings;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure(text, boolean, interval, interval, int, int, interval) is
'Changes deployment settings and returns them; a null argument leaves its setting as it is. p_default_tenant: tenant of jobs that name none
(default _default). p_tenant_required: refuse such jobs instead (default false). p_retention: how long jobs are kept after they have ended (default 7 days; 10 seconds
to 36500 days; 0: until an operator drops them). p_journal_retention: how long the journal is kept (default 1 day; from 1 minute), if retention is not shorter.
p_timeout_ms: how long heartbeats keep an attempt of a job without a timeout_ms of its own, milliseconds, 0 for ever (default 1800000). p_heartbeat_timeout_ms: how long a
worker that has sent heartbeats may be silent before it is taken for dead, 1000 to 86400000 (default 30000). p_idempotency_window: how long an idempotency
key is remembered (default 1 day; 1 minute to 365 days), for requests from now on. Raises invalid_request.';
grant execute on function ojs.configure(text, boolean, interval, interval, int, int, interval) to ojs_operator;
grant select on ojs.settings to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.configure(text, boolean, interval, interval, int, int, interval);
drop function ojs.create_tenant_role(text, name, text);
drop function ojs._map_tenant_role(text, name);
drop policy tenant on ojs.job;
drop policy indexable on ojs.job;
drop function ojs._refuse_long(text, text);
alter table ojs.job alter column tenant_id drop default;
-- +goose StatementBegin
do $$
declare
    v_policy record;
begin
    for v_policy in select c.relname, p.polname from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = 'ojs'::regnamespace loop
        execute format('drop policy %I on ojs.%I', v_policy.polname, v_policy.relname);
        execute format('alter table ojs.%I no force row level security', v_policy.relname);
        execute format('alter table ojs.%I disable row level security', v_policy.relname);
    end loop;
end;
$$;
-- +goose StatementEnd
-- +goose StatementBegin
do $$
declare
    v_granted record;
begin
    for v_granted in select case c.relkind when 'S' then 'sequence' else 'table' end as kind, c.relname from pg_class c
            where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p', 'S') loop
        execute format('revoke all on %s ojs.%I from ojs_service, ojs_operator, ojs_tenant', v_granted.kind, v_granted.relname);
    end loop;
    for v_granted in select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
            where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and a.attstattarget = 0 loop
        execute format('alter table ojs.%I alter column %I set statistics -1', v_granted.relname, v_granted.attname);
    end loop;
end;
$$;
-- +goose StatementEnd
revoke execute on function ojs._uuid_v7(), ojs._raise(text, text, jsonb, text) from ojs_service, ojs_operator, ojs_tenant;
drop function ojs._default_tenant();
drop function ojs._session_tenant(text);
drop function ojs._trusted();
drop function ojs._tenant_refusal(text, text);
drop function ojs.current_tenant();
drop function ojs._tenant_valid(text);
reset role;
