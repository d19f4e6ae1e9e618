-- A producer in psql: psql "$DATABASE_URL" -f producer.sql
-- The job is in the transaction of the order: both are there after the commit, or neither is.
\set ON_ERROR_STOP on

create table if not exists public.orders (id bigint generated always as identity primary key, email text not null, total numeric not null);

begin;
with placed as (insert into public.orders (email, total) values ('ada@example.com', 99.50) returning *)
select enqueued.id, enqueued.state
from placed, ojs.enqueue('receipt.send', json_build_array(placed.id, placed.email), p_tenant => 'acme') enqueued;
commit;

-- Many at once, in one statement: a view that takes plain inserts.
insert into ojs.jobs (tenant_id, type, args)
select 'acme', 'receipt.remind', json_build_array(id) from public.orders where total > 50;
