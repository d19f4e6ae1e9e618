-- +goose Up
set local role ojs_owner;

-- What the columns of statistics mean, for \d+ in psql. The views' own comments say what they cost and who sees what.

comment on column ojs.tenant_stats.tenant_id is 'The tenant.';
comment on column ojs.tenant_stats.weight is 'The weight of the tenant in queues that do not say.';
comment on column ojs.tenant_stats.backlog is 'Jobs that could be handed out, now.';
comment on column ojs.tenant_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.tenant_stats.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.tenant_stats.pending is 'Jobs waiting to be activated, now.';
comment on column ojs.tenant_stats.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.tenant_stats.completed is 'Jobs completed, ever.';
comment on column ojs.tenant_stats.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.tenant_stats.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.tenant_stats.failed is 'Attempts that failed, ever.';
comment on column ojs.tenant_stats.total_jobs is 'Jobs enqueued, ever.';
comment on column ojs.tenant_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';
comment on column ojs.tenant_stats.deficit is 'Jobs it is owed at this moment; less than 0: it had more.';
comment on column ojs.tenant_stats.effective_share is 'Its weight among the tenants with work; null: it has none.';
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
comment on column ojs.shard_stats.dispatched is 'Jobs handed out, ever.';

comment on column ojs.rule_stats.tenant_id is 'The tenant; empty: all together.';
comment on column ojs.rule_stats.queue is 'The queue; empty: all.';
comment on column ojs.rule_stats.max_concurrency is 'How many jobs may run at once; null: as many as there are.';
comment on column ojs.rule_stats.active is 'How many jobs the last decision counted against the limit, those decided ahead included.';
comment on column ojs.rule_stats.paused_at is 'Since when nothing is handed out; null: dispatch goes on.';
comment on column ojs.rule_stats.paused_by is 'Who paused it; null for a tenant''s login.';
comment on column ojs.rule_stats.reason is 'Why; null for a tenant''s login.';

comment on column ojs.scheduling_stats.queue is 'The queue.';
comment on column ojs.scheduling_stats.dispatched_1m is 'Jobs handed out in the last minute.';
comment on column ojs.scheduling_stats.ratio_1m is 'Their part of all jobs handed out in the last minute; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_1m is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.dispatched_5m is 'Jobs handed out in the last five minutes.';
comment on column ojs.scheduling_stats.ratio_5m is 'Their part of all jobs handed out in the last five minutes; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_5m is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.dispatched_1h is 'Jobs handed out in the last hour.';
comment on column ojs.scheduling_stats.ratio_1h is 'Their part of all jobs handed out in the last hour; null: none was.';
comment on column ojs.scheduling_stats.avg_wait_1h is 'How long these had been available on average; null: there were none.';
comment on column ojs.scheduling_stats.available is 'Jobs that could be handed out, now.';
comment on column ojs.scheduling_stats.active is 'Jobs in workers'' hands, now.';
comment on column ojs.scheduling_stats.oldest_wait is 'How long the first job in line has waited; null: none waits.';

comment on column ojs.tenant_shares.tenant_id is 'The tenant.';
comment on column ojs.tenant_shares.weight is 'The weight of the tenant in queues that do not say.';
comment on column ojs.tenant_shares.ideal_share is 'Its part of the weights of all that have work; null: it has none.';
comment on column ojs.tenant_shares.dispatched_1m is 'Jobs handed out in the last minute.';
comment on column ojs.tenant_shares.share_1m is 'Their part of all jobs handed out in the last minute; null: none was.';
comment on column ojs.tenant_shares.avg_wait_1m is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.dispatched_5m is 'Jobs handed out in the last five minutes.';
comment on column ojs.tenant_shares.share_5m is 'Their part of all jobs handed out in the last five minutes; null: none was.';
comment on column ojs.tenant_shares.avg_wait_5m is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.dispatched_1h is 'Jobs handed out in the last hour.';
comment on column ojs.tenant_shares.share_1h is 'Their part of all jobs handed out in the last hour; null: none was.';
comment on column ojs.tenant_shares.avg_wait_1h is 'How long these had been available on average; null: there were none.';
comment on column ojs.tenant_shares.available is 'Jobs that could be handed out, now.';
comment on column ojs.tenant_shares.active is 'Jobs in workers'' hands, now.';

comment on column ojs.dispatch.held_at is 'Since when dispatch is held; null: it is not.';
comment on column ojs.dispatch.available is 'Jobs that could be handed out, now.';
comment on column ojs.dispatch.active is 'Jobs in workers'' hands, now.';
comment on column ojs.dispatch.scheduled is 'Jobs waiting for their time, now.';
comment on column ojs.dispatch.retryable is 'Failed jobs waiting for their next attempt, now.';
comment on column ojs.dispatch.pending is 'Jobs waiting to be activated, now.';
reset role;
