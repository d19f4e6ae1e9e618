-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- The dead letter queue: jobs that failed for good and are kept for a person to look at. The job itself stays in ojs.job, discarded, until
-- its partition is dropped; then it moves to ojs.dead_job. Written where jobs fail (fail), and by dead letters, retry and retention.
create table ojs.dead_letter (
    tenant_id  text collate "C" not null,
    id         uuid not null,
    queue      text collate "C" not null,
    type       text not null,
    error_type text not null,
    error_code text not null,
    at         timestamptz not null,
    aside      boolean not null default false,
    constraint dead_letter_pkey primary key (id, tenant_id)
);
create index dead_letter_tenant_idx on ojs.dead_letter (tenant_id, at, id);
create index dead_letter_age_idx on ojs.dead_letter (at, tenant_id, id);
create index dead_letter_home_idx on ojs.dead_letter (id) where not aside;
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

-- Before retention drops a partition of ojs.job, the dead letters in it move here, a thousand at a time, beside running work.
create table ojs.dead_job (
    like ojs.job including comments,
    constraint dead_job_pkey primary key (id, tenant_id)
) with (toast_tuple_target = 512);
comment on table ojs.dead_job is 'Jobs in the dead letter queue that are older than the partitions of ojs.job. Retried, they return there.';

create table ojs.replay_rule (
    name        text collate "C" primary key,
    tenant_id   text collate "C",
    queue       text collate "C",
    type        text,
    error_type  text,
    delay       interval not null,
    max_replays int not null,
    enabled     boolean not null default true,
    known_from  xid8,
    caught_up   boolean not null default false,
    created_at  timestamptz not null default ojs.now()
);
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

create table ojs.dead_letter_mark (
    one       boolean primary key default true check (one),
    next_at   timestamptz not null default '-infinity',
    tenant_id text collate "C" not null default ''
);
insert into ojs.dead_letter_mark default values;
comment on table ojs.dead_letter_mark is 'How far the present round of removing old dead letters has come; one row.';
comment on column ojs.dead_letter_mark.one is 'Always true: there is one row.';
comment on column ojs.dead_letter_mark.next_at is 'When the next round begins; passed while one is under way.';
comment on column ojs.dead_letter_mark.tenant_id is 'Tenants up to this one have been counted in this round.';
reset role;
