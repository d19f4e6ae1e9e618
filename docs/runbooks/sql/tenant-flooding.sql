-- Made from docs/runbooks/tenant-flooding.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/tenant-flooding.sql

select tenant_id, sum(available) as available, sum(active) as active, max(oldest_wait) as oldest_wait,
    count(*) filter (where available > 0) as queues
from ojs.shard_stats
group by tenant_id
order by available desc, active desc
limit 20;

select tenant_id, queue, available, active, oldest_wait from ojs.shard_stats where available > 0 order by available desc limit 20;

select tenant_id, signal, value, threshold, since, seen_at, throttled_until from ojs.noisy_neighbours order by since, tenant_id limit 20;

select tenant_id, action, original, effective, reason, until, set_by from ojs.throttles order by until limit 20;

select tenant_id, ideal_share, share_1m, share_5m, avg_wait_1m, available, active
from ojs.tenant_shares
order by available desc
limit 20;
