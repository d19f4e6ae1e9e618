-- Made from docs/runbooks/backup-and-restore.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/backup-and-restore.sql

select pg_size_pretty(pg_database_size(current_database())) as size;
select rolled_up_ago, journal_rows from ojs.clock_status;

select severity, finding, advice from ojs.doctor() where runbook = 'backup-and-restore.md';
