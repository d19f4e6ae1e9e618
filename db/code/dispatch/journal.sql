-- pg_current_snapshot() does not list the running transaction among those in progress. A reader
-- that stored that snapshot would take rows that this transaction writes afterwards for read, and
-- miss them. So the transaction is added.
create or replace function ojs._snapshot() returns pg_snapshot
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
        || (select string_agg(x.xid::text, ',' order by x.xid) from (select v_own union
            select pg_snapshot_xip(v_snapshot)) x(xid)))::pg_snapshot;
end;
$$;
comment on function ojs._snapshot() is
'Returns pg_current_snapshot() with the running transaction among those in progress: what the
statement sees committed.';

create or replace function ojs._foreign(p_snapshot pg_snapshot) returns boolean
language sql stable
as $$ select pg_snapshot_xmax(p_snapshot) > pg_snapshot_xmax(pg_current_snapshot()) $$;
comment on function ojs._foreign(pg_snapshot) is
'Returns whether a stored snapshot is of another cluster, because its transaction ids lie ahead of
the ids here. Then this database is a logical copy, and the snapshot says nothing about its rows.
Becomes part of the expression that asks.';
comment on table ojs.journal is
'What happened to jobs: one row per statement, tenant, queue, priority and change of state, with the
number of jobs; one row per job where jobs come back singly. The next decision folds the rows that
have a lo. db/README.md lists the kinds of rows.';
comment on column ojs.journal.xid is 'The transaction that did it.';
comment on column ojs.journal.tenant_id is 'The tenant.';
comment on column ojs.journal.queue is 'The queue.';
comment on column ojs.journal.priority is 'The jobs'' own priority.';
comment on column ojs.journal.from_state is
'The state they left; null: new jobs. From available to available: jobs that came back (ojs.release
has the state they left), or that are to be revisited because another session had them locked.';
comment on column ojs.journal.to_state is 'The state they entered.';
comment on column ojs.journal.jobs is
'How many jobs; 1 for a range to revisit; less than 0 where jobs are counted elsewhere from now on
(ojs.retry_dead_letter).';
comment on column ojs.journal.lo is
'Lowest job.seq among them, if a fold has to read the row; else null: ends of attempts and
statistics.';
comment on column ojs.journal.hi is 'Highest job.seq among them; null where lo is.';
comment on column ojs.journal.unfenced is
'How many of them were completed by callers that proved neither by lease nor by worker name that
they held the job.';
comment on column ojs.journal.owed is
'How many attempts the next fold charges to the tenant. Such a row counts no jobs; other rows do.
From available to active: jobs that were fetched without the lane.
From active to active with a price: attempts that ended (0: that go on), by time.
From active to active without a price, with a lo: 0; a rule about tenant and queue has changed.
From active to active without a price and lo: what ojs.usage has still to count: more than 0, attempts
that ended; less than 0, jobs that were fetched without the lane.';
comment on column ojs.journal.price is
'What the tenant is to be charged for these attempts, in sum. By time: the seconds they ran beyond
those charged, less than 0 if they were shorter. Null in other rows.';
comment on column ojs.journal.seconds is
'How many seconds the attempts that ended ran in sum: of completed jobs, and of attempts to be charged
by time (owed); null in other rows.';
comment on column ojs.journal.at is 'When.';
comment on column ojs.journal.pool is
'The pool in which the attempts that ended ran (ojs.pool.id); null: no pool that is configured.';
comment on table ojs.lease is
'Journal: jobs handed out. A row has up to 128 jobs of one decision, queue, priority and end of
lease, of any tenants.';
comment on column ojs.lease.xid is 'The transaction that handed them out.';
comment on column ojs.lease.n is 'Distinguishes the rows of a transaction.';
comment on column ojs.lease.due_at is 'When the leases end, unless heartbeats extend them.';
comment on column ojs.lease.queue is 'The queue.';
comment on column ojs.lease.priority is 'The jobs'' own priority.';
comment on column ojs.lease.jobs is 'How many.';
comment on column ojs.lease.ids is 'The jobs, in the order of the decision.';
comment on column ojs.lease.tenants is 'Their tenants, in step with ids.';
comment on column ojs.lease.waits is
'How long each had been available, in seconds, in step with ids.';
comment on column ojs.lease.turn is
'The number of the first job in the order of all decisions; the other jobs have the next numbers.';
comment on column ojs.lease.at is 'When.';
comment on column ojs.lease.pool is
'The pool whose workers got them (ojs.pool.id); null: no pool that is configured.';
comment on table ojs.release is
'Journal: jobs that left a state otherwise than by completion, one row per job: failed, given back,
cancelled, expired, retried. Completions are in ojs.journal.';
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
comment on column ojs.release.started_at is
'When the attempt was handed out; null if there was none.';
comment on column ojs.release.fenced is
'Whether the caller proved with the lease or the worker''s name that it held the job.';
comment on column ojs.release.cause is
'Why the clock ended the attempt: timeout, visibility_timeout, worker_death; null: a call ended
it.';
comment on column ojs.release.at is 'When.';
comment on column ojs.release.pool is
'The pool in which the attempt ran (ojs.pool.id); null: no pool that is configured.';
comment on column ojs.release.retry_at is
'When a job that became retryable was to come back; the job''s own row has only the time of its
latest failure. Null in other rows.';

