-- name: DeadLetters :many
select * from ojs.dead_letters(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, @max_rows::int, @skipped::int,
    sqlc.narg('tenant')::text, @max_bytes::bigint);

-- name: DeadLetterCount :one
select ojs.dead_letter_count(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, sqlc.narg('tenant')::text)::bigint as jobs;

-- name: DeadLetterInfo :one
select * from ojs.dead_letter_info(@id::uuid, sqlc.narg('tenant')::text);

-- name: DeadLetterStats :one
select ojs.dead_letter_stats(sqlc.narg('tenant')::text)::jsonb as stats;

-- name: RetryDeadLetter :one
select * from ojs.retry_dead_letter(@id::uuid, sqlc.narg('override')::json, sqlc.narg('tenant')::text);

-- name: Retry :one
select * from ojs.retry(@id::uuid, sqlc.narg('override')::json, sqlc.narg('tenant')::text);

-- name: RetryDeadLetters :one
select ojs.retry_dead_letters(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, @max_jobs::int, sqlc.narg('tenant')::text)::int as jobs;

-- name: RetryMany :one
select ojs.retry_many(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, @max_jobs::int, sqlc.narg('tenant')::text)::int as jobs;

-- name: FailedCount :one
select ojs.failed_count(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, sqlc.narg('tenant')::text)::bigint as jobs;

-- name: DeleteDeadLetter :one
select * from ojs.delete_dead_letter(@id::uuid, sqlc.narg('tenant')::text);

-- name: PurgeDeadLetters :one
select ojs.purge_dead_letters(sqlc.narg('queue')::text, sqlc.narg('type')::text, sqlc.narg('error_type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, @max_jobs::int, sqlc.narg('tenant')::text)::int as jobs;

-- name: Ago :one
select (ojs.now() - make_interval(secs => @age_seconds::float8))::timestamptz as at;
