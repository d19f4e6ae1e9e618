-- Made from docs/runbooks/bloat.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/bloat.sql

select table_name, live_rows, dead_rows, dead_part, pg_size_pretty(bytes) as size, bytes_per_row, vacuumed_at, vacuums, unfrozen_xids
from ojs.table_health
order by dead_rows desc
limit 20;

select kind, name, role_name, application, state, open_for, holds_back_xids, query
from ojs.open_transactions
order by holds_back_xids desc nulls last
limit 10;
