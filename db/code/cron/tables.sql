comment on table ojs.cron is 'Cron jobs (ojs-cron). Written by ojs.put_cron and the other functions for cron jobs;
what fires them is the tick.';
comment on column ojs.cron.tenant_id is 'Whose it is, and whose the jobs it makes are.';
comment on column ojs.cron.name is 'Its name, unique within the tenant.';
comment on column ojs.cron.id is 'Timers name it by this.';
comment on column ojs.cron.rev is 'Grows with each change.';
comment on column ojs.cron.enabled is 'Whether it fires.';
comment on column ojs.cron.upcoming is
'When it fires next, soonest first, as far as a server has translated the expression; the first is next_run_at.';
comment on column ojs.cron.left_out is 'When a clock that is put forward leaves out a local time at which it would be due, soonest first.';
comment on column ojs.cron.look_at is 'When the soonest timer for it is due, if that time has not passed.';
comment on column ojs.cron.open is
'The latest jobs it made, among them those that had not ended when they were last looked at; about 100 at most.';
comment on column ojs.cron.waiting is 'Whether some of them may wait for the run before to end.';
comment on column ojs.cron.run_count is 'How many jobs it has made.';
comment on column ojs.cron.last_run_at is 'When it last made a job.';
comment on column ojs.cron.error is 'Why a server could not translate the expression; until it is changed the cron job does not fire.';
comment on column ojs.cron.expression is 'The cron expression as sent (ojs-cron sections 3 and 4).';
comment on column ojs.cron.timezone is 'IANA name of the time zone that the expression is meant in.';
comment on column ojs.cron.overlap_policy is
'What happens when it is due and a job it made has not ended: skip, allow, cancel_previous or enqueue (ojs-cron section 6).';
comment on column ojs.cron.catch_up is
'What happens when it was due more than a minute ago: once: it fires once, however often it was due; skip: it does not.';
comment on column ojs.cron.description is 'What it is for, in its owner''s words.';
comment on column ojs.cron.anchor_at is 'What @every counts from.';
comment on column ojs.cron.created_at is 'When it was first registered.';
comment on column ojs.cron.updated_at is 'When somebody last changed it.';
comment on column ojs.cron.type is 'Type of the jobs it makes; this and what follows is as in ojs.job.';
comment on column ojs.cron.queue is 'Their queue.';
comment on column ojs.cron.priority is 'Their priority.';
comment on column ojs.cron.max_attempts is 'How many attempts they may have; null: as the retry policy or the default says.';
comment on column ojs.cron.timeout_ms is 'How long an attempt may run, milliseconds.';
comment on column ojs.cron.visibility_timeout_ms is 'How long a lease lasts without a heartbeat, milliseconds; null: 600000.';
comment on column ojs.cron.tags is 'Their labels.';
comment on column ojs.cron.args is 'Their arguments, byte for byte.';
comment on column ojs.cron.meta is 'Their meta, to which cron_name, cron_scheduled_at and cron_triggered_at are added.';
comment on column ojs.cron.retry is 'Their retry policy.';
comment on column ojs.cron.options is 'Their options that have no column of their own.';
comment on column ojs.cron.extra is 'Their attributes the specification does not know.';
comment on table ojs.cron_run is
'History of cron jobs: one row per time they were due. Its key keeps two servers from firing a cron job twice for the same time.';
comment on column ojs.cron_run.tenant_id is 'The tenant.';
comment on column ojs.cron_run.name is 'The cron job.';
comment on column ojs.cron_run.due_at is 'When it was due; for a trigger by hand, when that was.';
comment on column ojs.cron_run.at is 'When it was fired or skipped.';
comment on column ojs.cron_run.manual is 'Whether somebody triggered it by hand.';
comment on column ojs.cron_run.missed is 'How many times it had been due before, since it last fired, for which this one stands.';
comment on column ojs.cron_run.job_id is 'The job that was made; null: none, it was skipped.';
comment on column ojs.cron_run.reason is
'Why it was skipped: overlap_skip (the run before has not ended), misfire (too late to catch up), waiting (100 runs wait already), refused
(the job was refused), dst_skip (there was no such local time: the clock was put forward at due_at).';
comment on column ojs.cron_run.message is 'What the refusal said.';
comment on column ojs.cron_run.blocker is 'The unfinished job because of which it was skipped.';
