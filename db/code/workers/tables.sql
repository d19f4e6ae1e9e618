comment on type ojs.worker_state is
'What a worker does (ojs-worker-protocol section 2): running: fetches and works; quiet, drain: finishes what it has; terminate: ends
within its grace period.';
comment on table ojs.worker is
'Workers that have registered or sent a heartbeat, until they sign off or fall silent. One that never does either has no row: its leases
alone tell.';
comment on column ojs.worker.tenant_id is 'The tenant it works for; empty: it serves all. Two tenants may have workers of one name.';
comment on column ojs.worker.worker_id is 'As it names itself.';
comment on column ojs.worker.id is 'This registration; a worker that comes back after its end gets another.';
comment on column ojs.worker.state is 'What it says it does.';
comment on column ojs.worker.directive is 'What it is told to do by its next heartbeat; null: as it likes.';
comment on column ojs.worker.resting is 'Whether FETCH gives it nothing.';
comment on column ojs.worker.hostname is 'Where it runs, as it says.';
comment on column ojs.worker.pid is 'Its process, as it says.';
comment on column ojs.worker.queues is 'The queues it serves, as it says.';
comment on column ojs.worker.concurrency is 'How many jobs it runs at once, as it says.';
comment on column ojs.worker.labels is 'Labels for grouping, as it says.';
comment on column ojs.worker.pool is 'The pool it says it is in; null: it has not said.';
comment on column ojs.worker.strategy is 'How its FETCHes are to go over several queues, as it says.';
comment on column ojs.worker.weights is 'Weights of queues for that, as it says.';
comment on column ojs.worker.apart is 'Whether a FETCH has to look at this row: it rests, or says how it is to be served.';
comment on column ojs.worker.version is 'Its version, as it says.';
comment on column ojs.worker.metadata is 'Whatever else it says of itself, a JSON object.';
comment on column ojs.worker.started_at is 'When its process began, as it says.';
comment on column ojs.worker.registered_at is 'When this registration began.';
comment on column ojs.worker.asks is
'Queues beside these that its FETCHes named; of those within a minute all, as far as they are no more than 100. Null: it has not asked for
any other.';
comment on column ojs.worker.asked_at is 'When asks was written.';
comment on table ojs.worker_beat is
'The latest heartbeat of each worker that was worth writing down. The row moves to a higher rev with each change.';
comment on column ojs.worker_beat.tenant_id is 'The tenant of the worker; empty: all.';
comment on column ojs.worker_beat.worker_id is 'The worker.';
comment on column ojs.worker_beat.rev is 'Grows with each change; the highest counts.';
comment on column ojs.worker_beat.seen_at is 'When. Heartbeats in quick succession are written down once.';
comment on column ojs.worker_beat.active is 'How many jobs it runs, as it says.';
comment on column ojs.worker_beat.ids is 'The jobs it runs, as it says.';
comment on table ojs.worker_load is
'Jobs that a registered worker was handed by strategy least-loaded. A decision that hands it more locks the row. The row
moves to a higher rev with each change.';
comment on column ojs.worker_load.tenant_id is 'The tenant of the worker; empty: all.';
comment on column ojs.worker_load.worker_id is 'The worker.';
comment on column ojs.worker_load.rev is 'Grows with each change; the highest counts.';
comment on column ojs.worker_load.ids is 'Its jobs; some may have ended since.';
