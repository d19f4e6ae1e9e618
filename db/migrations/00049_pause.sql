-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Registers a server's workers as waiting.
-- Locks the rows of that server and these queues.
-- Writes waiter.
-- +goose StatementBegin
create function ojs.register_waiters(p_server uuid, p_queues text[]) returns table (queue text, token text)
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.waiter as w (server_id, queue, token, expires_at)
    select p_server, q.queue, encode(uuid_send(gen_random_uuid()), 'hex'), ojs.now() + interval '60 seconds'
    from (select distinct unnest(p_queues) as queue) q
    on conflict (queue, server_id) do update set expires_at = excluded.expires_at
    returning w.queue, w.token
$$;
-- +goose StatementEnd
comment on function ojs.register_waiters(uuid, text[]) is
'Says that a server has a worker waiting for each of some queues, for 60 seconds, and returns with each queue the token that a commit with
jobs for it sends on channel ojs_wake. A producer whose statement ran before this registration committed does not see it: look again a
few times after registering.';

-- Withdraws a registration.
-- Locks its row.
-- Writes waiter.
-- +goose StatementBegin
create function ojs.drop_waiter(p_server uuid, p_queue text) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$ delete from ojs.waiter w where w.server_id = p_server and w.queue = p_queue $$;
-- +goose StatementEnd
comment on function ojs.drop_waiter(uuid, text) is 'Says that a server has no worker waiting for a queue any more.';
reset role;
