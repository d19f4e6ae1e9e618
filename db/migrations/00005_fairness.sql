-- +goose Up
-- The state of fairness: what the decisions, and only they, write.
set local role ojs_owner;

create table ojs.lane (
    lane smallint primary key
);

insert into ojs.lane values (0);

create table ojs.fold (
    rev      bigint primary key,
    snapshot pg_snapshot not null,
    part_xid xid8,
    part_lo  bigint,
    home     oid not null
);

insert into ojs.fold (rev, snapshot, home) values (1, pg_current_snapshot(), 'ojs.fold'::regclass);

create type ojs.unit as enum ('jobs', 'cost', 'time', 'none');

create type ojs.level as (priority int, low numeric, joined bigint, ready int, at_limit int, idle_at timestamptz);

create table ojs.dispatch_state (
    queue     text collate "C" not null,
    rev       bigint not null,
    unit      ojs.unit not null default 'jobs',
    own_order boolean not null default false,
    levels    ojs.level[] not null default '{}',
    idle_at   timestamptz,
    primary key (queue, rev)
);

create index dispatch_state_idle_idx on ojs.dispatch_state (idle_at) where idle_at is not null;

create type ojs.cursor as (job_priority int, head bigint, revisit_lo bigint, revisit_seq bigint, works boolean);

create table ojs.tenant_fairness (
    queue        text collate "C" not null,
    priority     int not null,
    tenant_id    text collate "C" not null,
    rev          bigint not null default 1,
    ready        boolean not null,
    at_limit     boolean not null default false,
    vtime        numeric not null,
    weight       numeric not null,
    deficit      numeric not null default 0,
    charged      bigint not null default 0,
    job_priority int not null,
    seconds      real not null default 1,
    head         bigint not null,
    revisit_lo   bigint,
    revisit_seq  bigint not null default 0,
    cursors      ojs.cursor[],
    primary key (queue, priority, tenant_id, rev)
);

create index tenant_fairness_ring_idx on ojs.tenant_fairness (queue, priority, vtime) where ready;

create index tenant_fairness_limit_idx on ojs.tenant_fairness (tenant_id, queue, priority) where at_limit;

-- Its condition says more than the other one's, so that a look-up by tenant cannot take it: where
-- no tenant was at its limit when statistics were taken, both would seem to cost the same, and this
-- one reads all tenants that are.
create index tenant_fairness_limit_queue_idx on ojs.tenant_fairness (queue, priority) where at_limit and not ready;

create table ojs.usage (
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    rev       bigint not null,
    active    int not null,
    limit_xid xid8 not null,
    primary key (tenant_id, queue, rev)
);

create type ojs.uncounted as (busy text[], locked text[], anywhere jsonb, here jsonb);

create table ojs.revisit (
    queue     text collate "C" not null,
    priority  int not null,
    tenant_id text collate "C" not null,
    lo        bigint not null,
    hi        bigint not null,
    n         bigint generated always as identity,
    primary key (queue, priority, tenant_id, lo, n)
);

create table ojs.rotation (
    key     bytea not null,
    pool    int,
    queues  text[] collate "C" not null,
    weights int[] not null,
    rev     bigint not null,
    times   numeric[] not null,
    owed    numeric[] not null,
    served  timestamptz[] not null,
    used_at timestamptz not null default ojs.now(),
    primary key (key, rev)
);

create index rotation_used_idx on ojs.rotation (used_at);

create sequence ojs.decision_seq as bigint;
reset role;
