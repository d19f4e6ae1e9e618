-- name: SchemaHashes :one
select coalesce(ojs.schema_hash(), '')::text as stored, coalesce(ojs.schema_hash(@version::bigint), '')::text as at_version;

-- name: SchemaRelease :one
select release, needs_server, code_hash from ojs.schema_release;

-- name: Unfit :one
select coalesce(ojs._unfit(), '')::text as what;

-- name: SchemaChanging :one
select ojs.schema_changing()::boolean as changing;

-- name: Problems :many
select sqlstate, code, http_status, retryable, title, hint from ojs.problem;
