-- Views for operators in psql; the statistics of tenants and queues are in statistics/tenants.sql.
-- Numbers of jobs come from ojs.tally and the journal since, never from ojs.job.

create or replace view ojs._shard_numbers with (security_invoker = true) as
select u.tenant_id, u.queue, sum(u.available)::bigint as available, sum(u.active)::bigint as active
from (
    select t.tenant_id, t.queue, t.available, t.active from ojs.tally t
    union all
    select r.tenant_id, r.queue, r.available, r.active from ojs._recent() r
) u
group by u.tenant_id, u.queue;
comment on view ojs._shard_numbers is
'Jobs available and active per tenant and queue. Without the waits, which are the expensive part of
ojs.shard_stats.';
comment on column ojs._shard_numbers.tenant_id is 'The tenant.';
comment on column ojs._shard_numbers.queue is 'The queue.';
comment on column ojs._shard_numbers.available is 'Jobs that are available.';
comment on column ojs._shard_numbers.active is 'Jobs that are active.';

create or replace function ojs._waiting_servers() returns table (queue text, servers bigint)
language plpgsql stable security definer rows 10 set search_path = pg_catalog, pg_temp
as $$
begin
    return query select w.queue, count(*) from ojs.waiter w where w.expires_at > ojs.now() group by w.queue;
end;
$$;
comment on function ojs._waiting_servers() is
'At how many servers a worker waits for a job of a queue now; only queues with such servers.';

create or replace function ojs._holders(p_queue text default null, p_tenant text default null)
returns table (queue text, tenant_id text, worker_id text, jobs bigint)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select i.queue, i.tenant_id, j.worker_id, count(*)
    from (
        select l.queue, u.tenant_id, u.id
        from (select l.* from ojs.lease l order by l.at desc limit 10000) l
        cross join lateral unnest(l.tenants, l.ids) u(tenant_id, id)
        where l.due_at > ojs.now() and (p_queue is null or l.queue = p_queue) and (p_tenant is null or u.tenant_id = p_tenant)
        limit 10000
    ) i
    -- Read each job by its key (limit): a join would read the whole table.
    cross join lateral (
        select j.worker_id from ojs.job j where j.id = i.id and j.tenant_id = i.tenant_id and j.state = 'active' limit 1
    ) j
    where j.worker_id is not null
    group by i.queue, i.tenant_id, j.worker_id;
end;
$$;
comment on function ojs._holders(text, text) is
'How many jobs of which queue and tenant each worker holds, among the 10,000 handed out last whose
first leases have not ended.';

create or replace view ojs.queue_demands with (security_invoker = true) as
with lately as materialized (
    select l.name from ojs._lately('queue') l(name, sums) where l.name <> ''
), worker as materialized (
    select q.queue, count(distinct (w.tenant_id, w.worker_id)) filter (where not w.stale) as workers
    from ojs.workers w cross join lateral unnest(w.queues) q(queue) group by q.queue
), pool as materialized (
    select q.queue, array_agg(p.name order by p.name) as pools
    from ojs.pool p cross join lateral unnest(p.queues) q(queue) where p.name <> '*' group by q.queue
), waiting as materialized (
    select s.queue, s.servers from ojs._waiting_servers() s(queue, servers)
), number as materialized (
    select d.queue, count(*) filter (where d.available > 0) as tenants, sum(d.available)::bigint as available,
        sum(d.active)::bigint as active
    from ojs._shard_numbers d group by d.queue
)
select k.queue, coalesce(n.tenants, 0) as tenants, coalesce(n.available, 0) as available, coalesce(n.active, 0) as active,
    coalesce(s.servers, 0) as waiting_servers, coalesce(w.workers, 0) as workers, p.pools,
    case when l.name is not null then ojs.now() else h.at end as handed_out_at,
    r.paused_at is not null or a.paused_at is not null as paused,
    v.queue is not null as served
from (
    select n.queue from number n union select s.queue from waiting s union select w.queue from worker w union select p.queue from pool p
) k
left join number n on n.queue = k.queue
left join ojs._served_queues() v(queue) on v.queue = k.queue
left join waiting s on s.queue = k.queue
left join worker w on w.queue = k.queue
left join pool p on p.queue = k.queue
left join lately l on l.name = k.queue
left join ojs.rule r on r.tenant_id = '' and r.queue = k.queue
left join ojs.rule a on a.tenant_id = '' and a.queue = ''
left join lateral (select p.at from ojs.pace p where p.kind = 'queue' and p.name = k.queue and p.at > '-infinity'
    order by p.at desc limit 1) h on true;
