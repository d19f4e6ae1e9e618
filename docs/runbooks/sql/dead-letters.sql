-- Made from docs/runbooks/dead-letters.md, which says how to read it. Changes nothing. In psql:
-- \i docs/runbooks/sql/dead-letters.sql

select e.queue, e.data ->> 'job_type' as type, e.data #>> '{error,type}' as error, e.data #>> '{error,code}' as code,
    count(*) as attempts, count(distinct e.subject) as jobs,
    count(distinct e.tenant_id) as tenants, max(e.time) as last, (array_agg(e.subject order by e.time desc))[1] as last_id
from ojs.events('{job.failed}', p_limit => 1000) e
where e.time > now() - interval '1 hour'
group by 1, 2, 3, 4
order by attempts desc
limit 20;

begin read only;
set local statement_timeout = '30s';
select queue, type, errors -> -1 ->> 'type' as error, errors -> -1 ->> 'code' as code,
    count(*) as jobs, count(distinct tenant_id) as tenants, min(finished_at) as first, max(finished_at) as last
from ojs.jobs
where state = 'discarded' and finished_at > now() - interval '1 hour'
group by 1, 2, 3, 4
order by jobs desc
limit 20;
commit;

select jsonb_pretty(ojs.dead_letter_stats());

select tenant_id, queue, type, count(*), min(at) as first, max(at) as last, max(error_type) as error
from ojs.dead_letter
group by 1, 2, 3
order by count(*) desc
limit 20;

select id, tenant_id, queue, type, finished_at, errors -> -1 ->> 'type' as error, errors -> -1 ->> 'message' as message
from ojs.dead_letters(p_limit => 20);
