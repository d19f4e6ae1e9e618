-- Made from docs/runbooks/queue-stuck.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/queue-stuck.sql

select queue, available, active, served, waiting_servers, workers, pools, handed_out_at, paused from ojs.queue_demands where available > 0;

select queue, available, resting, told_at, told_by, directive from ojs.unserved_queues;

select tenant_id, queue, available, why, since, detail from ojs.blocked_tenants order by available desc limit 50;

select * from ojs.queue_workers order by queue, worker_id limit 50;

select name, queues, max_concurrency, active_workers, active_jobs, utilization from ojs.pool_stats;
