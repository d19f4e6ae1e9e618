-- +goose Up
-- Jobs that have failed for good, and what retries them.
set local role ojs_owner;

-- The dead letter queue: jobs that failed for good and are kept for a person to look at. The job
-- itself stays in ojs.job, discarded, until its partition is dropped; then it moves to
-- ojs.dead_job. Written where jobs fail (settle/fail.sql), where dead letters are purged and retried
-- (dead_letters), and by retention (upkeep/retention.sql).
create table ojs.dead_letter (
    tenant_id  text collate "C" not null,
    id         uuid not null,
    queue      text collate "C" not null,
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

-- Before retention drops a partition of ojs.job, the dead letters in it move here, a thousand at a time, beside running work.
create table ojs.dead_job (
    like ojs.job,
    constraint dead_job_pkey primary key (id, tenant_id)
) with (toast_tuple_target = 512);

create table ojs.replay_rule (
    name        text collate "C" primary key,
    tenant_id   text collate "C",
    queue       text collate "C",
    type        text,
    error_type  text,
    delay       interval not null,
    max_replays int not null,
    enabled     boolean not null default true,
    known_from  xid8,
    caught_up   boolean not null default false,
    created_at  timestamptz not null default ojs.now()
);

create table ojs.dead_letter_mark (
    one       boolean primary key default true check (one),
    next_at   timestamptz not null default '-infinity',
    tenant_id text collate "C" not null default ''
);

insert into ojs.dead_letter_mark default values;
reset role;
