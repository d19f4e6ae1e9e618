comment on table ojs.duty is 'Which of the servers is on duty: it does what is to be done once for all of them. One row.';
comment on column ojs.duty.one is 'Always true: there is one row.';
comment on column ojs.duty.holder is 'The token of its clock; null: nobody is on duty.';
comment on column ojs.duty.backend is
'The process id of its session that listens: when that has ended, so has the duty. Null: the server listens to nothing, and holds the duty
by short leases.';
comment on column ojs.duty.session is 'Role and application_name of that session, which tell it from a later one with the same process id.';
comment on column ojs.duty.since is 'When it went on duty.';
comment on column ojs.duty.expires_at is 'When the duty ends unless renewed, whatever the session does.';
comment on table ojs.cut is 'The cut of a partition of ojs.job that is being prepared (ojs.cut_partition), at most one.';
comment on column ojs.cut.cut_at is 'Where. Until the cut is made or given up, jobs with later ids are refused.';
comment on column ojs.cut.partition is 'The partition.';
comment on column ojs.cut.undo_at is 'From when on it is given up rather than made.';
comment on table ojs.idempotency is 'Requests that named an idempotency key (ojs.enqueue_once), and what they were answered.';
comment on column ojs.idempotency.tenant_id is 'The tenant of the request, else of its first job.';
comment on column ojs.idempotency.key is 'The key, as the client chose it.';
comment on column ojs.idempotency.fingerprint is 'Tells whether a request is the same: SHA-256 of it.';
comment on column ojs.idempotency.answer is 'The jobs as they were when they were enqueued.';
comment on column ojs.idempotency.expires_at is 'When the key may be used anew.';
comment on table ojs.upkeep_task is 'What ojs.upkeep did last, one row per task; see ojs.upkeep_status.';
comment on column ojs.upkeep_task.task is 'The task.';
comment on column ojs.upkeep_task.last_step is 'What its last step came to: done, again and why, or not yet and why.';
comment on column ojs.upkeep_task.last_at is 'When that was.';
comment on column ojs.upkeep_task.failures is 'How many steps in a row came to nothing.';
comment on column ojs.upkeep_task.not_before is 'When the next step may come.';
