comment on type ojs.job_state is 'The eight states of a job (ojs-core section 6). completed, cancelled and discarded are final.';

create or replace function ojs._ended(p_state ojs.job_state) returns boolean
language sql immutable
as $$ select p_state in ('completed', 'cancelled', 'discarded') $$;
comment on function ojs._ended(ojs.job_state) is 'Whether a state is final. Becomes part of the query that asks.';

-- Tells the time by the wall clock. Reads only.
create or replace function ojs.now() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;
comment on function ojs.now() is 'The wall clock. All times in this schema come from here.';

create or replace function ojs._utc(p_at timestamptz) returns text
language sql immutable
as $$ select to_json(p_at at time zone 'UTC') #>> '{}' || 'Z' $$;
comment on function ojs._utc(timestamptz) is 'A time in JSON: RFC 3339 in UTC, whatever the session''s time zone.';

create or replace function ojs._later(p_at timestamptz, p_interval interval) returns timestamptz
language sql immutable
as $$ select (p_at at time zone 'UTC' + p_interval) at time zone 'UTC' $$;
comment on function ojs._later(timestamptz, interval) is
'p_at plus p_interval, where a day has 24 hours. With the operator + a day of the session''s time zone may have 23 or 25. Becomes part of
the query that asks.';

-- Version 7 (RFC 9562): forty-eight bits of milliseconds, then what a random UUID has behind its version. A column's default runs with the
-- search_path of the session that inserts, so every name is qualified: a pinned path would keep the planner from inlining the
-- function. Every insert prepares the expression again, so each further call in it would slow all inserts.
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
'A new UUIDv7: ordered by time to the microsecond, so that jobs of one session lie in the order of its calls (RFC 9562, 6.2, method 3).';

-- Ids say in which partition a job lies. With ids from far ahead one client could keep a partition from ever being cut off, and then
-- retention would drop nobody's jobs.
create or replace function ojs._latest_id() returns uuid
language sql volatile
as $$
    select (pg_catalog.lpad(pg_catalog.to_hex(
            (pg_catalog.date_part('epoch', ojs.now()) operator(pg_catalog.*) 1000)::pg_catalog.int8
            operator(pg_catalog.+) 86400000), 12, '0')
        operator(pg_catalog.||) '7fffbfffffffffffffff')::pg_catalog.uuid
$$;
comment on function ojs._latest_id() is 'The last UUIDv7 that a client may choose: of a day from now. Becomes part of the query that asks.';

create or replace function ojs._queue_name(p_queue text) returns boolean
language sql immutable
as $$ select p_queue ~ '^[a-z0-9][a-z0-9.-]*$' and octet_length(p_queue) <= 128 $$;
comment on function ojs._queue_name(text) is 'Whether a text can be the name of a queue. Becomes part of the query that asks.';

create or replace function ojs._lease_length(p_ms int) returns boolean
language sql immutable
as $$ select p_ms between 1000 and 604800000 $$;
comment on function ojs._lease_length(int) is
'Whether a lease may last so many milliseconds: a second to a week. Becomes part of the query that asks.';
comment on table ojs.job_all is 'The first partition of ojs.job: every id until one is cut off, then the ids below it.';
comment on table ojs.job is
'Every job, one row. Private: written through functions and the view ojs.jobs; the dispatcher''s order is (queue, priority, tenant, seq).';
comment on column ojs.job.state is 'Where the job is in its life (ojs-core section 6).';
comment on column ojs.job.attempt is
'How many times it has been handed to a worker; less those given back, and 0 again when it is taken out of the dead letter queue.';
comment on column ojs.job.lease is 'Token of the running attempt; ack, nack and heartbeat may prove with it that they still hold the job.';
comment on column ojs.job.started_at is 'When the latest attempt was handed out; null again when its worker was lost.';
comment on column ojs.job.lease_expires_at is 'When the running attempt is taken back unless extended by a heartbeat.';
comment on column ojs.job.finished_at is 'When it was completed, cancelled or discarded.';
comment on column ojs.job.retry_at is 'When a retryable job becomes available again; stays until it fails again.';
comment on column ojs.job.enqueued_at is 'When it became available; for one not yet available, when it was created.';
comment on column ojs.job.worker_id is 'The worker of the latest attempt, as it named itself.';
comment on column ojs.job.pool is 'The pool of that worker (ojs.pool.id); null: none that is configured.';
comment on column ojs.job.charged is
'How many seconds its tenant has been charged for the latest attempt: what was expected, or more when heartbeats tell that it goes on; null
where its queue does not share by time.';
comment on column ojs.job.errors is
'Failed attempts, oldest first: {attempt, worker_id, code, type, message, occurred_at, retryable, details}; the latest 100.';
comment on column ojs.job.result is 'What the worker acknowledged with, byte for byte.';
comment on column ojs.job.seq is
'First-in-first-out order among the jobs of a (queue, priority, tenant); null until the job is available for the first time.';
comment on column ojs.job.tenant_id is 'Whose job it is; never changes.';
comment on column ojs.job.id is 'UUIDv7, unique within the tenant. First in the key, so that a worker''s bare id is one index probe.';
comment on column ojs.job.queue is 'The queue; default ''default''.';
comment on column ojs.job.type is 'What kind of work (ojs-core section 5.1).';
comment on column ojs.job.priority is 'Higher goes first within a queue; -100 to 100, default 0.';
comment on column ojs.job.max_attempts is 'How many attempts it may have; default 3.';
comment on column ojs.job.created_at is 'When it was enqueued.';
comment on column ojs.job.scheduled_at is 'Not before this time.';
comment on column ojs.job.expires_at is 'Discarded when not started by this time.';
comment on column ojs.job.timeout_ms is
'How long an attempt may run, milliseconds; 0 or null: no limit of its own, settings.timeout_ms holds.';
comment on column ojs.job.visibility_timeout_ms is
'How long a lease lasts without a heartbeat, milliseconds; null: 30000 or what the FETCH asks for.';
comment on column ojs.job.tags is 'Labels for filtering.';
comment on column ojs.job.args is 'The job''s arguments, a JSON array, byte for byte as sent.';
comment on column ojs.job.meta is 'A JSON object of the producer''s.';
comment on column ojs.job.retry is 'The retry policy as sent (ojs-retry section 2); null: the default policy.';
comment on column ojs.job.options is 'Options that have no column of their own, byte for byte.';
comment on column ojs.job.extra is 'Attributes the specification does not know, byte for byte (ojs-core section 5.5).';
