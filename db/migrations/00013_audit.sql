-- +goose Up
-- What operators have done, suspended and deregistered tenants, numbers of shards.
set local role ojs_owner;

-- Who changed what in the configuration, when and why. Triggers on the tables of configuration write it, so that it does not matter by
-- which function, or by which hand, a row was changed; what changes no such row (directives, purges) calls ojs._audit itself. No job's way
-- leads through these tables.
create table ojs.audit (
    n         bigint primary key generated always as identity,
    at        timestamptz not null default ojs.now(),
    actor     text not null,
    tenant_id text collate "C",
    kind      text not null,
    name      text,
    action    text not null,
    old       jsonb,
    new       jsonb,
    reason    text
);

create index audit_tenant_idx on ojs.audit (tenant_id, n);

-- For the event tenant.created. Without it that would read all changes of all tenants.
create index audit_created_idx on ojs.audit (n) where kind = 'tenant' and action = 'created';

alter table ojs.audit enable row level security;

alter table ojs.audit force row level security;

create policy functions on ojs.audit to ojs_owner using (true) with check (true);

create policy staff on ojs.audit for select to ojs_service, ojs_operator using (true);

grant select on ojs.audit to ojs_service, ojs_operator;

alter table ojs.audit alter column tenant_id set statistics 0, alter column actor set statistics 0, alter column kind set statistics 0,
    alter column name set statistics 0, alter column action set statistics 0, alter column old set statistics 0,
    alter column new set statistics 0, alter column reason set statistics 0;

create trigger audit after insert or update or delete on ojs.settings for each row
    execute function ojs._audit_row('deployment', '', '{one, lowest_max_priority, bars}');

create trigger audit after insert or update or delete on ojs.tenant for each row
    execute function ojs._audit_row('tenant', '', '{created_at, throttle}');

create trigger audit after insert or update or delete on ojs.rule for each row
    execute function ojs._audit_row('rule', 'queue', '{reason, limit_reason, paused_by, throttled_to, most}');

create trigger audit after insert or delete or update of maximum, period, burst, soft on ojs.quota for each row
    execute function ojs._audit_row('limit', 'resource',
        '{nth, used, due, warned, warned_at, warn_from, measure_at, missing, reason}');

create trigger audit after insert or update or delete on ojs.throttle for each row
    execute function ojs._audit_row('throttle', 'action', '{set_by}');

create trigger audit after insert or update of mode, span, depth_ratio, rate_ratio, active_share, error_ratio, min_jobs, min_active, action,
    factor, lasts on ojs.neighbour_watch for each row execute function ojs._audit_row('neighbours', '', '{one, looked_at}');

create trigger audit after insert or update or delete on ojs.pool for each row
    execute function ojs._audit_row('pool', 'name', '{id, created_at, updated_at}');

create trigger audit after insert or update or delete on ojs.queue for each row
    execute function ojs._audit_row('queue', 'queue', '{created_at, updated_at}');

create trigger audit after insert or delete or update of expires_at, revoked_at, rotated_to on ojs.api_key for each row
    execute function ojs._audit_row('api_key', 'prefix', '{id, hash, created_by, created_at, last_used_at}');

create trigger audit after insert or update or delete on ojs.tenant_role for each row
    execute function ojs._audit_row('role', 'role_name', '{}');

create trigger audit after insert or update or delete on ojs.replay_rule for each row
    execute function ojs._audit_row('replay_rule', 'name', '{known_from, caught_up, created_at}');

create table ojs.suspended (
    tenant_id text collate "C" primary key,
    at        timestamptz not null default ojs.now(),
    reason    text
);

alter table ojs.suspended enable row level security;

alter table ojs.suspended force row level security;

create policy functions on ojs.suspended to ojs_owner using (true) with check (true);

create policy staff on ojs.suspended for select to ojs_service, ojs_operator using (true);

grant select on ojs.suspended to ojs_service, ojs_operator;

alter table ojs.suspended alter column tenant_id set statistics 0, alter column reason set statistics 0;

create trigger audit after insert or update or delete on ojs.suspended for each row
    execute function ojs._audit_row('tenant', '', '{reason, at}');

create table ojs.departure (
    tenant_id text collate "C" primary key,
    at        timestamptz not null default ojs.now(),
    jobs      bigint not null,
    queue     text collate "C",
    priority  int,
    seq       bigint,
    missed    boolean not null default false,
    open      text[],
    done      boolean not null default false
);

alter table ojs.departure enable row level security;

alter table ojs.departure force row level security;

create policy functions on ojs.departure to ojs_owner using (true) with check (true);

create policy staff on ojs.departure for select to ojs_service, ojs_operator using (true);

grant select on ojs.departure to ojs_service, ojs_operator;

alter table ojs.departure alter column tenant_id set statistics 0, alter column queue set statistics 0, alter column at set statistics 0,
    alter column jobs set statistics 0;

-- Series per tenant, of a bounded number of tenants. Which ones must not change: a tenant that fell out would take its counters along, and
-- the sum of the others would jump. So it is who came first, and the database says so, because servers would not agree on it by themselves.
create table ojs.shard (
    tenant_id  text collate "C" not null,
    queue      text collate "C" not null,
    n          bigint not null generated always as identity,
    moved      bigint not null default 0,
    created_at timestamptz not null default ojs.now(),
    primary key (tenant_id, queue)
);

-- Without it the age of each queue of a list would be found by reading the pairs of all queues.
create index shard_queue_idx on ojs.shard (queue, created_at);

alter table ojs.shard alter column tenant_id set statistics 0, alter column queue set statistics 0;

alter table ojs.shard enable row level security;

alter table ojs.shard force row level security;

create policy functions on ojs.shard to ojs_owner using (true) with check (true);

create policy staff on ojs.shard for select to ojs_service, ojs_operator using (true);

grant select on ojs.shard to ojs_service, ojs_operator;

create trigger number_shards after insert on ojs.tally referencing new table as added
    for each statement execute function ojs._number_shards();

create table ojs.lost_worker (
    tenant_id         text collate "C" not null,
    worker_id         text collate "C" not null,
    id                uuid not null,
    pool              text collate "C",
    hostname          text,
    queues            text[],
    jobs              int not null,
    last_heartbeat_at timestamptz not null,
    lost_at           timestamptz not null default ojs.now(),
    primary key (tenant_id, worker_id, id)
);

create index lost_worker_lost_at_idx on ojs.lost_worker (lost_at);

alter table ojs.lost_worker enable row level security;

alter table ojs.lost_worker force row level security;

create policy functions on ojs.lost_worker to ojs_owner using (true) with check (true);

create policy staff on ojs.lost_worker for select to ojs_service, ojs_operator using (true);

grant select on ojs.lost_worker to ojs_service, ojs_operator;
reset role;
