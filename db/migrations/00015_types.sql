-- +goose Up
-- The shapes that functions pass to each other.
set local role ojs_owner;

create type ojs.violation as (sqlstate text, field text, message text);

create type ojs._new_jobs as (
    types text[], args json[], queues text[], priorities int[], scheduled_at text[], expires_at text[], metas jsonb[], retries jsonb[],
    max_attempts int[], timeouts_ms int[], visibility_timeouts_ms int[], tags json[], pending boolean[], options json[], extras json[],
    ids uuid[], tenants text[], refusals ojs.refusal[]
);

create type ojs._job_fields as (
    type json, args json, queue json, priority json, scheduled_at json, expires_at json, meta json, retry json, max_attempts json,
    timeout_ms json, visibility_timeout_ms json, tags json, pending json, options json, extra json, id json, tenant json,
    tenant_id json
);

create type ojs.ask as (
    queues text[], count int, tenant text, no_lane boolean, others jsonb, requests int[], starts int[], workers text[],
    lease_ms int[], max_bytes bigint, strategy text, weights jsonb, pool int, pool_limited boolean, tenants text[], except_tenants text[],
    exclusive boolean, min_ratio numeric, rotation interval
);

create type ojs.decided as (
    ids uuid[], places tid[], charged real[], bytes bigint, passed int, cut boolean, state ojs.dispatch_state
);

create type ojs.slice as (seen pg_snapshot, upto pg_snapshot, part_xid xid8, after_lo bigint, upto_lo bigint, becomes pg_snapshot);

create type ojs.news as (
    fold ojs.fold, upto pg_snapshot, rows bigint, own bigint, uncharged boolean, ruled boolean, limits boolean, rules boolean,
    states ojs.dispatch_state[]
);

create type ojs.step as (
    ids uuid[], places tid[], tenants text[], charged real[], bytes bigint, cut boolean, dry text[], locked text[], behind boolean,
    state ojs.dispatch_state
);

create type ojs._counted_end as (
    tenant_id text, queue text, priority int, seq bigint, started_at timestamptz, pool int, charged real
);

create type ojs._attempt_end as (
    tenant_id text, id uuid, queue text, priority int, type text, seq bigint, attempt int, started_at timestamptz, to_state ojs.job_state,
    retry_at timestamptz, expires_at timestamptz, retry jsonb, entry jsonb, fenced boolean, cause text, pool int, charged real
);

create type ojs._settlement as (
    n int, tenant text, id uuid, lease uuid, worker_id text, result json, error json, requeue boolean, refusal ojs.refusal
);

create type ojs._verdict as (
    n int, tenant_id text, id uuid, to_state ojs.job_state, fenced boolean, result json, entry jsonb, refusal ojs.refusal
);

create type ojs.tick_result as (promoted int, reaped int, rolled_up int, next_in_ms int, on_duty boolean, unplanned int);

create type ojs.event as (id text, type text, "time" timestamptz, tenant_id text, queue text, subject text, data jsonb);

create type ojs.pace_sums as (
    jobs_1m bigint, waited_1m float8, waits_1m bigint[], jobs_5m bigint, waited_5m float8, waits_5m bigint[],
    jobs_1h bigint, waited_1h float8, waits_1h bigint[]
);

create type ojs.explanation as (
    tenant_id text, id uuid, queue text, priority int, effective_priority int, state ojs.job_state, reasons text[], held_by jsonb,
    tenant_ahead bigint, higher_ahead bigint, dispatches_ahead bigint, certainty text
);

create type ojs.standing as (
    fresh boolean, passed boolean, at_limit boolean, idle boolean, tenant_ahead bigint, higher_ahead bigint,
    others_ahead bigint, dispatches_ahead bigint, certainty text
);

create type ojs.upkeep_result as (task text, step text, next_in_ms int);

-- Heartbeats (ojs-worker-protocol section 4): a worker says that it lives, what it is and which jobs it runs, and is told what to do. The
-- leases of its jobs are extended. Called by workers, over HTTP and in SQL, every few seconds each.

create type ojs.beat as (
    state text, jobs_extended uuid[], server_time timestamptz, heartbeat_interval_ms int, heartbeat_timeout_ms int
);

create type ojs._defaults as (max_attempts int, retry jsonb, timeout_ms int, visibility_timeout_ms int);

create type ojs._new_group as (tenant_id text, queue text, state ojs.job_state, jobs int, bytes bigint, sizes bigint[]);

create type ojs._new_place as (n int, tenant_id text, queue text, state ojs.job_state, bytes bigint);

create type ojs.quota_look as (
    tenant_id text collate "C", queue text collate "C", nth int, missing bigint, used bigint, used_up float8
);

-- What is wrong. ojs-pg doctor prints these rows, and psql shows the same.
create type ojs.severity as enum ('note', 'warning', 'error');

create type ojs.finding as (severity ojs.severity, topic text, finding text, advice text, runbook text);
reset role;
