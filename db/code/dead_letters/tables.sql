comment on table ojs.dead_letter is
'The dead letter queue (ojs-dead-letter): one row per discarded job that is kept. Written by the
transaction that discards, retries or deletes the job.';
comment on column ojs.dead_letter.tenant_id is 'The tenant.';
comment on column ojs.dead_letter.id is 'The job.';
comment on column ojs.dead_letter.queue is 'The queue it came from.';
comment on column ojs.dead_letter.type is 'The job''s type.';
comment on column ojs.dead_letter.error_type is 'Type of its last error.';
comment on column ojs.dead_letter.error_code is 'Code of its last error.';
comment on column ojs.dead_letter.at is 'When it was discarded.';
comment on column ojs.dead_letter.aside is
'Whether the job is in ojs.dead_job, because its partition of ojs.job was dropped.';
comment on table ojs.dead_job is
'Jobs in the dead letter queue whose partition of ojs.job was dropped. A job that is retried moves
back to ojs.job.';
comment on table ojs.replay_rule is
'Rules by which the clock retries dead letters (ojs-dead-letter section 7). Changed by ojs.set_replay_rule.';
comment on column ojs.replay_rule.name is 'The rule''s name.';
comment on column ojs.replay_rule.tenant_id is 'Matches dead letters of this tenant; null: of all.';
comment on column ojs.replay_rule.queue is 'Matches dead letters of this queue; null: of all.';
comment on column ojs.replay_rule.type is 'Matches dead letters of this job type; null: of all.';
comment on column ojs.replay_rule.error_type is
'Matches dead letters with this type or code of the last error; null: with any.';
comment on column ojs.replay_rule.delay is 'How long after it was discarded a job is retried.';
comment on column ojs.replay_rule.max_replays is
'The rule retries a job only if rules have retried it fewer times than this.';
comment on column ojs.replay_rule.enabled is 'Whether the rule applies.';
comment on column ojs.replay_rule.known_from is
'The first transaction id that knows the rule; null until the clock has noticed it.';
comment on column ojs.replay_rule.caught_up is
'Whether timers have been made for the dead letters that are older than the rule.';
comment on column ojs.replay_rule.created_at is 'When the rule was first set.';
comment on table ojs.dead_letter_mark is
'The state of the round that removes old dead letters; one row.';
comment on column ojs.dead_letter_mark.one is 'Always true: there is one row.';
comment on column ojs.dead_letter_mark.next_at is
'When the next round begins; in the past while a round is under way.';
comment on column ojs.dead_letter_mark.tenant_id is
'Tenants up to this one have been counted in this round.';
