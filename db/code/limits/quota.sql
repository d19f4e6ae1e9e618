-- Limits on enqueueing: how much a tenant, a tenant in a queue, or all tenants of a queue may
-- enqueue. Each limit has tokens: one for a job, or one for a byte. All limits of a tenant have
-- their tokens in the same rows, the stripes, so that a job writes one row for all of them. The
-- limits of a tenant in a queue share rows of their own, and the limits of a queue, too.
--
-- An enqueue takes its tokens in its own transaction (limits/admit.sql), so that a rollback gives
-- them back. The tick adds tokens for jobs that have left (limits/room.sql).

create or replace function ojs._most(p_resource text) returns bigint
language sql immutable
as $$ select case p_resource when 'max_stored_bytes' then 1000000000000000 else 1000000000 end $$;
comment on function ojs._most(text) is
'Returns the largest number that a limit may have. Becomes part of the expression that asks.';
comment on table ojs.quota is
'Limits on what may be enqueued, and on how many requests of a tenant a server takes. Changed by
ojs.configure_limits and ojs.configure_queue; read as ojs.limits.';
comment on column ojs.quota.tenant_id is 'The tenant; empty: all tenants together.';
comment on column ojs.quota.queue is 'The queue; empty: all queues together.';
comment on column ojs.quota.resource is
'What is limited: max_enqueue_rate, jobs in a period, and throttled_rate of a tenant that is
throttled; max_queue_depth, jobs that are available, scheduled or pending; max_scheduled, jobs that
are scheduled; max_depth, of a queue, jobs that have not ended; max_stored_bytes, the size of the
jobs; max_in_flight_requests, max_waiting_polls and max_request_rate, of a tenant on each server.';
comment on column ojs.quota.nth is
'Which element of ojs.stripe.tokens holds its tokens; null: it does not limit enqueueing.';
comment on column ojs.quota.maximum is 'How many.';
comment on column ojs.quota.period is 'Of a rate, the period; else null.';
comment on column ojs.quota.burst is
'Of a rate, how many jobs may be enqueued at once after a time without any; else null.';
comment on column ojs.quota.soft is 'Whether jobs beyond it are accepted, and cause only an event.';
comment on column ojs.quota.used is
'How many jobs count against it as of ojs.tally_mark; 0 for a rate; for bytes the size last
measured.';
comment on column ojs.quota.due is 'Whether the tick has to compare it with its tokens.';
comment on column ojs.quota.warned is
'The level of the last event: 0 little is used, 1 nearly all, 2 all.';
comment on column ojs.quota.warned_at is 'Since when it has been nearly used up; null: it is not.';
comment on column ojs.quota.warn_from is
'The part of the limit from which on it is nearly used up.';
comment on column ojs.quota.measure_at is
'Of bytes, when they may be measured again; null: they are to be measured now.';
comment on column ojs.quota.missing is
'Of bytes, how many tokens its stripes are still to get; less than 0: to lose. The size of the jobs,
tokens and missing are the maximum in sum.';
comment on column ojs.quota.reason is 'The reason that was given with the last change.';
comment on table ojs.allowance is
'The limits of a tenant, of a tenant in a queue, or of a queue, in one row, as an enqueue needs
them. Element k of each list is the limit with ojs.quota.nth = k. Made from ojs.quota by
ojs._allow.';
comment on column ojs.allowance.tenant_id is 'The tenant; empty: all tenants together.';
comment on column ojs.allowance.queue is 'The queue; empty: all queues together.';
comment on column ojs.allowance.stripes is
'How many of its stripes, the first 1 to 16, have tokens of rates; sessions look for tokens there
first. A small limit has few, so that one of them has a token for a job.';
comment on column ojs.allowance.hard is
'Whether the limit refuses jobs; false: it is soft; null: there is no such limit.';
comment on column ojs.allowance.caps is
'Of a rate, how many tokens one of these stripes has at most; else infinity.';
comment on column ojs.allowance.growth is
'Of a rate, how many tokens one of these stripes gains in a second; else 0.';
comment on table ojs.stripe is
'The tokens of a row of ojs.allowance, divided among 16 rows that sessions lock one at a time. A job
takes its tokens from one row, or from several if one has too few. A row moves to a higher rev with
each 64 uses.';
comment on column ojs.stripe.tenant_id is 'The tenant; empty: all tenants together.';
comment on column ojs.stripe.queue is 'The queue; empty: all queues together.';
comment on column ojs.stripe.n is 'The number of the stripe, 0 to 15.';
comment on column ojs.stripe.rev is
'Grows with each 64 uses, so that the live version is found newest first.';
comment on column ojs.stripe.tokens is
'Of each limit (ojs.quota.nth), for how many jobs or bytes the stripe has tokens, as of at. Less
than 0: jobs beyond a soft limit.';
comment on column ojs.stripe.at is
'When it was used last. Tokens of rates have grown since then, up to ojs.allowance.caps. A time in
the future: the clock was set back (ojs._growing).';
comment on column ojs.stripe.uses is 'How often it has been used.';