comment on view ojs.queue_demands is
'Queues, their jobs, and the workers that ask for them.
One row per queue that has ever had a job, or that a worker or a pool names. Costs as much as
there are pairs of tenant and queue.';
comment on column ojs.queue_demands.queue is 'The queue.';
comment on column ojs.queue_demands.tenants is 'How many tenants have available jobs in it.';
comment on column ojs.queue_demands.available is 'Jobs that are available.';
comment on column ojs.queue_demands.active is 'Jobs that are active.';
comment on column ojs.queue_demands.waiting_servers is
'At how many servers a FETCH waits for it now.';
comment on column ojs.queue_demands.workers is
'Registered workers that say they serve it, or ask for it, and are not silent.';
comment on column ojs.queue_demands.pools is 'Configured pools that list it; null: none.';
comment on column ojs.queue_demands.handed_out_at is
'When a job of it was last handed out, to within 10 seconds; null: not within an hour.';
comment on column ojs.queue_demands.paused is 'Whether the queue, or everything, is paused.';
comment on column ojs.queue_demands.served is
'Whether workers ask for it: a FETCH waits, a job runs, or a job was handed out within 5 minutes.
False if all its registered workers rest or end, of their own accord or as they were told.';

create or replace view ojs.unserved_queues with (security_invoker = true) as
select q.queue, q.tenants, q.available, q.workers, q.pools, q.handed_out_at, coalesce(r.workers, 0) as resting,
    coalesce(r.told_at, t.at) as told_at, coalesce(r.told_by, t.by) as told_by, coalesce(r.directive, t.directive) as directive
from ojs.queue_demands q
left join ojs._resting_queues() r(queue, workers, told_at, told_by, directive) on r.queue = q.queue
left join lateral (
    select d.at, d.by, d.directive from ojs._told() d(at, by, directive)
    where r.queue is null and q.workers = 0 and d.directive <> 'running'
      and (d.at > q.handed_out_at - ojs._pace_step()) is not false
) t on true
where q.available > 0 and not q.served and not q.paused;
comment on view ojs.unserved_queues is 'Queues with available jobs that no worker asks for.';
comment on column ojs.unserved_queues.queue is 'The queue.';
comment on column ojs.unserved_queues.tenants is 'How many tenants have available jobs in it.';
comment on column ojs.unserved_queues.available is 'Jobs that are available.';
comment on column ojs.unserved_queues.workers is
'Registered workers that say they serve it, or asked for it once, and do not ask now.';
comment on column ojs.unserved_queues.pools is 'Configured pools that list it; null: none.';
comment on column ojs.unserved_queues.handed_out_at is
'When a job of it was last handed out; null: not within an hour.';
comment on column ojs.unserved_queues.resting is
'Registered workers of it that rest or end, if all do; else 0.';
comment on column ojs.unserved_queues.told_at is
'When its workers were last told to rest or end; null: not told, as far as is known.';
comment on column ojs.unserved_queues.told_by is 'The login or principal that told them.';
comment on column ojs.unserved_queues.directive is
'What they were told: quiet or terminate. After terminate they take jobs only when they are started
again.';

create or replace view ojs.blocked_tenants with (security_invoker = true) as
with rule as materialized (
    select r.tenant_id, r.queue, r.paused_at, r.paused_by, r.reason, r.max_concurrency, r.active,
        coalesce(r.active >= r.max_concurrency, false) as is_full
    from ojs.rule_stats r
), unserved as materialized (
    select q.queue, q.handed_out_at, q.resting, q.told_at, q.told_by, q.directive from ojs.unserved_queues q
)
select n.tenant_id, n.queue, n.available, n.active,
    case w.n when 0 then 'dispatch is held' when 1 then 'everything is paused' when 2 then 'the queue is paused'
        when 3 then 'the tenant is paused' when 4 then 'the tenant is paused in the queue' when 5 then 'the limit of all is reached'
        when 6 then 'the queue''s limit is reached' when 7 then 'the tenant''s limit is reached'
        when 8 then 'the tenant''s limit in the queue is reached' when 9 then 'all workers of the queue rest or end'
        else 'no worker asks for the queue' end as why,
    case w.n when 0 then s.held_at when 1 then a.paused_at when 2 then q.paused_at when 3 then t.paused_at when 4 then b.paused_at
        when 9 then u.told_at when 10 then u.handed_out_at end as since,
    case w.n when 1 then concat_ws(': ', a.paused_by, a.reason) when 2 then concat_ws(': ', q.paused_by, q.reason)
        when 3 then concat_ws(': ', t.paused_by, t.reason) when 4 then concat_ws(': ', b.paused_by, b.reason)
        when 5 then format('%s of %s run', a.active, a.max_concurrency) when 6 then format('%s of %s run', q.active, q.max_concurrency)
        when 7 then format('%s of %s run', t.active, t.max_concurrency) when 8 then format('%s of %s run', b.active, b.max_concurrency)
        when 9 then u.told_by || ' told them: ' || u.directive when 10 then u.told_by || ' told all workers: ' || u.directive
    end as detail
