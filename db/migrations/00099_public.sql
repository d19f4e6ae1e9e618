-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

grant execute on function ojs.now() to ojs_service, ojs_operator, ojs_tenant;

-- Small tables that change all the time are vacuumed every minute as it is, having few live rows. To give their last pages back to the system,
-- vacuum would lock them against everybody, and they would be needed again in the next second.
-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array array['timer', 'fold', 'queue_priority', 'ring', 'tenant_fairness', 'reentry', 'rotation', 'run', 'run_mark', 'tally', 'tally_mark', 'waiter',
                                   'sleeper', 'duty', 'clock_mark', 'worker_beat',
                                   'dead_letter_mark'] loop
        execute format('alter table ojs.%I set (vacuum_truncate = off)', v_table);
    end loop;
end;
$$;
-- +goose StatementEnd
grant execute on function ojs.current_tenant() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._default_tenant() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._refuse_long(text, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._uuid_v7(), ojs._tenant_valid(text), ojs._raise(text, text, jsonb, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.create_tenant_role(text, name, text), ojs._map_tenant_role(text, name) to ojs_operator;
grant execute on function ojs.configure(text, boolean, interval, interval, int, int, interval) to ojs_operator;
grant execute on function ojs._retry_max_attempts(jsonb), ojs._first_state(boolean, timestamptz, timestamptz) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text),
    ojs.enqueue_many(json, text), ojs.enqueue_each(json),
    ojs.enqueue_bulk(text, json[], text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._unfolded() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.rebuild() to ojs_operator;
grant execute on function ojs.configure_tenant(text, numeric, int) to ojs_operator, ojs_service;
grant execute on function ojs.fetch_many(text[], int[], text[], int[], text, boolean) to ojs_service, ojs_operator;
grant execute on function ojs.fetch(text[], int, text, int, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.pause_queue(text), ojs.resume_queue(text) to ojs_operator, ojs_service;
grant execute on function ojs.register_waiters(uuid, text[]), ojs.drop_waiter(uuid, text) to ojs_service;
grant execute on function ojs._result_until(timestamptz, json, json) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.ack(uuid, uuid, json, text, text), ojs.nack(uuid, jsonb, uuid, text, boolean, text), ojs.settle(json, boolean),
    ojs.release(uuid, uuid), ojs.cancel(uuid, text), ojs.activate(uuid, text), ojs.job_info(uuid, text) to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs._movement to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._recent() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.tick(int, text, int, int) to ojs_service, ojs_operator;
grant select on ojs.jobs to ojs_service, ojs_operator, ojs_tenant;
grant insert (id, type, queue, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.jobs to ojs_service, ojs_operator, ojs_tenant;
grant insert (tenant_id) on ojs.jobs to ojs_service, ojs_operator;
grant execute on function ojs._fairness() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._oldest_aside() to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs._line to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.shard_stats to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.queue_stats to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.tenant_stats to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.results to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.job_results(uuid[], text, bigint) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.events(text[], text[], int, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._id_time(uuid) to ojs_service, ojs_operator;
grant select on ojs.job_partitions to ojs_service, ojs_operator;
grant execute on function ojs.cut_partition(timestamptz), ojs.drop_finished(timestamptz, int) to ojs_operator;
grant execute on function ojs.set_replay_rule(text, interval, int, text, text, text, text, boolean), ojs.delete_replay_rule(text) to ojs_operator;
grant execute on function ojs.dead_letters(text, text, text, timestamptz, timestamptz, int, int, text, bigint), ojs.dead_letter_count(text, text, text, timestamptz, timestamptz, text),
    ojs.dead_letter_info(uuid, text), ojs.retry_dead_letter(uuid, json, text), ojs.retry_dead_letters(text, text, text, timestamptz, timestamptz, int, text),
    ojs.delete_dead_letter(uuid, text), ojs.purge_dead_letters(text, text, text, timestamptz, timestamptz, int, text), ojs.dead_letter_stats(text)
    to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.configure_dead_letters(interval, int) to ojs_operator;
grant select on ojs.workers to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs._silence() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.heartbeat(text, uuid[], int, text), ojs.beat(text, uuid[], text, int, text, int, text, int, text[], int, text[], text, jsonb, timestamptz),
    ojs.register_worker(text, text, int, text[], int, text[], text, jsonb, timestamptz, text), ojs.deregister_worker(text, text), ojs.direct_worker(text, text, text),
    ojs.direct_workers(text, text), ojs.remove_worker(text, text), ojs.worker_info(text, text) to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.crons to ojs_service, ojs_operator, ojs_tenant;
grant select on ojs.cron_runs to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.put_cron(text, text, text, json, text, text, int, jsonb, jsonb, int, int, int, text[], json, json, text, text, boolean, text, text),
    ojs.configure_cron(text, boolean, text, text, text, text, text, text), ojs.delete_cron(text, text), ojs.trigger_cron(text, text), ojs.cron_info(text, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.unplanned_crons(int), ojs.plan_cron(uuid, bigint, timestamptz[], text, timestamptz[]) to ojs_service, ojs_operator;
grant select on ojs._upkeep_plan to ojs_service, ojs_operator;
grant execute on function ojs._first_expiry() to ojs_service, ojs_operator;
grant select on ojs.upkeep_status to ojs_service, ojs_operator;
grant execute on function ojs.upkeep() to ojs_service, ojs_operator;
grant execute on function ojs.enqueue_once(text, json, text, bytea) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.stand_down(text) to ojs_service, ojs_operator;
grant select on ojs.dispatch to ojs_service, ojs_operator;
grant execute on function ojs.hold_dispatch(), ojs.resume_dispatch() to ojs_service, ojs_operator;
grant execute on function ojs.configure_queue(text, jsonb), ojs.delete_queue(text, text) to ojs_operator, ojs_service;

-- +goose StatementBegin
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.prosecdef and p.provolatile = 'v' loop
        execute format('alter function %s set enable_partition_pruning = off', v_function);
    end loop;
end;
$$;
-- +goose StatementEnd

-- Planner settings of the functions whose plans must not depend on statistics: a bitmap or a sort would read every dead version of the few rows that
-- change all the time.
-- +goose StatementBegin
do $$
declare
    v_group record;
    v_function regprocedure;
begin
    for v_group in
        select g.functions, g.settings from (values
            (array['_enqueue'],
                array['plan_cache_mode = force_generic_plan']),
            (array['_unfolded', '_recent', 'tick'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'jit = off', 'max_parallel_workers_per_gather = 0']),
            (array['_stale_queues'],
                array['enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'jit = off', 'plan_cache_mode = force_generic_plan']),
            (array['configure_tenant', '_refill', 'fetch_many'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'enable_sort = off', 'jit = off', 'max_parallel_workers_per_gather = 0', 'plan_cache_mode = force_generic_plan']),
            (array['fetch'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'enable_sort = off', 'jit = off', 'plan_cache_mode = force_generic_plan']),
            (array['settle', 'ack_many'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'jit = off', 'plan_cache_mode = force_generic_plan']),
            (array['_extend', '_check_beat_ids'],
                array['enable_seqscan = off']),
            (array['_fairness'],
                array['jit = off']),
            (array['_oldest_aside', '_put_aside', '_retry_dead', '_drop_dead'],
                array['enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'jit = off']),
            (array['job_results'],
                array['enable_seqscan = off', 'jit = off']),
            (array['dead_letters', 'dead_letter_count', 'dead_letter_stats'],
                array['jit = off', 'plan_cache_mode = force_custom_plan']),
            (array['_hold_dead'],
                array['enable_hashjoin = off', 'enable_mergejoin = off', 'jit = off', 'plan_cache_mode = force_custom_plan']),
            (array['_replay'],
                array['plan_cache_mode = force_custom_plan']),
            (array['_seen'],
                array['enable_bitmapscan = off', 'enable_seqscan = off', 'enable_sort = off', 'jit = off']),
            (array['_end_workers', '_check_workers'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off', 'jit = off']),
            (array['_cron_forget'],
                array['enable_bitmapscan = off', 'enable_hashjoin = off', 'enable_mergejoin = off', 'enable_seqscan = off'])
        ) g(functions, settings)
    loop
        for v_function in select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname = any (v_group.functions) loop
            execute (select string_agg(format('alter function %s set %s', v_function, x), '; ') from unnest(v_group.settings) x);
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd
reset role;
