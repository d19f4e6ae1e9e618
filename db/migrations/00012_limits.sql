-- +goose Up
-- Limits on enqueueing: the tokens, tiers of tenants, and what was refused.
set local role ojs_owner;

create table ojs.quota (
    tenant_id text collate "C" not null default '',
    queue     text collate "C" not null default '',
    resource  text collate "C" not null,
    maximum   bigint not null,
    period    interval,
    burst     bigint,
    soft      boolean not null default false,
    nth       int generated always as (case resource when 'max_enqueue_rate' then 1 when 'max_queue_depth' then 2 when 'max_depth' then 2
        when 'max_scheduled' then 3 when 'max_stored_bytes' then 4 when 'throttled_rate' then 5 end) stored,
    used      bigint not null default 0,
    due       boolean not null default true,
    warned    int not null default 0,
    warned_at timestamptz,
    warn_from numeric not null default 0.8,
    measure_at timestamptz,
    missing   bigint not null default 0,
    reason    text,
    primary key (tenant_id, queue, resource),
    constraint resource_known check (resource in ('max_enqueue_rate', 'max_queue_depth', 'max_scheduled', 'max_depth',
        'throttled_rate', 'max_stored_bytes', 'max_in_flight_requests', 'max_waiting_polls')),
    constraint maximum_in_range check (
        maximum between (resource not in ('max_queue_depth', 'max_scheduled'))::int and ojs._most(resource)
        or ojs._raise('OJ422', format('%s must be an integer between %s and %s', resource,
            (resource not in ('max_queue_depth', 'max_scheduled'))::int, ojs._most(resource)), jsonb_build_object('field', resource))),
    constraint burst_in_range check (burst is null or burst between 1 and 1000000000
        or ojs._raise('OJ422', 'max_enqueue_rate.burst must be an integer between 1 and 1000000000',
            '{"field": "max_enqueue_rate.burst"}')),
    constraint period_in_range check (period is null or period between '1 second' and '31 days'
        or ojs._raise('OJ422', 'max_enqueue_rate.period must be between PT1S and P31D', '{"field": "max_enqueue_rate.period"}'))
);

create index quota_due_idx on ojs.quota (tenant_id) where due or warned_at is not null;

create table ojs.allowance (
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    stripes   int not null,
    hard      boolean[] not null,
    caps      float8[] not null,
    growth    float8[] not null,
    primary key (tenant_id, queue)
);

-- One row would make a tenant's producers wait for each other's commits. Of several, each session takes one that nobody has locked.
create table ojs.stripe (
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    n         int not null,
    rev       bigint not null default 1,
    tokens    float8[] not null default '{0, 0, 0, 0, 0}',
    at        timestamptz not null,
    uses      bigint not null default 0,
    primary key (tenant_id, queue, n, rev)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

alter table ojs.quota enable row level security;

alter table ojs.quota force row level security;

create policy functions on ojs.quota to ojs_owner using (true) with check (true);

create policy staff on ojs.quota for select to ojs_service, ojs_operator using (true);

grant select on ojs.quota to ojs_service, ojs_operator;

alter table ojs.allowance enable row level security;

alter table ojs.allowance force row level security;

create policy functions on ojs.allowance to ojs_owner using (true) with check (true);

alter table ojs.stripe enable row level security;

alter table ojs.stripe force row level security;

create policy functions on ojs.stripe to ojs_owner using (true) with check (true);

alter table ojs.quota alter column tenant_id set statistics 0, alter column queue set statistics 0,
    alter column resource set statistics 0, alter column nth set statistics 0, alter column maximum set statistics 0,
    alter column period set statistics 0, alter column burst set statistics 0, alter column soft set statistics 0,
    alter column used set statistics 0, alter column due set statistics 0,
    alter column warned set statistics 0, alter column warned_at set statistics 0, alter column warn_from set statistics 0,
    alter column reason set statistics 0, alter column measure_at set statistics 0,
    alter column missing set statistics 0;

alter table ojs.allowance alter column tenant_id set statistics 0, alter column queue set statistics 0,
    alter column stripes set statistics 0, alter column hard set statistics 0, alter column caps set statistics 0,
    alter column growth set statistics 0;

alter table ojs.stripe alter column tenant_id set statistics 0, alter column queue set statistics 0,
    alter column n set statistics 0, alter column rev set statistics 0, alter column tokens set statistics 0,
    alter column at set statistics 0, alter column uses set statistics 0;

create table ojs.tier (
    name   text collate "C" primary key,
    config jsonb not null,
    fields jsonb not null,
    reason text
);

create table ojs.tenant_tier (
    tenant_id text collate "C" primary key,
    tier      text collate "C" not null,
    due       jsonb
);

create index tenant_tier_tier_idx on ojs.tenant_tier (tier);

create index tenant_tier_due_idx on ojs.tenant_tier (tenant_id) where due is not null;

create table ojs.newcomer (
    tenant_id text collate "C" primary key
);

alter table ojs.tier enable row level security;

alter table ojs.tier force row level security;

create policy functions on ojs.tier to ojs_owner using (true) with check (true);

create policy staff on ojs.tier for select to ojs_service, ojs_operator using (true);

grant select on ojs.tier to ojs_service, ojs_operator;

alter table ojs.tenant_tier enable row level security;

alter table ojs.tenant_tier force row level security;

create policy functions on ojs.tenant_tier to ojs_owner using (true) with check (true);

create policy staff on ojs.tenant_tier for select to ojs_service, ojs_operator using (true);

grant select on ojs.tenant_tier to ojs_service, ojs_operator;

alter table ojs.newcomer enable row level security;

alter table ojs.newcomer force row level security;

create policy functions on ojs.newcomer to ojs_owner using (true) with check (true);

alter table ojs.tenant_tier alter column tenant_id set statistics 0, alter column tier set statistics 0,
    alter column due set statistics 0;

alter table ojs.newcomer alter column tenant_id set statistics 0;

create table ojs.static_config (
    kind   text collate "C" not null,
    name   text collate "C" not null,
    config jsonb not null,
    at     timestamptz not null default ojs.now(),
    primary key (kind, name)
);

alter table ojs.static_config enable row level security;

alter table ojs.static_config force row level security;

create policy functions on ojs.static_config to ojs_owner using (true) with check (true);

create policy staff on ojs.static_config for select to ojs_service, ojs_operator using (true);

grant select on ojs.static_config to ojs_service, ojs_operator;

create table ojs.refused (
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    resource  text collate "C" not null,
    at        timestamptz not null,
    requests  bigint not null,
    primary key (tenant_id, queue, resource, at)
);

create index refused_at_idx on ojs.refused (at);

alter table ojs.refused enable row level security;

alter table ojs.refused force row level security;

create policy functions on ojs.refused to ojs_owner using (true) with check (true);

alter table ojs.refused alter column tenant_id set statistics 0, alter column queue set statistics 0,
    alter column resource set statistics 0, alter column at set statistics 0, alter column requests set statistics 0;
reset role;
