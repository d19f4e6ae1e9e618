-- name: JobInfo :one
select * from ojs.job_info(@id::uuid, sqlc.narg('tenant')::text);

-- name: Cancel :one
select * from ojs.cancel(@id::uuid, sqlc.narg('tenant')::text);

-- name: Activate :one
select * from ojs.activate(@id::uuid, sqlc.narg('tenant')::text);

-- name: JobResults :many
select r.id, r.state, r.result::json as result, r.error::jsonb as error, r.result_stored_at,
    coalesce(r.result_expires_at, 'epoch')::timestamptz as result_expires_at,
    coalesce(r.result_size_bytes, 0)::int as result_size_bytes, r.pruned::boolean as pruned
from ojs.job_results(@ids::uuid[], sqlc.narg('tenant')::text, @max_bytes::bigint) r;

-- name: JobsOver :many
-- Of jobs those that have ended or are gone. The tenant '' stands for any.
select w.id::uuid as id, w.tenant_id::text as tenant_id
from (select unnest(@ids::uuid[]) as id, unnest(@tenants::text[]) as tenant_id) w
where not exists (select from ojs.job j where j.id = w.id and j.finished_at is null and w.tenant_id in ('', j.tenant_id));
