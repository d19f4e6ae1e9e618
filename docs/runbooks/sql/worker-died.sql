-- Made from docs/runbooks/worker-died.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/worker-died.sql

select tenant_id, queue, id, type, worker_id, attempt, started_at, lease_expires_at - now() as lease_left
from ojs.jobs
where state = 'active'
order by lease_expires_at
limit 50;

select tenant_id, worker_id, state, directive, stale, active_jobs, now() - last_heartbeat_at as silent_for
from ojs.workers
order by last_heartbeat_at
limit 50;

select worker_id, hostname, queues, jobs, last_heartbeat_at, lost_at, is_back from ojs.lost_workers order by lost_at desc limit 50;
select tenant_id, queue, job_type, cause, attempts, jobs, last_at from ojs.lost_attempts order by last_at desc limit 20;
