-- +goose Up
-- The state of fairness. Decisions, the tick, ojs.configure_tenant and ojs.rebuild write it, under the row of ojs.lane; only rows of
-- ojs.turn are deleted by whoever takes them. A tenant's own virtual time moves on by 1 / weight with each job it is given; the tenant with
-- the lowest time is next. Rows that every decision rewrites move to a higher
-- rev with each change and are read newest first. A transaction that stays open elsewhere keeps their dead versions in the index, and a
-- reader of rows that keep their key would walk through all of them.
set local role ojs_owner;
set local check_function_bodies = off;

create table ojs.lane (
    lane smallint primary key
);
insert into ojs.lane values (0);
comment on table ojs.lane is 'One row per lane of decisions. Its row lock makes decisions serial; nothing is ever written to it.';
comment on column ojs.lane.lane is 'The lane''s number; today there is lane 0.';

create table ojs.fold (
    rev      bigint primary key,
    snapshot pg_snapshot not null,
    part_xid xid8,
    part_lo  bigint,
    counts   boolean not null default false,
    home     oid not null
);
insert into ojs.fold (rev, snapshot, home) values (1, pg_current_snapshot(), 'ojs.fold'::regclass);
comment on table ojs.fold is
'How far decisions have taken in ojs.journal: everything visible to this snapshot, and a part of one transaction more.';
comment on column ojs.fold.rev is 'Grows with each change; the highest counts.';
comment on column ojs.fold.snapshot is 'What has been taken in.';
comment on column ojs.fold.part_xid is 'A transaction of which only a part has been taken in, because it has very many rows; null: none.';
comment on column ojs.fold.part_lo is 'Its rows up to this lo have been taken in.';
comment on column ojs.fold.counts is
'Whether some row of ojs.rule is about a tenant or limits how many jobs may be active, so that decisions count them.';
comment on column ojs.fold.home is
'The oid of this table where the row was written. A dump that is restored makes tables with other oids, so that its rows tell that they are
copies; an upgrade of the cluster keeps them.';

create type ojs.unit as enum ('jobs', 'cost', 'time', 'none');
comment on type ojs.unit is
'What the tenants of a queue share: the number of jobs, what they cost by their own account, or the seconds that their attempts run; none:
nothing, because the queue is first in, first out across tenants.';

create table ojs.backlog (
    queue      text collate "C" not null,
    rev        bigint not null,
    priorities int[] not null,
    limited    boolean not null default false,
    unit       ojs.unit not null default 'jobs',
    own_order  boolean not null default false,
    primary key (queue, rev)
);
comment on table ojs.backlog is
'At which effective priorities a queue has tenants with work, highest first: all that a decision looks at, however many priorities were
ever used.';
comment on column ojs.backlog.queue is 'The queue.';
comment on column ojs.backlog.rev is 'Grows with each change; the highest counts.';
comment on column ojs.backlog.priorities is 'The effective priorities, descending.';
comment on column ojs.backlog.limited is 'Whether a rule limits how many of its jobs may be active, whatever their tenants.';
comment on column ojs.backlog.unit is 'What its tenants share.';
comment on column ojs.backlog.own_order is
'Whether priorities order each tenant''s own jobs only: its tenants then all take turns at priority 0.';

create table ojs.level (
    queue    text collate "C" not null,
    priority int not null,
    rev      bigint not null,
    low      numeric not null,
    tenants  int not null,
    joined   bigint not null default 0,
    weight   numeric not null,
    moment   numeric not null,
    used_at  timestamptz not null default ojs.now(),
    primary key (queue, priority, rev)
);
create index level_idle_idx on ojs.level (used_at) where tenants = 0;
comment on table ojs.level is 'The tenants with work at one effective priority of a queue, in sum.';
comment on column ojs.level.queue is 'The queue.';
comment on column ojs.level.priority is 'The effective priority: the jobs'' own plus their tenant''s boost.';
comment on column ojs.level.rev is 'Grows with each change; the highest counts.';
comment on column ojs.level.low is
'Lower bound of the virtual times of tenants with work: where a scan begins, and from where the time of a tenant that comes is reckoned.';
comment on column ojs.level.tenants is 'How many tenants have work.';
comment on column ojs.level.joined is 'How many tenants have joined so far, and so where the next one begins (ojs._join_at).';
comment on column ojs.level.weight is 'The sum of their weights.';
comment on column ojs.level.moment is
'The sum of their weights, each times its virtual time (ojs._deficit).';
comment on column ojs.level.used_at is 'When it last changed. Levels without work are forgotten some time after.';

create type ojs.cursor as (job_priority int, head bigint, behind boolean, again_lo bigint, again_seq bigint, works boolean);
comment on type ojs.cursor is
'How far jobs of one priority of a tenant in a queue have been looked at, as the columns of ojs.tenant_fairness say it, and whether there
may be more.';

