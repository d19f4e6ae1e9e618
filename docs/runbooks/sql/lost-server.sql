-- Made from docs/runbooks/lost-server.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/lost-server.sql

select * from ojs.clock_status;

select pid, usename, application_name, client_addr, state, backend_start, now() - state_change as idle_for
from pg_stat_activity
where application_name like 'ojs-pg%' and datname = current_database()
order by backend_start;
