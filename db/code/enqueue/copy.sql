-- COPY into ojs.jobs: enqueues row by row.

-- The view has a rule for insert, but PostgreSQL does not apply rules to COPY, so a trigger
-- enqueues its rows.
create or replace function ojs._job_copied() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform ojs.enqueue(ojs._type_only(to_jsonb(new)), coalesce(new.args::text, '[]'), coalesce(new.queue, 'default'),
        coalesce(new.priority, 0), new.scheduled_at, new.expires_at, coalesce(new.meta::text, '{}'), new.retry::text, null, new.timeout_ms,
        new.visibility_timeout_ms, new.tags, false, new.options::text, new.extra::text, new.id, new.tenant_id);
    return new;
end;
$$;
comment on function ojs._job_copied() is 'Trigger: enqueues a row that COPY inserts.';

create or replace trigger job_copied instead of insert on ojs.jobs for each row execute function ojs._job_copied();
