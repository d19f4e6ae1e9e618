-- Made from docs/runbooks/failed-migration.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/failed-migration.sql

select ojs.schema_changing(), ojs.schema_hash();

select version, applied_at, left_at from ojs.schema_hash order by version desc limit 5;

select a.pid, a.usename, a.application_name, a.state, now() - a.xact_start as open_for, l.mode
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.relation in ('ojs.job'::regclass, 'ojs.settings'::regclass, 'ojs.lane'::regclass) and l.granted
order by a.xact_start;
