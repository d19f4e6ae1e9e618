-- +goose Up
-- Some functions are other ones on another PostgreSQL.
set local role ojs_owner;

alter table ojs.schema_release add column postgres int not null default 0;

reset role;
