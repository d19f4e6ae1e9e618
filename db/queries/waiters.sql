-- name: RegisterWaiters :many
select w.queue::text as queue, w.token::text as token from ojs.register_waiters(@server::uuid, @queues::text[]) w(queue, token);

-- name: DropWaiters :exec
select ojs.drop_waiter(@server::uuid, q) from unnest(@queues::text[]) q;

-- name: CurrentSnapshot :one
select pg_current_snapshot()::text as snapshot;
