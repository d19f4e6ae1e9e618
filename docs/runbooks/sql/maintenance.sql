-- Made from docs/runbooks/maintenance.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/maintenance.sql

select queue, available, active, scheduled, retryable from ojs.queue_stats order by active desc;
select worker_id, state, directive, active_jobs, last_heartbeat_at from ojs.workers order by worker_id limit 50;
