-- Who may call and read what, and the planner settings of functions: all of it stands on this page,
-- by name. What the groups may do with tables stands with the policies (migrations/00011_access.sql). Tests
-- compare both with the catalogs.

create or replace function ojs._to_each(p_functions text[], p_statement text) returns void
language plpgsql
as $$
declare
    v_name     text;
    v_function regprocedure;
begin
    foreach v_name in array p_functions loop
        for v_function in select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname = v_name loop
            execute format(p_statement, v_function);
        end loop;
        if not found then
            raise exception 'there is no function ojs.%', v_name;
        end if;
    end loop;
end;
$$;

-- Functions: everybody, a tenant's login role for its own tenant.
select ojs._to_each('{
        enqueue, enqueue_many, enqueue_each, enqueue_bulk, enqueue_once,
        fetch, ack, ack_many, nack, settle, release, cancel, activate,
        job_info, job_results, job_status, events, explain,
        heartbeat, beat, register_worker, deregister_worker, direct_worker, direct_workers, remove_worker, worker_info,
        put_cron, configure_cron, delete_cron, trigger_cron, cron_info,
        dead_letters, dead_letter_count, dead_letter_info, dead_letter_stats, verify_usage,
        retry_dead_letter, retry_dead_letters, delete_dead_letter, purge_dead_letters, retry, retry_many, failed_count, erase,
        now, current_tenant, help}',
    'grant execute on function %s to ojs_service, ojs_operator, ojs_tenant');

-- Helpers that views, columns' defaults, policies and triggers call with the rights of the role that reads or writes.
select ojs._to_each('{
        _default_tenant, _required_tenant, _tenant_valid, _uuid_v7, _type_only, _no_type, _raise, _with_fault, _refuse_long, _first_state,
        _attempts, _retry_max_attempts, _defaulted, _result_until, _arrivals, _recent, _deficit, _oldest_aside,
        _heartbeat_timeout, _sees_all, _reads_all, _only_tenant, _own_shards, _own_shard_groups, _own_tenant_groups, _grown, _growing,
        _served_queues, _serves, _cut, _queue_shares}',
    'grant execute on function %s to ojs_service, ojs_operator, ojs_producer, ojs_tenant');

-- Producers: enqueue for any tenant, and read.
select ojs._to_each('{
        enqueue, enqueue_many, enqueue_each, enqueue_bulk, enqueue_once,
        job_info, job_results, job_status, events, explain, worker_info, cron_info,
        dead_letters, dead_letter_count, dead_letter_info, dead_letter_stats, now, current_tenant, help}',
    'grant execute on function %s to ojs_producer');

-- Workers: jobs of any tenant, from the FETCH to their end.
select ojs._to_each('{
        fetch, ack, ack_many, nack, settle, release, heartbeat, beat, register_worker, deregister_worker,
        job_info, now, current_tenant, help}',
    'grant execute on function %s to ojs_worker');

-- The server and operators.
select ojs._to_each('{
        fetch_many, release_many, enqueue_rows, tick, upkeep, unplanned_crons, plan_cron, stand_down,
        configure_tenant, configure_queue, delete_queue, configure_pool, configure_pools, delete_pool, limit_concurrency, pause, resume,
        hold_dispatch, resume_dispatch, schema_hash, schema_changing, preview_weight, doctor,
        watch_neighbours, throttle, release_throttle, create_api_key, rotate_api_key, revoke_api_key}',
    'grant execute on function %s to ojs_service, ojs_operator');

select ojs._to_each('{configure_limits, suspend_tenant, resume_tenant, deregister_tenant, list_jobs, jobs_floor, cancel_many,
        reprioritize}',
    'grant execute on function %s to ojs_service, ojs_operator');

select ojs._to_each('{configure_tier, set_tier, put_tenant, put_settings, configure_static}',
    'grant execute on function %s to ojs_service, ojs_operator');

-- Helpers of views.
select ojs._to_each('{
        _id_time, _is_replacement, _detached_partitions, _first_expiry, _first_measure, _first_erasure, _pace, _pace_from, _pace_step,
        _seconds, _wait_bounds, _waits_sum, _percentile, _lately, _pools_lately, _pace_ever, _dispatch_counters, _pool_holders,
        _whole_config, _configured, _limit_json, _iso_duration, _counts_at, _counts_since, _tenant_gauges, _waiting_servers, _holders,
        _told, _resting_queues,
        _clock_lag, _lane_holders, _unfit, _named_session, _doctor_server, _doctor_settings, _doctor_roles, _doctor_privileges,
        _doctor_clock, _doctor_transactions, _doctor_tables, _doctor_work, _doctor_failures, _failing_types}',
    'grant execute on function %s to ojs_service, ojs_operator');

-- The server alone, for workers that wait.
select ojs._to_each('{register_waiters, drop_waiter, _notify_full, _key_owner, note_refusals, note_clock}',
    'grant execute on function %s to ojs_service');

-- Operators alone. create_tenant_role runs with its caller's rights and calls _map_tenant_role.
select ojs._to_each('{
        configure, create_tenant_role, _map_tenant_role, rebuild,
        configure_dead_letters, set_replay_rule, delete_replay_rule,
        cut_partition, drop_finished, prune_usage}',
    'grant execute on function %s to ojs_operator');

-- Views. Those with an underscore are read by the others.
grant select on
    ojs.jobs, ojs.results, ojs.workers, ojs.crons, ojs.cron_runs,
    ojs.tenant_stats, ojs.overview, ojs.overview_by_queue, ojs.queue_stats, ojs.shard_stats, ojs.rule_stats, ojs.throttles,
    ojs.limits, ojs.refusals, ojs.usage_batches, ojs._own_job
    to ojs_service, ojs_operator, ojs_tenant;