from ojs._shard_numbers n
cross join ojs.settings s
left join rule a on a.tenant_id = '' and a.queue = ''
left join rule q on q.tenant_id = '' and q.queue = n.queue
left join rule t on t.tenant_id = n.tenant_id and t.queue = ''
left join rule b on b.tenant_id = n.tenant_id and b.queue = n.queue
left join unserved u on u.queue = n.queue
cross join lateral (
    select case when s.held_at is not null then 0 when a.paused_at is not null then 1 when q.paused_at is not null then 2
        when t.paused_at is not null then 3 when b.paused_at is not null then 4 when a.is_full then 5 when q.is_full then 6
        when t.is_full then 7 when b.is_full then 8 when u.resting > 0 then 9 when u.queue is not null then 10 end as n
) w
where n.available > 0 and w.n is not null;
comment on view ojs.blocked_tenants is
'Tenants of which no available job can be handed out now, per queue, with the first reason.
Costs as much as there are pairs of tenant and queue.';
comment on column ojs.blocked_tenants.tenant_id is 'The tenant.';
comment on column ojs.blocked_tenants.queue is 'The queue.';
comment on column ojs.blocked_tenants.available is 'Jobs of it that are available.';
comment on column ojs.blocked_tenants.active is 'Jobs of it that are active.';
comment on column ojs.blocked_tenants.why is
'The first reason that holds them back; ojs.explain lists all reasons of a job.';
comment on column ojs.blocked_tenants.since is
'Since when; for a queue that no worker asks for, when a job of it was last handed out; for one whose
workers rest or end, when they were told; null: not known.';
comment on column ojs.blocked_tenants.detail is
'The role that paused it and its reason, how many of how many jobs run, or the role that told the
workers to rest or end; null: nothing more.';

create or replace view ojs.longest_waits with (security_invoker = true) as
select distinct on (s.tenant_id) s.tenant_id, s.queue, s.oldest_wait, s.available, s.active
from ojs.shard_stats s where s.available > 0
order by s.tenant_id, s.oldest_wait desc nulls last, s.queue;
comment on view ojs.longest_waits is
'For each tenant with available jobs, the queue in which its oldest job has waited longest.
Costs as much as ojs.shard_stats.';
comment on column ojs.longest_waits.tenant_id is 'The tenant.';
comment on column ojs.longest_waits.queue is 'The queue.';
comment on column ojs.longest_waits.oldest_wait is
'How long its oldest available job has waited there.';
comment on column ojs.longest_waits.available is 'Jobs of it that are available there.';
comment on column ojs.longest_waits.active is 'Jobs of it that are active there.';

create or replace view ojs.dead_letter_errors with (security_invoker = true) as
select d.tenant_id, d.queue, d.type, d.error_type, d.error_code, count(*) as jobs, min(d.at) as first_at, max(d.at) as last_at,
    (array_agg(d.id order by d.at desc))[1] as last_id
from (select d.* from ojs.dead_letter d order by d.at desc limit 10000) d
group by d.tenant_id, d.queue, d.type, d.error_type, d.error_code;
comment on view ojs.dead_letter_errors is 'The newest 10,000 dead letters by error.';
comment on column ojs.dead_letter_errors.tenant_id is 'The tenant.';
comment on column ojs.dead_letter_errors.queue is 'The queue of the jobs.';
comment on column ojs.dead_letter_errors.type is 'The type of the jobs.';
comment on column ojs.dead_letter_errors.error_type is 'Type of their last error.';
comment on column ojs.dead_letter_errors.error_code is 'Code of their last error.';
comment on column ojs.dead_letter_errors.jobs is 'How many dead letters.';
comment on column ojs.dead_letter_errors.first_at is 'When the first of these was discarded.';
comment on column ojs.dead_letter_errors.last_at is 'When the last of these was discarded.';
comment on column ojs.dead_letter_errors.last_id is
'The job discarded last, for ojs.dead_letter_info.';

