comment on table ojs.duty is 'The server on duty: it runs the clock for all servers. One row.';
comment on column ojs.duty.one is 'Always true: there is one row.';
comment on column ojs.duty.holder is 'The token of its clock; null: no server is on duty.';
comment on column ojs.duty.backend is
'The process id of its listening session: when that session ends, so does the duty. Null: the
server has no such session, and holds the duty by leases of 2 seconds.';
comment on column ojs.duty.session is
'Role and application_name of that session, by which a later session with the same process id is
recognized as another one.';
comment on column ojs.duty.since is 'When the server came on duty.';
comment on column ojs.duty.expires_at is
'When the duty ends unless it is renewed, whatever the session does.';
comment on table ojs.cut is
'The cut of the last partition of ojs.job that is being prepared (ojs.cut_partition), at most one.';
comment on column ojs.cut.cut_at is
'The time of the cut. Until the cut is made or given up, jobs with later ids are refused.';
comment on column ojs.cut.partition is 'The partition to be cut.';
comment on column ojs.cut.undo_at is 'From when on the cut is given up instead of made.';
comment on table ojs.idempotency is
'Requests with an idempotency key (ojs.enqueue_once), and their answers.';
comment on column ojs.idempotency.tenant_id is 'The tenant of the request, else of its first job.';
comment on column ojs.idempotency.key is 'The key, as the client chose it.';
comment on column ojs.idempotency.fingerprint is
'SHA-256 of the request, by which a repeated request is recognized.';
comment on column ojs.idempotency.answer is 'The jobs as they were when they were enqueued.';
comment on column ojs.idempotency.expires_at is 'When the key expires and may be used again.';
comment on table ojs.upkeep_task is
'The last step of each task of ojs.upkeep, one row per task; see ojs.upkeep_status.';
comment on column ojs.upkeep_task.task is 'The task.';
comment on column ojs.upkeep_task.last_step is
'The result of its last step: done; again and why; not yet and why; or failed and the error.';
comment on column ojs.upkeep_task.last_at is 'When that step was made.';
comment on column ojs.upkeep_task.failures is 'How many steps in a row were in vain.';
comment on column ojs.upkeep_task.not_before is 'When the next step may be made.';
