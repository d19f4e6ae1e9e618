-- name: EnqueueMany :many
select * from ojs.enqueue_many(@jobs::json, sqlc.narg('tenant')::text);

-- name: JobInfo :one
select * from ojs.job_info(@id::uuid, sqlc.narg('tenant')::text);

-- name: Cancel :one
select * from ojs.cancel(@id::uuid, sqlc.narg('tenant')::text);

-- name: Activate :one
select * from ojs.activate(@id::uuid, sqlc.narg('tenant')::text);
