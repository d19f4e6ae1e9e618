-- The rest of ojs.doctor. A finding about many tenants, queues or workers names only the worst; the
-- view shows all.

create or replace function ojs._doctor_transactions() returns setof ojs.finding
language sql stable
as $$
    select s.severity::ojs.severity, 'transactions', s.finding, s.advice, 'long-transaction.md'
    from (select t.* from ojs.open_transactions t order by t.holds_lane desc, t.open_for desc nulls last limit 20) t
    cross join lateral (
        select s.* from (values
            (t.kind = 'prepared' and t.holds_lane, 'error',
                format('The prepared transaction %L of %s holds the lane: each FETCH waits for it in vain.', t.name, t.role_name),
                format('commit prepared %1$L, or rollback prepared %1$L', t.name)),
            (t.kind = 'session' and t.holds_lane and t.open_for > interval '1 second', 'error',
                format('Process %s (%s, application %L, %s) holds the lane: its transaction has been open since %s.', t.name, t.role_name,
                    t.application, t.state, date_trunc('second', clock_timestamp() - t.open_for)),
                format('select pg_terminate_backend(%s)', t.name)),
            -- A session that does nothing in its transaction is found sooner: it was forgotten, and
            -- the jobs that it has fetched or locked wait with it.
            (t.kind = 'session' and t.open_for > case when t.state like 'idle in transaction%' then interval '1 minute'
                    else interval '5 minutes' end,
                case when t.open_for > interval '1 hour' then 'error' else 'warning' end,
                format('Process %s (%s, application %L, %s) has had its transaction open for %s: vacuum removes nothing that is newer.',
                    t.name, t.role_name, t.application, t.state, date_trunc('second', t.open_for)),
                format('If it was forgotten: select pg_terminate_backend(%s)', t.name)),
            (t.kind = 'prepared' and t.open_for > interval '5 minutes', 'error',
                format('The prepared transaction %L is %s old: vacuum removes nothing that is newer.', t.name,
                    date_trunc('second', t.open_for)),
                format('commit prepared %1$L, or rollback prepared %1$L', t.name)),
            (t.kind = 'slot' and t.holds_back_xids > 1000000, 'warning',
                format('Replication slot %I keeps old rows, of %s transactions ago.', t.name, t.holds_back_xids),
                'Let its reader go on, or drop it with pg_drop_replication_slot.')
        ) s(holds, severity, finding, advice)
        where s.holds limit 1
    ) s
    union all
    -- The log that a slot keeps fills the disk, and then PostgreSQL stops. extended: because of the
    -- slot, the log is larger than max_wal_size.
    select 'warning', 'disk', format('Nobody reads replication slot %I, which keeps %s of the log (wal_status %s): the disk may fill up.',
            r.slot_name, coalesce(pg_size_pretty(r.kept), 'a part'), r.wal_status),
        format('Start its reader, or: select pg_drop_replication_slot(%L)', r.slot_name), 'disk-full.md'
    from (
        select r.slot_name, r.wal_status, pg_wal_lsn_diff(
            case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, r.restart_lsn) as kept
        from pg_catalog.pg_replication_slots r where not r.active
    ) r
    where r.kept > 1024 ^ 3 or r.wal_status in ('extended', 'unreserved', 'lost')
$$;
comment on function ojs._doctor_transactions() is
'The findings of ojs.doctor about transactions that stay open, and about replication slots that nobody
reads.';

create or replace function ojs._doctor_tables() returns setof ojs.finding
language sql stable
as $$
    (select 'warning'::ojs.severity, 'tables',
        format('Of ojs.%I %s %% are dead rows (%s of them); vacuum was there last: %s.', h.table_name, round(100 * h.dead_part),
            h.dead_rows, coalesce(h.vacuumed_at::text, 'never')),
        'Find what holds vacuum back; then vacuum the table.', 'bloat.md'
    from ojs.table_health h where h.dead_rows > 100000 and h.dead_part > 0.5 order by h.dead_rows desc limit 5)
    union all
    (select 'warning', 'tables', format('ojs.%I has %s for each of its %s rows: it is bloated.', h.table_name,
            pg_size_pretty(h.bytes_per_row::bigint), h.live_rows),
        'Find what held vacuum back; if it is over, vacuum (full) the table while nothing runs.', 'bloat.md'
    from ojs.table_health h
    where h.bytes > 256 * 1024 * 1024 and h.bytes_per_row > 65536 and not h.is_partition order by h.bytes desc limit 5)
    union all
    select 'warning', 'upkeep', format('The task %s is due since %s, and has failed %s times: %s.', u.task, u.due_at, u.failures,
            coalesce(u.last_step, 'it was never tried')),
        'The page tells what each step means.', 'drop-finished-jobs.md'
    from ojs.upkeep_status u
    cross join ojs.settings s
    where s.held_at is null and (u.failures >= case when u.last_step like 'failed%' then 3 else 20 end
        or isfinite(u.next_at) and u.next_at < ojs.now() - interval '10 minutes')
