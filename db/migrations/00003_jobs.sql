-- +goose Up
-- Jobs and the three journals that say what happened to them.
set local role ojs_owner;

create type ojs.job_state as enum ('scheduled', 'available', 'pending', 'active', 'completed', 'retryable', 'cancelled', 'discarded');

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
    pool                  int,
    charged               real,
    errors                jsonb,
    result                json,
    seq                   bigint default nextval('ojs.job_seq'),
    tenant_id             text collate "C" not null default ojs._default_tenant(),
    id                    uuid not null default ojs._uuid_v7(),
    queue                 text collate "C" not null default 'default',
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
    -- No check constraints: every update would read their expressions anew. Triggers validate what is inserted, and nothing that they
    -- validate changes later.
    constraint job_pkey primary key (id, tenant_id)
) partition by range (id);

-- One partition at first. Ids are ordered by time, so retention cuts new partitions off the future and drops old ones, without a rewrite
-- (docs/design/0001-job-table-and-retention.md).
create table ojs.job_all partition of ojs.job for values from (minvalue) to (maxvalue) with (
    -- Leaves room on the page for the two versions of an ordinary life, fetched and completed; without it both would go to other pages and
    -- write every index.
    fillfactor = 50,
    -- Wide values leave the row early, so that a change of state rewrites a narrow row.
    toast_tuple_target = 512,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05
);

alter sequence ojs.job_seq owned by ojs.job.seq;

-- The dispatcher walks this index forward from a cursor that only grows. The state is not part of it, or every change of state would write
-- it. Jobs that have not been available yet have no seq and stand last, so a tenant finds all of its jobs by it.
create index job_dispatch_idx on ojs.job (queue, priority, tenant_id, seq);

-- The three journals, ojs.journal, ojs.lease and ojs.release, say what happened. The transaction that did it appends the rows, and nobody
-- changes them. By xid a reader asks for exactly the rows that have become visible since a snapshot it remembers; by a serial number it
-- would miss the rows of transactions that commit late.
create table ojs.journal (
    xid        xid8 not null default pg_current_xact_id(),
    tenant_id  text collate "C" not null,
    queue      text collate "C" not null,
    priority   int not null,
    from_state ojs.job_state,
    to_state   ojs.job_state not null,
    jobs       int not null,
    lo         bigint,
    hi         bigint,
    unfenced   int not null default 0,
    owed       int not null default 0,
    price      float8,
    seconds    real,
    at         timestamptz not null default ojs.now(),
    pool       int
);

alter table ojs.journal replica identity full;

-- Each row is in one of the two, so a reader asks for both kinds of rows apart. If one index held all rows, a session that makes its plans
-- while the table is empty might read that for the rows that have a lo, and with them all completions since the last fold, in each call.
create index journal_fold_idx on ojs.journal (xid, lo) where lo is not null;

create index journal_rest_idx on ojs.journal (xid) where lo is null;

create index journal_pool_idx on ojs.journal (pool, xid) where pool is not null;

create table ojs.lease (
    xid      xid8 not null default pg_current_xact_id(),
    n        bigint generated always as identity,
    due_at   timestamptz not null,
    queue    text collate "C" not null,
    priority int not null,
    jobs     int not null,
    ids      uuid[] not null,
    tenants  text[] not null,
    waits    real[] not null,
    turn     bigint not null,
    at       timestamptz not null default ojs.now(),
    pool     int,
    primary key (xid, n)
-- PostgreSQL would compress longer lists of jobs, or move them out of the row, which would slow every decision.
) with (toast_tuple_target = 8160);

create index lease_due_idx on ojs.lease (due_at);

create index lease_at_idx on ojs.lease (at);

create index lease_pool_idx on ojs.lease (pool, xid) where pool is not null;

create table ojs.release (
    xid        xid8 not null default pg_current_xact_id(),
    seq        bigint generated always as identity,
    tenant_id  text collate "C" not null,
    queue      text collate "C" not null,
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
    pool       int,
    retry_at   timestamptz,
    primary key (xid, seq)
);

-- Without this index a tenant's newest events would be found by reading everybody's.
create index release_tenant_idx on ojs.release (tenant_id, xid, seq);

create index release_pool_idx on ojs.release (pool, xid) where pool is not null;

create trigger job_arriving before insert on ojs.job for each row
    when (new.tenant_id is null or new.scheduled_at is not null or new.retry is not null or new.meta <> '{}')
    execute function ojs._job_arriving();

-- The enqueue functions do all of this themselves, because they know what they insert. The condition compares texts: every statement reads
-- it anew, and a constant of type name is stored as 64 numbers.
create trigger job_inserted after insert on ojs.job referencing new table as inserted for each statement
    when (current_user::text <> 'ojs_owner') execute function ojs._job_inserted();
reset role;
