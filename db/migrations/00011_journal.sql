-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- PostgreSQL leaves the asking transaction out of the list of those in progress. To a reader who remembers the snapshot, what that
-- transaction does afterwards would look done already.
-- +goose StatementBegin
create function ojs._snapshot() returns pg_snapshot
language plpgsql stable
as $$
declare
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_own      xid8 := pg_current_xact_id_if_assigned();
begin
    if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then
        return v_snapshot;
    end if;
    return (pg_snapshot_xmin(v_snapshot) || ':' || pg_snapshot_xmax(v_snapshot) || ':'
        || (select string_agg(x.xid::text, ',' order by x.xid) from (select v_own union select pg_snapshot_xip(v_snapshot)) x(xid)))::pg_snapshot;
end;
$$;
-- +goose StatementEnd
comment on function ojs._snapshot() is
'What the running statement sees committed: pg_current_snapshot() with the transaction itself counted among those in progress.';

-- The journal: what happened, appended by the transaction that did it and never changed. xid lets a reader ask for exactly
-- what has become visible since a snapshot it remembers, whatever order transactions committed in.
create table ojs.wake (
    xid        xid8 not null default pg_current_xact_id(),
    seq        bigint generated always as identity,
    tenant_id  text not null,
    queue      text not null,
    priority   int not null,
    from_state ojs.job_state,
    to_state   ojs.job_state not null,
    jobs       int not null,
    lo         bigint,
    hi         bigint,
    at         timestamptz not null default ojs.now(),
    primary key (xid, seq)
);
comment on table ojs.wake is
'Journal: jobs that came into being or became available, one row per statement and (queue, priority, tenant). The next decision folds it.';
comment on column ojs.wake.xid is 'The transaction that did it.';
comment on column ojs.wake.seq is 'Order within the transaction.';
comment on column ojs.wake.tenant_id is 'The tenant.';
comment on column ojs.wake.queue is 'The queue.';
comment on column ojs.wake.priority is 'The jobs'' own priority.';
comment on column ojs.wake.from_state is
'The state they left; null for new jobs; available for jobs that came back, whose old state the release journal tells.';
comment on column ojs.wake.to_state is 'The state they entered.';
comment on column ojs.wake.jobs is 'How many.';
comment on column ojs.wake.lo is 'Lowest job.seq among them; null unless available.';
comment on column ojs.wake.hi is 'Highest job.seq among them; null unless available.';
comment on column ojs.wake.at is 'When.';

create table ojs.lease (
    xid       xid8 not null default pg_current_xact_id(),
    seq       bigint generated always as identity,
    tenant_id text not null,
    queue     text not null,
    priority  int not null,
    jobs      int not null,
    owed      int not null default 0,
    ids       uuid[] not null,
    turns     bigint[] not null,
    at        timestamptz not null default ojs.now(),
    primary key (xid, seq)
-- Lists of jobs stay in the row as they are.
) with (toast_tuple_target = 8160);
create index lease_recent_idx on ojs.lease (at);
create index lease_owed_idx on ojs.lease (xid) where owed > 0;
comment on table ojs.lease is
'Journal: jobs handed out, one row per decision and (queue, priority, tenant), or more when there are many jobs.';
comment on column ojs.lease.xid is 'The transaction of the decision.';
comment on column ojs.lease.seq is 'Order within the transaction.';
comment on column ojs.lease.tenant_id is 'The tenant.';
comment on column ojs.lease.queue is 'The queue.';
comment on column ojs.lease.priority is 'The jobs'' own priority.';
comment on column ojs.lease.jobs is 'How many.';
comment on column ojs.lease.ids is 'The jobs.';
comment on column ojs.lease.turns is 'Their places in the order of all decisions, in step with ids.';
comment on column ojs.lease.owed is
'How many of them the tenant is still to be charged for: those taken beside a decision. The next decision charges them.';
comment on column ojs.lease.at is 'When.';