$$;
comment on function ojs._doctor_tables() is
'The findings of ojs.doctor about tables and partitions.';

create or replace function ojs._doctor_work() returns setof ojs.finding
language sql stable
as $$
    -- A worker that polls without waiting asks for the queue only now and then, so jobs that came
    -- a moment ago are no sign. Workers that were told to rest or end will not ask.
    (select case when q.directive = 'terminate' then 'error' else 'warning' end::ojs.severity, 'queues',
        concat_ws(' ', case when q.resting > 0 then format('All %s workers of queue %s rest or end', q.resting, q.queue)
                else format('No worker asks for queue %s', q.queue) end || format(': %s jobs of %s tenants wait, the first for %s.',
                q.available, q.tenants, date_trunc('second', w.oldest_wait)),
            q.told_by || format(' told the workers to %s at %s.',
                case q.directive when 'quiet' then 'rest (quiet)' else 'end (terminate)' end, date_trunc('second', q.told_at))),
        case when q.directive = 'terminate' then 'Start workers again: terminate is final for the processes that were told.'
            when q.resting > 0 then 'If it is not meant: ojs-pg admin direct running --all, or ojs.direct_workers(''running'').'
            else 'Start workers that serve it, or look whether they name another queue.' end, 'queue-stuck.md'
    from (select u.* from ojs.unserved_queues u order by u.available desc, u.queue limit 20) q
    cross join lateral (select max(s.oldest_wait) as oldest_wait from ojs.shard_stats s where s.queue = q.queue) w
    where q.directive is not null or w.oldest_wait > interval '2 minutes' order by q.available desc, q.queue limit 5)
    union all
    (select case when b.is_pause and b.since < ojs.now() - interval '1 hour' then 'warning' else 'note' end::ojs.severity, b.topic,
        format('%s is %s: %s jobs of %s tenants wait.', b.subject, case when b.is_pause
            then concat('paused since ', date_trunc('second', b.since), ' (' || b.detail || ')')
            else concat('at its limit', ' (' || b.detail || ')') end, b.available, b.tenants),
        case when b.is_pause then 'If it is not meant: ojs.resume.'
            else 'If it is not meant: ojs.limit_concurrency with a higher limit.' end,
        'job-waits.md'
    from (
        select o.is_pause, case when o.tenant_id is null then 'queues' else 'tenants' end as topic,
            coalesce('Tenant ' || o.tenant_id || coalesce(' in queue ' || o.queue, ''), 'Queue ' || o.queue, 'The whole system') as subject,
            min(o.since) as since, min(o.detail) as detail, sum(o.available) as available, count(distinct o.of_tenant) as tenants
        from (
            -- What is paused or limited is what the reason names: a tenant, a queue, both or all.
            select b.why like '%paused%' as is_pause, case when b.why like 'the tenant%' then b.tenant_id end as tenant_id,
                case when b.why like '%queue%' then b.queue end as queue, b.since, b.detail, b.available, b.tenant_id as of_tenant
            from ojs.blocked_tenants b where b.why like '%paused%' or b.why like '%limit%'
        ) o
        group by o.is_pause, o.tenant_id, o.queue
    ) b
    order by b.is_pause desc, b.available desc, b.subject limit 10)
    union all
    (select 'note', 'tenants', format('Tenant %s is throttled until %s: its %s is %s, without the throttle %s (%s).', h.tenant_id,
            date_trunc('second', h.until), h.action, h.effective, coalesce(h.original::text, 'not limited'),
            concat_ws(', by ', h.reason, h.set_by)),
        'ojs.release_throttle ends it now.', 'tenant-flooding.md'
    from ojs.throttles h order by h.since desc, h.tenant_id limit 5)
    union all
    (select 'warning', 'tenants', format('The first job of tenant %s in queue %s has waited for %s.', w.tenant_id, w.queue,
            date_trunc('second', w.oldest_wait)),
        'ojs.explain of that job says why.', 'job-waits.md'
    from ojs.longest_waits w where w.oldest_wait > interval '1 hour' order by w.oldest_wait desc, w.tenant_id limit 5)
    union all
    (select 'warning', 'tenants', format('Servers have refused %s requests of %s in ten minutes, beyond %s.', sum(r.requests),
            concat_ws(' in ', 'tenant ' || nullif(r.tenant_id, ''), 'queue ' || nullif(r.queue, '')), r.resource),
        'If it should have more: ojs.configure_limits, and more workers where it is a depth.', 'tenant-flooding.md'
    from ojs.refusals r where r.at > ojs.now() - interval '10 minutes'
    group by r.tenant_id, r.queue, r.resource order by sum(r.requests) desc, r.tenant_id limit 5)
    union all
    (select 'warning', 'tenants', format('Tenant %s has %s of the %s jobs that wait.', n.tenant_id, n.available, n.all),
        'Its weight and limits decide what others feel of it.', 'tenant-flooding.md'
    from (
        select n.tenant_id, sum(n.available) as available, sum(sum(n.available)) over () as all, count(*) over () as tenants
        from ojs._shard_numbers n where n.available > 0 group by n.tenant_id
    ) n
    where n.available > 100000 and n.tenants > 1 and n.available > n.all * 0.8
      and not exists (select from ojs.throttles h where h.tenant_id = n.tenant_id))
    union all
    select 'warning', 'tenants', format('%s tenants use much more than the others: %s%s.', count(*),
            string_agg(format('%s (%s)', n.tenant_id, n.signals), ', ' order by n.nth) filter (where n.nth <= 3),
            case when count(*) > 3 then ' and others' end),
        'ojs.noisy_neighbours has the numbers; ojs.throttle gives one less for a while.', 'tenant-flooding.md'
    from (
        select n.tenant_id, string_agg(n.signal, ', ' order by n.signal) as signals,
            row_number() over (order by min(n.since), n.tenant_id) as nth
        -- The tick looks for noisy neighbours. If no tick has run for 10 minutes, what it saw may
        -- be over.
        from ojs.noisy_neighbours n where n.seen_at > ojs.now() - interval '10 minutes'
          and not exists (select from ojs.throttles h where h.tenant_id = n.tenant_id)
        group by n.tenant_id
    ) n
    having count(*) > 0
