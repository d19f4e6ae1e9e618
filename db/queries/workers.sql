-- name: Heartbeat :many
select * from ojs.heartbeat(@worker_id::text, @ids::uuid[], sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tenant')::text);
