-- Noisy neighbours (multi-tenancy section 9): tenants that use so much more than other tenants that
-- they slow them down. The tick checks four signals once a minute. tenants/throttle.sql throttles
-- noisy tenants.

-- Sets when a tenant counts as noisy, and what is done about it.
-- Locks the row of ojs.neighbour_watch.
-- Writes neighbour_watch; with mode off neighbour, too.
create or replace function ojs.watch_neighbours(
    p_mode text default null, p_span interval default null, p_depth_ratio numeric default null, p_rate_ratio numeric default null,
    p_active_share numeric default null, p_error_ratio numeric default null, p_min_jobs int default null, p_min_active int default null,
    p_action text default null, p_factor numeric default null, p_lasts interval default null
) returns ojs.neighbour_watch
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_watch ojs.neighbour_watch;
begin
    if 'NaN' in (p_depth_ratio, p_rate_ratio, p_active_share, p_error_ratio, p_factor) then
        perform ojs._raise('OJ422', 'a ratio, a share and a factor must be numbers', '{"field": "ratio"}');
    end if;
    update ojs.neighbour_watch w
    set mode = coalesce(p_mode, w.mode), span = coalesce(p_span, w.span), depth_ratio = coalesce(p_depth_ratio, w.depth_ratio),
        rate_ratio = coalesce(p_rate_ratio, w.rate_ratio), active_share = coalesce(p_active_share, w.active_share),
        error_ratio = coalesce(p_error_ratio, w.error_ratio), min_jobs = coalesce(p_min_jobs, w.min_jobs),
        min_active = coalesce(p_min_active, w.min_active), action = coalesce(p_action, w.action), factor = coalesce(p_factor, w.factor),
        lasts = coalesce(p_lasts, w.lasts), looked_at = '-infinity'
    returning * into v_watch;
    delete from ojs.neighbour where v_watch.mode = 'off';
    return v_watch;
end;
$$;
comment on function ojs.watch_neighbours(
    text, interval, numeric, numeric, numeric, numeric, int, int, text, numeric, interval) is
'Sets when a tenant counts as noisy, and what is done about it; returns the settings.
The tick checks once a minute (multi-tenancy section 9.1). Null leaves a setting as it is. A
tenant is noisy if several tenants have work and one of these holds:
p_depth_ratio (10): its waiting jobs are more than this times the median.
p_rate_ratio (5): it enqueued, within p_span (5 minutes; 1 minute to 1 day), more than this times
the average of the other tenants.
p_active_share (0.5): its part of the active jobs is more than this, and than its share by weight,
while other tenants have available jobs.
p_error_ratio (3): its attempts failed more than this times as often as those of the other
tenants, which count as failing 1 in 100 at least.
p_min_jobs (1000), p_min_active (10): fewer jobs, or fewer active jobs for p_active_share, do not
make a tenant noisy.
p_mode: off; observe (default): ojs.noisy_neighbours and an event; on: the tenant is throttled,
too.
p_action: what a throttle lowers: weight (default), concurrency or rate.
p_factor (0.2): the part to which it is lowered.
p_lasts (10 minutes): how long a throttle lasts.
Raises validation_error.';

