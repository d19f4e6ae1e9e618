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
            (t.kind = 'session' and t.open_for > interval '5 minutes',
                case when t.open_for > interval '1 hour' then 'error' else 'warning' end,
                format('Process %s (%s, %s) has had its transaction open for %s: vacuum removes nothing that is newer.', t.name,
                    t.role_name, t.state, date_trunc('second', t.open_for)),
                format('If nobody needs it: select pg_terminate_backend(%s)', t.name)),
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
    (select 'warning'::ojs.severity, 'queues',
        format('Nobody asks for queue %s: %s jobs of %s tenants wait.', q.queue, q.available, q.tenants),
        'Start workers that serve it, or look whether they rest or name another queue.', 'queue-stuck.md'
    from ojs.unserved_queues q order by q.available desc, q.queue limit 5)
    union all
    (select 'warning', 'tenants', format('Of tenant %s %s jobs of queue %s wait: %s%s.', b.tenant_id, b.available, b.queue, b.why,
            coalesce(' since ' || b.since, '')),
        'If it is not meant: ojs.resume.', 'job-waits.md'
    from ojs.blocked_tenants b where b.why like '%paused%' and b.since < ojs.now() - interval '1 hour'
    order by b.since, b.tenant_id, b.queue limit 5)
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
    where n.available > 100000 and n.tenants > 1 and n.available > n.all * 0.8)
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
        from ojs.noisy_neighbours n where n.seen_at > ojs.now() - interval '10 minutes' group by n.tenant_id
    ) n
    having count(*) > 0
$$;
comment on function ojs._doctor_work() is 'The findings of ojs.doctor about queues and tenants.';

create or replace function ojs._doctor_failures() returns setof ojs.finding
language sql stable
as $$
    select 'warning'::ojs.severity, 'workers', format('%s workers are silent, such as %s.', count(*), min(w.worker_id)),
        'They are declared dead by themselves; ojs.remove_worker does it at once.', 'worker-died.md'
    from ojs.workers w where w.stale having count(*) > 0
    union all
    (select 'warning', 'workers',
        format('Attempts of type %s in queue %s of tenant %s were lost: %s, of %s jobs, by %s.', l.job_type, l.queue, l.tenant_id,
            l.attempts, l.jobs, l.cause),
        case when l.attempts > 2 * l.jobs then 'The same jobs do it again and again: look for a poison job.'
            else 'Workers die or hang: look at their logs.' end,
        case when l.attempts > 2 * l.jobs then 'poison-job.md' else 'worker-died.md' end
    from ojs.lost_attempts l where l.last_at > ojs.now() - interval '1 hour' and l.attempts >= 10 order by l.attempts desc limit 5)
    union all
    (select 'warning', 'dead letters',
        format('%s jobs of type %s in queue %s of tenant %s are dead letters with %s, the last of %s.', e.jobs,
            e.type, e.queue, e.tenant_id, e.error_type, e.last_at),
        'Look at one with ojs.dead_letter_info; retry them when the cause is gone.', 'dead-letters.md'
    from ojs.dead_letter_errors e where e.last_at > ojs.now() - interval '1 hour' and e.jobs >= 100 order by e.jobs desc limit 5)
    union all
    (select 'warning', 'jobs',
        format('In queue %s %s of %s attempts that ended in ten minutes failed.', q.queue, (c.n).failed, (c.n).failed + (c.n).completed),
        'The page has the query that tells the errors apart.', 'dead-letters.md'
    from (
        select t.queue, row(sum(t.total), sum(t.dispatched), sum(t.completed), sum(t.cancelled), sum(t.discarded),
            sum(t.failed))::ojs.counts as counts
        from ojs.tally t group by t.queue having sum(t.failed) >= 20
    ) q
    cross join lateral (select n from ojs._counts_since(q.queue, '', q.counts, ojs.now() - interval '10 minutes') n) c
    where (c.n).failed >= 20 and (c.n).failed > (c.n).completed order by (c.n).failed desc, q.queue limit 5)
$$;
comment on function ojs._doctor_failures() is
'The findings of ojs.doctor about workers and about jobs that fail.';