create table ojs.release (
    xid        xid8 not null default pg_current_xact_id(),
    seq        bigint generated always as identity,
    tenant_id  text not null,
    queue      text not null,
    priority   int not null,
    job_id     uuid not null,
    job_type   text not null,
    attempt    int not null,
    from_state ojs.job_state not null,
    to_state   ojs.job_state not null,
    started_at timestamptz,
    fenced     boolean not null default true,
    cause      text,
    at         timestamptz not null default ojs.now(),
    primary key (xid, seq)
);
comment on table ojs.release is
'Journal: jobs that left a worker''s hands or were ended, one row per job: completed, failed, given back, cancelled, expired.';
comment on column ojs.release.xid is 'The transaction that did it.';
comment on column ojs.release.seq is 'Order within the transaction.';
comment on column ojs.release.tenant_id is 'The tenant.';
comment on column ojs.release.queue is 'The queue.';
comment on column ojs.release.priority is 'The job''s own priority.';
comment on column ojs.release.job_id is 'The job.';
comment on column ojs.release.job_type is 'Its type.';
comment on column ojs.release.attempt is 'The attempt that ended; 0 if there was none.';
comment on column ojs.release.from_state is 'The state it left.';
comment on column ojs.release.to_state is 'The state it entered.';
comment on column ojs.release.started_at is 'When the attempt was handed out; null if there was none.';
comment on column ojs.release.fenced is 'Whether the caller proved with the lease or the worker''s name that it held the job.';
comment on column ojs.release.cause is
'Why the clock ended the attempt: timeout, visibility_timeout, worker_death; null: somebody said so.';
comment on column ojs.release.at is 'When.';

create type ojs.timer_kind as enum ('due', 'lease', 'again', 'expiry', 'replay', 'cron', 'worker');
comment on type ojs.timer_kind is
'What the tick has to look at: due: scheduled or retryable jobs; lease: running attempts; again: available jobs that were locked when
their turn came; expiry: jobs that may not be started any more; replay: dead letters to be retried by a rule; cron: cron jobs; worker:
workers that may be silent.';

create table ojs.timer (
    due_at     timestamptz not null,
    seq        bigint generated always as identity,
    kind       ojs.timer_kind not null,
    tenant_ids text[] not null,
    ids        uuid[] not null,
    xid        xid8 not null default pg_current_xact_id(),
    primary key (due_at, seq)
) with (toast_tuple_target = 8160);
-- What committed after the clock had passed its time: looked up by the few transactions that were in progress then.
create index timer_xid_idx on ojs.timer (xid);
comment on table ojs.timer is
'What the tick has to look at, and when: jobs that become due, leases that may have expired. A row is a reminder; the job''s own row
decides.';
comment on column ojs.timer.due_at is 'When to look.';
comment on column ojs.timer.seq is 'Tells apart what is due at the same instant.';
comment on column ojs.timer.kind is
'due: scheduled or retryable jobs; lease: running attempts; again: available jobs that were locked when their turn came; expiry: jobs that
may not be started any more; replay: dead letters to be retried by a rule; cron: cron jobs; worker: workers that may be silent.';
comment on column ojs.timer.tenant_ids is 'Tenants of the jobs or workers, in step with ids.';
comment on column ojs.timer.ids is 'The jobs, the ids of cron jobs, or registrations of workers.';
comment on column ojs.timer.xid is 'The transaction that inserted it.';

create table ojs.waiter (
    server_id  uuid not null,
    queue      text not null,
    token      text not null,
    expires_at timestamptz not null,
    primary key (queue, server_id)
);
comment on table ojs.waiter is
'Servers with a worker waiting for a queue. A commit that makes a job of that queue available notifies the token.';
comment on column ojs.waiter.server_id is 'The server.';
comment on column ojs.waiter.queue is 'The queue.';
comment on column ojs.waiter.token is 'Payload of the notification on channel ojs_wake; says nothing to anybody else.';
comment on column ojs.waiter.expires_at is 'When the row lapses unless renewed.';

create table ojs.sleeper (
    token      text primary key,
    stride     interval not null,
    expires_at timestamptz not null
);
comment on table ojs.sleeper is
'Servers whose clock sleeps. A commit with a timer that is due sooner than they would look by themselves notifies them.';
comment on column ojs.sleeper.token is 'Payload of the notification on channel ojs_wake.';
comment on column ojs.sleeper.stride is 'How long the clock sleeps at most between two looks.';
comment on column ojs.sleeper.expires_at is 'When the row lapses unless renewed.';

-- Timers and journals are consumed from their low ends. What was deleted there stays in the index for as long as some session's
-- snapshot is older, so readers begin where the live rows do.
create table ojs.clock_mark (
    rev      bigint primary key,
    due_at   timestamptz not null,
    xid      xid8 not null,
    open     xid8[] not null,
    swept_at timestamptz not null,
    wake     xid8 not null,
    lease    xid8 not null,
    release  xid8 not null
);
insert into ojs.clock_mark values (1, '-infinity', '0', '{}', '-infinity', '0', '0', '0');
comment on table ojs.clock_mark is 'How far the clock has come. The row moves to a higher rev with each change.';
comment on column ojs.clock_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.clock_mark.due_at is
'Timers before are done, except those of transactions in open. Later transactions insert none before.';
comment on column ojs.clock_mark.xid is 'The transaction that chose due_at.';
comment on column ojs.clock_mark.open is 'Transactions before xid that had not ended then.';
comment on column ojs.clock_mark.swept_at is 'When timers were last looked for before due_at, too, in case the wall clock was set back.';
comment on column ojs.clock_mark.wake is 'Rows of ojs.wake with a lower xid are pruned.';
comment on column ojs.clock_mark.lease is 'Rows of ojs.lease with a lower xid are pruned.';
comment on column ojs.clock_mark.release is 'Rows of ojs.release with a lower xid are pruned.';

