-- The state of fairness: what decisions know. The session that holds the row of ojs.lane writes it:
-- a FETCH, the tick, ojs.configure_tenant and other changes of settings, ojs.rebuild. A tenant's
-- own virtual time moves on by 1 / weight with each job that the tenant is given; the tenant with
-- the lowest time is next. Rows that every decision rewrites carry a growing rev in their key and
-- are read newest first. A transaction that stays open elsewhere keeps their dead versions in the
-- index, and a reader of rows that keep their key would walk through all of them.

comment on table ojs.lane is 'One row per lane of decisions. Its row lock makes decisions serial; nothing is ever written to it.';
comment on column ojs.lane.lane is 'The lane''s number; today there is lane 0.';
comment on table ojs.fold is
'How far decisions have taken in the journals: everything visible to this snapshot, and a part of one transaction more.';
comment on column ojs.fold.rev is 'Grows with each change; the highest counts.';
comment on column ojs.fold.snapshot is
'What has been taken in: jobs that became available, and, where rules limit how many jobs may run, ends of attempts.';
comment on column ojs.fold.part_xid is 'A transaction of which only a part has been taken in, because it has very many rows; null: none.';
comment on column ojs.fold.part_lo is 'Its rows up to this lo have been taken in.';
comment on column ojs.fold.home is
'The oid of this table where the row was written. A dump that is restored makes tables with other oids, so that its rows tell that they are
copies; an upgrade of the cluster keeps them.';
comment on type ojs.unit is
'What the tenants of a queue share: the number of jobs, what they cost by their own account, or the seconds that their attempts run; none:
nothing, because the queue is first in, first out across tenants.';
comment on type ojs.level is
'The tenants with work at one effective priority of a queue. priority: the jobs'' own plus their tenant''s boost; low: a lower bound of the
virtual times of the tenants in the ring, where a scan begins, and from where the time of a tenant that joins is reckoned (tenants that only
one isolated pool serves may be behind it, see ojs._raise_times); joined: how many tenants have joined so far, from which follows where the
next one begins (ojs._join_at); ready: how many tenants are in the ring; at_limit: how many have work, but may not be given more
now; idle_at: since when there are none of both, after which the level is forgotten.';
comment on table ojs.dispatch_state is 'One row per queue: everything a decision has to know of the queue before it looks at tenants.';
comment on column ojs.dispatch_state.queue is 'The queue.';
comment on column ojs.dispatch_state.rev is 'Grows with each change; the highest counts.';
comment on column ojs.dispatch_state.unit is 'What its tenants share.';
comment on column ojs.dispatch_state.own_order is
'Whether priorities order each tenant''s own jobs only: its tenants then are all at priority 0.';
comment on column ojs.dispatch_state.levels is 'The effective priorities at which the queue has or had work, the highest first.';
comment on column ojs.dispatch_state.idle_at is 'The earliest idle_at of its levels, by which the tick finds those to forget; null: none.';
comment on type ojs.cursor is
'How far jobs of one priority of a tenant in a queue have been looked at, as the columns of ojs.tenant_fairness say it, and whether there
may be more.';
comment on table ojs.tenant_fairness is
'How much each tenant is due: one row per queue, effective priority and tenant. A FETCH charges what it decides inside its transaction.';
comment on column ojs.tenant_fairness.queue is 'The queue.';
comment on column ojs.tenant_fairness.priority is
'The effective priority: the jobs'' own plus the tenant''s boost. 0 where priorities order a tenant''s own jobs only.';
comment on column ojs.tenant_fairness.tenant_id is 'The tenant.';
comment on column ojs.tenant_fairness.rev is 'Grows with each change; the highest counts.';
comment on column ojs.tenant_fairness.ready is 'Whether the tenant has work and is in the ring.';
comment on column ojs.tenant_fairness.at_limit is
'Whether the tenant has work, but may not be given more by the rules about it: it is not in the ring until it may.';
comment on column ojs.tenant_fairness.vtime is
'The tenant''s own virtual time: it begins near the low of its level and moves on by price / weight with each job; the price of a job
is in the unit of its queue. First in, first out it is the job.seq of the next job.';
comment on column ojs.tenant_fairness.weight is 'The weight in effect.';
comment on column ojs.tenant_fairness.deficit is
'(low of the level - vtime) * weight when the tenant was last served, in the unit of the queue: 0 for the tenant that is next, and the
further below 0 the more it has had ahead of that one; ojs.tenant_stats shows the present value.';
comment on column ojs.tenant_fairness.charged is 'Jobs that the tenant has been charged for here since the row was made.';
comment on column ojs.tenant_fairness.job_priority is 'The priority of the jobs that the tenant is given next.';
comment on column ojs.tenant_fairness.seconds is
'How long an attempt is expected to run, where tenants share by time: an average in which the latest attempts weigh most.';
comment on column ojs.tenant_fairness.head is 'Cursor: jobs up to this job.seq have been looked at. It only grows.';
comment on column ojs.tenant_fairness.revisit_lo is
'The lo of the first range of ojs.revisit, behind the cursor, that is still to be looked at: where a scan begins; null: there is none.';
comment on column ojs.tenant_fairness.revisit_seq is
'Cursor: jobs in ranges up to this job.seq have been looked at. It moves back when a range comes that begins before it.';
comment on column ojs.tenant_fairness.cursors is
'Where priorities order a tenant''s own jobs only: its cursors at other priorities than job_priority, those with work first, the highest of
them at the head.';
comment on table ojs.usage is
'How many jobs count against each max_concurrency of ojs.rule, as far as ojs.fold has taken in the journals. A session that deals jobs of a
tenant with a limit locks its rows first, with skip locked, and gives none of a tenant whose row another session has. A rule without a row
allows no jobs: the next decision counts them and writes it.';
comment on column ojs.usage.tenant_id is 'The tenant of the rule.';
comment on column ojs.usage.queue is 'The queue of the rule.';
comment on column ojs.usage.rev is 'Grows with each change; the highest counts.';
comment on column ojs.usage.active is 'How many jobs. More than the rule allows where the rule came later than the jobs.';
comment on column ojs.usage.limit_xid is 'For which limit: the limit_xid that the rule had.';
comment on type ojs.uncounted is
'What ojs.usage does not say. busy: tenants whose rows another session has locked, so that they get
nothing (empty name: the queue); locked: the limits (ojs._limit_key) whose rows
this session has locked without the lane, so that no other limit gives anything (null: the session
has the lane); by how many jobs what it counts has changed since decisions last
took in the journals, as objects by tenant (empty name: all tenants together): in all queues, and in
one.';
comment on table ojs.revisit is
'Ranges behind a tenant''s cursor that are to be looked at again, before what lies ahead of it: jobs that committed late or came back.
Jobs in a range that are not available are passed over.';
comment on column ojs.revisit.queue is 'The queue.';
comment on column ojs.revisit.priority is 'The jobs'' own priority.';
comment on column ojs.revisit.tenant_id is 'The tenant.';
comment on column ojs.revisit.lo is 'The first job.seq of the range.';
comment on column ojs.revisit.hi is 'The last one.';
comment on column ojs.revisit.n is 'Tells apart ranges that begin with the same job.';
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
comment on sequence ojs.decision_seq is
'Numbers decisions. A job''s place in the order of all decisions is 10000 times the number plus its place within.';
