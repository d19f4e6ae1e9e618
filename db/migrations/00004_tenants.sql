-- +goose Up
-- Tenants, queues and pools, and what is configured for them.
set local role ojs_owner;

-- What is configured: the deployment (settings, one row), tenants, their login roles, queues.
-- Written by ojs.configure, ojs.configure_dead_letters, ojs.hold_dispatch and ojs.resume_dispatch; ojs.configure_tenant;
-- ojs.create_tenant_role; ojs.configure_queue; ojs.limit_concurrency, ojs.pause and ojs.resume (rule); ojs.configure_queue, too, and
-- ojs.configure (queue_weight). Read by nearly everything else.
create table ojs.settings (
    one                   boolean primary key default true check (one),
    default_tenant        text not null default '_default',
    tenant_required       boolean not null default false,
    timeout_ms            int not null default 1800000,
    heartbeat_timeout_ms  int not null default 30000,
    retention             interval not null default '7 days',
    journal_retention     interval not null default '1 day',
    dead_letter_max_age   interval not null default '180 days',
    dead_letter_max_count int not null default 10000,
    held_at               timestamptz,
    idempotency_window    interval not null default '1 day',
    tenant_fairness       jsonb not null default '{}',
    lowest_max_priority   int,
    unknown_tenants       text not null default 'accept',
    bars                  boolean not null default false,
    default_retry         jsonb,
    unsupported           text not null default 'refuse',
    constraint unsupported_known check (unsupported in ('refuse', 'carry')
        or ojs._raise('OJ422', 'unsupported must be "refuse" or "carry"', '{"field": "unsupported"}')),
    constraint unknown_tenants_known check (unknown_tenants in ('accept', 'refuse')
        or ojs._raise('OJ422', 'unknown_tenants must be "accept" or "refuse"', '{"field": "unknown_tenants"}')),
    constraint retention_in_range check (retention = '0' or retention between '10 seconds' and '36500 days'
        or ojs._raise('OJ422', 'retention must be between 10 seconds and 36500 days, or 0: finished jobs stay', '{"field": "retention"}')),
    constraint idempotency_window_in_range check (idempotency_window between '1 minute' and '365 days'
        or ojs._raise('OJ422', 'idempotency_window must be between 1 minute and 365 days', '{"field": "idempotency_window"}')),
    constraint journal_retention_in_range check (journal_retention between '1 minute' and '36500 days'
        or ojs._raise('OJ422', 'journal_retention must be between 1 minute and 36500 days', '{"field": "journal_retention"}'))
);

insert into ojs.settings default values;

create table ojs.tenant (
    tenant_id      text collate "C" primary key,
    weight         numeric,
    priority_boost int not null default 0,
    created_at     timestamptz default ojs.now(),
    max_priority   int not null default 100,
    over_priority  text not null default 'refuse',
    throttle       numeric,
    constraint weight_in_range check (weight is null or weight between 0.000001 and 1000000
        or ojs._raise('OJ422', 'weight must be between 0.000001 and 1000000', '{"field": "weight"}')),
    constraint priority_boost_in_range check (priority_boost between -100 and 100
        or ojs._raise('OJ422', 'priority_boost must be between -100 and 100', '{"field": "priority_boost"}')),
    constraint max_priority_in_range check (max_priority between -100 and 100
        or ojs._raise('OJ422', 'max_priority must be between -100 and 100', '{"field": "max_priority"}')),
    constraint over_priority_known check (over_priority in ('refuse', 'clamp')
        or ojs._raise('OJ422', 'over_priority must be "refuse" or "clamp"', '{"field": "over_priority"}'))
);

create table ojs.queue_weight (
    queue     text collate "C" not null,
    tenant_id text collate "C" not null,
    weight    numeric not null,
    primary key (queue, tenant_id),
    constraint weight_in_range check (weight between 0.000001 and 1000000
        or ojs._raise('OJ422', 'weight must be between 0.000001 and 1000000', '{"field": "weight"}'))
);

