-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

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
    limits                boolean not null default false,
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
comment on table ojs.settings is 'Settings of this deployment; one row. Changed by ojs.configure.';
comment on column ojs.settings.one is 'Always true: there is one row.';
comment on column ojs.settings.default_tenant is 'The tenant of jobs enqueued without one (multi-tenancy section 15.3).';
comment on column ojs.settings.tenant_required is
'Refuse jobs without a tenant instead of giving them to the default tenant (multi-tenancy section 5.1).';
comment on column ojs.settings.timeout_ms is
'How long heartbeats keep an attempt of a job that has no timeout_ms of its own, milliseconds; 0: for ever (ojs-timeouts section 5.1).';
comment on column ojs.settings.heartbeat_timeout_ms is
'A worker that has sent heartbeats and is silent for so long is dead, milliseconds (ojs-worker-protocol section 10.1).';
comment on column ojs.settings.retention is 'How long jobs are kept after they have ended, at least; 0: until an operator drops them.';
comment on column ojs.settings.journal_retention is
'How long the journal is kept, at most; where retention is shorter, that long, but a minute at least.';
comment on column ojs.settings.dead_letter_max_age is
'How long a job stays in the dead letter queue (ojs-dead-letter section 5). Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.dead_letter_max_count is
'How many jobs of a tenant the dead letter queue holds; beyond, the oldest go. Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.held_at is
'Since when nothing is handed out and the clock stands still (ojs.hold_dispatch); null: dispatch goes on.';
comment on column ojs.settings.idempotency_window is 'How long a request with the same idempotency key is answered as the first one was.';
comment on column ojs.settings.tenant_fairness is
'How tenants share where a queue does not say (ojs.configure), without the weights of single tenants, which are in ojs.tenant.';
comment on column ojs.settings.lowest_max_priority is
'The lowest max_priority of a tenant: jobs of a higher priority are looked at one by one; null: none has any (ojs.configure_tenant).';

comment on column ojs.settings.unknown_tenants is
'What becomes of jobs of a tenant that nobody has configured: accept, or refuse (ojs.configure).';
comment on column ojs.settings.bars is
'Whether new jobs are looked at one by one, because there may be tenants whose jobs are refused (ojs.suspend_tenant).';
comment on column ojs.settings.default_retry is
'The retry policy of jobs that have none, in queues that do not say; null: that of ojs-retry section 8.';
comment on column ojs.settings.unsupported is
'What becomes of new jobs that ask for what this server cannot do: refuse, or carry, which keeps the words and does nothing about them.';
comment on column ojs.settings.limits is 'Whether there are limits on enqueueing (ojs.quota).';

