comment on table ojs.tally is
'Jobs by state per (tenant, queue, priority) as of ojs.tally_mark; ojs.shard_stats adds the journal
since then. A row moves to a higher rev with each change.';
comment on column ojs.tally.tenant_id is 'The tenant.';
comment on column ojs.tally.queue is 'The queue.';
comment on column ojs.tally.priority is 'The jobs'' own priority.';
comment on column ojs.tally.scheduled is 'Jobs that wait for their time.';
comment on column ojs.tally.available is 'Jobs that can be handed out.';
comment on column ojs.tally.pending is 'Jobs that wait to be activated.';
comment on column ojs.tally.active is 'Jobs that are active.';
comment on column ojs.tally.retryable is 'Failed jobs that wait for their next attempt.';
comment on column ojs.tally.completed is 'Jobs ever completed.';
comment on column ojs.tally.cancelled is 'Jobs ever cancelled.';
comment on column ojs.tally.discarded is
'Jobs ever discarded, less those retried from the dead letter queue.';
comment on column ojs.tally.total is 'Jobs ever enqueued.';
comment on column ojs.tally.failed is 'Attempts that ever failed.';
comment on column ojs.tally.dispatched is 'Jobs ever handed out.';
comment on column ojs.tally.failed_jobs is
'Jobs ever discarded, those retried since included; since the usage ledger began.';
comment on column ojs.tally.worker_ms is
'How long attempts that ended have run in sum, milliseconds; since the usage ledger began.';
comment on column ojs.tally.rev is
'Grows with each change, so that the live version is found newest first.';
comment on table ojs.pool_tally is 'Jobs per pool as of ojs.tally_mark. A row moves to a higher rev with each change.';
comment on column ojs.pool_tally.pool is 'The pool (ojs.pool.id), which may have been removed.';
comment on column ojs.pool_tally.rev is 'Grows with each change; the highest counts.';
comment on column ojs.pool_tally.active is 'Jobs that its workers run.';
comment on column ojs.pool_tally.dispatched is 'Jobs ever handed out to its workers.';
comment on table ojs.tally_mark is 'How far the journal has been rolled up into ojs.tally. The row moves to a higher rev with each change.';
comment on column ojs.tally_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tally_mark.snapshot is
'The snapshot up to which the journals have been rolled up.';
comment on column ojs.tally_mark.at is 'When the journals were last rolled up.';
comment on column ojs.tally_mark.pace_snapshot is
'The snapshot up to which ojs.lease has been rolled up into ojs.pace.';
comment on column ojs.tally_mark.pace_at is 'When ojs.lease was last rolled up.';
comment on column ojs.tally_mark.watched_at is 'When ojs._watch last looked.';
comment on column ojs.tally_mark.history_at is 'When ojs.tally was last kept in ojs.history.';
comment on column ojs.tally_mark.usage_rev is
'The rev at which all numbers of ojs.tally were closed in the usage ledger.';
comment on column ojs.tally_mark.usage_at is 'When ojs._close_usage last looked.';
comment on type ojs.counts is
'Numbers of jobs enqueued, handed out, completed, cancelled, failed for good (discarded, those
retried since included), and of failed attempts, ever or within some time.';
comment on table ojs.history is
'How the numbers of ojs.tally have grown, per queue (tenant_id empty), per tenant (queue empty) and
in all (both empty): a row for each minute in which they grew, merged into one for each hour after
an hour (tenants) or a day (queues and all). Kept for 31 days; the latest row of each stays.';
comment on column ojs.history.queue is 'The queue; empty: all.';
comment on column ojs.history.tenant_id is 'The tenant; empty: all.';
comment on column ojs.history.since is 'The time of the numbers in before.';
comment on column ojs.history.at is 'The time of the numbers in after.';
comment on column ojs.history.before is 'The numbers before.';
comment on column ojs.history.after is 'The numbers after.';
comment on table ojs.notice is
'Events that no other journal has, one row each: scheduling.queue_starved and
scheduling.pool_overloaded, once for as long as they last; scheduling.rebalanced; tenant.noisy,
tenant.throttled and tenant.throttle_released.';
comment on column ojs.notice.n is 'Number of the event.';
comment on column ojs.notice.at is 'When it was noticed.';
comment on column ojs.notice.type is 'The type of the event.';
comment on column ojs.notice.subject is 'The queue, the pool or the tenant.';
comment on column ojs.notice.data is 'The data of the event.';
comment on column ojs.notice.nth is
'Its number among the events of the same type and subject that are kept, from 1.';
comment on column ojs.notice.ended_at is 'When it ended; null: it lasts.';
comment on table ojs.pace is
'Jobs handed out in the last hour, per queue, tenant, pool, queue within a pool, and in all: a row
sums up 10 seconds or more. Later ones are in ojs.lease (ojs.tally_mark). No row where no job was
handed out. A row at -infinity keeps the sums over the rows that were removed.';
comment on column ojs.pace.kind is 'The kind of sum: queue, tenant, pool, pool_queue, or all.';
comment on column ojs.pace.name is
'The queue, the tenant, the pool (ojs.pool.id), or the names of a pool and a queue with a space
between; empty: all.';
comment on column ojs.pace.at is 'When it was rolled up.';
comment on column ojs.pace.jobs is 'How many jobs were handed out since the roll-up before.';
comment on column ojs.pace.waited is 'The sum of how long these had been available, seconds.';
comment on column ojs.pace.waits is
'How many of these are in each class of waits (ojs._wait_bounds); null for tenants and
pool_queue, of which there may be very many.';
comment on column ojs.pace.jobs_before is
'The sum of jobs over all earlier rows of the same kind and name.';
comment on column ojs.pace.waited_before is 'The sum of waited over those rows.';
comment on column ojs.pace.waits_before is 'The sums of waits over those rows.';
