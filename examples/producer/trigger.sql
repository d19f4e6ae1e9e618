-- A trigger that enqueues: psql "$DATABASE_URL" -f trigger.sql
-- Whoever inserts into the table, by whatever program, has a job enqueued in his transaction.
\set ON_ERROR_STOP on

create table if not exists public.signups (id bigint generated always as identity primary key, tenant text not null, email text not null);

-- Jobs belong to whoever logged in, so a trigger gives nobody rights on jobs that he has not: the application's login is a member of
-- ojs_producer and may enqueue for any tenant, or it is a tenant's own and may enqueue for that one.
create or replace function public.enqueue_welcome() returns trigger
language plpgsql as $$
begin
    perform ojs.enqueue('welcome.send', jsonb_build_array(s.id, s.email), p_queue => 'trigger', p_tenant => s.tenant)
    from added s;
    return null;
end;
$$;

create or replace trigger enqueue_welcome after insert on public.signups
    referencing new table as added for each statement execute function public.enqueue_welcome();

insert into public.signups (tenant, email) values ('acme', 'ada@example.com'), ('globex', 'grace@example.com');
