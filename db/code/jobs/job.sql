comment on type ojs.job_state is
'The eight states of a job (ojs-core section 6). completed, cancelled and discarded are final.';

create or replace function ojs._ended(p_state ojs.job_state) returns boolean
language sql immutable
as $$ select p_state in ('completed', 'cancelled', 'discarded') $$;
comment on function ojs._ended(ojs.job_state) is
'Returns whether a state is final. Becomes part of the query that asks.';

-- Returns the time of the wall clock. Reads only.
create or replace function ojs.now() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;
comment on function ojs.now() is
'Returns the time of the wall clock. All times in this schema come from here.';

create or replace function ojs._utc(p_at timestamptz) returns text
language sql immutable
as $$ select to_json(p_at at time zone 'UTC') #>> '{}' || 'Z' $$;
comment on function ojs._utc(timestamptz) is
'Returns a time as JSON has it: RFC 3339 in UTC, whatever the session''s time zone.';

create or replace function ojs._later(p_at timestamptz, p_interval interval) returns timestamptz
language sql immutable
as $$ select (p_at at time zone 'UTC' + p_interval) at time zone 'UTC' $$;
comment on function ojs._later(timestamptz, interval) is
'Returns p_at plus p_interval, where a day has 24 hours. With the operator + a day of the session''s
time zone may have 23 or 25 hours. Becomes part of the query that asks.';

-- Version 7 (RFC 9562): 48 bits of milliseconds, then what a random UUID has after its version. A
-- column's default runs with the search_path of the session that inserts, so every name is
-- qualified; a pinned path would keep the planner from inlining the function. Every insert prepares
-- the expression again, so each further call in it would slow all inserts.
create or replace function ojs._uuid_v7() returns uuid
language sql volatile
as $$
    -- Twelve digits of milliseconds, the version, and three digits of 1/4096 of a millisecond.
    select (pg_catalog.overlay(pg_catalog.lpad(pg_catalog.to_hex(
            (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) operator(pg_catalog.*) 4096000)::pg_catalog.int8), 15, '0'),
            '7', 13, 0)
        operator(pg_catalog.||) pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 20))::pg_catalog.uuid
$$;
comment on function ojs._uuid_v7() is
'Returns a new UUIDv7, ordered by time to the microsecond, so that the ids of one session are in the
order of its calls (RFC 9562, 6.2, method 3).';

-- The id of a job says in which partition it lies. With ids from far ahead one client could keep a
-- partition from ever being cut off, and retention would remove no tenant's jobs.
create or replace function ojs._latest_id() returns uuid
language sql volatile
as $$
    select (pg_catalog.lpad(pg_catalog.to_hex(
            (pg_catalog.date_part('epoch', ojs.now()) operator(pg_catalog.*) 1000)::pg_catalog.int8
            operator(pg_catalog.+) 86400000), 12, '0')
        operator(pg_catalog.||) '7fffbfffffffffffffff')::pg_catalog.uuid
$$;
comment on function ojs._latest_id() is
'Returns the last UUIDv7 that a client may choose: of a day from now. Becomes part of the query that
asks.';

create or replace function ojs._queue_name(p_queue text) returns boolean
language sql immutable
as $$ select p_queue ~ '^[a-z0-9][a-z0-9.-]*$' and octet_length(p_queue) <= 128 $$;
comment on function ojs._queue_name(text) is
'Returns whether a text can be the name of a queue. Becomes part of the query that asks.';

create or replace function ojs._lease_length(p_ms int) returns boolean
language sql immutable
as $$ select p_ms between 1000 and 604800000 $$;
comment on function ojs._lease_length(int) is
'Returns whether a lease may last so many milliseconds: 1 second to a week. Becomes part of the
query that asks.';
comment on table ojs.job_all is
'The first partition of ojs.job: every id until one is cut off, then the ids below it.';
comment on table ojs.job is
'Every job, one row. Private: functions and the view ojs.jobs write it. Dispatch reads it in the
order of queue, priority, tenant and seq.';
comment on column ojs.job.state is 'The state of the job (ojs-core section 6).';
comment on column ojs.job.attempt is
'How many times it has been handed to a worker, without those given back; 0 again when it is taken
out of the dead letter queue.';
comment on column ojs.job.lease is
'Token of the running attempt, with which ack, nack and heartbeat prove that they still hold the
job.';
comment on column ojs.job.started_at is
'When the latest attempt was handed out; null again when its worker was lost.';
comment on column ojs.job.lease_expires_at is
'When the running attempt is taken back unless a heartbeat extends the lease.';
comment on column ojs.job.finished_at is 'When it was completed, cancelled or discarded.';
comment on column ojs.job.retry_at is
'When a retryable job becomes available again; stays until it fails again.';
comment on column ojs.job.enqueued_at is
'When it became available; for a job that has not been available yet, when it was created.';
comment on column ojs.job.worker_id is
'The worker of the latest attempt, by the name that it gave.';
comment on column ojs.job.pool is
'The pool of that worker (ojs.pool.id); null: no pool that is configured.';
comment on column ojs.job.charged is
'How many seconds its tenant has been charged for the latest attempt: the expected time, or more
when heartbeats show that it runs longer. Null if its queue does not share by time.';
comment on column ojs.job.errors is
'Failed attempts, oldest first: {attempt, worker_id, code, type, message, occurred_at, retryable, details}; the latest 100.';
comment on column ojs.job.result is 'The result that the worker acknowledged with, byte for byte.';
comment on column ojs.job.seq is
'First-in-first-out order among the jobs of a (queue, priority, tenant); null until the job is available for the first time.';
comment on column ojs.job.tenant_id is 'The tenant of the job; never changes.';
comment on column ojs.job.id is
'UUIDv7, unique within the tenant. First in the key, so that a worker''s bare id is one index
probe.';
comment on column ojs.job.queue is 'The queue; default ''default''.';
comment on column ojs.job.type is 'The kind of work (ojs-core section 5.1).';
comment on column ojs.job.priority is 'Higher is first within a queue; -100 to 100, default 0.';
comment on column ojs.job.max_attempts is 'How many attempts it may have; default 3.';
comment on column ojs.job.created_at is 'When it was enqueued.';
comment on column ojs.job.scheduled_at is 'It is not handed out before this time.';
comment on column ojs.job.expires_at is 'It is discarded if it is not started by this time.';
comment on column ojs.job.timeout_ms is
'How long an attempt may run, in milliseconds; 0 or null: as settings.timeout_ms says.';
comment on column ojs.job.visibility_timeout_ms is
'How long a lease lasts without a heartbeat, in milliseconds; null: as the FETCH says, or 30000.';
comment on column ojs.job.tags is 'Labels for filtering.';
comment on column ojs.job.args is 'The job''s arguments, a JSON array, byte for byte as sent.';
comment on column ojs.job.meta is 'A JSON object that the producer chose.';
comment on column ojs.job.retry is
'The retry policy as sent (ojs-retry section 2); null: the default policy.';
comment on column ojs.job.options is 'Options that have no column of their own, byte for byte.';
comment on column ojs.job.extra is
'Attributes the specification does not know, byte for byte (ojs-core section 5.5).';