create or replace function ojs._snapshot_before(p_snapshot pg_snapshot, p_xid xid8) returns pg_snapshot
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
comment on function ojs._snapshot_before(pg_snapshot, xid8) is
'Returns the part of a snapshot before a transaction; p_xid null: all of it.';

create or replace function ojs._snapshot_part(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_with boolean) returns pg_snapshot
language plpgsql immutable
as $$
declare
    v_before xid8 := case when p_with then (p_xid::text::bigint + 1)::text::xid8 else p_xid end;
begin
    if v_before > pg_snapshot_xmax(p_from) then
        return ojs._snapshot_before(p_to, v_before);
    end if;
    return (pg_snapshot_xmin(p_from) || ':' || pg_snapshot_xmax(p_from) || ':'
        || coalesce((select string_agg(x::text, ',' order by x) from pg_snapshot_xip(p_from) x
            where x >= v_before or not pg_visible_in_snapshot(x, p_to)), ''))::pg_snapshot;
end;
$$;
comment on function ojs._snapshot_part(pg_snapshot, pg_snapshot, xid8, boolean) is
'Returns a snapshot that sees what p_from sees, and of what p_to sees more only transactions before
p_xid, and with p_with also p_xid itself.';

create or replace function ojs._seconds(p_interval interval) returns real
language sql immutable
as $$ select date_part('epoch', p_interval)::real $$;
comment on function ojs._seconds(interval) is
'Returns an interval in seconds, as the journals keep it. Becomes part of the expression that
asks.';

create or replace view ojs._movement with (security_invoker = true) as
select j.xid, j.tenant_id, j.queue, j.priority, j.from_state, j.to_state, j.jobs, j.lo, j.hi, 0 as failed, j.owed, j.seconds, j.at, j.pool,
    j.price
    from ojs.journal j
union all
select l.xid, t.tenant_id, l.queue, l.priority, 'available', 'active', t.jobs, null, null, 0, 0, null, l.at, l.pool, null
from ojs.lease l
cross join lateral (select u.tenant_id, count(*)::int as jobs from unnest(l.tenants) u(tenant_id) group by u.tenant_id) t
union all
select r.xid, r.tenant_id, r.queue, r.priority, r.from_state, r.to_state, 1, null, null,
    (r.from_state = 'active' and r.to_state in ('retryable', 'discarded'))::int, 0,
    case when r.from_state = 'active' then greatest(ojs._seconds(r.at - r.started_at), 0) end, r.at, r.pool, null
from ojs.release r;
comment on view ojs._movement is
'The three journals as one: how many jobs of a tenant, queue and priority went from one state (null:
new jobs) into another.
failed: how many attempts failed; owed, price: attempts to be charged, and their price; seconds: how
long these, or in other rows the attempts that ended, ran; pool: where they ran. Tenants cannot read
it, because a row of ojs.lease has jobs of several tenants.';

-- The planner inlines this function, and so can use the indexes. For each transaction that p_from
-- lists as in progress, it is asked first whether the transaction has ended; otherwise each open
-- transaction would cost a search of three journals.
create or replace function ojs._since(p_from pg_snapshot, p_to pg_snapshot, p_fold boolean) returns setof ojs._movement
language sql stable rows 100
as $$
    select m.* from ojs._movement m
    where m.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(m.xid, p_to) is not false and m.lo is not null
    union all
    select m.* from ojs._movement m
    where not p_fold and m.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(m.xid, p_to) is not false and m.lo is null
    union all
    select m.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral (select m.* from ojs._movement m where m.xid = x.xid and m.lo is not null offset 0) m
    where pg_visible_in_snapshot(x.xid, coalesce(p_to, (select pg_current_snapshot())))
    union all
    select m.* from pg_snapshot_xip(p_from) x(xid)
    cross join lateral (select m.* from ojs._movement m where m.xid = x.xid and m.lo is null offset 0) m
    where not p_fold and pg_visible_in_snapshot(x.xid, coalesce(p_to, (select pg_current_snapshot())))
$$;
comment on function ojs._since(pg_snapshot, pg_snapshot, boolean) is
'Returns the rows of the journals that p_to sees and p_from does not.
p_to: null: all that the running statement sees, rows of its own transaction included.
p_fold: only rows with a lo, which a fold reads; of the journals only ojs.journal is read.
Arguments must be constants, variables or columns. With a subquery the function is not inlined.';
