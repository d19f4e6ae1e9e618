-- name: Explain :one
select to_jsonb(e) as explanation from ojs.explain(@id::uuid, sqlc.narg('tenant')::text) e;

-- name: PreviewWeight :many
select p.tenant_id::text as tenant_id, p.weight_now::float8 as weight_now, p.weight_then::float8 as weight_then,
    p.share_now::float8 as share_now, p.share_then::float8 as share_then
from ojs.preview_weight(@tenant::text, @weight::numeric) p;

-- name: TopQueues :many
-- The queues with the largest backlog, for a screen.
select s.queue as name, s.available as backlog, s.active, s.dispatched_1m::bigint as dispatched_1m,
    coalesce(s.ratio_1m, 0)::float8 as ratio_1m, coalesce(extract(epoch from s.oldest_wait), 0)::float8 as oldest_wait_seconds,
    (r.paused_at is not null)::boolean as paused
from ojs.scheduling_stats s left join ojs.rule r on r.tenant_id = '' and r.queue = s.queue
order by s.available desc, s.active desc, s.queue limit @max_rows::int;

-- name: TopTenants :many
-- The tenants with the largest backlog, for a screen.
select s.tenant_id as id, s.weight::float8 as weight, s.available as backlog, s.active, s.dispatched_1m::bigint as dispatched_1m,
    coalesce(s.ideal_share, 0)::float8 as ideal_share, coalesce(s.share_1m, 0)::float8 as share_1m
from ojs.tenant_shares s
order by s.available desc, s.active desc, s.tenant_id limit @max_rows::int;

-- name: TopWaits :many
-- How long the oldest available job of some tenants has waited, which costs more than their other
-- numbers.
select s.tenant_id as id, coalesce(extract(epoch from max(s.oldest_wait)), 0)::float8 as oldest_wait_seconds
from ojs.shard_stats s
where s.tenant_id = any (@names::text[]) group by s.tenant_id;
