-- +goose Up
-- Failed jobs are counted apart from failed attempts.
set local role ojs_owner;

alter table ojs.tally add column if not exists failed_jobs bigint not null default 0;

alter table ojs.tally alter column failed_jobs set statistics 0;

-- The number of discarded jobs falls when dead letters are retried, so no window could be counted with it.
alter type ojs.counts rename attribute discarded to failed_jobs;

-- The count begins now. Windows of statistics are a day long at most, and the latest row of each name stays for good.
update ojs.history h set before.failed_jobs = 0, after.failed_jobs = 0
where (h.after).failed_jobs <> 0 and (h.at > ojs.now() - interval '2 days'
    or not exists (select from ojs.history n where n.queue = h.queue and n.tenant_id = h.tenant_id and n.at > h.at));

reset role;