create or replace function ojs._look_at_neighbours(p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_watch ojs.neighbour_watch;
begin
    select * into v_watch from ojs.neighbour_watch w
    where w.mode <> 'off' and w.looked_at not between p_now - interval '1 minute' and p_now for update skip locked;
    if not found then
        return;
    end if;
    update ojs.neighbour_watch set looked_at = p_now;
    with seen as materialized (
        select s.* from ojs._signals(v_watch, p_now) s
    ), gone as (
        delete from ojs.neighbour n
        where not exists (select from seen s where s.tenant_id = n.tenant_id and s.signal = n.signal)
    ), kept as (
        insert into ojs.neighbour as n (tenant_id, signal, value, threshold, since, seen_at)
        select s.tenant_id, s.signal, s.value, s.threshold, p_now, p_now from seen s
        on conflict (tenant_id, signal) do update
        set value = excluded.value, threshold = excluded.threshold, seen_at = excluded.seen_at
        returning n.*
    )
    insert into ojs.notice (at, type, subject, data, ended_at)
    select p_now, 'tenant.noisy', k.tenant_id, jsonb_build_object('tenant_id', k.tenant_id, 'reason', k.signal || '_exceeded',
        'value', k.value::numeric, 'threshold', k.threshold::numeric), p_now
    from kept k where k.since = p_now;
end;
$$;
comment on function ojs._look_at_neighbours(timestamptz) is
'Checks, at most once a minute, which tenants are noisy, and notes an event for each that was not
noisy before. If another server does it, it does nothing.';

-- Reads all of ojs.tally, as keeping its history does.
create or replace function ojs._signals(p_watch ojs.neighbour_watch, p_now timestamptz)
returns table (tenant_id text, signal text, value numeric, threshold numeric)
language sql stable
as $$
    with load as materialized (
        select p.*, (c.n).entered, (c.n).dispatched, (c.n).failed,
            coalesce(u.alike, coalesce(t.weight, u.fallback) * coalesce(t.throttle, 1)) as weight
        from (
            select t.tenant_id, sum(t.available + t.scheduled + t.pending) as waiting, sum(t.available) as available,
                sum(t.active) as active, row(sum(t.total), sum(t.dispatched), sum(t.completed), sum(t.cancelled), sum(t.failed_jobs),
                    sum(t.failed))::ojs.counts as counts
            from ojs.tally t group by t.tenant_id
        ) p
        cross join lateral (select n from ojs._counts_since('', p.tenant_id, p.counts, p_now - p_watch.span) n) c
        left join ojs.tenant t on t.tenant_id = p.tenant_id
        cross join ojs._usual_weight u
        where p.waiting > 0 or p.active > 0 or (c.n).entered > 0
    ), sums as (
        select count(*) - 1 as others, percentile_disc(0.5) within group (order by l.waiting) as median, sum(l.available) as available,
            sum(l.active) as active, sum(l.entered) as entered, sum(l.dispatched) as dispatched, sum(l.failed) as failed,
            sum(l.weight) as weight
        from load l
    )
    select l.tenant_id, s.signal, round(s.value, 4), round(s.threshold, 4)
    from load l cross join sums a
    cross join lateral (
        select 'queue_depth_ratio' as signal, l.waiting >= p_watch.min_jobs as much, l.waiting / greatest(a.median, 1) as value,
            p_watch.depth_ratio as threshold
        union all
        select 'enqueue_rate_ratio', l.entered >= p_watch.min_jobs, l.entered / greatest((a.entered - l.entered) / a.others, 1),
            p_watch.rate_ratio
        union all
        select 'active_job_ratio', l.active >= p_watch.min_active and a.available > l.available, l.active / a.active,
            greatest(p_watch.active_share, l.weight / a.weight)
        union all
        select 'error_rate', l.dispatched >= p_watch.min_jobs, l.failed::numeric / l.dispatched
                / greatest((a.failed - l.failed) / nullif(a.dispatched - l.dispatched, 0), 0.01),
            p_watch.error_ratio
    ) s
    where a.others > 0 and s.much and s.value > s.threshold
$$;
comment on function ojs._signals(ojs.neighbour_watch, timestamptz) is
'The tenants that are noisy, by which signal, its value, and the threshold (ojs.watch_neighbours).';

create or replace view ojs.noisy_neighbours with (security_invoker = true) as
select n.tenant_id, n.signal, n.value, n.threshold, n.since, n.seen_at, h.until as throttled_until
from ojs.neighbour n left join ojs.throttle h on h.tenant_id = n.tenant_id;
comment on view ojs.noisy_neighbours is
'Tenants that used much more than the other tenants at the last check of the tick.
One row per tenant and signal (ojs.watch_neighbours).';
comment on column ojs.noisy_neighbours.tenant_id is 'The tenant.';
comment on column ojs.noisy_neighbours.signal is
'queue_depth_ratio: its waiting jobs, in multiples of the median. enqueue_rate_ratio: the jobs it
enqueued, in multiples of the other tenants'' average. active_job_ratio: its part of the active
jobs. error_rate: its part of failed attempts, in multiples of that of the other tenants.';
comment on column ojs.noisy_neighbours.value is 'The value of the signal.';
comment on column ojs.noisy_neighbours.threshold is 'The value above which the tenant is noisy.';
comment on column ojs.noisy_neighbours.since is 'Since when it has been noisy at each check.';
comment on column ojs.noisy_neighbours.seen_at is 'When it was last checked.';
comment on column ojs.noisy_neighbours.throttled_until is
'Until when the tenant is throttled; null: it is not.';