create table ojs.tenant_fairness (
    queue        text collate "C" not null,
    priority     int not null,
    tenant_id    text collate "C" not null,
    rev          bigint not null default 1,
    ready        boolean not null,
    vtime        numeric not null,
    weight       numeric not null,
    deficit      numeric not null default 0,
    charged      bigint not null default 0,
    job_priority int not null,
    seconds      real not null default 1,
    head         bigint not null,
    behind       boolean not null default false,
    again_lo     bigint not null default 0,
    again_seq    bigint not null default 0,
    limited      boolean not null default false,
    parked       boolean not null default false,
    lines        ojs.cursor[],
    primary key (queue, priority, tenant_id, rev)
);
create index tenant_fairness_ring_idx on ojs.tenant_fairness (queue, priority, vtime) where ready;
create index tenant_fairness_parked_idx on ojs.tenant_fairness (tenant_id, queue, priority) where parked;
-- Its condition says more than the other one's, so that a look-up by tenant cannot take it: where nobody was parked when statistics were
-- taken, both would seem to cost the same, and this one reads all that are parked.
create index tenant_fairness_parked_queue_idx on ojs.tenant_fairness (queue, priority) where parked and not ready;
comment on table ojs.tenant_fairness is
'Who is owed how much: one row per queue, effective priority and tenant. A FETCH charges what it decides inside its transaction.';
comment on column ojs.tenant_fairness.queue is 'The queue.';
comment on column ojs.tenant_fairness.priority is
'The effective priority: the jobs'' own plus the tenant''s boost. 0 where priorities order a tenant''s own jobs only.';
comment on column ojs.tenant_fairness.tenant_id is 'The tenant.';
comment on column ojs.tenant_fairness.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tenant_fairness.ready is 'Whether the tenant has work and takes its turns.';
comment on column ojs.tenant_fairness.vtime is
'The tenant''s own virtual time: it begins near ojs.level.low and moves on by price / weight with each job; the price of a job
is in the unit of its queue. First in, first out it is the job.seq of the next job.';
comment on column ojs.tenant_fairness.weight is 'The weight in effect.';
comment on column ojs.tenant_fairness.deficit is
'Jobs owed to the tenant (negative: had ahead of its share) when it was last served; ojs.tenant_stats shows the present value.';
comment on column ojs.tenant_fairness.charged is
'Jobs that the tenant has been charged for here since the row was made: those handed out, and those decided ahead (ojs.turn).';
comment on column ojs.tenant_fairness.job_priority is 'The priority of the jobs that the tenant''s turns go to.';
comment on column ojs.tenant_fairness.seconds is
'How long an attempt is expected to run, where tenants share by time: an average in which the latest attempts weigh most.';
comment on column ojs.tenant_fairness.head is 'Cursor: jobs up to this job.seq have been looked at. It only grows.';
comment on column ojs.tenant_fairness.behind is 'Whether ranges of ojs.again, which lie behind the cursor, are still to be looked at.';
comment on column ojs.tenant_fairness.again_lo is 'The lo of the first range of ojs.again that is left: where a scan begins.';
comment on column ojs.tenant_fairness.again_seq is
'Cursor: jobs in ranges up to this job.seq have been looked at. It moves back when a range comes that begins before it.';
comment on column ojs.tenant_fairness.limited is 'Whether a rule is about the tenant (ojs.tenant.limited).';
comment on column ojs.tenant_fairness.parked is
'Whether the tenant has work, but no room by the rules: it takes no turns until it has.';
comment on column ojs.tenant_fairness.lines is
'Where priorities order a tenant''s own jobs only: its cursors at other priorities than job_priority, those with work first, the highest of
them at the head.';

create table ojs.usage (
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    rev       bigint not null,
    active    int not null,
    counted   pg_snapshot not null,
    primary key (tenant_id, queue, rev)
);
comment on table ojs.usage is
'How many jobs count against each max_concurrency of ojs.rule: those that are active, and those decided ahead. Decisions add what they
decide, and take away what ojs.slot_mark says has ended.';
comment on column ojs.usage.tenant_id is 'The tenant of the rule.';
comment on column ojs.usage.queue is 'The queue of the rule.';
comment on column ojs.usage.rev is 'Grows with each change; the highest counts.';
comment on column ojs.usage.active is 'How many jobs. More than the rule allows where the rule came later than the jobs.';
comment on column ojs.usage.counted is 'What the first count, by the journals, has seen: nothing of that is added or taken away again.';

create table ojs.slot_mark (
    rev    bigint primary key,
    ended  pg_snapshot not null,
    shards boolean not null default false,
    aside  xid8[] not null default '{}',
    freed  text[] collate "C" not null default '{}',
    ahead  text[] collate "C" not null default '{}'
);
comment on table ojs.slot_mark is
'How far decisions have taken in the ends of attempts. One row while there are rules for which that counts (ojs.fold.counts), else none.';
comment on column ojs.slot_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.slot_mark.ended is 'What has been taken in.';
comment on column ojs.slot_mark.shards is 'Whether some limit is about a tenant in one queue.';
comment on column ojs.slot_mark.aside is
'Transactions of that in which very many attempts ended: the tick adds them up, because decisions would wait meanwhile.';
comment on column ojs.slot_mark.freed is 'Tenants that have room again, some of whose parked rows have not come back yet.';
comment on column ojs.slot_mark.ahead is 'Queues for which jobs of tenants with rules may have been decided ahead.';

