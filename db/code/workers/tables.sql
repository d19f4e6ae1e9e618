comment on type ojs.worker_state is
'The state of a worker (ojs-worker-protocol section 2). running: fetches and works; quiet, drain:
finishes its jobs; terminate: ends within its grace period.';
comment on table ojs.worker is
'Workers that have registered or sent a heartbeat, until they deregister or fall silent. A worker
that does neither has no row: only its leases show that it is dead.';
comment on column ojs.worker.tenant_id is
'The tenant it works for; empty: all tenants. Two tenants may have workers of the same name.';
comment on column ojs.worker.worker_id is 'The name it gives itself.';
comment on column ojs.worker.id is
'The id of this registration; a worker that comes back after its end gets another.';
comment on column ojs.worker.state is 'What it does, as it reports.';
comment on column ojs.worker.directive is
'What the answer to its next heartbeat tells it to do; null: as it likes.';
comment on column ojs.worker.resting is 'Whether FETCH gives it no jobs.';
comment on column ojs.worker.hostname is 'The host it runs on, as it reports.';
comment on column ojs.worker.pid is 'Its process id, as it reports.';
comment on column ojs.worker.queues is 'The queues it serves, as it says.';
comment on column ojs.worker.concurrency is 'How many jobs it can run at once, as it says.';
comment on column ojs.worker.labels is 'Labels for grouping, as it says.';
comment on column ojs.worker.pool is 'The pool it says it is in; null: it has not named one.';
comment on column ojs.worker.strategy is 'How its FETCHes go over several queues, as it says.';
comment on column ojs.worker.weights is 'The weights of queues for that strategy, as it says.';
comment on column ojs.worker.apart is
'Whether a FETCH has to read this row: the worker rests, or says how it is to be served.';
comment on column ojs.worker.version is 'Its version, as it says.';
comment on column ojs.worker.metadata is 'Other data about itself, a JSON object.';
comment on column ojs.worker.started_at is 'When its process started, as it says.';
comment on column ojs.worker.registered_at is 'When this registration began.';
comment on column ojs.worker.asks is
'Queues that its FETCHes named and that are not in queues: all within a minute, up to 100. Null:
none.';
comment on column ojs.worker.asked_at is 'When asks was written.';
comment on table ojs.worker_beat is
'The latest noted heartbeat of each worker. The row moves to a higher rev with each change.';
comment on column ojs.worker_beat.tenant_id is 'The tenant of the worker; empty: all.';
comment on column ojs.worker_beat.worker_id is 'The worker.';
comment on column ojs.worker_beat.rev is 'Grows with each change; the highest counts.';
comment on column ojs.worker_beat.seen_at is
'When it came. Of heartbeats in quick succession one is noted.';
comment on column ojs.worker_beat.active is 'How many jobs it runs, as it reports.';
comment on column ojs.worker_beat.ids is 'The jobs it runs, as it reports.';
comment on table ojs.worker_load is
'Jobs that a registered worker was handed by strategy least-loaded. A decision that hands it more
jobs locks the row. The row moves to a higher rev with each change.';
comment on column ojs.worker_load.tenant_id is 'The tenant of the worker; empty: all.';
comment on column ojs.worker_load.worker_id is 'The worker.';
comment on column ojs.worker_load.rev is 'Grows with each change; the highest counts.';
comment on column ojs.worker_load.ids is 'Its jobs; some may have ended since.';
