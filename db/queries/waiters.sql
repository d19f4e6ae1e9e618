-- name: RegisterWaiters :many
select w.queue::text as queue, w.token::text as token from ojs.register_waiters(@server::uuid, @queues::text[]) w(queue, token);

-- name: DropWaiters :exec
select ojs.drop_waiter(@server::uuid, q) from unnest(@queues::text[]) q;

-- name: CurrentSnapshot :one
select pg_current_snapshot()::text as snapshot, ojs._notify_full()::boolean as notify_full;

-- name: DetectLoss :one
-- Makes PostgreSQL end the session within seconds after this machine, or its network connection,
-- has gone. The process id is asked of the session, because a pooler in between invents the one in
-- the protocol.
select pg_backend_pid()::int as backend from (select set_config('tcp_keepalives_idle', '2', false),
    set_config('tcp_keepalives_interval', '1', false), set_config('tcp_keepalives_count', '3', false),
    set_config('tcp_user_timeout', '5000', false)) s;
