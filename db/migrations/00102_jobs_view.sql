-- +goose Up
-- What people try on ojs.jobs beside a plain insert: an update or a delete says which function to call, and COPY works.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._jobs_instead() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'UPDATE' then
        perform ojs._raise('42501', 'jobs are not changed by updates of ojs.jobs', null,
            'ojs.cancel(id), ojs.activate(id), ojs.reprioritize(id, priority) and ojs.retry(id) change jobs; ojs.help() lists all.');
    elsif tg_op = 'DELETE' then
        perform ojs._raise('42501', 'jobs are not deleted from ojs.jobs', null,
            'ojs.cancel(id) and ojs.cancel_many(ids) cancel jobs; those that have ended are deleted after their retention.');
    end if;
    perform ojs.enqueue(ojs._type_only(to_jsonb(new)), coalesce(new.args, '[]'), coalesce(new.queue, 'default'), coalesce(new.priority, 0),
        new.scheduled_at, new.expires_at, coalesce(new.meta, '{}'), new.retry, null, new.timeout_ms, new.visibility_timeout_ms, new.tags,
        false, new.options, new.extra, new.id, new.tenant_id);
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._jobs_instead() is
'Trigger: enqueues a row that COPY brings, and refuses updates and deletes with what to do instead.';

-- An insert goes by the view's rule; COPY knows no rules.
create trigger jobs_instead instead of insert or update or delete on ojs.jobs for each row execute function ojs._jobs_instead();
reset role;
