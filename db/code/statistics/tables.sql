comment on table ojs.tally is
'Jobs by state per (tenant, queue, priority) as of ojs.tally_mark; the journal after it is added by ojs.shard_stats. A row moves to a
higher rev with each change.';
comment on column ojs.tally.tenant_id is 'The tenant.';
comment on column ojs.tally.queue is 'The queue.';
comment on column ojs.tally.priority is 'The jobs'' own priority.';
comment on column ojs.tally.scheduled is 'Jobs waiting for their time.';
comment on column ojs.tally.available is 'Jobs ready to be handed out.';
comment on column ojs.tally.pending is 'Jobs waiting to be activated.';
comment on column ojs.tally.active is 'Jobs in workers'' hands.';
comment on column ojs.tally.retryable is 'Failed jobs waiting for their next attempt.';
comment on column ojs.tally.completed is 'Jobs completed, ever.';
comment on column ojs.tally.cancelled is 'Jobs cancelled, ever.';
comment on column ojs.tally.discarded is 'Jobs discarded, ever, less those retried from the dead letter queue.';
comment on column ojs.tally.total is 'Jobs enqueued, ever.';
comment on column ojs.tally.failed is 'Failed attempts, ever.';
comment on column ojs.tally.dispatched is 'Jobs handed out, ever.';
comment on column ojs.tally.rev is 'Grows with each change, so that the live version is found newest first.';
comment on table ojs.pool_tally is 'Jobs per pool as of ojs.tally_mark. A row moves to a higher rev with each change.';
comment on column ojs.pool_tally.pool is 'The pool (ojs.pool.id), or one that was.';
comment on column ojs.pool_tally.rev is 'Grows with each change; the highest counts.';
comment on column ojs.pool_tally.active is 'Jobs in the hands of its workers.';
comment on column ojs.pool_tally.dispatched is 'Jobs handed out to its workers, ever.';
comment on table ojs.tally_mark is 'How far the journal has been rolled up into ojs.tally. The row moves to a higher rev with each change.';
comment on column ojs.tally_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tally_mark.snapshot is 'What has been rolled up.';
comment on column ojs.tally_mark.at is 'When.';
comment on column ojs.tally_mark.pace_snapshot is 'What of ojs.lease has been rolled up into ojs.pace.';
comment on column ojs.tally_mark.pace_at is 'When.';
comment on column ojs.tally_mark.watched_at is 'When ojs._watch looked last.';
comment on column ojs.tally_mark.history_at is 'When ojs.tally was last kept in ojs.history.';
comment on type ojs.counts is
'Jobs enqueued, handed out, completed, cancelled, and discarded less those retried, and failed attempts, ever or within some time.';
comment on table ojs.history is
'How the numbers of ojs.tally have grown, per queue (tenant_id is empty), per tenant (queue is empty) and in all (both are): a row for each
minute in which they did, merged into one for each hour after an hour (of tenants) or a day; kept for 31 days, the latest for ever.';
comment on column ojs.history.queue is 'The queue; empty: all.';
comment on column ojs.history.tenant_id is 'The tenant; empty: all.';
comment on column ojs.history.since is 'When they were as before.';
comment on column ojs.history.at is 'When they were as after.';
comment on column ojs.history.before is 'The numbers before.';
comment on column ojs.history.after is 'The numbers after.';
comment on table ojs.notice is
'Journal of what no other journal tells, one row per event: scheduling.queue_starved and scheduling.pool_overloaded, once for as long as
it lasts; scheduling.rebalanced; tenant.noisy, tenant.throttled and tenant.throttle_released.';
comment on column ojs.notice.n is 'Tells them apart.';
comment on column ojs.notice.at is 'When it was noticed.';
comment on column ojs.notice.type is 'The type of the event.';
comment on column ojs.notice.subject is 'The queue, the pool or the tenant.';
comment on column ojs.notice.data is 'What the event says.';
comment on column ojs.notice.nth is 'Which one of its type and subject it is, counted from 1 as far as they are kept.';
comment on column ojs.notice.ended_at is 'When it was over; null: it lasts.';
comment on table ojs.pace is
'Jobs handed out, per queue, per tenant, per pool and in all, in sum over some ten seconds; of the last hour. What came since is in
ojs.lease (ojs.tally_mark). No row where nothing was handed out.';
comment on column ojs.pace.kind is 'What is summed up: queue, tenant, pool, or all.';
comment on column ojs.pace.name is 'The queue, the tenant, or the pool (ojs.pool.id); empty: all.';
comment on column ojs.pace.at is 'When it was rolled up.';
comment on column ojs.pace.jobs is 'How many, since the roll-up before.';
comment on column ojs.pace.waited is 'How long these had been available, in seconds, in sum.';
comment on column ojs.pace.waits is
'How many of them had been available for how long: a number for each class of ojs._wait_bounds(); null for tenants, of which there may be
very many.';
comment on column ojs.pace.jobs_before is 'How many before, in sum over the rows of the same kind and name from some point on.';
comment on column ojs.pace.waited_before is 'How long those had been available, in seconds, in sum.';
comment on column ojs.pace.waits_before is 'How many of those had been available for how long.';
