-- Made from docs/runbooks/postgres-away.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/postgres-away.sql

select pg_is_in_recovery() as standby, current_setting('transaction_read_only') as read_only, pg_postmaster_start_time() as up_since,
    (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
    current_setting('max_connections') as max_connections;
