-- +goose Up
-- Who may write what, and in which order locks are taken:
--   * Producers only insert: a row into job and, by its statement trigger, one row per (queue, priority, tenant) into wake.
--   * The decision (ojs.fetch, under the row of lane) is the only writer of tenant_fairness, ring, queue_priority, fold and reentry.
--   * ack, nack, cancel and the tick change job rows and append to release or wake; they never touch fairness state.
-- Lock order: lane, then job rows with skip locked. Nothing waits while it holds a job row taken by skip locked.
-- No index mentions a column of job that changes after the insert (state, attempt, lease, ...), so every change of state is a
-- heap-only update; rows that each decision rewrites live under a key that only grows and are read newest first, so that
-- dead versions, which a long transaction elsewhere keeps from being removed, are never walked through.
set local role ojs_owner;

create type ojs.job_state as enum ('scheduled', 'available', 'pending', 'active', 'completed', 'retryable', 'cancelled', 'discarded');
comment on type ojs.job_state is 'The eight states of a job (ojs-core section 6). completed, cancelled and discarded are final.';

-- +goose StatementBegin
create function ojs.now() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;
-- +goose StatementEnd
comment on function ojs.now() is 'The wall clock. All times in this schema come from here.';
grant execute on function ojs.now() to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._utc(p_at timestamptz) returns text
language sql immutable
as $$ select to_json(p_at at time zone 'UTC') #>> '{}' || 'Z' $$;
-- +goose StatementEnd
comment on function ojs._utc(timestamptz) is 'A time in JSON: RFC 3339 in UTC, whatever the session''s time zone.';

-- Forty-eight bits of milliseconds before what a random UUID has behind its version: version 7 (RFC 9562). As a column's default it runs with
-- the search_path of whoever inserts, so every name is qualified; a pinned path would keep it from being inlined. And every insert prepares
-- it anew, so it is made of few calls.
-- +goose StatementBegin
create function ojs._uuid_v7() returns uuid
language sql volatile
as $$
    select (pg_catalog.lpad(pg_catalog.to_hex((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::pg_catalog.int8), 12, '0')
        operator(pg_catalog.||) '7' operator(pg_catalog.||) pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 16))::pg_catalog.uuid
$$;
-- +goose StatementEnd
comment on function ojs._uuid_v7() is 'A new UUIDv7: ordered by time to the millisecond.';

-- Ids say in which partition a job lies. With ids from far ahead, one client could keep a partition from being cut, and so the jobs of all from leaving.
-- +goose StatementBegin
create function ojs._latest_id() returns uuid
language sql volatile
as $$
    select (pg_catalog.lpad(pg_catalog.to_hex((pg_catalog.date_part('epoch', ojs.now()) operator(pg_catalog.*) 1000)::pg_catalog.int8 operator(pg_catalog.+) 86400000), 12, '0')
        operator(pg_catalog.||) '7fffbfffffffffffffff')::pg_catalog.uuid
$$;
-- +goose StatementEnd
comment on function ojs._latest_id() is 'The last UUIDv7 that a client may choose: of a day from now. Becomes part of the query that asks.';

-- PostgreSQL leaves the asking transaction out of the list of those in progress. To a reader who remembers the snapshot, what that
-- transaction does afterwards would look done already.
-- +goose StatementBegin
create function ojs._snapshot() returns pg_snapshot
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_own      xid8 := pg_current_xact_id_if_assigned();
begin
    if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then
        return v_snapshot;
    end if;
    return (pg_snapshot_xmin(v_snapshot) || ':' || pg_snapshot_xmax(v_snapshot) || ':'
        || (select string_agg(x.xid::text, ',' order by x.xid) from (select v_own union select pg_snapshot_xip(v_snapshot)) x(xid)))::pg_snapshot;
end;
$$;
-- +goose StatementEnd
comment on function ojs._snapshot() is 'What the running statement sees committed: pg_current_snapshot() with the transaction itself counted among those in progress.';

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
comment on column ojs.settings.dead_letter_max_age is 'How long a job stays in the dead letter queue (ojs-dead-letter section 5). Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.dead_letter_max_count is 'How many jobs of a tenant the dead letter queue holds; beyond, the oldest go. Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.tenant_required is 'Refuse jobs without a tenant instead of giving them to the default tenant (multi-tenancy section 5.1).';
comment on column ojs.settings.retention is 'How long jobs are kept after they have ended, at least; 0: until an operator drops them.';
comment on column ojs.settings.idempotency_window is 'How long a request with the same idempotency key is answered as the first one was.';
comment on column ojs.settings.journal_retention is 'How long the journal is kept, at most; where retention is shorter, that long, but a minute at least.';
comment on column ojs.settings.held_at is 'Since when nothing is handed out and the clock stands still (ojs.hold_dispatch); null: dispatch goes on.';
comment on column ojs.settings.timeout_ms is 'How long heartbeats keep an attempt of a job that has no timeout_ms of its own, milliseconds; 0: for ever (ojs-timeouts section 5.1).';
comment on column ojs.settings.heartbeat_timeout_ms is 'A worker that has sent heartbeats and is silent for so long is dead, milliseconds (ojs-worker-protocol section 10.1).';

create table ojs.tenant (
    tenant_id      text primary key,
    weight         numeric not null default 1,
    priority_boost int not null default 0,
    created_at     timestamptz not null default ojs.now(),
    constraint weight_in_range check (weight between 0.000001 and 1000000
        or ojs._raise('OJ422', 'weight must be between 0.000001 and 1000000', '{"field": "weight"}')),
    constraint priority_boost_in_range check (priority_boost between -100 and 100
        or ojs._raise('OJ422', 'priority_boost must be between -100 and 100', '{"field": "priority_boost"}'))
);
comment on table ojs.tenant is 'Configured tenants. A tenant without a row has weight 1 and no boost. Changed by ojs.configure_tenant.';
comment on column ojs.tenant.tenant_id is 'The tenant (multi-tenancy section 5.2).';
comment on column ojs.tenant.weight is 'Share of dispatch relative to the other tenants with work; 0.000001 to 1000000.';
comment on column ojs.tenant.priority_boost is 'Added to the priority of the tenant''s jobs when they are dispatched; -100 to 100. The jobs keep their own priority.';
comment on column ojs.tenant.created_at is 'When the tenant was first configured.';

