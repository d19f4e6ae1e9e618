-- A trigger that enqueues: psql "$DATABASE_URL" -f trigger.sql
-- Each insert into the table, by any program, enqueues a job in the same transaction.
\set ON_ERROR_STOP on

create table if not exists public.signups (id bigint generated always as identity primary key, tenant text not null, email text not null);

-- The trigger enqueues with the rights of the login that inserts. The application's login is a member of ojs_producer and may enqueue for
-- any tenant, or it belongs to a tenant and may enqueue for that one.
create or replace function public.enqueue_welcome() returns trigger
language plpgsql as $$
begin
    perform ojs.enqueue('welcome.send', jsonb_build_array(s.id, s.email), p_tenant => s.tenant)
    from added s;
    return null;
end;
$$;

create or replace trigger enqueue_welcome after insert on public.signups
    referencing new table as added for each statement execute function public.enqueue_welcome();

insert into public.signups (tenant, email) values ('acme', 'ada@example.com'), ('globex', 'grace@example.com');
