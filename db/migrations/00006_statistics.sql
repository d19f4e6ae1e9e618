-- +goose Up
-- Sums over jobs, kept so that nobody has to count them.
set local role ojs_owner;

create table ojs.tally (
    tenant_id  text collate "C" not null,
    queue      text collate "C" not null,
    priority   int not null,
    scheduled  bigint not null default 0,
    available  bigint not null default 0,
    pending    bigint not null default 0,
    active     bigint not null default 0,
    retryable  bigint not null default 0,
    completed  bigint not null default 0,
    cancelled  bigint not null default 0,
    discarded  bigint not null default 0,
    total      bigint not null default 0,
    failed     bigint not null default 0,
    dispatched bigint not null default 0,
    rev        bigint not null default 1,
    primary key (tenant_id, queue, priority, rev)
);

create table ojs.pool_tally (
    pool       int not null,
    rev        bigint not null default 1,
    active     bigint not null,
    dispatched bigint not null,
    primary key (pool, rev)
);

create table ojs.tally_mark (
    rev           bigint primary key,
    snapshot      pg_snapshot not null,
    at            timestamptz not null,
    pace_snapshot pg_snapshot not null,
    pace_at       timestamptz not null,
    watched_at    timestamptz not null default '-infinity',
    history_at    timestamptz not null default '-infinity'
);

insert into ojs.tally_mark values (1, pg_current_snapshot(), '-infinity', pg_current_snapshot(), '-infinity');

create type ojs.counts as (entered bigint, dispatched bigint, completed bigint, cancelled bigint, discarded bigint, failed bigint);

-- What was before stands in each row, so that a window costs one look at the index, and rows can go without others losing their meaning.
create table ojs.history (
    queue     text collate "C" not null,
    tenant_id text collate "C" not null,
    since     timestamptz not null,
    at        timestamptz not null,
    before    ojs.counts not null,
    after     ojs.counts not null,
    primary key (queue, tenant_id, at)
);

create index history_at_idx on ojs.history (at);

create table ojs.notice (
    n        bigint primary key generated always as identity,
    at       timestamptz not null default ojs.now(),
    type     text collate "C" not null,
    subject  text collate "C" not null,
    data     jsonb not null,
    nth      bigint not null default 1,
    ended_at timestamptz
);

create unique index notice_open_idx on ojs.notice (type, subject) where ended_at is null;

create index notice_at_idx on ojs.notice (at);

-- The sum of all before stands in each row, so that a window costs two looks at the index, however much happened in it.
create table ojs.pace (
    kind          text collate "C" not null,
    name          text collate "C" not null,
    at            timestamptz not null,
    jobs          bigint not null,
    waited        float8 not null,
    waits         bigint[],
    jobs_before   bigint not null,
    waited_before float8 not null,
    waits_before  bigint[],
    primary key (kind, name, at)
);

create index pace_at_idx on ojs.pace (at);
reset role;
