-- Made from docs/runbooks/job-waits.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/job-waits.sql

select e.state, e.dispatches_ahead, e.certainty, e.reasons
from ojs.jobs j
cross join lateral ojs.explain(j.id) e
where j.id = '0198c0de-0000-7000-8000-000000000001';

select ojs.job_status(j.id) from ojs.jobs j where j.id = '0198c0de-0000-7000-8000-000000000001';

select j.tenant_id, j.queue, j.id, e.dispatches_ahead, e.certainty, e.reasons
from (
    select tenant_id, queue, id from ojs.jobs where state = 'available' order by enqueued_at limit 10
) j
cross join lateral ojs.explain(j.id) e;

select pid, usename, application_name, state, now() - xact_start as open_for, left(query, 80) as query
from pg_stat_activity
where datname = current_database() and xact_start < now() - interval '10 seconds'
order by xact_start;
