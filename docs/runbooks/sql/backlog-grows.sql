-- Made from docs/runbooks/backlog-grows.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/backlog-grows.sql

select queue, available, active, scheduled, retryable, oldest_wait, tenants, paused
from ojs.queue_stats
order by oldest_wait desc nulls last;

select data ->> 'job_type' as type, count(*), round(avg((data ->> 'duration_ms')::numeric)) as avg_ms
from ojs.events(array['job.completed'], p_limit => 1000)
group by 1
order by 2 desc;

select queue, from_state, to_state, count(*) as jobs, max(at) as last
from ojs.release
where from_state <> 'active' and to_state in ('cancelled', 'discarded')
group by 1, 2, 3
order by 4 desc;

select kind, name, role_name, application, state, open_for
from ojs.open_transactions
where holds_lane and open_for > interval '1 second';
