comment on table ojs.lost_worker is
'Workers that were declared dead within the last day. Written by the tick and ojs.remove_worker
(workers/end.sql), which also remove rows that are more than a day old.';
comment on column ojs.lost_worker.tenant_id is 'The tenant it worked for; empty: all.';
comment on column ojs.lost_worker.worker_id is 'The name it gave itself.';
comment on column ojs.lost_worker.id is
'The id of the registration that ended; a worker that comes back has another.';
comment on column ojs.lost_worker.pool is 'Its pool; null: it had not named one.';
comment on column ojs.lost_worker.hostname is 'The host it ran on, as it reported.';
comment on column ojs.lost_worker.queues is
'The queues it served: queues that it had named, and others that it asked for.';
comment on column ojs.lost_worker.jobs is 'How many jobs it ran, as it last reported.';
comment on column ojs.lost_worker.last_heartbeat_at is 'When its last heartbeat came.';
comment on column ojs.lost_worker.lost_at is 'When it was declared dead.';

create or replace view ojs.lost_workers with (security_invoker = true) as
select nullif(l.tenant_id, '') as tenant_id, l.worker_id, l.pool, l.hostname, l.queues, l.jobs, l.last_heartbeat_at, l.lost_at,
    exists (select from ojs.worker w where w.tenant_id = l.tenant_id and w.worker_id = l.worker_id) as is_back
from ojs.lost_worker l where l.lost_at > ojs.now() - interval '1 day';
comment on view ojs.lost_workers is 'Workers that fell silent and were declared dead within the last day.';
comment on column ojs.lost_workers.tenant_id is 'The tenant it worked for; null: all.';
comment on column ojs.lost_workers.worker_id is 'The name it gave itself.';
comment on column ojs.lost_workers.pool is 'Its pool; null: it had not named one.';
comment on column ojs.lost_workers.hostname is 'The host it ran on, as it reported.';
comment on column ojs.lost_workers.queues is
'The queues it served: queues that it had named, and others that it asked for.';
comment on column ojs.lost_workers.jobs is 'How many jobs it ran, as it last reported.';
comment on column ojs.lost_workers.last_heartbeat_at is 'When its last heartbeat came.';
comment on column ojs.lost_workers.lost_at is 'When it was declared dead.';
comment on column ojs.lost_workers.is_back is 'Whether a worker of that name is registered again.';