create table ojs.again (
    queue     text collate "C" not null,
    priority  int not null,
    tenant_id text collate "C" not null,
    lo        bigint not null,
    hi        bigint not null,
    n         bigint generated always as identity,
    primary key (queue, priority, tenant_id, lo, n)
);
comment on table ojs.again is
'Ranges behind a tenant''s cursor that are to be looked at again, before what lies ahead of it: jobs that committed late or came back.
Jobs in a range that are not available are passed over.';
comment on column ojs.again.queue is 'The queue.';
comment on column ojs.again.priority is 'The jobs'' own priority.';
comment on column ojs.again.tenant_id is 'The tenant.';
comment on column ojs.again.lo is 'The first job.seq of the range.';
comment on column ojs.again.hi is 'The last one.';
comment on column ojs.again.n is 'Tells apart ranges that begin with the same job.';

create table ojs.rotation (
    key     bytea not null,
    pool    int,
    queues  text[] collate "C" not null,
    weights int[] not null,
    rev     bigint not null,
    times   numeric[] not null,
    owed    numeric[] not null,
    served  timestamptz[] not null,
    used_at timestamptz not null default ojs.now(),
    primary key (key, rev)
);
create index rotation_used_idx on ojs.rotation (used_at);
comment on table ojs.rotation is 'Where the round over several queues stands, per pool, list of queues asked for, and their weights.';
comment on column ojs.rotation.key is 'A hash of the pool, the queues and the weights.';
comment on column ojs.rotation.pool is 'The pool (ojs.pool.id); null: none that is configured.';
comment on column ojs.rotation.queues is 'The queues in the order they were listed.';
comment on column ojs.rotation.weights is 'Their weights, in step.';
comment on column ojs.rotation.rev is 'Grows with each change; the highest counts.';
comment on column ojs.rotation.times is
'When the next job of each is due, from when the last one was: a job of a queue of weight w takes 1 / w.';
comment on column ojs.rotation.owed is
'How many dispatches each is owed by a min_dispatch_ratio; a queue that is owed one goes next.';
comment on column ojs.rotation.served is 'When each last gave a job, or had none; by a rotation_interval it goes next some time after.';
comment on column ojs.rotation.used_at is 'When a decision last moved it on. Lists that nobody asks for are forgotten some time after.';

-- Callers who fetch few jobs each take them from here. If each decided for itself, they would wait for one another at the row of ojs.lane.
create table ojs.turn (
    queue     text collate "C" not null,
    n         bigint not null,
    priority  int not null,
    job_priority int not null,
    tenant_id text collate "C" not null,
    id        uuid not null,
    seq       bigint not null,
    bytes     int not null,
    price     float8 not null,
    primary key (queue, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
comment on table ojs.turn is
'Jobs decided ahead, in fair order. Their tenants have been charged; a decision may take back what nobody has taken.';
comment on column ojs.turn.queue is 'The queue.';
comment on column ojs.turn.n is 'Place in the order of all decisions.';
comment on column ojs.turn.priority is 'The effective priority.';
comment on column ojs.turn.job_priority is 'The job''s own priority.';
comment on column ojs.turn.tenant_id is 'The tenant.';
comment on column ojs.turn.id is 'The job; its own row says whether it is still available.';
comment on column ojs.turn.seq is 'Its job.seq.';
comment on column ojs.turn.price is 'What its tenant was charged for it.';
comment on column ojs.turn.bytes is 'How large it is, in bytes, as far as its producer made it.';

create table ojs.turn_mark (
    queue text collate "C" not null,
    rev   bigint not null,
    lo    bigint not null,
    hi    bigint not null,
    ahead int not null,
    held  int not null default 0,
    primary key (queue, rev)
);
comment on table ojs.turn_mark is 'Where the rows of ojs.turn that may be taken begin and end, per queue.';
comment on column ojs.turn_mark.queue is 'The queue.';
comment on column ojs.turn_mark.rev is 'Grows with each change; the highest counts.';
comment on column ojs.turn_mark.lo is
'Rows before this n are out of reach: taken, taken back, or in the hands of somebody who may let go of them.';
comment on column ojs.turn_mark.hi is 'The n of the last row; less than lo: there is none.';
comment on column ojs.turn_mark.ahead is 'How many jobs were decided ahead at once.';
comment on column ojs.turn_mark.held is 'How many rows before lo somebody had hold of when lo moved: taken, or else to be taken back.';

create sequence ojs.decision_seq as bigint;
comment on sequence ojs.decision_seq is
'Numbers decisions. A job''s place in the order of all decisions is 10000 times the number plus its place within.';
reset role;
