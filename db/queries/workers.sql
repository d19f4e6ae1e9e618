-- name: Fetch :many
select * from ojs.fetch(@queues::text[], @count::int, sqlc.narg('worker_id')::text, sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tenant')::text);

-- name: FetchMany :many
select * from ojs.fetch_many(@queues::text[], @counts::int[], @worker_ids::text[], @visibility_timeouts_ms::int[], sqlc.narg('tenant')::text);

-- name: Ack :one
select * from ojs.ack(@id::uuid, sqlc.narg('lease')::uuid, sqlc.narg('result')::json, sqlc.narg('worker_id')::text, sqlc.narg('tenant')::text);

-- name: Nack :one
select * from ojs.nack(@id::uuid, @error::jsonb, sqlc.narg('lease')::uuid, sqlc.narg('worker_id')::text, @requeue::boolean, sqlc.narg('tenant')::text);

-- name: Heartbeat :many
select * from ojs.heartbeat(@worker_id::text, @ids::uuid[], sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tenant')::text);

-- name: Release :one
select * from ojs.release(@id::uuid, @lease::uuid);
