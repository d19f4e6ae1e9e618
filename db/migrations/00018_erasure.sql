-- +goose Up
-- What ojs.erase returns, and tenants whose content is erased after they were deregistered.
set local role ojs_owner;

create type ojs.erasure as (
    jobs         int,
    cancelled    int,
    active       int,
    dead_letters int,
    answers      int,
    locked       int,
    next         uuid
);

create table ojs.leaving (
    tenant_id text collate "C" primary key,
    at        timestamptz not null default ojs.now(),
    erase_at  timestamptz,
    next      uuid,
    missed    boolean not null default false,
    erased    bigint not null default 0,
    gone_at   timestamptz,
    total     bigint
);

alter table ojs.leaving enable row level security;

alter table ojs.leaving force row level security;

create policy functions on ojs.leaving to ojs_owner using (true) with check (true);

create policy staff on ojs.leaving for select to ojs_service, ojs_operator using (true);

grant select on ojs.leaving to ojs_service, ojs_operator;

-- Statistics hold the most common values of a column, after the rows are gone. Columns of ojs.job have none already.
alter table ojs.leaving alter column tenant_id set statistics 0, alter column at set statistics 0, alter column erase_at set statistics 0,
    alter column next set statistics 0, alter column missed set statistics 0, alter column erased set statistics 0,
    alter column gone_at set statistics 0, alter column total set statistics 0;

alter table ojs.dead_job alter column args set statistics 0, alter column meta set statistics 0, alter column options set statistics 0,
    alter column extra set statistics 0, alter column retry set statistics 0, alter column tags set statistics 0,
    alter column errors set statistics 0, alter column result set statistics 0;

alter table ojs.dead_letter alter column error_type set statistics 0, alter column error_code set statistics 0;

alter table ojs.idempotency alter column key set statistics 0, alter column answer set statistics 0;

reset role;
