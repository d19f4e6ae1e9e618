-- name: DefaultTenant :one
select default_tenant from ojs.settings;

-- name: Tick :one
with tick as (select ojs.tick(@batch::int, sqlc.narg('token')::text, @stride_ms::int, sqlc.narg('backend')::int) as done)
select (tick.done).promoted::int as promoted, (tick.done).reaped::int as reaped, (tick.done).rolled_up::int as rolled_up,
    (tick.done).next_in_ms::int as next_in_ms, (tick.done).on_duty::boolean as on_duty, (tick.done).unplanned::int as unplanned,
    exists (select from ojs.settings s where s.held_at is not null) as dispatch_held, clock_timestamp()::timestamptz as at
from tick;

-- name: NoteClock :exec
select ojs.note_clock(@server::text, @ahead_seconds::float8);

-- name: StandDown :one
select ojs.stand_down(@token::text)::boolean as was_on_duty;

-- name: Upkeep :one
with upkeep as (select ojs.upkeep() as done)
select coalesce((upkeep.done).task, '')::text as task, coalesce((upkeep.done).step, '')::text as step,
    (upkeep.done).next_in_ms::int as next_in_ms
from upkeep;

-- name: Reset :exec
select ojs._reset();
