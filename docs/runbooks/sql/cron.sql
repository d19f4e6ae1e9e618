-- Made from docs/runbooks/cron.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/cron.sql

select tenant_id, name, expression, timezone, enabled, next_run_at, last_run_at, run_count, error
from ojs.crons
order by next_run_at nulls first;

select due_at, late, job_id, reason, message, blocker, missed, manual
from ojs.cron_runs
where tenant_id = 'acme' and name = 'daily-report'
order by due_at desc
limit 20;