-- The rule of the view refuses the columns that no role may set, with an error that names the
-- column. So the grant includes these columns; otherwise PostgreSQL would refuse the insert before
-- the rule does. There is no grant of update or delete: with it a role could lock the view and make
-- all other sessions wait.
grant insert (id, type, queue, priority, state, attempt, max_attempts, args, meta, created_at, enqueued_at, scheduled_at, expires_at,
    started_at, lease_expires_at, finished_at, retry_at, worker_id, errors, result, timeout_ms, visibility_timeout_ms, tags, retry, options,
    extra)
    on ojs.jobs to ojs_service, ojs_operator, ojs_producer, ojs_tenant;

grant select on
    ojs.scheduling_stats, ojs.tenant_shares, ojs.pool_stats, ojs.dispatch, ojs.job_partitions, ojs.upkeep_status, ojs._upkeep_plan,
    ojs._movement, ojs._shard_counts, ojs._tenant_names, ojs._queue_names, ojs._usual_weight, ojs._pool_use,
    ojs._shard_numbers, ojs.queue_demands, ojs.unserved_queues, ojs.blocked_tenants, ojs.longest_waits, ojs.dead_letter_errors,
    ojs.lost_attempts, ojs.lost_workers, ojs.queue_workers, ojs.table_health, ojs.open_transactions, ojs.clock_status,
    ojs.noisy_neighbours, ojs.api_keys, ojs.tiers
    to ojs_service, ojs_operator;

-- Producers may not read ojs.tenant_shares and ojs.queue_demands. PostgreSQL checks the views in them
-- first: without this grant its error would name a view that no page explains.
grant select on ojs._usual_weight, ojs._shard_numbers to ojs_producer;

-- The audit trail; a tenant's own part of it.
grant select on ojs.audit_trail to ojs_service, ojs_operator, ojs_tenant;

grant insert (tenant_id)
    on ojs.jobs to ojs_service, ojs_operator, ojs_producer;

grant select on
    ojs.jobs, ojs.results, ojs.workers, ojs.crons, ojs.cron_runs, ojs.tenant_stats, ojs.overview, ojs.overview_by_queue,
    ojs.queue_stats, ojs.shard_stats, ojs.rule_stats, ojs.limits, ojs.refusals, ojs._own_job
    to ojs_producer;

-- Planner settings of functions. They also hold in the functions that such a function calls.
-- Only index scans: the few rows that change all the time leave many dead versions until vacuum
-- comes, and a scan or a sort would read all of them. The planner would not know, because no
-- statistics are kept of tenants' columns. One plan for all arguments: planning costs more than
-- running the plan.
select ojs._to_each('{
        fetch, fetch_many, configure_tenant, configure_pool, configure_pools, delete_pool, limit_concurrency, pause, resume, _notify_room,
        throttle, release_throttle, deregister_tenant, reprioritize, configure_tier, set_tier, put_tenant, configure_static,
        _give_room,
        ack_many, settle, release_many, _extend, tick, job_results, explain,
        _arrivals, _recent, _lately, _pools_lately, _served_queues, _queue_shares, _holders, _failing_types, _clock_lag,
        _pool_holders, _oldest_aside, _own_shards, _own_shard_groups, _own_tenant_groups,
        _put_aside, _retry_dead, _delete_dead, _check_beat, _record_beat, _check_workers,
        _end_workers, _trim_cron_runs, erase, _erase_page, _erase_jobs}',
    'alter function %1$s set enable_bitmapscan = off;
     alter function %1$s set enable_hashjoin = off;
     alter function %1$s set enable_mergejoin = off;
     alter function %1$s set enable_seqscan = off;
     alter function %1$s set enable_sort = off;
     alter function %1$s set jit = off;
     alter function %1$s set max_parallel_workers_per_gather = 0;
     alter function %1$s set plan_cache_mode = force_generic_plan');

-- A new plan for the arguments of each call, with any kind of scan and join: a filter that is null
-- lets all rows pass, and a filter with a value may let few rows pass.
select ojs._to_each('{dead_letters, dead_letter_count, dead_letter_stats, _lock_matching, _replay, retry_many, failed_count}',
    'alter function %1$s set jit = off; alter function %1$s set plan_cache_mode = force_custom_plan');

-- Only index scans, and a new plan for the arguments of each call: the rows of one tenant are found
-- by other indexes than the rows of all tenants.
select ojs._to_each('{events, list_jobs, jobs_floor, verify_usage}',
    'alter function %1$s set enable_bitmapscan = off;
     alter function %1$s set enable_hashjoin = off;
     alter function %1$s set enable_mergejoin = off;
     alter function %1$s set enable_seqscan = off;
     alter function %1$s set jit = off;
     alter function %1$s set max_parallel_workers_per_gather = 0;
     alter function %1$s set plan_cache_mode = force_custom_plan');

-- One plan for all arguments, without other restrictions: these functions join batches with each
-- other, for which a hash join is right.
select ojs._to_each('{enqueue_many, enqueue_each, enqueue_rows, enqueue_bulk}',
    'alter function %s set plan_cache_mode = force_generic_plan');

-- No partition pruning in functions that write: PostgreSQL 18 crashes when a pruned statement reads
-- a row that another session has just changed (docs/design/0011-no-pruning.md).
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid from pg_catalog.pg_proc p
        where p.pronamespace = 'ojs'::regnamespace and p.prosecdef and p.provolatile = 'v'
    loop
        execute format('alter function %s set enable_partition_pruning = off', v_function);
    end loop;
end;
$$;

drop function ojs._to_each(text[], text);
