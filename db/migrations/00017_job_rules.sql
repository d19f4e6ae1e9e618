-- +goose Up
-- Rules for new jobs take no lock on ojs.job any more: one trigger asks for them, in place of three that came and went.
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._job_ruled() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
-- +goose StatementBegin
do $$
begin
    if exists (select from pg_trigger t
            where t.tgrelid = 'ojs.job'::regclass and t.tgname in ('job_barred', 'job_max_priority', 'job_defaults')) then
        create type ojs._job_rules as ();
        revoke all on type ojs._job_rules from public;
        comment on type ojs._job_rules is
            'Exists while there are rules for new jobs that are checked one by one (ojs._arm_job_rules).';
    end if;
end;
$$;
-- +goose StatementEnd
drop trigger if exists job_barred on ojs.job;
drop trigger if exists job_max_priority on ojs.job;
drop trigger if exists job_defaults on ojs.job;
create trigger job_ruled before insert on ojs.job for each row when (to_regclass('ojs._job_rules') is not null)
    execute function ojs._job_ruled();

reset role;