create table ojs.tenant (
    tenant_id      text collate "C" primary key,
    weight         numeric,
    priority_boost int not null default 0,
    created_at     timestamptz default ojs.now(),
    limited        boolean not null default false,
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
comment on table ojs.tenant is
'Configured tenants. A tenant without a row has the default weight, no boost, and no limit to its priorities. Changed by
ojs.configure_tenant.';
comment on column ojs.tenant.tenant_id is 'The tenant (multi-tenancy section 5.2).';
comment on column ojs.tenant.weight is
'Share of dispatch relative to the other tenants with work, in queues that do not say; 0.000001 to 1000000; null: the default weight.';
comment on column ojs.tenant.priority_boost is
'Added to the priority of the tenant''s jobs when they are dispatched; -100 to 100. The jobs keep their own priority.';
comment on column ojs.tenant.created_at is
'When the tenant was first configured; null: it is not, and the row is there for a pause, a throttle or a suspension, with which it goes.';
comment on column ojs.tenant.limited is 'Whether a row of ojs.rule is about it. Others are handed out without a look at the rules.';
comment on column ojs.tenant.max_priority is 'The highest priority that a new job of the tenant may have; -100 to 100; 100: no limit.';
comment on column ojs.tenant.over_priority is
'What becomes of a new job above max_priority: it is refused (refuse), or gets max_priority (clamp).';

comment on column ojs.tenant.throttle is
'What the tenant''s weights are multiplied by while it is throttled (ojs.throttle); null: nothing.';

create table ojs.queue_weight (
    queue     text collate "C" not null,
    tenant_id text collate "C" not null,
    weight    numeric not null,
    primary key (queue, tenant_id),
    constraint weight_in_range check (weight between 0.000001 and 1000000
        or ojs._raise('OJ422', 'weight must be between 0.000001 and 1000000', '{"field": "weight"}'))
);
comment on table ojs.queue_weight is
'Weights of tenants in queues, as tenant_fairness of a queue and of the deployment say. Changed by ojs.configure_queue, ojs.configure and,
with a queue, ojs.configure_tenant; read by ojs._weight_in. Where it has no row, tenants have their own weights, or 1.';
comment on column ojs.queue_weight.queue is 'The queue; empty: the deployment, for queues that do not say.';
comment on column ojs.queue_weight.tenant_id is
'The tenant, tenant: before its name or not; empty: tenants without a weight of their own; *: all tenants alike, whatever their weights.';
comment on column ojs.queue_weight.weight is 'Share of dispatch relative to the other tenants with work; 0.000001 to 1000000.';

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
    primary key (tenant_id, queue),
    constraint max_concurrency_in_range check (max_concurrency is null or max_concurrency between 1 and 1000000
        or ojs._raise('OJ422', 'max_concurrency must be between 1 and 1000000', '{"field": "max_concurrency"}',
            'What is to get no jobs is paused.'))
);
comment on table ojs.rule is
'What holds dispatch back: how many jobs may run at once, and what is paused; of a tenant, of a queue, of a tenant in a queue. Changed by
ojs.limit_concurrency, ojs.pause and ojs.resume.';
comment on column ojs.rule.tenant_id is 'The tenant; empty: all of them together.';
comment on column ojs.rule.queue is 'The queue; empty: all of them together.';
comment on column ojs.rule.max_concurrency is 'How many jobs may be active at once; null: as many as there are.';
comment on column ojs.rule.paused_at is 'Since when nothing is handed out; null: dispatch goes on.';
comment on column ojs.rule.paused_by is 'Who paused it.';
comment on column ojs.rule.reason is 'Why it is paused, in the words of whoever did it.';
comment on column ojs.rule.limit_reason is 'Why it has max_concurrency, in the words of whoever changed that last.';
comment on column ojs.rule.throttled_to is 'How many while the tenant is throttled (ojs.throttle); null: as max_concurrency says.';
comment on column ojs.rule.most is 'The lower of both, which decisions obey; null: as many as there are.';

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
comment on table ojs.neighbour_watch is
'What makes a tenant a noisy neighbour, and what is done about it (multi-tenancy section 9); one row. Changed by ojs.watch_neighbours.';
comment on column ojs.neighbour_watch.one is 'Always true: there is one row.';
comment on column ojs.neighbour_watch.mode is
'off: nobody looks; observe: noisy tenants are shown and told of; on: they are throttled, too.';
comment on column ojs.neighbour_watch.span is 'Over how long rates and errors are counted.';
comment on column ojs.neighbour_watch.depth_ratio is 'Noisy is whose jobs that wait are more than so many times the median.';
comment on column ojs.neighbour_watch.rate_ratio is 'Noisy is who enqueued more than so many times what the others did on average.';
comment on column ojs.neighbour_watch.active_share is
'Noisy is whose part of the active jobs is more than this, and than its share by weight, while others wait.';
comment on column ojs.neighbour_watch.error_ratio is 'Noisy is whose attempts failed more than so many times as often as the others''.';
comment on column ojs.neighbour_watch.min_jobs is 'Fewer jobs that wait, were enqueued or were handed out make nobody noisy.';
comment on column ojs.neighbour_watch.min_active is 'Fewer active jobs make nobody noisy.';
comment on column ojs.neighbour_watch.action is 'What a throttle lowers: weight, concurrency or rate.';
comment on column ojs.neighbour_watch.factor is 'What it is multiplied by.';
comment on column ojs.neighbour_watch.lasts is 'How long a throttle lasts.';
comment on column ojs.neighbour_watch.looked_at is 'When somebody looked last.';