-- +goose StatementBegin
create function ojs._notify(p_queues text[]) returns void
language plpgsql
as $$
declare
    v_token text;
begin
    for v_token in select w.token from ojs.waiter w where w.queue = any (p_queues) and w.expires_at > ojs.now() loop
        perform pg_notify('ojs_wake', v_token);
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._notify(text[]) is
'Notifies, when this transaction commits, every server with a worker waiting for one of the queues. Nobody waiting: nothing, and no lock
at commit.';

-- +goose StatementBegin
create function ojs._snapshot_before(p_snapshot pg_snapshot, p_xid xid8) returns pg_snapshot
language plpgsql immutable
as $$
begin
    if p_xid is null or p_xid >= pg_snapshot_xmax(p_snapshot) then
        return p_snapshot;
    end if;
    return (least(pg_snapshot_xmin(p_snapshot), p_xid) || ':' || p_xid || ':'
        || coalesce((select string_agg(x::text, ',' order by x) from pg_snapshot_xip(p_snapshot) x where x < p_xid), ''))::pg_snapshot;
end;
$$;
-- +goose StatementEnd
comment on function ojs._snapshot_before(pg_snapshot, xid8) is 'The part of a snapshot that lies before a transaction; null: all of it.';

-- +goose StatementBegin
create function ojs._unfolded() returns setof ojs.wake
language plpgsql stable rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_fold pg_snapshot := (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1);
begin
    return query
    select w.* from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold) and w.to_state = 'available'
    union all
    select w.* from pg_snapshot_xip(v_fold) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' offset 0) w;
end;
$$;
-- +goose StatementEnd
comment on function ojs._unfolded() is
'What the wake journal has gained since the last decision: jobs that may be available behind their tenant''s cursor.';

-- +goose StatementBegin
create function ojs._released(p_job ojs.job, p_to ojs.job_state, p_fenced boolean) returns void
language plpgsql
as $$
begin
    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_job.id, p_job.type, p_job.attempt, p_job.state, p_to, p_job.started_at, p_fenced);
end;
$$;
-- +goose StatementEnd
comment on function ojs._released(ojs.job, ojs.job_state, boolean) is
'Appends to the release journal: p_job as it was, and the state it enters.';

-- +goose StatementBegin
create function ojs._woken(p_job ojs.job, p_from ojs.job_state) returns void
language plpgsql
as $$
begin
    insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_from, 'available', 1, p_job.seq, p_job.seq);
    perform ojs._notify(array[p_job.queue]);
end;
$$;
-- +goose StatementEnd
comment on function ojs._woken(ojs.job, ojs.job_state) is
'Appends to the wake journal that one job became available, and notifies. p_from: the state it left; available when the release journal
tells that.';

-- Timers further ahead, like those of ordinary leases, pay a comparison.
-- +goose StatementBegin
create function ojs._timer_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := ojs.now();
    v_token text;
begin
    -- A time that passed while the transaction waited for a lock could lie before where the clock looks.
    new.due_at := greatest(new.due_at, v_now);
    for v_token in select s.token from ojs.sleeper s where s.expires_at > v_now and new.due_at < v_now + s.stride loop
        perform pg_notify('ojs_wake', v_token);
    end loop;
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._timer_arriving() is 'Trigger: a timer that is due soon notifies, at commit, the clocks that would sleep past it.';

-- Not ojs.now(): each insert would parse it anew.
create trigger timer_arriving before insert on ojs.timer for each row
    when (new.due_at < clock_timestamp() + interval '10 seconds') execute function ojs._timer_arriving();

create view ojs._movement with (security_invoker = true) as
select w.xid, w.tenant_id, w.queue, w.priority, w.from_state, w.to_state, w.jobs, false as failure from ojs.wake w
union all
select l.xid, l.tenant_id, l.queue, l.priority, 'available', 'active', l.jobs, false from ojs.lease l
union all
select r.xid, r.tenant_id, r.queue, r.priority, r.from_state, r.to_state, 1, r.from_state = 'active' and r.to_state in ('retryable', 'discarded') from ojs.release r;
comment on view ojs._movement is
'The three journals as one: how many jobs of a (tenant, queue, priority) went from one state (null: they are new) into another.';
reset role;
