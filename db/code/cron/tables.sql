comment on table ojs.cron is
'Cron jobs (ojs-cron). Written by ojs.put_cron and the other functions for cron jobs; the tick
fires them.';
comment on column ojs.cron.tenant_id is 'The tenant that owns the cron job and the jobs it makes.';
comment on column ojs.cron.name is 'Its name, unique within the tenant.';
comment on column ojs.cron.id is 'The id by which timers name it.';
comment on column ojs.cron.rev is 'Grows with each change.';
comment on column ojs.cron.enabled is 'Whether it fires.';
comment on column ojs.cron.upcoming is
'When it fires next, soonest first, as far as a server has worked out; the first is next_run_at.';
comment on column ojs.cron.left_out is
'Due times that do not exist because clocks are put forward, soonest first.';
comment on column ojs.cron.look_at is
'When the first timer for it is due, unless that time has passed.';
comment on column ojs.cron.open is
'The latest jobs it made that may not have ended; about 100 at most.';
comment on column ojs.cron.waiting is
'Whether some of its jobs may be waiting for the run before to end.';
comment on column ojs.cron.run_count is 'How many jobs it has made.';
comment on column ojs.cron.last_run_at is 'When it last made a job.';
comment on column ojs.cron.error is
'Why a server could not translate the expression; the cron job does not fire until the expression
is changed.';
comment on column ojs.cron.expression is 'The cron expression as sent (ojs-cron sections 3 and 4).';
comment on column ojs.cron.timezone is
'IANA name of the time zone in which the expression is meant.';
comment on column ojs.cron.overlap_policy is
'What happens when it is due and a job it made has not ended: skip, allow, cancel_previous or enqueue (ojs-cron section 6).';
comment on column ojs.cron.catch_up is
'What happens to times more than a minute ago. once: it fires once, however often it was due; skip:
it does not fire.';
comment on column ojs.cron.description is 'A description in the owner''s words.';
comment on column ojs.cron.anchor_at is 'The time that @every counts from.';
comment on column ojs.cron.created_at is 'When it was first registered.';
comment on column ojs.cron.updated_at is 'When it was last changed by its owner or an operator.';
comment on column ojs.cron.type is
'Type of the jobs it makes; this column and those below are as in ojs.job.';
comment on column ojs.cron.queue is 'Queue of the jobs.';
comment on column ojs.cron.priority is 'Priority of the jobs.';
comment on column ojs.cron.max_attempts is
'How many attempts a job may have; null: as the retry policy or the default says.';
comment on column ojs.cron.timeout_ms is 'How long an attempt may run, milliseconds.';
comment on column ojs.cron.visibility_timeout_ms is 'How long a lease lasts without a heartbeat, milliseconds; null: 600000.';
comment on column ojs.cron.tags is 'Labels of the jobs.';
comment on column ojs.cron.args is 'Arguments of the jobs, byte for byte.';
comment on column ojs.cron.meta is
'Meta of the jobs, to which cron_name, cron_scheduled_at and cron_triggered_at are added.';
comment on column ojs.cron.retry is 'Retry policy of the jobs.';
comment on column ojs.cron.options is 'Options of the jobs that have no column of their own.';
comment on column ojs.cron.extra is 'Attributes of the jobs that the specification does not know.';
comment on table ojs.cron_run is
'History of cron jobs: one row per time at which they were due. The key keeps two servers from
firing a cron job twice for the same time.';
comment on column ojs.cron_run.tenant_id is 'The tenant.';
comment on column ojs.cron_run.name is 'The cron job.';
comment on column ojs.cron_run.due_at is
'When it was due; for a trigger by hand, the time of the trigger.';
comment on column ojs.cron_run.at is 'When it was fired or skipped.';
comment on column ojs.cron_run.manual is 'Whether it was triggered by hand.';
comment on column ojs.cron_run.missed is
'How many times it had been due before, since it last fired, for which this run stands.';
comment on column ojs.cron_run.job_id is 'The job that was made; null: the run was skipped.';
comment on column ojs.cron_run.reason is
'Why the run was skipped: overlap_skip (the run before has not ended), misfire (more than a minute
late), waiting (100 runs wait already), refused (the job was refused), dst_skip (there was no such
local time: clocks were put forward).';
comment on column ojs.cron_run.message is 'The message of the refusal.';
comment on column ojs.cron_run.blocker is 'The unfinished job because of which it was skipped.';
