-- +goose Up
-- The usage ledger: what each tenant used in each hour, in rows that never change and are chained by their hashes.
set local role ojs_owner;

alter table ojs.tally add column failed_jobs bigint not null default 0, add column worker_ms bigint not null default 0;

alter table ojs.tally alter column failed_jobs set statistics 0, alter column worker_ms set statistics 0;

alter table ojs.tally_mark add column usage_rev bigint not null default 0, add column usage_at timestamptz not null default '-infinity';

alter table ojs.tally_mark alter column usage_rev set statistics 0, alter column usage_at set statistics 0;

-- How much of a row the ledger has taken over. A minute's row grows while its minute lasts, and its last note may commit after the hour.
alter table ojs.refused add column counted bigint not null default 0;

alter table ojs.refused alter column counted set statistics 0;

create index refused_uncounted_idx on ojs.refused (at) where requests > counted;

create table ojs.usage_batch (
    tenant_id       text collate "C" not null,
    n               bigint not null,
    hour            timestamptz not null,
    closed_at       timestamptz not null,
    enqueued        bigint not null,
    attempts        bigint not null,
    completed       bigint not null,
    failed          bigint not null,
    failed_attempts bigint not null,
    worker_ms       bigint not null,
    stored_bytes    bigint,
    refused_429     bigint not null,
    refused_507     bigint not null,
    previous        text collate "C",
    hash            text collate "C" not null,
    primary key (tenant_id, n),
    constraint one_row_per_hour unique (tenant_id, hour)
);

-- For lists of all tenants, by time.
create index usage_batch_hour_idx on ojs.usage_batch (hour, tenant_id);

create table ojs.usage_mark (
    tenant_id       text collate "C" primary key,
    n               bigint not null default 0,
    hash            text collate "C",
    first_n         bigint not null default 1,
    first_previous  text collate "C",
    enqueued        bigint not null,
    attempts        bigint not null,
    completed       bigint not null,
    failed          bigint not null,
    failed_attempts bigint not null,
    worker_ms       bigint not null
);

create type ojs.usage_fault as (tenant_id text, n bigint, hour timestamptz, fault text);

-- The ledger begins now: what was counted before belongs to no hour.
insert into ojs.usage_mark (tenant_id, enqueued, attempts, completed, failed, failed_attempts, worker_ms)
select t.tenant_id, sum(t.total), sum(t.dispatched), sum(t.completed), 0, sum(t.failed), 0 from ojs.tally t group by t.tenant_id;

update ojs.refused r set counted = r.requests;

-- +goose StatementBegin
do $$
declare
    v_column record;
begin
    for v_column in
        select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.oid in ('ojs.usage_batch'::regclass, 'ojs.usage_mark'::regclass) and a.attnum > 0 and not a.attisdropped
    loop
        execute format('alter table ojs.%I alter column %I set statistics 0', v_column.relname, v_column.attname);
    end loop;
end;
$$;
-- +goose StatementEnd

alter table ojs.usage_batch enable row level security;

alter table ojs.usage_batch force row level security;

create policy functions on ojs.usage_batch to ojs_owner using (true) with check (true);

create policy staff on ojs.usage_batch for select to ojs_service, ojs_operator using (true);

grant select on ojs.usage_batch to ojs_service, ojs_operator;

alter table ojs.usage_mark enable row level security;

alter table ojs.usage_mark force row level security;

create policy functions on ojs.usage_mark to ojs_owner using (true) with check (true);

create policy staff on ojs.usage_mark for select to ojs_service, ojs_operator using (true);

grant select on ojs.usage_mark to ojs_service, ojs_operator;

reset role;
