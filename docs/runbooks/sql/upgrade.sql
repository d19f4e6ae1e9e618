-- Made from docs/runbooks/upgrade.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/upgrade.sql

select severity, topic, finding from ojs.doctor();
select count(*) from ojs.open_transactions where open_for > interval '1 minute';
