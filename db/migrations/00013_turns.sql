-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Fairness state. Virtual time advances by 1 / (weights of the tenants with work) per dispatched job; a tenant's own
-- virtual time advances by 1 / its weight per job of its own. deficit = (V - own) * weight: the jobs it is owed.
create table ojs.lane (
    lane smallint primary key
);
insert into ojs.lane values (0);
comment on table ojs.lane is 'One row per lane of decisions. Its row lock makes decisions serial; nothing is ever written to it.';
comment on column ojs.lane.lane is 'The lane''s number; today there is lane 0.';

create table ojs.fold (
    lane     smallint not null,
    rev      bigint not null,
    snapshot pg_snapshot not null,
    primary key (lane, rev)
);
insert into ojs.fold values (0, 1, pg_current_snapshot());
comment on table ojs.fold is
'How far the decision has folded the wake journal: everything visible to this snapshot. The row moves to a higher rev with each change.';
comment on column ojs.fold.lane is 'The lane; -1 while dispatch is held (ojs.hold_dispatch), so that no decision finds it.';
comment on column ojs.fold.rev is 'Grows with each change; the highest counts.';
comment on column ojs.fold.snapshot is 'What has been folded.';

create table ojs.queue_priority (
    queue    text not null,
    priority int not null,
    primary key (queue, priority)
);
comment on table ojs.queue_priority is 'Effective priorities ever seen in a queue.';
comment on column ojs.queue_priority.queue is 'The queue.';
comment on column ojs.queue_priority.priority is 'The effective priority.';

create table ojs.ring (
    queue         text not null,
    priority      int not null,
    rev           bigint not null,
    v             numeric not null,
    members       int not null,
    weight        numeric not null,
    class         int[] not null,
    class_members int[] not null,
    class_weight  numeric[] not null,
    class_head    numeric[] not null,
    drift         numeric not null default 0,
    primary key (queue, priority, rev)
);
comment on table ojs.ring is
'The tenants with work at one effective priority of a queue, in sum. The row moves to a higher rev with each decision.';
comment on column ojs.ring.queue is 'The queue.';
comment on column ojs.ring.priority is 'The effective priority.';
comment on column ojs.ring.rev is 'Grows with each change; the highest counts.';
comment on column ojs.ring.v is 'Virtual time: where a tenant stands that is owed nothing.';
comment on column ojs.ring.members is 'Tenants with work.';
comment on column ojs.ring.weight is 'The sum of their weights.';
comment on column ojs.ring.class is 'Weight classes present: tenants of (almost) equal weight, among whom the lowest virtual time is next.';
comment on column ojs.ring.class_members is 'Tenants in each class.';
comment on column ojs.ring.class_weight is 'Sum of weights in each class.';
comment on column ojs.ring.drift is
'By how much v lags behind the clock, which is jobs dispatched per unit of weight since the ring began: what tenants had ahead of their
share when they left the round, the others get back.';
comment on column ojs.ring.class_head is 'Lower bound of the virtual times in each class: where a scan may begin.';

create table ojs.tenant_fairness (
    queue         text not null,
    priority      int not null,
    tenant_id     text not null,
    vtime         numeric not null,
    weight        numeric not null,
    class         int not null,
    backlogged    boolean not null,
    deficit       numeric not null default 0,
    dispatched    bigint not null default 0,
    job_priority  int not null,
    head          bigint not null,
    reentry_head  bigint not null default 0,
    drift         numeric not null default 0,
    rev           bigint not null default 1,
    primary key (queue, priority, tenant_id, rev)
);
-- The ring: who is next within a weight class.
create index tenant_fairness_ring_idx on ojs.tenant_fairness (queue, priority, class, vtime) where backlogged;
comment on table ojs.tenant_fairness is
'Deficit round robin: one row per (queue, effective priority, tenant), written by the decision inside the FETCH transaction.';
comment on column ojs.tenant_fairness.queue is 'The queue.';
comment on column ojs.tenant_fairness.priority is 'The effective priority: the jobs'' own plus the tenant''s boost.';
comment on column ojs.tenant_fairness.tenant_id is 'The tenant.';
comment on column ojs.tenant_fairness.vtime is
'The tenant''s virtual time: jobs it was given per unit of weight. While it has no work: by the clock, from which ring.v drifts.';
comment on column ojs.tenant_fairness.weight is 'The weight in effect.';
comment on column ojs.tenant_fairness.class is 'The weight''s class (ojs._weight_class).';
comment on column ojs.tenant_fairness.backlogged is 'Whether the tenant takes part in the round.';
comment on column ojs.tenant_fairness.deficit is
'Jobs owed to the tenant (negative: had ahead of its share) when it was last served; ojs.tenant_stats shows the present value.';
comment on column ojs.tenant_fairness.dispatched is 'Jobs handed out to the tenant here, ever.';
comment on column ojs.tenant_fairness.job_priority is 'The jobs'' own priority.';
comment on column ojs.tenant_fairness.head is
'Cursor: jobs up to this job.seq have been looked at. Moves back when what was decided ahead is revoked.';
comment on column ojs.tenant_fairness.reentry_head is 'Cursor into ojs.reentry. Moves back when what was decided ahead is revoked.';
comment on column ojs.tenant_fairness.drift is 'The drift of the ring when the tenant left the round, which is in its vtime.';
comment on column ojs.tenant_fairness.rev is 'Grows with each change, so that the live version is found newest first.';

