-- Made from docs/runbooks/poison-job.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/poison-job.sql

select tenant_id, queue, job_type, cause, attempts, jobs, discarded, last_at, last_id
from ojs.lost_attempts
order by attempts desc
limit 20;

select j.id, j.type, j.attempt, j.max_attempts, j.errors -> -1 ->> 'code' as last_error, j.worker_id
from ojs.jobs j
where j.tenant_id = 'acme' and j.queue = 'mail' and j.state in ('available', 'active', 'retryable') and j.attempt > 1
order by j.attempt desc
limit 20;
