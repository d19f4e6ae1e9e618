comment on table ojs.dead_letter is
'The dead letter queue (ojs-dead-letter): one row per discarded job that is kept. Written by the transaction that discards the job, or
retries or deletes it.';
comment on column ojs.dead_letter.tenant_id is 'The tenant.';
comment on column ojs.dead_letter.id is 'The job.';
comment on column ojs.dead_letter.queue is 'The queue it came from.';
comment on column ojs.dead_letter.type is 'The job''s type.';
comment on column ojs.dead_letter.error_type is 'Type of its last error.';
comment on column ojs.dead_letter.error_code is 'Code of its last error.';
comment on column ojs.dead_letter.at is 'When it was discarded.';
comment on column ojs.dead_letter.aside is 'Whether the job lies in ojs.dead_job, its partition having been dropped.';
comment on table ojs.dead_job is 'Jobs in the dead letter queue that are older than the partitions of ojs.job. Retried, they return there.';
comment on table ojs.replay_rule is
'Rules by which the clock retries dead letters (ojs-dead-letter section 7). Changed by ojs.set_replay_rule.';
comment on column ojs.replay_rule.name is 'The rule''s name.';
comment on column ojs.replay_rule.tenant_id is 'For dead letters of this tenant only; null: of all.';
comment on column ojs.replay_rule.queue is 'From this queue only.';
comment on column ojs.replay_rule.type is 'Of this job type only.';
comment on column ojs.replay_rule.error_type is 'With this type or code of the last error only.';
comment on column ojs.replay_rule.delay is 'How long after it was discarded a job is retried.';
comment on column ojs.replay_rule.max_replays is
'How many times a job may have been retried by rules at all for this one to do it once more.';
comment on column ojs.replay_rule.enabled is 'Whether the rule applies.';
comment on column ojs.replay_rule.known_from is 'Transactions from this one on know the rule; null until the clock has noticed it.';
comment on column ojs.replay_rule.caught_up is 'Whether the clock has been told of the dead letters that were there before the rule.';
comment on column ojs.replay_rule.created_at is 'When the rule was first set.';
comment on table ojs.dead_letter_mark is 'How far the present round of removing old dead letters has come; one row.';
comment on column ojs.dead_letter_mark.one is 'Always true: there is one row.';
comment on column ojs.dead_letter_mark.next_at is 'When the next round begins; passed while one is under way.';
comment on column ojs.dead_letter_mark.tenant_id is 'Tenants up to this one have been counted in this round.';
