-- name: PutCron :one
-- The function takes meta, retry, options and extra as one type; text keeps the bytes of each.
select * from ojs.put_cron(@name::text, @expression::text, @type::text, @args::json, @timezone::text, @queue::text, @priority::int,
    (@meta::jsonb)::text, (sqlc.narg('retry')::jsonb)::text, sqlc.narg('max_attempts')::int, sqlc.narg('timeout_ms')::int,
    sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tags')::text[], (sqlc.narg('options')::json)::text,
    (sqlc.narg('extra')::json)::text,
    @overlap_policy::text, @catch_up::text, sqlc.narg('enabled')::boolean, sqlc.narg('description')::text, sqlc.narg('tenant')::text);

-- name: ConfigureCron :one
select * from ojs.configure_cron(@name::text, sqlc.narg('enabled')::boolean, sqlc.narg('expression')::text,
    sqlc.narg('timezone')::text, sqlc.narg('overlap_policy')::text, sqlc.narg('catch_up')::text,
    sqlc.narg('description')::text, sqlc.narg('tenant')::text);

-- name: DeleteCron :one
select * from ojs.delete_cron(@name::text, sqlc.narg('tenant')::text);

-- name: TriggerCron :one
select * from ojs.trigger_cron(@name::text, sqlc.narg('tenant')::text);

-- name: GetCron :one
select * from ojs.cron_info(@name::text, sqlc.narg('tenant')::text);

-- name: Crons :many
-- A page ends before the cron job that would make it larger than max_bytes, but has at least one.
select sqlc.embed(c), p.total
from (
    select k.id, k.total, row_number() over page as place,
        sum(octet_length(concat(k.args, k.meta, k.retry, k.options, k.extra, k.tags, k.description))) over page as size
    from (
        select c.*, count(*) over () as total
        from ojs.cron c
        where (sqlc.narg('tenant')::text is null or c.tenant_id = sqlc.narg('tenant'))
            and (sqlc.narg('enabled')::boolean is null or c.enabled = sqlc.narg('enabled'))
        order by c.name, c.tenant_id
        limit @max_rows::int offset @skip::int
    ) k
    window page as (order by k.name, k.tenant_id)
) p
join ojs.cron c on c.id = p.id
where p.place = 1 or p.size <= @max_bytes::bigint
order by c.name, c.tenant_id;

-- name: CronRuns :many
select due_at, at, manual, missed, job_id, reason, message, blocker, count(*) over () as total
from ojs.cron_run
where tenant_id = @tenant::text and name = @name::text
order by due_at desc
limit @max_rows::int offset @skip::int;

-- name: UnplannedCrons :many
select c.id::uuid as id, c.rev::bigint as rev, c.expression::text as expression, c.timezone::text as timezone,
    c.anchor_at::timestamptz as anchor_at, c.after_at::timestamptz as after_at
from ojs.unplanned_crons(@max_rows::int) c(id, rev, expression, timezone, anchor_at, after_at);

-- name: PlanCron :many
select * from ojs.plan_cron(@id::uuid, @rev::bigint, @upcoming::timestamptz[], sqlc.narg('error')::text, @left_out::timestamptz[]);

-- name: CronElsewhere :one
-- Whether a cron job of that name, of a tenant or of any, makes its jobs in other queues than
-- these.
select exists (select from ojs.cron c
    where c.name = @name::text and (c.tenant_id = sqlc.narg('tenant')::text) is not false and c.queue <> all (@queues::text[]));