create table ojs.reentry (
    queue     text not null,
    priority  int not null,
    tenant_id text not null,
    n         bigint generated always as identity,
    id        uuid not null,
    primary key (queue, priority, tenant_id, n)
);
comment on table ojs.reentry is
'Jobs behind their tenant''s cursor that are to be looked at again: taken back, committed late, or passed over because they were locked.
Read before the cursor.';
comment on column ojs.reentry.queue is 'The queue.';
comment on column ojs.reentry.priority is 'The effective priority.';
comment on column ojs.reentry.tenant_id is 'The tenant.';
comment on column ojs.reentry.n is 'Order of return.';
comment on column ojs.reentry.id is 'The job; its own row says whether it is still available.';

create table ojs.rotation (
    queues text[] not null,
    rev    bigint not null,
    next   int not null,
    primary key (queues, rev)
);
comment on table ojs.rotation is 'Where the round over several queues stands, per set of queues asked for.';
comment on column ojs.rotation.queues is 'The queues in the order they were listed.';
comment on column ojs.rotation.rev is 'Grows with each change; the highest counts.';
comment on column ojs.rotation.next is 'Index (1-based) of the queue whose turn is next.';

-- Decided, and waiting to be taken by direct callers.
create table ojs.run (
    queue     text not null,
    n         bigint generated always as identity,
    priority  int not null,
    job_priority int not null,
    tenant_id text not null,
    id        uuid not null,
    pos       bigint not null,
    step      float8 not null,
    drift     float8 not null,
    primary key (queue, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
comment on table ojs.run is
'Run queue: jobs in the fair order in which direct callers of ojs.fetch take them next. Their tenants have been charged; a decision may
revoke what is not taken.';
comment on column ojs.run.queue is 'The queue.';
comment on column ojs.run.n is 'Place in the order of all decisions.';
comment on column ojs.run.priority is 'The effective priority.';
comment on column ojs.run.job_priority is 'The job''s own priority.';
comment on column ojs.run.tenant_id is 'The tenant.';
comment on column ojs.run.id is 'The job; its own row says whether it is still available.';
comment on column ojs.run.pos is 'Where it stood: its n in ojs.reentry, or 2^62 + its seq in line. Revoked, it returns there.';
comment on column ojs.run.step is 'By how much the job advanced the clock of its ring.';
comment on column ojs.run.drift is 'By how much it moved the drift of its ring: it was its tenant''s last.';

create table ojs.run_mark (
    queue text not null,
    rev   bigint not null,
    lo    bigint not null,
    hi    bigint not null,
    ahead int not null,
    held  bigint[] not null default '{}',
    primary key (queue, rev)
);
comment on table ojs.run_mark is 'Where the run queue of a queue begins and ends. The row moves to a higher rev with each refill.';
comment on column ojs.run_mark.queue is 'The queue.';
comment on column ojs.run_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.run_mark.lo is 'No row of ojs.run lies before this n, except those in held: where a scan may begin.';
comment on column ojs.run_mark.hi is 'The n of the last row.';
comment on column ojs.run_mark.ahead is 'How many jobs were decided ahead at once.';
comment on column ojs.run_mark.held is 'The n of rows before lo that somebody was taking when lo moved, and has not let go of since.';
reset role;
