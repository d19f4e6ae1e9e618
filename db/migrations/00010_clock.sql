-- +goose Up
-- What is due at some time, who waits to be woken, and upkeep.
set local role ojs_owner;

-- Small tables for what is done once for all servers: who is on duty, the cut of a partition that
-- is being prepared, idempotency keys, and what upkeep did last. Written by the tick
-- (workers/servers.sql), ojs.cut_partition, ojs.enqueue_once and ojs.upkeep.
create table ojs.duty (
    one        boolean primary key default true check (one),
    holder     text,
    backend    int,
    session    text,
    since      timestamptz not null default '-infinity',
    expires_at timestamptz not null default '-infinity'
);

insert into ojs.duty default values;

create table ojs.cut (
    cut_at    timestamptz primary key,
    partition name not null,
    undo_at   timestamptz not null
);

create table ojs.idempotency (
    tenant_id   text collate "C" not null,
    key         text collate "C" not null,
    fingerprint bytea not null,
    answer      json,
    expires_at  timestamptz not null,
    primary key (tenant_id, key)
);

create index idempotency_expiry_idx on ojs.idempotency (expires_at);

create table ojs.upkeep_task (
    task       text collate "C" primary key,
    last_step  text not null,
    last_at    timestamptz not null,
    failures   int not null default 0,
    not_before timestamptz not null
);

create type ojs.timer_kind as enum ('due', 'lease', 'revisit', 'expiry', 'replay', 'cron', 'worker', 'departure');

create table ojs.timer (
    due_at     timestamptz not null,
    seq        bigint generated always as identity,
    kind       ojs.timer_kind not null,
    tenant_ids text[] not null,
    ids        uuid[] not null,
    xid        xid8 not null default pg_current_xact_id(),
    primary key (due_at, seq)
) with (toast_tuple_target = 8160);

-- A timer may commit after the clock has passed its time. The clock looks up those of the transactions that were open then; without this
-- index it would read all timers.
create index timer_xid_idx on ojs.timer (xid);

create table ojs.waiter (
    server_id  uuid not null,
    queue      text collate "C" not null,
    token      text not null,
    expires_at timestamptz not null,
    primary key (queue, server_id)
);

create table ojs.sleeper (
    token      text collate "C" primary key,
    stride     interval not null,
    expires_at timestamptz not null
);

-- Timers, leases and journals are read from their low ends. Entries of deleted rows stay in the index there for as long as some session has
-- an older snapshot. These marks say where the live rows begin; without them readers would walk through the dead ones each time.
create table ojs.clock_mark (
    rev      bigint primary key,
    seen     pg_snapshot not null,
    due_at   timestamptz not null,
    lease_at timestamptz not null,
    journal  xid8 not null,
    lease    xid8 not null,
    release  xid8 not null,
    open     xid8[] not null
);

insert into ojs.clock_mark values (1, pg_current_snapshot(), '-infinity', '-infinity', '0', '0', '0', '{}');

-- With ojs.now() here, each insert would parse that function anew.
create trigger timer_arriving before insert on ojs.timer for each row
    when (new.due_at < clock_timestamp() + interval '10 seconds') execute function ojs._timer_arriving();

create trigger timer_arriving before insert on ojs.lease for each row
    when (new.due_at < clock_timestamp() + interval '10 seconds') execute function ojs._timer_arriving();
reset role;
