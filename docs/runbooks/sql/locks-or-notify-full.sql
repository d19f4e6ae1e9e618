-- Made from docs/runbooks/locks-or-notify-full.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/locks-or-notify-full.sql

select round(100 * pg_notification_queue_usage()) as notify_queue_percent,
    (select count(*) from pg_locks where not fastpath) as locks,
    current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int
        + current_setting('max_prepared_transactions')::int) as made_for;

select finding, advice from ojs.doctor() where runbook = 'locks-or-notify-full.md';

select l.pid, l.locktype, count(*) as locks, a.usesysid, a.application_name, a.backend_start,
    a.xact_start
from pg_locks l
left join lateral pg_stat_get_activity(l.pid) a on true
where not l.fastpath
group by l.pid, l.locktype, a.usesysid, a.application_name, a.backend_start, a.xact_start
order by locks desc
limit 10;

select a.pid, a.usesysid, a.application_name, a.xact_start, a.state, left(a.query, 80) as query
from pg_stat_get_activity(null) a
where a.pid <> pg_backend_pid() and (a.xact_start is not null or a.backend_xmin is not null)
order by a.xact_start nulls last
limit 10;
