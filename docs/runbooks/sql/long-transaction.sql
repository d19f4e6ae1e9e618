-- Made from docs/runbooks/long-transaction.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/long-transaction.sql

select session_user, pg_has_role(session_user, 'pg_read_all_stats', 'usage') as sees_all;

select kind, name, role_name, application, state, open_for, holds_back_xids, holds_lane, waits, query
from ojs.open_transactions
order by open_for desc nulls last
limit 20;

select a.pid, a.usename, pg_blocking_pids(a.pid) as waits_for, now() - a.query_start as since, left(a.query, 80) as query
from pg_stat_activity a
where a.wait_event_type = 'Lock' and a.datname = current_database();