$$;
comment on function ojs._doctor_work() is 'The findings of ojs.doctor about queues and tenants.';

create or replace function ojs._failing_types() returns table (queue text, job_type text, attempts bigint, jobs bigint, error text)
language plpgsql stable security definer rows 5 set search_path = pg_catalog, pg_temp
as $$
begin
    if not ojs._sees_all() then
        return;
    end if;
    return query
    with failed as materialized (
        select (n.r).queue, (n.r).job_type, count(*) as attempts, count(distinct (n.r).job_id) as jobs,
            (array_agg(n.r order by (n.r).xid desc, (n.r).seq desc))[1] as last
        from ojs._newest_releases('failure', null, null, 10000, null) n
        where (n.r).at > ojs.now() - interval '10 minutes'
        group by (n.r).queue, (n.r).job_type having count(*) >= 20
        order by count(*) desc limit 20
    )
    select f.queue, f.job_type, f.attempts, f.jobs, e.error ->> 'type'
    from failed f
    -- No journal has the types of completed jobs. So look at the jobs themselves: the last ones that
    -- were handed out from the queue.
    cross join lateral (
        select count(*) filter (where j.state = 'completed') as well,
            count(*) filter (where j.state not in ('completed', 'active')) as badly
        from (
            select distinct h.tenant_id, h.id
            from (
                select u.tenant_id, u.id
                from (select l.* from ojs.lease l where l.at > ojs.now() - interval '10 minutes' and l.queue = f.queue
                    order by l.at desc limit 1000) l
                cross join lateral unnest(l.tenants, l.ids) u(tenant_id, id)
                limit 1000
            ) h
        ) i
        cross join lateral (
            select j.state, j.type from ojs.job j where j.id = i.id and j.tenant_id = i.tenant_id limit 1
        ) j
        where j.type = f.job_type
    ) c
    cross join lateral ojs._failure(f.last) e
    where c.badly > c.well;
