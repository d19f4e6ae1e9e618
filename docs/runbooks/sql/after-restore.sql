-- Made from docs/runbooks/after-restore.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/after-restore.sql

select * from ojs.dispatch;

select tenant_id, queue, available, active, scheduled, retryable
from ojs.shard_stats
where available + active + scheduled + retryable > 0
order by available + active desc;

select tenant_id, id, queue, type, attempt, worker_id, started_at from ojs.jobs where state = 'active' order by started_at;

select tenant_id, name, next_run_at, catch_up from ojs.crons where enabled and next_run_at < ojs.now() order by next_run_at;

select name, tenant_id, queue, error_type, delay from ojs.replay_rule where enabled;
