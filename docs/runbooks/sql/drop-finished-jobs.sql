-- Made from docs/runbooks/drop-finished-jobs.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/drop-finished-jobs.sql

select * from ojs.upkeep_status;
select partition, from_at, until_at, jobs, pg_size_pretty(bytes) as size from ojs.job_partitions;
