-- +goose Up
-- Servers whose clocks differ from PostgreSQL's.
set local role ojs_owner;

create table ojs.server_clock (
    server   text collate "C" primary key,
    ahead    interval not null,
    noted_at timestamptz not null
);
alter table ojs.server_clock enable row level security;
alter table ojs.server_clock force row level security;
create policy functions on ojs.server_clock to ojs_owner using (true) with check (true);
create policy staff on ojs.server_clock for select to ojs_service, ojs_operator using (true);
grant select on ojs.server_clock to ojs_service, ojs_operator;
comment on table ojs.server_clock is 'Servers whose clocks differed from PostgreSQL''s by more than 10 seconds within the last day.';
comment on column ojs.server_clock.server is 'The host and the process id of the server.';
comment on column ojs.server_clock.ahead is 'How far its clock was ahead of PostgreSQL''s; less than 0: behind.';
comment on column ojs.server_clock.noted_at is 'When, by PostgreSQL''s clock.';

reset role;