end;
$$;
comment on function ojs._failing_types() is
'Types of which at least 20 attempts failed in a queue within ten minutes, and of which more jobs
failed than were completed among the last 1,000 that the queue handed out. error: the type of the
last error. Empty for a tenant''s login. Reads jobs only if a type has so many failures.';

create or replace function ojs._doctor_failures() returns setof ojs.finding
language sql stable
as $$
    select 'warning'::ojs.severity, 'workers', format('%s workers are silent, such as %s.', count(*), min(w.worker_id)),
        'They are declared dead by themselves; ojs.remove_worker does it at once.', 'worker-died.md'
    from ojs.workers w where w.stale having count(*) > 0
    union all
    (select 'warning', 'workers',
        format('%s workers were declared dead within the last hour, such as %s, which ran %s jobs and was silent since %s.', l.workers,
            concat(l.worker_id, ' on host ' || l.hostname), coalesce(l.jobs, 0), date_trunc('second', l.last_heartbeat_at)),
        'Start it again; its jobs go to other workers. ojs.lost_workers lists all.', 'worker-died.md'
    from (
        select l.*, count(*) over () as workers from ojs.lost_workers l
        where l.lost_at > ojs.now() - interval '1 hour' and not l.is_back
    ) l
    order by l.jobs desc nulls last, l.lost_at desc limit 1)
    union all
    (select 'warning', 'workers',
        format('Attempts of type %s in queue %s of %s were lost: %s, of %s jobs, by %s.', l.job_type, l.queue,
            case when l.tenants = 1 then 'tenant ' || l.tenant_id else l.tenants || ' tenants' end, l.attempts, l.jobs, l.cause),
        case when l.attempts > 2 * l.jobs then 'The same jobs do it again and again: look for a poison job.'
            else 'Workers die or hang: look at their logs.' end,
        case when l.attempts > 2 * l.jobs then 'poison-job.md' else 'worker-died.md' end
    from (
        select l.queue, l.job_type, l.cause, sum(l.attempts) as attempts, sum(l.jobs) as jobs, count(*) as tenants,
            min(l.tenant_id) as tenant_id
        from ojs.lost_attempts l where l.last_at > ojs.now() - interval '1 hour' group by l.queue, l.job_type, l.cause
    ) l
    where l.attempts >= 10 order by l.attempts desc limit 5)
    union all
    (select 'warning', 'dead letters',
        format('%s jobs of type %s in queue %s of tenant %s are dead letters with %s, the last of %s.', e.jobs,
            e.type, e.queue, e.tenant_id, e.error_type, e.last_at),
        'Look at one with ojs.dead_letter_info; retry them when the cause is gone.', 'dead-letters.md'
    from ojs.dead_letter_errors e where e.last_at > ojs.now() - interval '1 hour' and e.jobs >= 100 order by e.jobs desc limit 5)
    union all
    (select 'warning', 'jobs',
        format('Jobs of type %s in queue %s fail: %s attempts of %s jobs failed in ten minutes, the last with %s.', t.job_type, t.queue,
            t.attempts, t.jobs, t.error),
        'The page has the query that tells the errors apart; ojs.pause stops the queue.', 'dead-letters.md'
    from ojs._failing_types() t order by t.attempts desc, t.queue, t.job_type limit 5)
    union all
    (select 'warning', 'jobs',
        format('In queue %s %s of %s attempts that ended in ten minutes failed.', q.queue, (c.n).failed, (c.n).failed + (c.n).completed),
        'The page has the query that tells the errors apart.', 'dead-letters.md'
    from (
        select t.queue, row(sum(t.total), sum(t.dispatched), sum(t.completed), sum(t.cancelled), sum(t.failed_jobs),
            sum(t.failed))::ojs.counts as counts
        from ojs.tally t group by t.queue having sum(t.failed) >= 20
    ) q
    cross join lateral (select n from ojs._counts_since(q.queue, '', q.counts, ojs.now() - interval '10 minutes') n) c
    where (c.n).failed >= 20 and (c.n).failed > (c.n).completed order by (c.n).failed desc, q.queue limit 5)
$$;
comment on function ojs._doctor_failures() is
'The findings of ojs.doctor about workers and about jobs that fail.';
