-- Made from docs/runbooks/one-tenant-slow.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/one-tenant-slow.sql

select tenant_id, weight, backlog, active, scheduled, retryable, pending, oldest_wait, deficit, effective_share, actual_share
from ojs.tenant_stats
order by oldest_wait desc nulls last
limit 20;

select queue, priority, tenant_id, weight, deficit, charged
from ojs.tenant_fairness
where ready
order by queue, priority desc, deficit desc
limit 50;

select s.queue, s.available, s.active, s.oldest_wait, q.paused
from ojs.shard_stats s
join ojs.queue_stats q on q.queue = s.queue
where s.tenant_id = 'acme';
