-- The state of fairness: what decisions know. Only a session that holds the row of ojs.lane writes
-- it: a FETCH, the tick, ojs.configure_tenant and other changes of settings, ojs.rebuild.
--
-- A tenant's virtual time moves on by 1 / weight with each job that it is given; the tenant with
-- the lowest time is next.
--
-- Rows that every decision rewrites have a growing rev in their key, and are read newest first.
-- While a transaction stays open elsewhere, PostgreSQL keeps their dead versions in the index. A
-- reader of rows that keep their key would walk through all of them.

comment on table ojs.lane is
'One row per lane of decisions. Its row lock makes decisions happen one after another; nothing is
ever written to it.';
comment on column ojs.lane.lane is 'The lane''s number; today there is lane 0.';
comment on table ojs.fold is
'How far the journals are folded: everything that this snapshot sees, and a part of one more
transaction.';
comment on column ojs.fold.rev is 'Grows with each change; the highest counts.';
comment on column ojs.fold.snapshot is
'What is folded: jobs that became available, and, where rules limit how many jobs may run, ends of
attempts.';
comment on column ojs.fold.part_xid is
'A transaction of which only a part is folded, because it has very many rows; null: there is no such
transaction.';
comment on column ojs.fold.part_lo is 'Rows of part_xid up to this lo are folded.';
comment on column ojs.fold.home is
'The oid of this table where the row was written. A restored dump has tables with other oids, so its
rows can be recognized as copies; an upgrade of the cluster keeps oids.';
comment on type ojs.unit is
'What the tenants of a queue share: the number of jobs (jobs), the cost that each job says (cost),
or the seconds that attempts run (time). none: the queue has no fairness; it is first in, first out
across tenants.';
comment on type ojs.level is
'The tenants with work at one effective priority of a queue.
priority: the jobs'' own plus the boost of their tenant.
low: a lower bound of the virtual times in the ring, where a scan of it begins, and from which the
time of a tenant that joins is reckoned. Tenants that only one isolated pool serves may be below it
(ojs._raise_times).
joined: how many tenants have joined so far, by which ojs._join_at spreads them.
ready: how many tenants are in the ring; at_limit: how many have work and are at a limit.
idle_at: since when both are 0; an hour later the level is forgotten.';
comment on table ojs.dispatch_state is
'One row per queue: everything a decision has to know of the queue before it looks at tenants.';
comment on column ojs.dispatch_state.queue is 'The queue.';
comment on column ojs.dispatch_state.rev is 'Grows with each change; the highest counts.';
comment on column ojs.dispatch_state.unit is 'What its tenants share.';
comment on column ojs.dispatch_state.own_order is
'Whether priorities order each tenant''s own jobs only (priority_scope tenant): all of its tenants
are at priority 0 then.';
comment on column ojs.dispatch_state.levels is
'The effective priorities at which the queue has or had work, the highest first.';
comment on column ojs.dispatch_state.idle_at is
'The earliest idle_at of its levels, by which the tick finds levels to forget; null: no level is
idle.';
comment on type ojs.cursor is
'How far the jobs of one priority of a tenant in a queue have been read. The fields are those of
ojs.tenant_fairness; works: whether there may be more jobs.';
comment on table ojs.tenant_fairness is
'How much each tenant has been charged, and where its jobs begin: one row per queue, effective
priority and tenant.';
comment on column ojs.tenant_fairness.queue is 'The queue.';
comment on column ojs.tenant_fairness.priority is
'The effective priority: the jobs'' own plus the tenant''s boost. 0 where priorities order a tenant''s own jobs only.';
comment on column ojs.tenant_fairness.tenant_id is 'The tenant.';
comment on column ojs.tenant_fairness.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tenant_fairness.ready is 'Whether the tenant has work and is in the ring.';
comment on column ojs.tenant_fairness.at_limit is
'Whether the tenant has work and is at a limit: it is not in the ring until it has capacity again.';
comment on column ojs.tenant_fairness.vtime is
'The tenant''s virtual time: it begins near the low of its level and moves on by price / weight with
each job. The price of a job is in the unit of its queue. First in, first out it is the job.seq of
the next job.';
comment on column ojs.tenant_fairness.weight is 'The weight in effect.';
comment on column ojs.tenant_fairness.deficit is
'(low of the level - vtime) * weight when the tenant was last served, in the unit of the queue: 0
for the tenant that is next, less than 0 by how much it has had ahead of that tenant.
ojs.tenant_stats shows the present value.';
comment on column ojs.tenant_fairness.charged is
'Jobs that the tenant has been charged for here since the row was made.';
comment on column ojs.tenant_fairness.job_priority is
'The priority of the jobs that the tenant is given next.';
comment on column ojs.tenant_fairness.seconds is
'How long an attempt is expected to run, where tenants share by time: an average in which the latest attempts weigh most.';
comment on column ojs.tenant_fairness.head is
'Cursor: jobs up to this job.seq need no look any more. It only grows.';
comment on column ojs.tenant_fairness.revisit_lo is
'The lo of the first range of ojs.revisit behind the cursor that is still to be revisited, where a
scan begins; null: there is no range.';
comment on column ojs.tenant_fairness.revisit_seq is
'Cursor: jobs in ranges up to this job.seq have been revisited. It moves back when a range comes
that begins before it.';
comment on column ojs.tenant_fairness.cursors is
'In a queue with priority_scope tenant: its cursors at other priorities than job_priority. Those
with work are first, the highest of them at the head.';
comment on table ojs.usage is
'How many jobs count against each max_concurrency of ojs.rule, as of the last fold. A session that
deals jobs of a tenant with a limit first locks the tenant''s rows with skip locked, and deals no
jobs of a tenant whose row another session has locked. A rule without a row allows no jobs: the next
decision counts them and writes it.';
comment on column ojs.usage.tenant_id is 'The tenant of the rule.';
comment on column ojs.usage.queue is 'The queue of the rule.';
comment on column ojs.usage.rev is 'Grows with each change; the highest counts.';
comment on column ojs.usage.active is
'How many jobs. More than the rule allows if the rule is newer than the jobs.';
comment on column ojs.usage.limit_xid is
'The limit that this count is for: the limit_xid of its rule. With another one the count is of no
use.';
comment on type ojs.uncounted is
'What ojs.usage does not say.
busy: tenants whose rows another session has locked, so that they get nothing (empty name: the
queue).
locked: the limits (ojs._limit_key) whose rows this session has locked without the lane; no other
limit allows jobs (null: the session has the lane).
anywhere, here: by how many jobs the counts have changed since the last fold, as objects by tenant
(empty name: all tenants together): in all queues, and in one.';
comment on table ojs.revisit is
'Ranges behind a tenant''s cursor that are to be revisited before the jobs ahead of it: jobs that
committed late or came back. Jobs in a range that are not available are passed over.';
comment on column ojs.revisit.queue is 'The queue.';
comment on column ojs.revisit.priority is 'The jobs'' own priority.';
comment on column ojs.revisit.tenant_id is 'The tenant.';
comment on column ojs.revisit.lo is 'The first job.seq of the range.';
comment on column ojs.revisit.hi is 'The last one.';
comment on column ojs.revisit.n is 'Distinguishes ranges that begin with the same job.';
comment on table ojs.rotation is
'Which of several queues is next: one row per pool, list of queues asked for, and their weights.';
comment on column ojs.rotation.key is 'A hash of the pool, the queues and the weights.';
comment on column ojs.rotation.pool is 'The pool (ojs.pool.id); null: no pool that is configured.';
comment on column ojs.rotation.queues is 'The queues in the order they were listed.';
comment on column ojs.rotation.weights is 'Their weights, in step.';
comment on column ojs.rotation.rev is 'Grows with each change; the highest counts.';
comment on column ojs.rotation.times is
'Each queue''s virtual time, at which its next job is due, relative to that of the queue that is
next. A job of a queue of weight w takes 1 / w.';
comment on column ojs.rotation.owed is
'How many dispatches each queue is owed by min_dispatch_ratio; a queue that is owed one is next.';
comment on column ojs.rotation.served is
'When each queue last gave a job, or had none; a queue is next when a rotation_interval has passed
since.';
comment on column ojs.rotation.used_at is
'When a decision last used the row. A row that is not used for an hour is removed.';
comment on sequence ojs.decision_seq is
'Numbers decisions. The number of a job in the order of all decisions is 10000 times that of its
decision plus its place in the answer.';
