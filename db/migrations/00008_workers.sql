-- +goose Up
-- Workers, as far as they have registered.
set local role ojs_owner;

-- Workers that have registered or send heartbeats. Written by heartbeats and by the end of a registration; FETCH asks whether a worker
-- rests, and notes queues that it has not seen it ask for. What a worker says once stands in worker, what each heartbeat says in
-- worker_beat. The row of worker is locked while its worker_beat is changed, so that a heartbeat and the end of a registration come one
-- after the other. worker_load is apart from both: a FETCH whose transaction stays open must not hold up heartbeats.
create type ojs.worker_state as enum ('running', 'quiet', 'drain', 'terminate');

create table ojs.worker (
    tenant_id     text collate "C" not null,
    worker_id     text collate "C" not null,
    id            uuid not null default ojs._uuid_v7(),
    state         ojs.worker_state not null default 'running',
    directive     ojs.worker_state,
    resting       boolean not null generated always as (coalesce(directive, state) <> 'running') stored,
    hostname      text,
    pid           int,
    queues        text[],
    concurrency   int,
    labels        text[],
    pool          text collate "C",
    strategy      text,
    weights       jsonb,
    apart         boolean not null generated always as (
        coalesce(directive, state) <> 'running' or coalesce(pool, strategy) is not null or weights is not null) stored,
    version       text,
    metadata      jsonb,
    started_at    timestamptz,
    registered_at timestamptz not null default ojs.now(),
    asks          text[],
    asked_at      timestamptz,
    primary key (tenant_id, worker_id)
);

-- The id first: with the tenant first, PostgreSQL would look for a worker by its name in this index, among all of the tenant, for as long
-- as it knows nothing of the size of the table.
create unique index worker_registration_idx on ojs.worker (id, tenant_id);

-- Every FETCH asks it, and most of the time it is empty.
create index worker_apart_idx on ojs.worker (tenant_id, worker_id) where apart;

create table ojs.worker_beat (
    tenant_id text collate "C" not null,
    worker_id text collate "C" not null,
    rev       bigint not null,
    seen_at   timestamptz not null,
    active    int,
    ids       uuid[] not null,
    primary key (tenant_id, worker_id, rev)
);

-- ojs.job has no index by worker: the worker of a job changes with each attempt, and every change
-- would write it. So a FETCH by strategy least-loaded (statistics/load.sql) notes what it hands out to a
-- worker, and looks at these jobs next time.
create table ojs.worker_load (
    tenant_id text collate "C" not null,
    worker_id text collate "C" not null,
    rev       bigint not null,
    ids       uuid[] not null,
    primary key (tenant_id, worker_id, rev)
);
reset role;
