comment on table ojs.settings is 'Settings of this deployment; one row. Changed by ojs.configure.';
comment on column ojs.settings.one is 'Always true: there is one row.';
comment on column ojs.settings.default_tenant is 'The tenant of jobs enqueued without one (multi-tenancy section 15.3).';
comment on column ojs.settings.tenant_required is
'Whether jobs without a tenant are refused instead of given to the default tenant (multi-tenancy
section 5.1).';
comment on column ojs.settings.timeout_ms is
'How long heartbeats keep an attempt of a job that has no timeout_ms of its own, milliseconds; 0: for ever (ojs-timeouts section 5.1).';
comment on column ojs.settings.heartbeat_timeout_ms is
'How long a worker that has sent heartbeats may be silent before it counts as dead, milliseconds
(ojs-worker-protocol section 10.1).';
comment on column ojs.settings.retention is
'How long jobs are kept after they have ended, at least; 0: until an operator drops them.';
comment on column ojs.settings.journal_retention is
'How long the journal is kept; if retention is shorter, as long as that, but at least a minute.';
comment on column ojs.settings.dead_letter_max_age is
'How long a job stays in the dead letter queue (ojs-dead-letter section 5). Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.dead_letter_max_count is
'How many jobs of a tenant the dead letter queue holds; beyond that, the oldest are deleted.
Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.held_at is
'Since when dispatch is held and the clock stands still (ojs.hold_dispatch); null: it is not held.';
comment on column ojs.settings.idempotency_window is
'How long a request with the same idempotency key gets the first answer.';
comment on column ojs.settings.tenant_fairness is
'How tenants share in queues without a tenant_fairness (ojs.configure), without the weights of
single tenants, which are in ojs.tenant.';
comment on column ojs.settings.lowest_max_priority is
'The lowest max_priority of all tenants: jobs of a higher priority are checked one by one; null: no
tenant has one (ojs.configure_tenant).';
comment on column ojs.settings.unknown_tenants is
'Whether jobs of a tenant that is not configured are accepted: accept, or refuse (ojs.configure).';
comment on column ojs.settings.bars is
'Whether new jobs are checked one by one, because there may be tenants whose jobs are refused
(ojs.suspend_tenant).';
comment on column ojs.settings.default_retry is
'The retry policy of jobs without one, in queues without a default_retry; null: that of ojs-retry
section 8.';
comment on column ojs.settings.unsupported is
'Whether new jobs that ask for something this server cannot do are accepted: refuse; or carry,
which keeps the request without acting on it.';
comment on table ojs.tenant is
'Configured tenants. A tenant without a row has the default weight, no boost, and no limit to its priorities. Changed by
ojs.configure_tenant.';
comment on column ojs.tenant.tenant_id is 'The tenant (multi-tenancy section 5.2).';
comment on column ojs.tenant.weight is
'Share of dispatch relative to other tenants with work, in queues without weights of their own;
0.000001 to 1000000; null: the default weight.';
comment on column ojs.tenant.priority_boost is
'Added to the priority of the tenant''s jobs when they are dispatched; -100 to 100. The jobs keep their own priority.';
comment on column ojs.tenant.created_at is
'When the tenant was first configured; null: it is not configured. Then the row exists for a pause,
a throttle or a suspension, and is removed with it.';
comment on column ojs.tenant.max_priority is 'The highest priority that a new job of the tenant may have; -100 to 100; 100: no limit.';
comment on column ojs.tenant.over_priority is
'What happens to a new job above max_priority: refuse: it is refused; clamp: it gets max_priority.';
comment on column ojs.tenant.throttle is
'The factor by which the tenant''s weights are multiplied while it is throttled (ojs.throttle);
null: it is not.';
comment on table ojs.queue_weight is
'Weights of tenants in queues, from the tenant_fairness of queues and of the deployment. Changed by
ojs.configure_queue, ojs.configure and, with a queue, ojs.configure_tenant; read by
ojs._weight_in. Without a row, tenants have their own weights, or 1.';
comment on column ojs.queue_weight.queue is
'The queue; empty: the deployment, for queues without weights of their own.';
comment on column ojs.queue_weight.tenant_id is
'The tenant, with or without the prefix "tenant:"; empty: tenants without a weight of their own; *:
all tenants have the same weight.';
comment on column ojs.queue_weight.weight is
'Share of dispatch relative to other tenants with work; 0.000001 to 1000000.';
comment on table ojs.rule is
'Rules that hold dispatch back: limits on active jobs, and pauses; of a tenant, of a queue, or of a
tenant in a queue. Changed by ojs.limit_concurrency, ojs.pause and ojs.resume.';
comment on column ojs.rule.tenant_id is 'The tenant; empty: all tenants together.';
comment on column ojs.rule.queue is 'The queue; empty: all queues together.';
comment on column ojs.rule.max_concurrency is
'How many jobs may be active at once; null: no limit.';
comment on column ojs.rule.paused_at is 'Since when it is paused; null: it is not.';
comment on column ojs.rule.paused_by is
'The login, or the principal of the request, that paused it.';
comment on column ojs.rule.reason is 'Why it is paused, in the caller''s words.';
comment on column ojs.rule.limit_reason is
'Why it has max_concurrency, in the words of the caller that last changed it.';
comment on column ojs.rule.throttled_to is
'The limit while the tenant is throttled (ojs.throttle); null: max_concurrency alone.';
comment on column ojs.rule.most is
'The lower of max_concurrency and throttled_to, which decisions obey; null: no limit.';
comment on column ojs.rule.limit_xid is
'The transaction in which most became not null; null: most is null. A count in ojs.usage with
another limit_xid belongs to an earlier limit, and lacks jobs that ran while there was no limit.';
comment on table ojs.neighbour_watch is
'When a tenant counts as a noisy neighbour, and what is done about it (multi-tenancy section 9);
one row. Changed by ojs.watch_neighbours.';
comment on column ojs.neighbour_watch.one is 'Always true: there is one row.';
comment on column ojs.neighbour_watch.mode is
'off: no checks; observe: noisy tenants are listed and noted as events; on: they are throttled,
too.';
comment on column ojs.neighbour_watch.span is 'The period over which rates and errors are counted.';
comment on column ojs.neighbour_watch.depth_ratio is
'A tenant is noisy if its waiting jobs are more than this times the median.';
comment on column ojs.neighbour_watch.rate_ratio is
'A tenant is noisy if it enqueued more than this times what the other tenants did on average.';
comment on column ojs.neighbour_watch.active_share is
'A tenant is noisy if its part of the active jobs is more than this, and than its share by weight,
while other tenants have available jobs.';
comment on column ojs.neighbour_watch.error_ratio is
'A tenant is noisy if its attempts failed more than this times as often as those of the other
tenants.';
comment on column ojs.neighbour_watch.min_jobs is
'With fewer jobs waiting, enqueued or handed out, a tenant is not noisy.';
comment on column ojs.neighbour_watch.min_active is
'With fewer active jobs, a tenant is not noisy by active_share.';
comment on column ojs.neighbour_watch.action is 'What a throttle lowers: weight, concurrency or rate.';
comment on column ojs.neighbour_watch.factor is 'The factor by which it is lowered.';
comment on column ojs.neighbour_watch.lasts is 'How long a throttle lasts.';
comment on column ojs.neighbour_watch.looked_at is 'When the tick last checked.';
comment on table ojs.neighbour is
'Tenants that were noisy at the last check of the tick. Written by the tick; read as
ojs.noisy_neighbours.';
comment on column ojs.neighbour.tenant_id is 'The tenant.';
comment on column ojs.neighbour.signal is
'The signal: queue_depth_ratio, enqueue_rate_ratio, active_job_ratio or error_rate.';
comment on column ojs.neighbour.value is 'The value of the signal.';
comment on column ojs.neighbour.threshold is 'The value above which the tenant is noisy.';
comment on column ojs.neighbour.since is 'Since when it has been noisy at each check.';
comment on column ojs.neighbour.seen_at is 'When it was last checked.';
comment on table ojs.throttle is
'Tenants that get less for a while. Written by ojs.throttle, ojs.release_throttle and the tick; read as ojs.throttles.';
comment on column ojs.throttle.tenant_id is 'The tenant.';
comment on column ojs.throttle.action is 'What is lowered: weight, concurrency or rate.';
comment on column ojs.throttle.original is
'The value without the throttle when the throttle began; null: no limit.';
comment on column ojs.throttle.effective is 'The value with the throttle then.';
comment on column ojs.throttle.reason is
'Why: the signal followed by _exceeded, or an operator''s words.';
comment on column ojs.throttle.since is 'Since when it is throttled.';
comment on column ojs.throttle.until is 'When the throttle ends by itself.';
comment on column ojs.throttle.set_by is 'The login that set it; null: the tick.';
comment on table ojs.pool is
'Configured pools of workers, and as * the settings for all FETCHes. Changed by ojs.configure_pool
and ojs.delete_pool.';
comment on column ojs.pool.name is 'The pool''s name. Workers that name no pool are in pool default.';
comment on column ojs.pool.id is
'The number by which jobs and journals name it. A pool that is removed and made again has another
one.';
comment on column ojs.pool.queues is 'The queues whose jobs its workers get, in order; null: all.';
comment on column ojs.pool.max_concurrency is
'How many jobs its workers may run at once, together; null: no limit.';
comment on column ojs.pool.strategy is
'How a FETCH goes over several queues: strict, round-robin, weighted, least-loaded; null: as the
FETCH asks.';
comment on column ojs.pool.weights is
'Weights of queues for the strategy weighted, such as {"mail": 3}; null: as the FETCH asks.';
comment on column ojs.pool.isolated is
'Whether workers outside the pool get no jobs of its queues; if tenants are named, no jobs of these
tenants.';
comment on column ojs.pool.tenants is 'The tenants whose jobs its workers get; null: all.';
comment on column ojs.pool.rotation_interval is
'A queue with work that has given no job for this long is next; null: not in force.';
comment on column ojs.pool.min_dispatch_ratio is
'The least part of the dispatches that each queue with work gets; null: not in force.';
comment on column ojs.pool.created_at is 'When it was made.';
comment on column ojs.pool.updated_at is 'When it was last changed.';
comment on table ojs.tenant_role is
'The tenant of each login role. Private; written by ojs.create_tenant_role.';
comment on column ojs.tenant_role.role_name is 'The login role.';
comment on column ojs.tenant_role.tenant_id is 'The role''s tenant.';
comment on table ojs.queue is 'Configured queues. A queue can be used without a row.';
comment on column ojs.queue.queue is 'The queue''s name.';
comment on column ojs.queue.created_at is 'When it was first configured.';
comment on column ojs.queue.updated_at is 'When its configuration was last changed.';
comment on column ojs.queue.config is 'Its configuration (ojs.configure_queue).';