create table ojs.neighbour (
    tenant_id text collate "C" not null,
    signal    text collate "C" not null,
    value     float8 not null,
    threshold float8 not null,
    since     timestamptz not null,
    seen_at   timestamptz not null,
    primary key (tenant_id, signal)
);
comment on table ojs.neighbour is 'Tenants that were noisy when the tick looked last. Written by it; read as ojs.noisy_neighbours.';
comment on column ojs.neighbour.tenant_id is 'The tenant.';
comment on column ojs.neighbour.signal is 'By what: queue_depth_ratio, enqueue_rate_ratio, active_job_ratio, error_rate.';
comment on column ojs.neighbour.value is 'How much it was.';
comment on column ojs.neighbour.threshold is 'How much it may be.';
comment on column ojs.neighbour.since is 'Since when without a break.';
comment on column ojs.neighbour.seen_at is 'When it was seen last.';

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
comment on table ojs.throttle is
'Tenants that get less for a while. Written by ojs.throttle, ojs.release_throttle and the tick; read as ojs.throttles.';
comment on column ojs.throttle.tenant_id is 'The tenant.';
comment on column ojs.throttle.action is 'What is lowered: weight, concurrency or rate.';
comment on column ojs.throttle.original is 'What it was without the throttle when that began; null: no limit.';
comment on column ojs.throttle.effective is 'What it was then.';
comment on column ojs.throttle.reason is 'Why: the signal with _exceeded behind it, or an operator''s words.';
comment on column ojs.throttle.since is 'Since when.';
comment on column ojs.throttle.until is 'When it ends by itself.';
comment on column ojs.throttle.set_by is 'Which login; null: the tick.';

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
comment on table ojs.pool is
'Configured pools of workers, and as * what holds for all FETCHes. Changed by ojs.configure_pool and ojs.delete_pool.';
comment on column ojs.pool.name is 'The pool''s name. Workers that name no pool are in pool default.';
comment on column ojs.pool.id is 'What jobs and journals call it. A pool that is made anew is another one.';
comment on column ojs.pool.queues is 'The queues its workers are given jobs of, in order; null: all.';
comment on column ojs.pool.max_concurrency is 'How many jobs its workers may run at once, together; null: as many as there are.';
comment on column ojs.pool.strategy is
'How a FETCH goes over several queues: strict, round-robin, weighted, least-loaded; null: as it asks.';
comment on column ojs.pool.weights is
'Weights of queues for the strategy weighted, such as {"mail": 3}; null: as the FETCH asks.';
comment on column ojs.pool.isolated is
'Whether workers outside the pool get no jobs of its queues; where tenants are named, none of these tenants'' jobs.';
comment on column ojs.pool.tenants is 'The tenants whose jobs its workers are given; null: all.';
comment on column ojs.pool.rotation_interval is 'A queue with work that gave no job for so long goes next; null: never for that.';
comment on column ojs.pool.min_dispatch_ratio is 'The part of the dispatches that each queue with work gets at least; null: none.';
comment on column ojs.pool.created_at is 'When it was made.';
comment on column ojs.pool.updated_at is 'When it was changed last.';

create table ojs.tenant_role (
    role_name name primary key,
    tenant_id text collate "C" not null
);
create index tenant_role_tenant_idx on ojs.tenant_role (tenant_id);
comment on table ojs.tenant_role is 'Which tenant a login role is. Private; written by ojs.create_tenant_role.';
comment on column ojs.tenant_role.role_name is 'The login role.';
comment on column ojs.tenant_role.tenant_id is 'Its tenant.';

create table ojs.queue (
    queue      text collate "C" primary key,
    created_at timestamptz not null default ojs.now(),
    updated_at timestamptz,
    config     jsonb not null default '{}',
    constraint queue_name check (ojs._queue_name(queue)
        or ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queue"}'))
);
comment on table ojs.queue is 'Configured queues. Queues need not be created.';
comment on column ojs.queue.queue is 'The queue''s name.';
comment on column ojs.queue.created_at is 'When it was first configured.';
comment on column ojs.queue.updated_at is 'When its configuration was changed last.';
comment on column ojs.queue.config is 'Its configuration (ojs.configure_queue).';
reset role;