create table ojs.rule (
    tenant_id       text collate "C" not null default '',
    queue           text collate "C" not null default '',
    max_concurrency int,
    paused_at       timestamptz,
    paused_by       text,
    reason          text,
    limit_reason    text,
    throttled_to    int,
    most            int generated always as (least(max_concurrency, throttled_to)) stored,
    limit_xid       xid8,
    primary key (tenant_id, queue),
    constraint max_concurrency_in_range check (max_concurrency is null or max_concurrency between 1 and 1000000
        or ojs._raise('OJ422', 'max_concurrency must be between 1 and 1000000', '{"field": "max_concurrency"}',
            'What is to get no jobs is paused.'))
);

create table ojs.neighbour_watch (
    one           boolean primary key default true check (one),
    mode          text not null default 'observe',
    span          interval not null default '5 minutes',
    depth_ratio   numeric not null default 10,
    rate_ratio    numeric not null default 5,
    active_share  numeric not null default 0.5,
    error_ratio   numeric not null default 3,
    min_jobs      int not null default 1000,
    min_active    int not null default 10,
    action        text not null default 'weight',
    factor        numeric not null default 0.2,
    lasts         interval not null default '10 minutes',
    looked_at     timestamptz not null default '-infinity',
    constraint mode_known check (mode in ('off', 'observe', 'on')
        or ojs._raise('OJ422', 'mode must be "off", "observe" or "on"', '{"field": "mode"}')),
    constraint span_in_range check (span between '1 minute' and '1 day'
        or ojs._raise('OJ422', 'span must be between 1 minute and 1 day', '{"field": "span"}')),
    constraint ratios_in_range check (least(depth_ratio, rate_ratio, error_ratio) > 1 and active_share between 0 and 1
        or ojs._raise('OJ422', 'depth_ratio, rate_ratio and error_ratio must be more than 1, active_share between 0 and 1',
            '{"field": "ratio"}')),
    constraint minimum_in_range check (least(min_jobs, min_active) > 0
        or ojs._raise('OJ422', 'min_jobs and min_active must be more than 0', '{"field": "min_jobs"}')),
    constraint action_known check (action in ('weight', 'concurrency', 'rate')
        or ojs._raise('OJ422', 'action must be "weight", "concurrency" or "rate"', '{"field": "action"}')),
    constraint factor_in_range check (factor between 0.001 and 0.999
        or ojs._raise('OJ422', 'factor must be between 0.001 and 0.999', '{"field": "factor"}')),
    constraint lasts_in_range check (lasts between '1 second' and '7 days'
        or ojs._raise('OJ422', 'lasts must be between 1 second and 7 days', '{"field": "lasts"}'))
);

insert into ojs.neighbour_watch default values;

create table ojs.neighbour (
    tenant_id text collate "C" not null,
    signal    text collate "C" not null,
    value     float8 not null,
    threshold float8 not null,
    since     timestamptz not null,
    seen_at   timestamptz not null,
    primary key (tenant_id, signal)
);

create table ojs.throttle (
    tenant_id text collate "C" primary key,
    action    text not null,
    original  float8,
    effective float8 not null,
    reason    text not null,
    since     timestamptz not null,
    until     timestamptz not null,
    set_by    text
);

create table ojs.pool (
    name               text collate "C" primary key,
    id                 int not null unique generated always as identity,
    queues             text[] collate "C",
    max_concurrency    int,
    strategy           text,
    weights            jsonb,
    isolated           boolean not null default false,
    tenants            text[] collate "C",
    rotation_interval  interval,
    min_dispatch_ratio numeric,
    created_at         timestamptz not null default ojs.now(),
    updated_at         timestamptz not null default ojs.now()
);

create table ojs.tenant_role (
    role_name name primary key,
    tenant_id text collate "C" not null
);

create index tenant_role_tenant_idx on ojs.tenant_role (tenant_id);

create table ojs.queue (
    queue      text collate "C" primary key,
    created_at timestamptz not null default ojs.now(),
    updated_at timestamptz,
    config     jsonb not null default '{}',
    constraint queue_name check (ojs._queue_name(queue)
        or ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queue"}'))
);
reset role;
