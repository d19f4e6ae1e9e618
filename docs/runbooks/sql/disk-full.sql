-- Made from docs/runbooks/disk-full.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/disk-full.sql

select table_name, pg_size_pretty(bytes) as size, live_rows, dead_rows, vacuumed_at from ojs.table_health order by bytes desc limit 15;

select pg_size_pretty(pg_database_size(current_database())) as database;

select slot_name, active, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) as keeps from pg_replication_slots;

select pg_size_pretty(sum(size)) as log from pg_ls_waldir();