create table ojs.tenant_role (
    role_name name primary key,
    tenant_id text not null
);
create index tenant_role_tenant_idx on ojs.tenant_role (tenant_id);
comment on table ojs.tenant_role is 'Which tenant a login role is. Private; written by ojs.create_tenant_role.';
comment on column ojs.tenant_role.role_name is 'The login role.';
comment on column ojs.tenant_role.tenant_id is 'Its tenant.';

create table ojs.queue (
    queue      text primary key,
    paused     boolean not null default false,
    created_at timestamptz not null default ojs.now(),
    updated_at timestamptz,
    config     jsonb not null default '{}',
    constraint queue_name check (queue ~ '^[a-z0-9][a-z0-9.-]*$' and length(queue) <= 128
        or ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters', '{"field": "queue"}'))
);
comment on table ojs.queue is 'Configured queues. A queue without a row is not paused; queues need not be created.';
comment on column ojs.queue.queue is 'The queue''s name.';
comment on column ojs.queue.paused is 'Whether dispatch from it stands still.';
comment on column ojs.queue.created_at is 'When it was first configured.';
comment on column ojs.queue.updated_at is 'When its configuration was changed last.';
comment on column ojs.queue.config is 'Its configuration (ojs.configure_queue).';

-- The order of the columns is deliberate: what changes comes first and what never changes after it, so that the log
-- record of an update holds the changed head of the row and not its tail.
create sequence ojs.job_seq as bigint cache 1;
create table ojs.job (
    state                 ojs.job_state not null default 'available',
    attempt               int not null default 0,
    lease                 uuid,
    started_at            timestamptz,
    lease_expires_at      timestamptz,
    finished_at           timestamptz,
    retry_at              timestamptz,
    enqueued_at           timestamptz not null default ojs.now(),
    worker_id             text,
    errors                jsonb,
    result                json,
    seq                   bigint default nextval('ojs.job_seq'),
    tenant_id             text not null,
    id                    uuid not null default ojs._uuid_v7(),
    queue                 text not null default 'default',
    type                  text not null,
    priority              int not null default 0,
    max_attempts          int not null default 3,
    created_at            timestamptz not null default ojs.now(),
    scheduled_at          timestamptz,
    expires_at            timestamptz,
    timeout_ms            int,
    visibility_timeout_ms int,
    tags                  text[],
    args                  json not null default '[]',
    meta                  jsonb not null default '{}',
    retry                 jsonb,
    options               json,
    extra                 json,
    -- No check constraints: their expressions would be read anew by every update. Triggers validate what is inserted, and nothing they validate changes.
    constraint job_pkey primary key (id, tenant_id)
) partition by range (id);
-- One partition for now. Ids are ordered by time, so retention will become a matter of cutting new partitions off the future and
-- dropping old ones, without a rewrite (docs/design/0001-job-table-and-retention.md).
create table ojs.job_all partition of ojs.job for values from (minvalue) to (maxvalue) with (
    -- Room for the two heap-only versions an ordinary life needs: fetched, then completed.
    fillfactor = 50,
    -- Wide values leave the row early, so that a change of state rewrites a narrow row.
    toast_tuple_target = 512,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05
);
comment on table ojs.job_all is 'The partition of ojs.job that holds every id.';
alter sequence ojs.job_seq owned by ojs.job.seq;
-- The dispatcher walks it forward from a cursor that only grows. It knows nothing of state.
create index job_dispatch_idx on ojs.job (queue, priority, tenant_id, seq) where seq is not null;
comment on table ojs.job is 'Every job, one row. Private: written through functions and the view ojs.jobs; the dispatcher''s order is (queue, priority, tenant, seq).';
comment on column ojs.job.state is 'Where the job is in its life (ojs-core section 6).';
comment on column ojs.job.attempt is 'How many times it has been handed to a worker.';
comment on column ojs.job.lease is 'Token of the running attempt; ack, nack and heartbeat may prove with it that they still hold the job.';
comment on column ojs.job.started_at is 'When the latest attempt was handed out.';
comment on column ojs.job.lease_expires_at is 'When the running attempt is taken back unless extended by a heartbeat.';
comment on column ojs.job.finished_at is 'When it was completed, cancelled or discarded.';
comment on column ojs.job.retry_at is 'When a retryable job becomes available again.';
comment on column ojs.job.enqueued_at is 'When it became available; for one not yet available, when it was created.';
comment on column ojs.job.worker_id is 'The worker of the latest attempt, as it named itself.';
comment on column ojs.job.errors is 'Failed attempts, oldest first: {attempt, code, type, message, occurred_at, retryable, details}; the latest 100.';
comment on column ojs.job.result is 'What the worker acknowledged with, byte for byte.';
comment on column ojs.job.seq is 'First-in-first-out order among the jobs of a (queue, priority, tenant); null until the job is available for the first time.';
comment on column ojs.job.tenant_id is 'Whose job it is; never changes.';
comment on column ojs.job.id is 'UUIDv7, unique within the tenant. First in the key, so that a worker''s bare id is one index probe.';
comment on column ojs.job.queue is 'The queue; default ''default''.';
comment on column ojs.job.type is 'What kind of work (ojs-core section 5.1).';
comment on column ojs.job.priority is 'Higher goes first within a queue; -100 to 100, default 0.';
comment on column ojs.job.max_attempts is 'How many attempts it may have; default 3.';
comment on column ojs.job.created_at is 'When it was enqueued.';
comment on column ojs.job.scheduled_at is 'Not before this time.';
comment on column ojs.job.expires_at is 'Discarded when not started by this time.';
comment on column ojs.job.timeout_ms is 'How long an attempt may run, milliseconds; 0 or null: no limit of its own, settings.timeout_ms holds.';
comment on column ojs.job.visibility_timeout_ms is 'How long a lease lasts without a heartbeat, milliseconds; null: 30000 or what the FETCH asks for.';
comment on column ojs.job.tags is 'Labels for filtering.';
comment on column ojs.job.args is 'The job''s arguments, a JSON array, byte for byte as sent.';
comment on column ojs.job.meta is 'A JSON object of the producer''s.';
comment on column ojs.job.retry is 'The retry policy as sent (ojs-retry section 2); null: the default policy.';
comment on column ojs.job.options is 'Options that have no column of their own, byte for byte.';
comment on column ojs.job.extra is 'Attributes the specification does not know, byte for byte (ojs-core section 5.5).';

-- Jobs that failed for good and are kept for a person to look at. The job itself stays where it is, discarded.
create table ojs.dead_letter (
    tenant_id  text not null,
    id         uuid not null,
    queue      text not null,
    type       text not null,
    error_type text not null,
    error_code text not null,
    at         timestamptz not null,
    aside      boolean not null default false,
    constraint dead_letter_pkey primary key (id, tenant_id)
);
create index dead_letter_tenant_idx on ojs.dead_letter (tenant_id, at, id);
create index dead_letter_age_idx on ojs.dead_letter (at, tenant_id, id);
create index dead_letter_home_idx on ojs.dead_letter (id) where not aside;
comment on table ojs.dead_letter is 'The dead letter queue (ojs-dead-letter): one row per discarded job that is kept. Written by the transaction that discards the job, or retries or deletes it.';
comment on column ojs.dead_letter.tenant_id is 'The tenant.';
comment on column ojs.dead_letter.id is 'The job.';
comment on column ojs.dead_letter.queue is 'The queue it came from.';
comment on column ojs.dead_letter.type is 'The job''s type.';
comment on column ojs.dead_letter.error_type is 'Type of its last error.';
comment on column ojs.dead_letter.error_code is 'Code of its last error.';
comment on column ojs.dead_letter.at is 'When it was discarded.';
comment on column ojs.dead_letter.aside is 'Whether the job lies in ojs.dead_job, its partition having been dropped.';

-- Retention drops whole partitions of ojs.job. Dead letters in them are put here before, in small steps beside running work.
create table ojs.dead_job (
    like ojs.job including comments,
    constraint dead_job_pkey primary key (id, tenant_id)
) with (toast_tuple_target = 512);
comment on table ojs.dead_job is 'Jobs in the dead letter queue that are older than the partitions of ojs.job. Retried, they return there.';

create table ojs.replay_rule (
    name        text primary key,
    tenant_id   text,
    queue       text,
    type        text,
    error_type  text,
    delay       interval not null,
    max_replays int not null,
    enabled     boolean not null default true,
    seen        xid8,
    caught_up   boolean not null default false,
    created_at  timestamptz not null default ojs.now()
);
comment on table ojs.replay_rule is 'Rules by which the clock retries dead letters (ojs-dead-letter section 7). Changed by ojs.set_replay_rule.';
comment on column ojs.replay_rule.name is 'The rule''s name.';
comment on column ojs.replay_rule.tenant_id is 'For dead letters of this tenant only; null: of all.';
comment on column ojs.replay_rule.queue is 'From this queue only.';
comment on column ojs.replay_rule.type is 'Of this job type only.';
comment on column ojs.replay_rule.error_type is 'With this type or code of the last error only.';
comment on column ojs.replay_rule.delay is 'How long after it was discarded a job is retried.';
comment on column ojs.replay_rule.max_replays is 'How many times a job may have been retried by rules at all for this one to do it once more.';
comment on column ojs.replay_rule.enabled is 'Whether the rule applies.';
comment on column ojs.replay_rule.seen is 'Transactions from this one on know the rule; null until the clock has seen it.';
comment on column ojs.replay_rule.caught_up is 'Whether the clock has been told of the dead letters that were there before the rule.';
comment on column ojs.replay_rule.created_at is 'When the rule was first set.';

create table ojs.dead_letter_mark (
    rev       bigint primary key,
    next_at   timestamptz not null,
    tenant_id text not null
);
insert into ojs.dead_letter_mark values (1, '-infinity', '');
comment on table ojs.dead_letter_mark is 'How far the present round of removing old dead letters has come. The row moves to a higher rev with each step.';
comment on column ojs.dead_letter_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.dead_letter_mark.next_at is 'When the next round begins; passed while one is under way.';
comment on column ojs.dead_letter_mark.tenant_id is 'Tenants up to this one have been counted in this round.';

-- The journal: what happened, appended by the transaction that did it and never changed. xid lets a reader ask for exactly
-- what has become visible since a snapshot it remembers, whatever order transactions committed in.
create table ojs.wake (
    xid        xid8 not null default pg_current_xact_id(),
    seq        bigint generated always as identity,
    tenant_id  text not null,
    queue      text not null,
    priority   int not null,
    from_state ojs.job_state,
    to_state   ojs.job_state not null,
    jobs       int not null,
    lo         bigint,
    hi         bigint,
    at         timestamptz not null default ojs.now(),
    primary key (xid, seq)
);
comment on table ojs.wake is 'Journal: jobs that came into being or became available, one row per statement and (queue, priority, tenant). The next decision folds it.';
comment on column ojs.wake.xid is 'The transaction that did it.';
comment on column ojs.wake.seq is 'Order within the transaction.';
comment on column ojs.wake.tenant_id is 'The tenant.';
comment on column ojs.wake.queue is 'The queue.';
comment on column ojs.wake.priority is 'The jobs'' own priority.';
comment on column ojs.wake.from_state is 'The state they left; null for new jobs; available for jobs that came back, whose old state the release journal tells.';
comment on column ojs.wake.to_state is 'The state they entered.';
comment on column ojs.wake.jobs is 'How many.';
comment on column ojs.wake.lo is 'Lowest job.seq among them; null unless available.';
comment on column ojs.wake.hi is 'Highest job.seq among them; null unless available.';
comment on column ojs.wake.at is 'When.';

create table ojs.lease (
    xid       xid8 not null default pg_current_xact_id(),
    seq       bigint generated always as identity,
    tenant_id text not null,
    queue     text not null,
    priority  int not null,
    jobs      int not null,
    owed      int not null default 0,
    ids       uuid[] not null,
    turns     bigint[] not null,
    at        timestamptz not null default ojs.now(),
    primary key (xid, seq)
-- Lists of jobs stay in the row as they are.
) with (toast_tuple_target = 8160);
create index lease_recent_idx on ojs.lease (at);
create index lease_owed_idx on ojs.lease (xid) where owed > 0;
comment on table ojs.lease is 'Journal: jobs handed out, one row per decision and (queue, priority, tenant), or more when there are many jobs.';
comment on column ojs.lease.xid is 'The transaction of the decision.';
comment on column ojs.lease.seq is 'Order within the transaction.';
comment on column ojs.lease.tenant_id is 'The tenant.';
comment on column ojs.lease.queue is 'The queue.';
comment on column ojs.lease.priority is 'The jobs'' own priority.';
comment on column ojs.lease.jobs is 'How many.';
comment on column ojs.lease.ids is 'The jobs.';
comment on column ojs.lease.turns is 'Their places in the order of all decisions, in step with ids.';
comment on column ojs.lease.owed is 'How many of them the tenant is still to be charged for: those taken beside a decision. The next decision charges them.';
comment on column ojs.lease.at is 'When.';

create table ojs.release (
    xid        xid8 not null default pg_current_xact_id(),
    seq        bigint generated always as identity,
    tenant_id  text not null,
    queue      text not null,
    priority   int not null,
    job_id     uuid not null,
    job_type   text not null,
    attempt    int not null,
    from_state ojs.job_state not null,
    to_state   ojs.job_state not null,
    started_at timestamptz,
    fenced     boolean not null default true,
    cause      text,
    at         timestamptz not null default ojs.now(),
    primary key (xid, seq)
);
comment on table ojs.release is 'Journal: jobs that left a worker''s hands or were ended, one row per job: completed, failed, given back, cancelled, expired.';
comment on column ojs.release.xid is 'The transaction that did it.';
comment on column ojs.release.seq is 'Order within the transaction.';
comment on column ojs.release.tenant_id is 'The tenant.';
comment on column ojs.release.queue is 'The queue.';
comment on column ojs.release.priority is 'The job''s own priority.';
comment on column ojs.release.job_id is 'The job.';
comment on column ojs.release.job_type is 'Its type.';
comment on column ojs.release.attempt is 'The attempt that ended; 0 if there was none.';
comment on column ojs.release.from_state is 'The state it left.';
comment on column ojs.release.to_state is 'The state it entered.';
comment on column ojs.release.started_at is 'When the attempt was handed out; null if there was none.';
comment on column ojs.release.fenced is 'Whether the caller proved with the lease or the worker''s name that it held the job.';
comment on column ojs.release.cause is 'Why the clock ended the attempt: timeout, visibility_timeout, worker_death; null: somebody said so.';
comment on column ojs.release.at is 'When.';

create type ojs.timer_kind as enum ('due', 'lease', 'again', 'expiry', 'replay', 'cron', 'worker');
comment on type ojs.timer_kind is
'What the tick has to look at: due: scheduled or retryable jobs; lease: running attempts; again: available jobs that were locked when their turn came; expiry: jobs that may not be started any more; replay: dead letters to be retried by a rule; cron: cron jobs; worker: workers that may be silent.';

create table ojs.timer (
    due_at     timestamptz not null,
    seq        bigint generated always as identity,
    kind       ojs.timer_kind not null,
    tenant_ids text[] not null,
    ids        uuid[] not null,
    xid        xid8 not null default pg_current_xact_id(),
    primary key (due_at, seq)
) with (toast_tuple_target = 8160);
-- What committed after the clock had passed its time: looked up by the few transactions that were in progress then.
create index timer_xid_idx on ojs.timer (xid);
comment on table ojs.timer is 'What the tick has to look at, and when: jobs that become due, leases that may have expired. A row is a reminder; the job''s own row decides.';
comment on column ojs.timer.due_at is 'When to look.';
comment on column ojs.timer.seq is 'Tells apart what is due at the same instant.';
comment on column ojs.timer.kind is 'due: scheduled or retryable jobs; lease: running attempts; again: available jobs that were locked when their turn came; expiry: jobs that may not be started any more; replay: dead letters to be retried by a rule; cron: cron jobs; worker: workers that may be silent.';
comment on column ojs.timer.tenant_ids is 'Tenants of the jobs or workers, in step with ids.';
comment on column ojs.timer.ids is 'The jobs, the ids of cron jobs, or registrations of workers.';
comment on column ojs.timer.xid is 'The transaction that inserted it.';

-- Fairness state. Virtual time advances by 1 / (weights of the tenants with work) per dispatched job; a tenant's own
-- virtual time advances by 1 / its weight per job of its own. deficit = (V - own) * weight: the jobs it is owed.
create table ojs.lane (
    lane smallint primary key
);
insert into ojs.lane values (0);
comment on table ojs.lane is 'One row per lane of decisions. Its row lock makes decisions serial; nothing is ever written to it.';
comment on column ojs.lane.lane is 'The lane''s number; today there is lane 0.';

create table ojs.fold (
    lane     smallint not null,
    rev      bigint not null,
    snapshot pg_snapshot not null,
    primary key (lane, rev)
);
insert into ojs.fold values (0, 1, pg_current_snapshot());
comment on table ojs.fold is 'How far the decision has folded the wake journal: everything visible to this snapshot. The row moves to a higher rev with each change.';
comment on column ojs.fold.lane is 'The lane; -1 while dispatch is held (ojs.hold_dispatch), so that no decision finds it.';
comment on column ojs.fold.rev is 'Grows with each change; the highest counts.';
comment on column ojs.fold.snapshot is 'What has been folded.';

create table ojs.queue_priority (
    queue    text not null,
    priority int not null,
    primary key (queue, priority)
);
comment on table ojs.queue_priority is 'Effective priorities ever seen in a queue.';
comment on column ojs.queue_priority.queue is 'The queue.';
comment on column ojs.queue_priority.priority is 'The effective priority.';

create table ojs.ring (
    queue         text not null,
    priority      int not null,
    rev           bigint not null,
    v             numeric not null,
    members       int not null,
    weight        numeric not null,
    class         int[] not null,
    class_members int[] not null,
    class_weight  numeric[] not null,
    class_head    numeric[] not null,
    drift         numeric not null default 0,
    primary key (queue, priority, rev)
);
comment on table ojs.ring is 'The tenants with work at one effective priority of a queue, in sum. The row moves to a higher rev with each decision.';
comment on column ojs.ring.queue is 'The queue.';
comment on column ojs.ring.priority is 'The effective priority.';
comment on column ojs.ring.rev is 'Grows with each change; the highest counts.';
comment on column ojs.ring.v is 'Virtual time: where a tenant stands that is owed nothing.';
comment on column ojs.ring.members is 'Tenants with work.';
comment on column ojs.ring.weight is 'The sum of their weights.';
comment on column ojs.ring.class is 'Weight classes present: tenants of (almost) equal weight, among whom the lowest virtual time is next.';
comment on column ojs.ring.class_members is 'Tenants in each class.';
comment on column ojs.ring.class_weight is 'Sum of weights in each class.';
comment on column ojs.ring.drift is 'By how much v lags behind the clock, which is jobs dispatched per unit of weight since the ring began: what tenants had ahead of their share when they left the round, the others get back.';
comment on column ojs.ring.class_head is 'Lower bound of the virtual times in each class: where a scan may begin.';

create table ojs.tenant_fairness (
    queue         text not null,
    priority      int not null,
    tenant_id     text not null,
    vtime         numeric not null,
    weight        numeric not null,
    class         int not null,
    backlogged    boolean not null,
    deficit       numeric not null default 0,
    dispatched    bigint not null default 0,
    job_priority  int not null,
    head          bigint not null,
    reentry_head  bigint not null default 0,
    drift         numeric not null default 0,
    rev           bigint not null default 1,
    primary key (queue, priority, tenant_id, rev)
);
-- The ring: who is next within a weight class.
create index tenant_fairness_ring_idx on ojs.tenant_fairness (queue, priority, class, vtime) where backlogged;
comment on table ojs.tenant_fairness is 'Deficit round robin: one row per (queue, effective priority, tenant), written by the decision inside the FETCH transaction.';
comment on column ojs.tenant_fairness.queue is 'The queue.';
comment on column ojs.tenant_fairness.priority is 'The effective priority: the jobs'' own plus the tenant''s boost.';
comment on column ojs.tenant_fairness.tenant_id is 'The tenant.';
comment on column ojs.tenant_fairness.vtime is 'The tenant''s virtual time: jobs it was given per unit of weight. While it has no work: by the clock, from which ring.v drifts.';
comment on column ojs.tenant_fairness.weight is 'The weight in effect.';
comment on column ojs.tenant_fairness.class is 'The weight''s class (ojs._weight_class).';
comment on column ojs.tenant_fairness.backlogged is 'Whether the tenant takes part in the round.';
comment on column ojs.tenant_fairness.deficit is 'Jobs owed to the tenant (negative: had ahead of its share) when it was last served; ojs.tenant_stats shows the present value.';
comment on column ojs.tenant_fairness.dispatched is 'Jobs handed out to the tenant here, ever.';
comment on column ojs.tenant_fairness.job_priority is 'The jobs'' own priority.';
comment on column ojs.tenant_fairness.head is 'Cursor: jobs up to this job.seq have been looked at. Moves back when what was decided ahead is revoked.';
comment on column ojs.tenant_fairness.reentry_head is 'Cursor into ojs.reentry. Moves back when what was decided ahead is revoked.';
comment on column ojs.tenant_fairness.drift is 'The drift of the ring when the tenant left the round, which is in its vtime.';
comment on column ojs.tenant_fairness.rev is 'Grows with each change, so that the live version is found newest first.';

create table ojs.reentry (
    queue     text not null,
    priority  int not null,
    tenant_id text not null,
    n         bigint generated always as identity,
    id        uuid not null,
    primary key (queue, priority, tenant_id, n)
);
comment on table ojs.reentry is 'Jobs behind their tenant''s cursor that are to be looked at again: taken back, committed late, or passed over because they were locked. Read before the cursor.';
comment on column ojs.reentry.queue is 'The queue.';
comment on column ojs.reentry.priority is 'The effective priority.';
comment on column ojs.reentry.tenant_id is 'The tenant.';
comment on column ojs.reentry.n is 'Order of return.';
comment on column ojs.reentry.id is 'The job; its own row says whether it is still available.';

create table ojs.rotation (
    queues text[] not null,
    rev    bigint not null,
    next   int not null,
    primary key (queues, rev)
);
comment on table ojs.rotation is 'Where the round over several queues stands, per set of queues asked for.';
comment on column ojs.rotation.queues is 'The queues in the order they were listed.';
comment on column ojs.rotation.rev is 'Grows with each change; the highest counts.';
comment on column ojs.rotation.next is 'Index (1-based) of the queue whose turn is next.';

-- Decided, and waiting to be taken by direct callers.
create table ojs.run (
    queue     text not null,
    n         bigint generated always as identity,
    priority  int not null,
    job_priority int not null,
    tenant_id text not null,
    id        uuid not null,
    pos       bigint not null,
    step      float8 not null,
    drift     float8 not null,
    primary key (queue, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
comment on table ojs.run is 'Run queue: jobs in the fair order in which direct callers of ojs.fetch take them next. Their tenants have been charged; a decision may revoke what is not taken.';
comment on column ojs.run.queue is 'The queue.';
comment on column ojs.run.n is 'Place in the order of all decisions.';
comment on column ojs.run.priority is 'The effective priority.';
comment on column ojs.run.job_priority is 'The job''s own priority.';
comment on column ojs.run.tenant_id is 'The tenant.';
comment on column ojs.run.id is 'The job; its own row says whether it is still available.';
comment on column ojs.run.pos is 'Where it stood: its n in ojs.reentry, or 2^62 + its seq in line. Revoked, it returns there.';
comment on column ojs.run.step is 'By how much the job advanced the clock of its ring.';
comment on column ojs.run.drift is 'By how much it moved the drift of its ring: it was its tenant''s last.';

create table ojs.run_mark (
    queue text not null,
    rev   bigint not null,
    lo    bigint not null,
    hi    bigint not null,
    ahead int not null,
    held  bigint[] not null default '{}',
    primary key (queue, rev)
);
comment on table ojs.run_mark is 'Where the run queue of a queue begins and ends. The row moves to a higher rev with each refill.';
comment on column ojs.run_mark.queue is 'The queue.';
comment on column ojs.run_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.run_mark.lo is 'No row of ojs.run lies before this n, except those in held: where a scan may begin.';
comment on column ojs.run_mark.hi is 'The n of the last row.';
comment on column ojs.run_mark.ahead is 'How many jobs were decided ahead at once.';
comment on column ojs.run_mark.held is 'The n of rows before lo that somebody was taking when lo moved, and has not let go of since.';

create table ojs.tally (
    tenant_id text not null,
    queue     text not null,
    priority  int not null,
    scheduled bigint not null default 0,
    available bigint not null default 0,
    pending   bigint not null default 0,
    active    bigint not null default 0,
    retryable bigint not null default 0,
    completed bigint not null default 0,
    cancelled bigint not null default 0,
    discarded bigint not null default 0,
    total     bigint not null default 0,
    failed    bigint not null default 0,
    rev       bigint not null default 1,
    primary key (tenant_id, queue, priority, rev)
);
comment on table ojs.tally is 'Jobs by state per (tenant, queue, priority) as of ojs.tally_mark; the journal after it is added by ojs.shard_stats. A row moves to a higher rev with each change.';
comment on column ojs.tally.tenant_id is 'The tenant.';
comment on column ojs.tally.queue is 'The queue.';
comment on column ojs.tally.priority is 'The jobs'' own priority.';
comment on column ojs.tally.scheduled is 'Jobs waiting for their time.';
comment on column ojs.tally.available is 'Jobs ready to be handed out.';
comment on column ojs.tally.pending is 'Jobs waiting to be activated.';
comment on column ojs.tally.active is 'Jobs in workers'' hands.';
comment on column ojs.tally.retryable is 'Failed jobs waiting for their next attempt.';
comment on column ojs.tally.completed is 'Jobs completed, ever.';
comment on column ojs.tally.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.tally.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.tally.total is 'Jobs enqueued, ever.';
comment on column ojs.tally.failed is 'Failed attempts, ever.';
comment on column ojs.tally.rev is 'Grows with each change, so that the live version is found newest first.';

create table ojs.tally_mark (
    rev      bigint primary key,
    snapshot pg_snapshot not null,
    at       timestamptz not null
);
insert into ojs.tally_mark values (1, pg_current_snapshot(), '-infinity');
comment on table ojs.tally_mark is 'How far the journal has been rolled up into ojs.tally. The row moves to a higher rev with each change.';
comment on column ojs.tally_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tally_mark.snapshot is 'What has been rolled up.';
comment on column ojs.tally_mark.at is 'When.';

create table ojs.waiter (
    server_id  uuid not null,
    queue      text not null,
    token      text not null,
    expires_at timestamptz not null,
    primary key (queue, server_id)
);
comment on table ojs.waiter is 'Servers with a worker waiting for a queue. A commit that makes a job of that queue available notifies the token.';
comment on column ojs.waiter.server_id is 'The server.';
comment on column ojs.waiter.queue is 'The queue.';
comment on column ojs.waiter.token is 'Payload of the notification on channel ojs_wake; says nothing to anybody else.';
comment on column ojs.waiter.expires_at is 'When the row lapses unless renewed.';

-- What is said once of a worker stands here, what each heartbeat says in worker_beat. The row of worker is locked while its worker_beat is
-- changed, so that a heartbeat and the end of a registration come one after the other.
create type ojs.worker_state as enum ('running', 'quiet', 'drain', 'terminate');
comment on type ojs.worker_state is 'What a worker does (ojs-worker-protocol section 2): running: fetches and works; quiet, drain: finishes what it has; terminate: ends within its grace period.';
create table ojs.worker (
    tenant_id     text not null,
    worker_id     text not null,
    id            uuid not null default ojs._uuid_v7(),
    state         ojs.worker_state not null default 'running',
    directive     ojs.worker_state,
    resting       boolean not null generated always as (coalesce(directive, state) <> 'running') stored,
    hostname      text,
    pid           int,
    queues        text[],
    concurrency   int,
    labels        text[],
    version       text,
    metadata      jsonb,
    started_at    timestamptz,
    registered_at timestamptz not null default ojs.now(),
    primary key (tenant_id, worker_id)
);
create unique index worker_registration_idx on ojs.worker (tenant_id, id);
-- Asked by every FETCH, and empty most of the time.
create index worker_resting_idx on ojs.worker (tenant_id, worker_id) where resting;
comment on table ojs.worker is 'Workers that have registered or sent a heartbeat, until they sign off or fall silent. One that never does either has no row: its leases alone tell.';
comment on column ojs.worker.tenant_id is 'The tenant it works for; empty: it serves all. Two tenants may have workers of one name.';
comment on column ojs.worker.worker_id is 'As it names itself.';
comment on column ojs.worker.id is 'This registration; a worker that comes back after its end gets another.';
comment on column ojs.worker.state is 'What it says it does.';
comment on column ojs.worker.directive is 'What it is told to do by its next heartbeat; null: as it likes.';
comment on column ojs.worker.resting is 'Whether FETCH gives it nothing.';
comment on column ojs.worker.hostname is 'Where it runs, as it says.';
comment on column ojs.worker.pid is 'Its process, as it says.';
comment on column ojs.worker.queues is 'The queues it serves, as it says.';
comment on column ojs.worker.concurrency is 'How many jobs it runs at once, as it says.';
comment on column ojs.worker.labels is 'Labels for grouping, as it says.';
comment on column ojs.worker.version is 'Its version, as it says.';
comment on column ojs.worker.metadata is 'Whatever else it says of itself, a JSON object.';
comment on column ojs.worker.started_at is 'When its process began, as it says.';
comment on column ojs.worker.registered_at is 'When this registration began.';

create table ojs.worker_beat (
    tenant_id text not null,
    worker_id text not null,
    rev       bigint not null,
    seen_at   timestamptz not null,
    active    int,
    ids       uuid[] not null,
    primary key (tenant_id, worker_id, rev)
);
comment on table ojs.worker_beat is 'The latest heartbeat of each worker that was worth writing down. The row moves to a higher rev with each change.';
comment on column ojs.worker_beat.tenant_id is 'The tenant of the worker; empty: all.';
comment on column ojs.worker_beat.worker_id is 'The worker.';
comment on column ojs.worker_beat.rev is 'Grows with each change; the highest counts.';
comment on column ojs.worker_beat.seen_at is 'When. Heartbeats in quick succession are written down once.';
comment on column ojs.worker_beat.active is 'How many jobs it runs, as it says.';
comment on column ojs.worker_beat.ids is 'The jobs it runs, as it says.';

create table ojs.sleeper (
    token      text primary key,
    stride     interval not null,
    expires_at timestamptz not null
);
comment on table ojs.sleeper is 'Servers whose clock sleeps. A commit with a timer that is due sooner than they would look by themselves notifies them.';
comment on column ojs.sleeper.token is 'Payload of the notification on channel ojs_wake.';
comment on column ojs.sleeper.stride is 'How long the clock sleeps at most between two looks.';
comment on column ojs.sleeper.expires_at is 'When the row lapses unless renewed.';

create table ojs.duty (
    rev        bigint primary key,
    holder     text,
    backend    int,
    session    text,
    since      timestamptz not null,
    expires_at timestamptz not null
);
insert into ojs.duty (rev, since, expires_at) values (1, '-infinity', '-infinity');
comment on table ojs.duty is 'Which of the servers is on duty: it does what is to be done once for all of them. The row moves to a higher rev with each change.';
comment on column ojs.duty.rev is 'Grows with each change; the highest counts.';
comment on column ojs.duty.holder is 'The token of its clock; null: nobody is on duty.';
comment on column ojs.duty.backend is 'The process id of its session that listens: when that has ended, so has the duty. Null: the server listens to nothing, and holds the duty by short leases.';
comment on column ojs.duty.session is 'By what that session is told from a later one with the same process id: its role and application_name.';
comment on column ojs.duty.since is 'When it went on duty.';
comment on column ojs.duty.expires_at is 'When the duty ends unless renewed, whatever the session does.';

-- Timers and journals are consumed from their low ends. What was deleted there stays in the index for as long as some session's
-- snapshot is older, so readers begin where the live rows do.
create table ojs.clock_mark (
    rev      bigint primary key,
    due_at   timestamptz not null,
    xid      xid8 not null,
    open     xid8[] not null,
    swept_at timestamptz not null,
    wake     xid8 not null,
    lease    xid8 not null,
    release  xid8 not null
);
insert into ojs.clock_mark values (1, '-infinity', '0', '{}', '-infinity', '0', '0', '0');
comment on table ojs.clock_mark is 'How far the clock has come. The row moves to a higher rev with each change.';
comment on column ojs.clock_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.clock_mark.due_at is 'Timers before are done, except those of transactions in open. Later transactions insert none before.';
comment on column ojs.clock_mark.xid is 'The transaction that chose due_at.';
comment on column ojs.clock_mark.open is 'Transactions before xid that had not ended then.';
comment on column ojs.clock_mark.swept_at is 'When timers were last looked for before due_at, too, in case the wall clock was set back.';
comment on column ojs.clock_mark.wake is 'Rows of ojs.wake with a lower xid are pruned.';
comment on column ojs.clock_mark.lease is 'Rows of ojs.lease with a lower xid are pruned.';
comment on column ojs.clock_mark.release is 'Rows of ojs.release with a lower xid are pruned.';

create table ojs.cut (
    cut_at    timestamptz primary key,
    partition name not null,
    undo_at   timestamptz not null
);
comment on table ojs.cut is 'The cut of a partition of ojs.job that is being prepared (ojs.cut_partition), at most one.';
comment on column ojs.cut.cut_at is 'Where. Until the cut is made or given up, jobs with later ids are refused.';
comment on column ojs.cut.partition is 'The partition.';
comment on column ojs.cut.undo_at is 'From when on it is given up rather than made.';

create table ojs.idempotency (
    tenant_id   text not null,
    key         text not null,
    fingerprint bytea not null,
    answer      json,
    expires_at  timestamptz not null,
    primary key (tenant_id, key)
);
create index idempotency_expiry_idx on ojs.idempotency (expires_at);
comment on table ojs.idempotency is 'Requests that named an idempotency key (ojs.enqueue_once), and what they were answered.';
comment on column ojs.idempotency.tenant_id is 'The tenant of the request, else of its first job.';
comment on column ojs.idempotency.key is 'The key, as the client chose it.';
comment on column ojs.idempotency.fingerprint is 'Tells whether a request is the same: SHA-256 of it.';
comment on column ojs.idempotency.answer is 'The jobs as they were when they were enqueued.';
comment on column ojs.idempotency.expires_at is 'When the key may be used anew.';

create table ojs.upkeep_task (
    task       text primary key,
    last_step  text not null,
    last_at    timestamptz not null,
    failures   int not null default 0,
    not_before timestamptz not null
);
comment on table ojs.upkeep_task is 'What ojs.upkeep did last, one row per task; see ojs.upkeep_status.';
comment on column ojs.upkeep_task.task is 'The task.';
comment on column ojs.upkeep_task.last_step is 'What its last step came to: done, again and why, or not yet and why.';
comment on column ojs.upkeep_task.last_at is 'When that was.';
comment on column ojs.upkeep_task.failures is 'How many steps in a row came to nothing.';
comment on column ojs.upkeep_task.not_before is 'When the next step may come.';

create table ojs.cron (
    tenant_id             text not null,
    name                  text not null,
    id                    uuid not null default ojs._uuid_v7(),
    rev                   bigint not null default 1,
    enabled               boolean not null default true,
    upcoming              timestamptz[] not null default '{}',
    left_out              timestamptz[] not null default '{}',
    look_at               timestamptz,
    open                  uuid[] not null default '{}',
    waiting               boolean not null default false,
    run_count             bigint not null default 0,
    last_run_at           timestamptz,
    error                 text,
    expression            text not null,
    timezone              text not null,
    overlap_policy        text not null,
    catch_up              text not null,
    description           text,
    anchor_at             timestamptz not null,
    created_at            timestamptz not null,
    updated_at            timestamptz not null,
    type                  text not null,
    queue                 text not null,
    priority              int not null,
    max_attempts          int,
    timeout_ms            int,
    visibility_timeout_ms int,
    tags                  text[],
    args                  json not null,
    meta                  jsonb not null,
    retry                 jsonb,
    options               json,
    extra                 json,
    primary key (tenant_id, name)
);
create unique index cron_id_idx on ojs.cron (id);
comment on table ojs.cron is 'Cron jobs (ojs-cron). Written by ojs.put_cron and its like; what fires them is the tick.';
comment on column ojs.cron.tenant_id is 'Whose it is, and whose the jobs it makes are.';
comment on column ojs.cron.name is 'Its name, unique within the tenant.';
comment on column ojs.cron.id is 'By which timers know it.';
comment on column ojs.cron.rev is 'Grows with each change.';
comment on column ojs.cron.enabled is 'Whether it fires.';
comment on column ojs.cron.upcoming is 'When it fires next, soonest first, as far as a server has translated the expression; the first is next_run_at.';
comment on column ojs.cron.left_out is 'When a clock that is put forward leaves out a local time at which it would be due, soonest first.';
comment on column ojs.cron.look_at is 'When the soonest timer for it is due, if that time has not passed.';
comment on column ojs.cron.open is 'The latest jobs it made, among them those that had not ended when they were last looked at; about 100 at most.';
comment on column ojs.cron.waiting is 'Whether some of them may wait for the run before to end.';
comment on column ojs.cron.run_count is 'How many jobs it has made.';
comment on column ojs.cron.last_run_at is 'When it last made a job.';
comment on column ojs.cron.error is 'Why a server could not translate the expression; until it is changed the cron job does not fire.';
comment on column ojs.cron.expression is 'The cron expression as sent (ojs-cron sections 3 and 4).';
comment on column ojs.cron.timezone is 'IANA name of the time zone that the expression is meant in.';
comment on column ojs.cron.overlap_policy is 'What happens when it is due and a job it made has not ended: skip, allow, cancel_previous or enqueue (ojs-cron section 6).';
comment on column ojs.cron.catch_up is 'What happens when it was due more than a minute ago: once: it fires once, however often it was due; skip: it does not.';
comment on column ojs.cron.description is 'What it is for, in its owner''s words.';
comment on column ojs.cron.anchor_at is 'What @every counts from.';
comment on column ojs.cron.created_at is 'When it was first registered.';
comment on column ojs.cron.updated_at is 'When somebody last changed it.';
comment on column ojs.cron.type is 'Type of the jobs it makes; this and what follows is as in ojs.job.';
comment on column ojs.cron.queue is 'Their queue.';
comment on column ojs.cron.priority is 'Their priority.';
comment on column ojs.cron.max_attempts is 'How many attempts they may have; null: as the retry policy or the default says.';
comment on column ojs.cron.timeout_ms is 'How long an attempt may run, milliseconds.';
comment on column ojs.cron.visibility_timeout_ms is 'How long a lease lasts without a heartbeat, milliseconds; null: 600000.';
comment on column ojs.cron.tags is 'Their labels.';
comment on column ojs.cron.args is 'Their arguments, byte for byte.';
comment on column ojs.cron.meta is 'Their meta, to which cron_name, cron_scheduled_at and cron_triggered_at are added.';
comment on column ojs.cron.retry is 'Their retry policy.';
comment on column ojs.cron.options is 'Their options that have no column of their own.';
comment on column ojs.cron.extra is 'Their attributes the specification does not know.';

create table ojs.cron_run (
    tenant_id text not null,
    name      text not null,
    due_at    timestamptz not null,
    at        timestamptz not null default ojs.now(),
    manual    boolean not null default false,
    missed    int not null default 0,
    job_id    uuid,
    reason    text,
    message   text,
    blocker   uuid,
    primary key (tenant_id, name, due_at)
);
create index cron_run_recent_idx on ojs.cron_run (at);
comment on table ojs.cron_run is 'History of cron jobs: one row per time they were due. What two servers fire at once, this key lets happen once.';
comment on column ojs.cron_run.tenant_id is 'The tenant.';
comment on column ojs.cron_run.name is 'The cron job.';
comment on column ojs.cron_run.due_at is 'When it was due; for a trigger by hand, when that was.';
comment on column ojs.cron_run.at is 'When it was fired or skipped.';
comment on column ojs.cron_run.manual is 'Whether somebody triggered it by hand.';
comment on column ojs.cron_run.missed is 'How many times it had been due before, since it last fired, for which this one stands.';
comment on column ojs.cron_run.job_id is 'The job that was made; null: none, it was skipped.';
comment on column ojs.cron_run.reason is 'Why it was skipped: overlap_skip (the run before has not ended), misfire (too late to catch up), waiting (100 runs wait already), refused (the job was refused), dst_skip (there was no such local time: the clock was put forward at due_at).';
comment on column ojs.cron_run.message is 'What the refusal said.';
comment on column ojs.cron_run.blocker is 'The unfinished job because of which it was skipped.';
-- Small tables that change all the time are vacuumed every minute as it is, having few live rows. To give their last pages back to the system,
-- vacuum would lock them against everybody, and they would be needed again in the next second.
-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array array['timer', 'fold', 'queue_priority', 'ring', 'tenant_fairness', 'reentry', 'rotation', 'run', 'run_mark', 'tally', 'tally_mark', 'waiter',
                                   'sleeper', 'duty', 'clock_mark', 'worker_beat',
                                   'dead_letter_mark'] loop
        execute format('alter table ojs.%I set (vacuum_truncate = off)', v_table);
    end loop;
end;
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local role ojs_owner;
drop table ojs.cron_run, ojs.cron;
drop table ojs.idempotency;
drop table ojs.replay_rule, ojs.dead_letter_mark, ojs.dead_job, ojs.dead_letter;
drop table ojs.upkeep_task, ojs.cut, ojs.clock_mark, ojs.duty, ojs.sleeper, ojs.worker_beat, ojs.worker, ojs.waiter, ojs.tally_mark, ojs.tally, ojs.run_mark, ojs.run, ojs.rotation, ojs.reentry, ojs.tenant_fairness, ojs.ring, ojs.queue_priority,
    ojs.fold, ojs.lane, ojs.timer, ojs.release, ojs.lease, ojs.wake, ojs.job, ojs.queue, ojs.tenant_role, ojs.tenant, ojs.settings;
drop function ojs._snapshot();
drop function ojs._latest_id();
drop function ojs._uuid_v7();
drop function ojs._utc(timestamptz);
drop function ojs.now();
drop type ojs.worker_state;
drop type ojs.timer_kind;
drop type ojs.job_state;
reset role;
