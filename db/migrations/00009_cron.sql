-- +goose Up
-- Cron jobs, and when they fired.
set local role ojs_owner;

-- Cron jobs and their history. Written by ojs.put_cron and its like (cron/cron.sql), and by the
-- tick that fires them (cron/fire.sql).
create table ojs.cron (
    tenant_id             text collate "C" not null,
    name                  text collate "C" not null,
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
    queue                 text collate "C" not null,
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

create table ojs.cron_run (
    tenant_id text collate "C" not null,
    name      text collate "C" not null,
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
reset role;
