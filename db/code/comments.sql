-- What the columns of views mean, for \d+ in psql. The views' own comments say what they cost and who sees what.
-- Applied with every change of the code, because a table's comment may have changed.

do $$
declare
    v_column record;
begin
    for v_column in
        select a.attrelid::regclass as view, a.attname as name from pg_attribute a
        where a.attnum > 0 and not a.attisdropped and col_description(a.attrelid, a.attnum) is not null
            and a.attrelid::regclass::text in ('ojs.jobs', 'ojs.results', 'ojs.crons', 'ojs.cron_runs', 'ojs.workers', 'ojs.pool_stats',
                'ojs.audit_trail', 'ojs.usage_batches', 'ojs.dead_job')
    loop
        execute format('comment on column %s.%I is null', v_column.view, v_column.name);
    end loop;
end;
$$;
comment on column ojs.tenant_stats.tenant_id is 'The tenant.';
comment on column ojs.tenant_stats.weight is 'The weight of the tenant in queues that do not say.';
comment on column ojs.tenant_stats.backlog is 'The same as available.';
comment on column ojs.tenant_stats.available is 'Jobs that could be handed out, now.';
comment on column ojs.tenant_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.tenant_stats.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.tenant_stats.pending is 'Jobs waiting to be activated, now.';
comment on column ojs.tenant_stats.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.tenant_stats.completed is 'Jobs completed, ever.';
comment on column ojs.tenant_stats.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.tenant_stats.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.tenant_stats.failed is 'Attempts that failed, ever.';
comment on column ojs.tenant_stats.failed_jobs is 'Jobs that failed for good, ever, those retried since included.';
comment on column ojs.tenant_stats.total_jobs is 'Jobs enqueued, ever.';
comment on column ojs.tenant_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';
comment on column ojs.tenant_stats.deficit is '0: it is next; less than 0: so many jobs it has had ahead of the tenant that is next.';
comment on column ojs.tenant_stats.effective_share is
'Its weight among the tenants with jobs in queues that workers serve; null: it has none there.';
comment on column ojs.tenant_stats.actual_share is 'Its part of what was handed out in the last minute; null: nothing was.';
comment on column ojs.tenant_stats.dispatched is 'Jobs handed out, ever.';
comment on column ojs.queue_stats.queue is 'The queue.';
comment on column ojs.queue_stats.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.queue_stats.available is 'Jobs that could be handed out, now.';
comment on column ojs.queue_stats.pending is 'Jobs waiting to be activated, now.';
comment on column ojs.queue_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.queue_stats.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.queue_stats.completed is 'Jobs completed, ever.';
comment on column ojs.queue_stats.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.queue_stats.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.queue_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';
comment on column ojs.queue_stats.total_jobs is 'Jobs enqueued, ever.';
comment on column ojs.queue_stats.failed is 'Attempts that failed, ever.';
comment on column ojs.queue_stats.failed_jobs is 'Jobs that failed for good, ever, those retried since included.';
comment on column ojs.queue_stats.tenants is 'How many tenants have jobs available or active.';
comment on column ojs.queue_stats.paused is 'Whether the queue is paused.';
comment on column ojs.shard_stats.tenant_id is 'The tenant.';
comment on column ojs.shard_stats.queue is 'The queue.';
comment on column ojs.shard_stats.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.shard_stats.available is 'Jobs that could be handed out, now.';
comment on column ojs.shard_stats.pending is 'Jobs waiting to be activated, now.';
comment on column ojs.shard_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.shard_stats.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.shard_stats.completed is 'Jobs completed, ever.';
comment on column ojs.shard_stats.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.shard_stats.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.shard_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';
comment on column ojs.shard_stats.total_jobs is 'Jobs enqueued, ever.';
comment on column ojs.shard_stats.failed is 'Attempts that failed, ever.';
comment on column ojs.shard_stats.failed_jobs is 'Jobs that failed for good, ever, those retried since included.';
comment on column ojs.shard_stats.dispatched is 'Jobs handed out, ever.';
comment on column ojs.rule_stats.tenant_id is 'The tenant; empty: all together.';
comment on column ojs.rule_stats.queue is 'The queue; empty: all.';
comment on column ojs.rule_stats.max_concurrency is 'How many jobs may run at once; null: as many as there are.';
comment on column ojs.rule_stats.active is
'How many jobs the last decision counted against the limit.';
comment on column ojs.rule_stats.paused_at is 'Since when nothing is handed out; null: dispatch goes on.';
comment on column ojs.rule_stats.paused_by is 'Who paused it; null for a tenant''s login.';
comment on column ojs.rule_stats.reason is 'Why it is paused; null for a tenant''s login.';
comment on column ojs.rule_stats.limit_reason is 'Why it has max_concurrency; null for a tenant''s login.';
comment on column ojs.scheduling_stats.queue is 'The queue.';
comment on column ojs.scheduling_stats.dispatched_1m is 'Jobs handed out in the last minute.';
comment on column ojs.scheduling_stats.ratio_1m is 'Their part of all jobs handed out in the last minute; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_1m is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.p50_wait_1m is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.scheduling_stats.p95_wait_1m is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.p99_wait_1m is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.dispatched_5m is 'Jobs handed out in the last five minutes.';
comment on column ojs.scheduling_stats.ratio_5m is 'Their part of all jobs handed out in the last five minutes; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_5m is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.p50_wait_5m is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.scheduling_stats.p95_wait_5m is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.p99_wait_5m is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.dispatched_1h is 'Jobs handed out in the last hour.';
comment on column ojs.scheduling_stats.ratio_1h is 'Their part of all jobs handed out in the last hour; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_1h is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.p50_wait_1h is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.scheduling_stats.p95_wait_1h is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.p99_wait_1h is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.scheduling_stats.available is 'Jobs that could be handed out, now.';
comment on column ojs.scheduling_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.scheduling_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';
comment on column ojs.tenant_shares.tenant_id is 'The tenant.';
comment on column ojs.tenant_shares.weight is 'The weight of the tenant in queues that do not say.';
comment on column ojs.tenant_shares.ideal_share is
'Its part of the weights of all tenants with work that workers serve; null: it has none.';
comment on column ojs.tenant_shares.dispatched_1m is 'Jobs handed out in the last minute.';
comment on column ojs.tenant_shares.share_1m is 'Their part of all jobs handed out in the last minute; null: none was.';
comment on column ojs.tenant_shares.lag_1m is 'How many more they would have been at the ideal share; negative: fewer.';
comment on column ojs.tenant_shares.avg_wait_1m is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.dispatched_5m is 'Jobs handed out in the last five minutes.';
comment on column ojs.tenant_shares.share_5m is 'Their part of all jobs handed out in the last five minutes; null: none was.';
comment on column ojs.tenant_shares.lag_5m is 'How many more they would have been at the ideal share; negative: fewer.';
comment on column ojs.tenant_shares.avg_wait_5m is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.dispatched_1h is 'Jobs handed out in the last hour.';
comment on column ojs.tenant_shares.share_1h is 'Their part of all jobs handed out in the last hour; null: none was.';
comment on column ojs.tenant_shares.lag_1h is 'How many more they would have been at the ideal share; negative: fewer.';
comment on column ojs.tenant_shares.avg_wait_1h is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.available is 'Jobs that could be handed out, now.';
comment on column ojs.tenant_shares.active is 'Jobs in workers'' hands, now.';
comment on column ojs.dispatch.held_at is 'Since when dispatch is held; null: it is not.';
comment on column ojs.dispatch.available is 'Jobs that could be handed out, now.';
comment on column ojs.dispatch.active is 'Jobs in workers'' hands, now.';
comment on column ojs.dispatch.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.dispatch.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.dispatch.pending is 'Jobs waiting to be activated, now.';
comment on column ojs.cron_runs.late is 'How long after it was due.';
comment on column ojs.crons.next_run_at is
'When it fires next; null: it is disabled, has an error, or no server has looked at it yet.';
comment on column ojs.job_partitions.partition is 'The table.';
comment on column ojs.job_partitions.from_at is 'The time in the first id that lies in it; null: it is the first.';
comment on column ojs.job_partitions.until_at is 'The time in the first id that does not; null: it is the last.';
comment on column ojs.job_partitions.jobs is 'About how many jobs it holds, by the planner''s statistics.';
comment on column ojs.job_partitions.bytes is 'How large it is, with indexes and wide values.';
comment on column ojs.job_partitions.lo is 'The first id that lies in it; null: it is the first.';
comment on column ojs.job_partitions.hi is 'The first id that does not; null: it is the last.';
comment on column ojs.jobs.id is 'UUIDv7, unique within the tenant.';
comment on column ojs.pool_stats.name is 'The pool''s name; *: what holds for all FETCHes.';
comment on column ojs.pool_stats.starvation_prevention is
'{enabled, rotation_interval, min_dispatch_ratio}, which keep a queue from starving; null: nothing does.';
comment on column ojs.pool_stats.active_workers is 'How many workers are registered in it or hold jobs of it.';
comment on column ojs.pool_stats.active_jobs is 'Jobs that its workers run, now.';
comment on column ojs.pool_stats.utilization is 'Their part of max_concurrency; null: no limit.';
comment on column ojs.pool_stats.dispatched is 'Jobs handed out to its workers, ever.';
comment on column ojs.pool_stats.dispatched_1m is 'Jobs handed out to its workers in the last minute.';
comment on column ojs.pool_stats.ratio_1m is 'Their part of all jobs handed out in the last minute; null: none was.';
comment on column ojs.pool_stats.avg_wait_1m is 'How long these had been available on average; null: there were none.';
comment on column ojs.pool_stats.p50_wait_1m is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.pool_stats.p95_wait_1m is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.pool_stats.p99_wait_1m is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.pool_stats.dispatched_5m is 'Jobs handed out to its workers in the last five minutes.';
comment on column ojs.pool_stats.ratio_5m is 'Their part of all jobs handed out in the last five minutes; null: none was.';
comment on column ojs.pool_stats.avg_wait_5m is 'How long these had been available on average; null: there were none.';
comment on column ojs.pool_stats.p50_wait_5m is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.pool_stats.p95_wait_5m is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.pool_stats.p99_wait_5m is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.pool_stats.dispatched_1h is 'Jobs handed out to its workers in the last hour.';
comment on column ojs.pool_stats.ratio_1h is 'Their part of all jobs handed out in the last hour; null: none was.';
comment on column ojs.pool_stats.avg_wait_1h is 'How long these had been available on average; null: there were none.';
comment on column ojs.pool_stats.p50_wait_1h is 'How long half of these had been available at most, about; null: there were none.';
comment on column ojs.pool_stats.p95_wait_1h is 'How long 95 of 100 of these had been available at most, about.';
comment on column ojs.pool_stats.p99_wait_1h is 'How long 99 of 100 of these had been available at most, about.';
comment on column ojs.results.id is 'The job.';
comment on column ojs.results.result is 'What the worker acknowledged with, byte for byte; null: nothing, not yet, or pruned.';
comment on column ojs.results.error is 'The last error of a job that was cancelled or discarded.';
comment on column ojs.results.result_stored_at is 'When the job ended.';
comment on column ojs.results.result_expires_at is 'Until when the result is shown; null: for ever.';
comment on column ojs.results.result_size_bytes is 'How many bytes the result has.';
comment on column ojs.results.pruned is 'Whether the result is not shown any more, because its result_ttl has passed.';
comment on column ojs.upkeep_status.task is 'cut: a new partition; drop: the oldest goes.';
comment on column ojs.upkeep_status.next_at is 'When its next step is taken; null: there is nothing to do.';
comment on column ojs.upkeep_status.due_at is 'When it is to be done; -infinity: now; null: there is nothing to do.';
comment on column ojs.upkeep_status.last_step is 'What its last step came to; null: it has taken none.';
comment on column ojs.upkeep_status.last_at is 'When that was.';
comment on column ojs.upkeep_status.failures is 'How many steps in a row came to nothing.';
comment on column ojs.workers.tenant_id is 'The tenant it works for; null: it serves all.';
comment on column ojs.workers.queues is
'The queues it serves: as it says, and others that its FETCHes name; null: it has not said, and not asked.';
comment on column ojs.workers.stale is 'Whether it has been silent for more than half of the heartbeat timeout.';
comment on column ojs.workers.active_jobs is 'How many jobs it runs, as it said last.';
comment on column ojs.workers.active_job_ids is 'Which ones, as it said last; null: it does not say.';
comment on column ojs.workers.last_heartbeat_at is 'When it was heard of last, to within a fifteenth of the heartbeat timeout.';

-- Where a view shows a table's column, what the table says of it holds for both, unless the view has said otherwise above.
do $do$
declare
    v_column record;
begin
    for v_column in
        select v.view, a.attname as name, col_description(b.attrelid, b.attnum) as text
        from (values ('ojs.jobs'::regclass, 'ojs.job'::regclass), ('ojs.results', 'ojs.job'), ('ojs.crons', 'ojs.cron'),
            ('ojs.cron_runs', 'ojs.cron_run'), ('ojs.workers', 'ojs.worker'), ('ojs.pool_stats', 'ojs.pool'),
            ('ojs.audit_trail', 'ojs.audit'), ('ojs.usage_batches', 'ojs.usage_batch'), ('ojs.dead_job', 'ojs.job')) v("view", "table")
        join pg_attribute a on a.attrelid = v.view and a.attnum > 0
        join pg_attribute b on b.attrelid = v.table and b.attname = a.attname
        where col_description(a.attrelid, a.attnum) is null
    loop
        execute format('comment on column %s.%I is %L', v_column.view, v_column.name, v_column.text);
    end loop;
end;
$do$;
