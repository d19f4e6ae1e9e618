comment on table ojs.settings is 'Settings of this deployment; one row. Changed by ojs.configure.';
comment on column ojs.settings.one is 'Always true: there is one row.';
comment on column ojs.settings.default_tenant is 'The tenant of jobs enqueued without one (multi-tenancy section 15.3).';
comment on column ojs.settings.tenant_required is
'Refuse jobs without a tenant instead of giving them to the default tenant (multi-tenancy section 5.1).';
comment on column ojs.settings.timeout_ms is
'How long heartbeats keep an attempt of a job that has no timeout_ms of its own, milliseconds; 0: for ever (ojs-timeouts section 5.1).';
comment on column ojs.settings.heartbeat_timeout_ms is
'A worker that has sent heartbeats and is silent for so long is dead, milliseconds (ojs-worker-protocol section 10.1).';
comment on column ojs.settings.retention is 'How long jobs are kept after they have ended, at least; 0: until an operator drops them.';
comment on column ojs.settings.journal_retention is
'How long the journal is kept, at most; where retention is shorter, that long, but a minute at least.';
comment on column ojs.settings.dead_letter_max_age is
'How long a job stays in the dead letter queue (ojs-dead-letter section 5). Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.dead_letter_max_count is
'How many jobs of a tenant the dead letter queue holds; beyond, the oldest go. Changed by ojs.configure_dead_letters.';
comment on column ojs.settings.held_at is
'Since when nothing is handed out and the clock stands still (ojs.hold_dispatch); null: dispatch goes on.';
comment on column ojs.settings.idempotency_window is 'How long a request with the same idempotency key is answered as the first one was.';
comment on column ojs.settings.tenant_fairness is
'How tenants share where a queue does not say (ojs.configure), without the weights of single tenants, which are in ojs.tenant.';
comment on column ojs.settings.lowest_max_priority is
'The lowest max_priority of a tenant: jobs of a higher priority are looked at one by one; null: none has any (ojs.configure_tenant).';
comment on column ojs.settings.unknown_tenants is
'What becomes of jobs of a tenant that nobody has configured: accept, or refuse (ojs.configure).';
comment on column ojs.settings.bars is
'Whether new jobs are looked at one by one, because there may be tenants whose jobs are refused (ojs.suspend_tenant).';
comment on column ojs.settings.default_retry is
'The retry policy of jobs that have none, in queues that do not say; null: that of ojs-retry section 8.';
comment on column ojs.settings.unsupported is
'What becomes of new jobs that ask for what this server cannot do: refuse, or carry, which keeps the words and does nothing about them.';
comment on table ojs.tenant is
'Configured tenants. A tenant without a row has the default weight, no boost, and no limit to its priorities. Changed by
ojs.configure_tenant.';
comment on column ojs.tenant.tenant_id is 'The tenant (multi-tenancy section 5.2).';
comment on column ojs.tenant.weight is
'Share of dispatch relative to the other tenants with work, in queues that do not say; 0.000001 to 1000000; null: the default weight.';
comment on column ojs.tenant.priority_boost is
'Added to the priority of the tenant''s jobs when they are dispatched; -100 to 100. The jobs keep their own priority.';
comment on column ojs.tenant.created_at is
'When the tenant was first configured; null: it is not, and the row is there for a pause, a throttle or a suspension, with which it goes.';
comment on column ojs.tenant.max_priority is 'The highest priority that a new job of the tenant may have; -100 to 100; 100: no limit.';
comment on column ojs.tenant.over_priority is
'What becomes of a new job above max_priority: it is refused (refuse), or gets max_priority (clamp).';
comment on column ojs.tenant.throttle is
'What the tenant''s weights are multiplied by while it is throttled (ojs.throttle); null: nothing.';
comment on table ojs.queue_weight is
'Weights of tenants in queues, as tenant_fairness of a queue and of the deployment say. Changed by ojs.configure_queue, ojs.configure and,
with a queue, ojs.configure_tenant; read by ojs._weight_in. Where it has no row, tenants have their own weights, or 1.';
comment on column ojs.queue_weight.queue is 'The queue; empty: the deployment, for queues that do not say.';
comment on column ojs.queue_weight.tenant_id is
'The tenant, tenant: before its name or not; empty: tenants without a weight of their own; *: all tenants alike, whatever their weights.';
comment on column ojs.queue_weight.weight is 'Share of dispatch relative to the other tenants with work; 0.000001 to 1000000.';
comment on table ojs.rule is
'What holds dispatch back: how many jobs may run at once, and what is paused; of a tenant, of a queue, of a tenant in a queue. Changed by
ojs.limit_concurrency, ojs.pause and ojs.resume.';
comment on column ojs.rule.tenant_id is 'The tenant; empty: all of them together.';
comment on column ojs.rule.queue is 'The queue; empty: all of them together.';
comment on column ojs.rule.max_concurrency is 'How many jobs may be active at once; null: as many as there are.';
comment on column ojs.rule.paused_at is 'Since when nothing is handed out; null: dispatch goes on.';
comment on column ojs.rule.paused_by is 'Who paused it.';
comment on column ojs.rule.reason is 'Why it is paused, in the words of the one who paused it.';
comment on column ojs.rule.limit_reason is 'Why it has max_concurrency, in the words of the one who changed it last.';
comment on column ojs.rule.throttled_to is 'How many while the tenant is throttled (ojs.throttle); null: as max_concurrency says.';
comment on column ojs.rule.most is 'The lower of both, which decisions obey; null: as many as there are.';
comment on column ojs.rule.limit_xid is
'The transaction in which most began to be not null; null: most is. A count in ojs.usage with another one belongs to an earlier limit, and
may lack what happened while there was none.';
comment on table ojs.neighbour_watch is
'What makes a tenant a noisy neighbour, and what is done about it (multi-tenancy section 9); one row. Changed by ojs.watch_neighbours.';
comment on column ojs.neighbour_watch.one is 'Always true: there is one row.';
comment on column ojs.neighbour_watch.mode is
'off: nobody looks; observe: noisy tenants are shown and told of; on: they are throttled, too.';
comment on column ojs.neighbour_watch.span is 'Over how long rates and errors are counted.';
comment on column ojs.neighbour_watch.depth_ratio is 'Noisy is whose jobs that wait are more than so many times the median.';
comment on column ojs.neighbour_watch.rate_ratio is 'Noisy is who enqueued more than so many times what the others did on average.';
comment on column ojs.neighbour_watch.active_share is
'Noisy is whose part of the active jobs is more than this, and than its share by weight, while others wait.';
comment on column ojs.neighbour_watch.error_ratio is 'Noisy is whose attempts failed more than so many times as often as the others''.';
comment on column ojs.neighbour_watch.min_jobs is 'Fewer jobs that wait, were enqueued or were handed out make nobody noisy.';
comment on column ojs.neighbour_watch.min_active is 'Fewer active jobs make nobody noisy.';
comment on column ojs.neighbour_watch.action is 'What a throttle lowers: weight, concurrency or rate.';
comment on column ojs.neighbour_watch.factor is 'What it is multiplied by.';
comment on column ojs.neighbour_watch.lasts is 'How long a throttle lasts.';
comment on column ojs.neighbour_watch.looked_at is 'When somebody looked last.';
comment on table ojs.neighbour is 'Tenants that were noisy when the tick looked last. Written by it; read as ojs.noisy_neighbours.';
comment on column ojs.neighbour.tenant_id is 'The tenant.';
comment on column ojs.neighbour.signal is 'By what: queue_depth_ratio, enqueue_rate_ratio, active_job_ratio, error_rate.';
comment on column ojs.neighbour.value is 'How much it was.';
comment on column ojs.neighbour.threshold is 'How much it may be.';
comment on column ojs.neighbour.since is 'Since when without a break.';
comment on column ojs.neighbour.seen_at is 'When it was seen last.';
comment on table ojs.throttle is
'Tenants that get less for a while. Written by ojs.throttle, ojs.release_throttle and the tick; read as ojs.throttles.';
comment on column ojs.throttle.tenant_id is 'The tenant.';
comment on column ojs.throttle.action is 'What is lowered: weight, concurrency or rate.';
comment on column ojs.throttle.original is 'What it was without the throttle when that began; null: no limit.';
comment on column ojs.throttle.effective is 'What it was then.';
comment on column ojs.throttle.reason is 'Why: the signal with _exceeded behind it, or an operator''s words.';
comment on column ojs.throttle.since is 'Since when.';
comment on column ojs.throttle.until is 'When it ends by itself.';
comment on column ojs.throttle.set_by is 'Which login; null: the tick.';
comment on table ojs.pool is
'Configured pools of workers, and as * what holds for all FETCHes. Changed by ojs.configure_pool and ojs.delete_pool.';
comment on column ojs.pool.name is 'The pool''s name. Workers that name no pool are in pool default.';
comment on column ojs.pool.id is 'What jobs and journals call it. A pool that is made anew is another one.';
comment on column ojs.pool.queues is 'The queues its workers are given jobs of, in order; null: all.';
comment on column ojs.pool.max_concurrency is 'How many jobs its workers may run at once, together; null: as many as there are.';
comment on column ojs.pool.strategy is
'How a FETCH goes over several queues: strict, round-robin, weighted, least-loaded; null: as it asks.';
comment on column ojs.pool.weights is
'Weights of queues for the strategy weighted, such as {"mail": 3}; null: as the FETCH asks.';
comment on column ojs.pool.isolated is
'Whether workers outside the pool get no jobs of its queues; where tenants are named, none of these tenants'' jobs.';
comment on column ojs.pool.tenants is 'The tenants whose jobs its workers are given; null: all.';
comment on column ojs.pool.rotation_interval is 'A queue with work that gave no job for so long goes next; null: never for that.';
comment on column ojs.pool.min_dispatch_ratio is 'The part of the dispatches that each queue with work gets at least; null: none.';
comment on column ojs.pool.created_at is 'When it was made.';
comment on column ojs.pool.updated_at is 'When it was changed last.';
comment on table ojs.tenant_role is 'Which tenant a login role is. Private; written by ojs.create_tenant_role.';
comment on column ojs.tenant_role.role_name is 'The login role.';
comment on column ojs.tenant_role.tenant_id is 'Its tenant.';
comment on table ojs.queue is 'Configured queues. Queues need not be created.';
comment on column ojs.queue.queue is 'The queue''s name.';
comment on column ojs.queue.created_at is 'When it was first configured.';
comment on column ojs.queue.updated_at is 'When its configuration was changed last.';
comment on column ojs.queue.config is 'Its configuration (ojs.configure_queue).';
