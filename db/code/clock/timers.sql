comment on type ojs.timer_kind is
'What the tick has to look at.
due: scheduled or retryable jobs.
lease: running attempts whose lease was extended, or whose row was locked when it ended; other
leases are in ojs.lease.
revisit: jobs that were locked when they were due.
expiry: jobs that may not be started any more.
replay: dead letters to be retried by a rule.
cron: cron jobs.
worker: workers that may be silent.
departure: tenants that are being deregistered.';
comment on table ojs.timer is
'What the tick has to look at, and when: jobs that become due, workers that may be silent. A timer
only says when to look; the job''s own row decides what is done. Leases need no timer while they are
not extended, because the tick reads ojs.lease.';
comment on column ojs.timer.due_at is 'When to look.';
comment on column ojs.timer.seq is 'Distinguishes timers that are due at the same time.';
comment on column ojs.timer.kind is
'due: scheduled or retryable jobs; lease: running attempts whose lease was extended or whose row was
locked when it ended; revisit: available jobs that were locked when they were due; expiry: jobs that
may not be started any more; replay: dead letters to be retried by a rule; cron: cron jobs; worker:
workers that may be silent; departure: tenants that are being deregistered.';
comment on column ojs.timer.tenant_ids is 'Tenants of the jobs or workers, in step with ids.';
comment on column ojs.timer.ids is 'The jobs, the ids of cron jobs, or registrations of workers.';
comment on column ojs.timer.xid is 'The transaction that inserted it.';
comment on table ojs.waiter is
'Servers with a worker that waits for a queue. A commit that makes a job of that queue available
notifies the token.';
comment on column ojs.waiter.server_id is 'The server.';
comment on column ojs.waiter.queue is 'The queue.';
comment on column ojs.waiter.token is
'Payload of the notification on channel ojs_wake; random, so that it means nothing to other
listeners.';
comment on column ojs.waiter.expires_at is 'When the row becomes invalid unless it is renewed.';
comment on table ojs.sleeper is
'Servers whose clock sleeps. A commit with a timer that is due before their next look notifies
them.';
comment on column ojs.sleeper.token is 'Payload of the notification on channel ojs_wake.';
comment on column ojs.sleeper.stride is 'How long the clock sleeps at most between two looks.';
comment on column ojs.sleeper.expires_at is 'When the row becomes invalid unless it is renewed.';
comment on table ojs.clock_mark is
'How far the clock has come. The row moves to a higher rev with each change.';
comment on column ojs.clock_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.clock_mark.seen is
'The snapshot of the clock''s last look. Rows of ojs.timer and ojs.lease that it did not see may be
due before due_at and lease_at, whatever the wall clock was set to.';
comment on column ojs.clock_mark.due_at is
'Of the timers seen, those due before this time are done.';
comment on column ojs.clock_mark.lease_at is
'Of the leases seen, those that end before this time have been looked at.';
comment on column ojs.clock_mark.journal is
'Rows of ojs.journal with a lower xid are pruned, except those of transactions in open.';
comment on column ojs.clock_mark.lease is
'Rows of ojs.lease with a lower xid are pruned, except those of transactions in open.';
comment on column ojs.clock_mark.release is
'Rows of ojs.release with a lower xid are pruned, except those of transactions in open.';
comment on column ojs.clock_mark.open is
'Transactions that pruning has passed: they had not ended, or their rows were still needed. There
are at most as many as were open at the same time.';

create or replace function ojs._notifies() returns boolean
language sql stable
as $$ select current_setting('ojs.notify', true) is distinct from 'off' $$;
comment on function ojs._notifies() is
'Returns whether this transaction notifies servers of what it commits. PostgreSQL cannot prepare a
transaction for two-phase commit after a NOTIFY, so such a producer sets ojs.notify to off. Servers
then find its jobs when they look by themselves. Becomes part of the query that asks.';

-- PostgreSQL keeps notifications until every listening session of the cluster has read them, and a
-- session inside a transaction reads none. When the queue is full, each transaction that notifies
-- fails at commit (SQLSTATE 54000). So nothing is notified while it is more than half full: half of
-- it is left to transactions that have asked already.
create or replace function ojs._notify_full() returns boolean
language sql volatile
as $$ select pg_notification_queue_usage() > 0.5 $$;
comment on function ojs._notify_full() is
'Whether PostgreSQL''s NOTIFY queue is more than half full, so that nothing is to be notified.
Becomes part of the expression that asks.';

create or replace function ojs._wake(p_token text) returns void
language sql
as $$ select case when ojs._notifies() and not ojs._notify_full() then pg_notify('ojs_wake', p_token) end $$;
comment on function ojs._wake(text) is
'Notifies the servers that listen for a token, when this transaction commits. Does nothing while the
NOTIFY queue is more than half full, or if this transaction has ojs.notify off: servers then look by
themselves.';

create or replace function ojs._notify(p_queues text[]) returns void
language plpgsql
as $$
declare
    v_token text;
begin
    for v_token in select w.token from ojs.waiter w where w.queue = any (p_queues) and w.expires_at > ojs.now() loop
        perform ojs._wake(v_token);
    end loop;
end;
$$;
comment on function ojs._notify(text[]) is
'Notifies, when this transaction commits, every server with a worker that waits for one of the
queues. If no worker waits, or ojs.notify is off, does nothing, and so takes no lock at commit.';

-- The trigger's condition calls this function only for rows that are due soon. Others, such as
-- ordinary leases, cost no more than that comparison.
create or replace function ojs._timer_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := ojs.now();
    v_token text;
begin
    for v_token in select s.token from ojs.sleeper s where s.expires_at > v_now and new.due_at < v_now + s.stride loop
        perform ojs._wake(v_token);
    end loop;
    return new;
end;
$$;
comment on function ojs._timer_arriving() is
'Trigger: a timer or a lease that is due soon notifies, at commit, the clocks that would sleep
longer, unless ojs.notify is off.';

-- Registers that a server has workers waiting.
-- Locks the rows of that server and these queues.
-- Writes waiter.
create or replace function ojs.register_waiters(p_server uuid, p_queues text[]) returns table (queue text, token text)
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.waiter as w (server_id, queue, token, expires_at)
    select p_server, q.queue, encode(uuid_send(gen_random_uuid()), 'hex'), ojs.now() + interval '60 seconds'
    from (select distinct unnest(p_queues) as queue) q
    on conflict (queue, server_id) do update set expires_at = excluded.expires_at
    returning w.queue, w.token
$$;
comment on function ojs.register_waiters(uuid, text[]) is
'Registers for 60 seconds that a server has a worker waiting for each of some queues.
Returns for each queue the token that a commit with jobs for it sends on channel ojs_wake. A
producer whose statement ran before this registration committed does not see it, so look for jobs
again a few times after registering.';

-- Withdraws a registration.
-- Locks its row.
-- Writes waiter.
create or replace function ojs.drop_waiter(p_server uuid, p_queue text) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$ delete from ojs.waiter w where w.server_id = p_server and w.queue = p_queue $$;
comment on function ojs.drop_waiter(uuid, text) is
'Withdraws the registration of a server for a queue: no worker of it waits any more.';