create or replace view ojs.lost_attempts with (security_invoker = true) as
select r.tenant_id, r.queue, r.job_type, r.cause, count(*) as attempts, count(distinct r.job_id) as jobs,
    count(*) filter (where r.to_state = 'discarded') as discarded, min(r.at) as first_at, max(r.at) as last_at,
    (array_agg(r.job_id order by r.at desc))[1] as last_id
from (select r.* from ojs.release r order by r.xid desc, r.seq desc limit 10000) r
where r.cause is not null
group by r.tenant_id, r.queue, r.job_type, r.cause;
comment on view ojs.lost_attempts is
'Attempts that the clock ended because no worker finished them.
They come from the newest 10,000 rows of ojs.release. Workers died, or jobs kill them or take too
long.';
comment on column ojs.lost_attempts.tenant_id is 'The tenant.';
comment on column ojs.lost_attempts.queue is 'The queue.';
comment on column ojs.lost_attempts.job_type is 'The type of the jobs.';
comment on column ojs.lost_attempts.cause is
'worker_death: the worker fell silent; visibility_timeout: the lease ended; timeout: the attempt
ran too long.';
comment on column ojs.lost_attempts.attempts is 'How many attempts.';
comment on column ojs.lost_attempts.jobs is
'Of how many jobs; many attempts of few jobs suggest poison jobs.';
comment on column ojs.lost_attempts.discarded is
'How many of these attempts were the last of their job.';
comment on column ojs.lost_attempts.first_at is 'When the first of these ended.';
comment on column ojs.lost_attempts.last_at is 'When the last of these ended.';
comment on column ojs.lost_attempts.last_id is 'The job of the last attempt.';

create or replace view ojs.queue_workers with (security_invoker = true) as
with worker as materialized (
    select w.*, q.queue from ojs.workers w cross join lateral unnest(w.queues) q(queue)
)
select w.queue, w.tenant_id, w.worker_id, 'heartbeat' as known_by, w.pool, w.state, w.directive, w.resting, w.stale, w.active_jobs,
    w.concurrency, w.hostname, w.last_heartbeat_at
from worker w
union all
select h.queue, case when count(*) = 1 then min(h.tenant_id) end, h.worker_id, 'jobs', null, null, null, null, null, sum(h.jobs)::int,
    null, null, null
from ojs._holders() h(queue, tenant_id, worker_id, jobs)
where not exists (select from worker w where w.queue = h.queue and w.worker_id = h.worker_id) group by h.queue, h.worker_id
union all
select s.queue, null, null, 'fetch', null, null, null, null, null, null, null, null, null from ojs._waiting_servers() s(queue, servers);
comment on view ojs.queue_workers is
'Which worker serves which queue.
One row per worker and queue, and one per queue for which a FETCH of any worker waits.';
comment on column ojs.queue_workers.queue is 'The queue.';
comment on column ojs.queue_workers.tenant_id is
'The tenant the worker is for, or whose jobs it has; null: all, or several.';
comment on column ojs.queue_workers.worker_id is
'The worker; null: workers that wait for the queue now.';
comment on column ojs.queue_workers.known_by is
'How the worker is known. heartbeat: it has registered or sends heartbeats, and says that it serves
the queue, or asks for it. jobs: it has jobs of the queue, among the 10,000 handed out last.
fetch: a FETCH waits for the queue.';
comment on column ojs.queue_workers.pool is 'Its pool; null: it has not named one.';
comment on column ojs.queue_workers.state is 'Its state, as it reports.';
comment on column ojs.queue_workers.directive is 'The directive it is given; null: none.';
comment on column ojs.queue_workers.resting is 'Whether FETCH gives it no jobs.';
comment on column ojs.queue_workers.stale is 'Whether it has been silent for more than half of the heartbeat timeout.';
comment on column ojs.queue_workers.active_jobs is
'How many jobs it runs, as last reported; if known by its jobs: how many of the queue.';
comment on column ojs.queue_workers.concurrency is
'How many jobs it can run at once, as it reports.';
comment on column ojs.queue_workers.hostname is 'The host it runs on, as it reports.';
comment on column ojs.queue_workers.last_heartbeat_at is 'When its last heartbeat came.';
