comment on type ojs.severity is
'How bad a finding is. note: worth knowing; warning: will cause trouble; error: jobs do not run as
they should, or may be lost.';
comment on type ojs.finding is
'A finding of ojs.doctor: how bad it is, its topic, the finding, what to do, and the page of
docs/runbooks about it.';

-- Lists problems, the worst first; no row if there are none.
-- Locks nothing.
-- Reads only, what the views of operators read.
create or replace function ojs.doctor(p_max_conns int default null, p_servers int default 1) returns setof ojs.finding
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    -- First: the other checks may fail for what it finds.
    v_found ojs.finding[] := array(select f from ojs._doctor_server() f);
begin
    begin
        -- If a group is missing, as after a restore, asking for its members is an error. So report
        -- only that.
        if exists (select from unnest('{ojs_owner,ojs_service,ojs_operator,ojs_producer,ojs_worker,ojs_tenant}'::text[]) g
                where to_regrole(g) is null) then
            v_found := v_found || array(select f from ojs._doctor_privileges() f);
        else
            v_found := v_found || array(
                select f from ojs._doctor_settings(p_max_conns, p_servers) f
                union all
                select f from ojs._doctor_roles() f
                union all
                select f from ojs._doctor_privileges() f
                union all
                select f from ojs._doctor_clock() f
                union all
                select f from ojs._doctor_transactions() f
                union all
                select f from ojs._doctor_tables() f
                union all
                select f from ojs._doctor_work() f
                union all
                select f from ojs._doctor_failures() f);
        end if;
    exception when out_of_memory then
        v_found := v_found || row('error', 'server', format('The other checks could not be made: %s.', sqlerrm),
            'End the session that holds most locks, and look again.', 'locks-or-notify-full.md')::ojs.finding;
    end;
    return query select f.* from unnest(v_found) f order by f.severity desc, f.topic, f.finding;
end;
$$;
comment on function ojs.doctor(int, int) is
'Lists problems with the database, its settings, the clock and the work, the worst first.
It works while PostgreSQL''s lock table is full, and then names the sessions that fill it.
No row: no problem. Costs as much as ojs.shard_stats. It sees transactions of other roles if its
caller is a member of pg_read_all_stats.
p_max_conns, p_servers: the --max-conns of each server, and how many servers there are. With them
it checks whether PostgreSQL has enough connections.';

create or replace function ojs._doctor_settings(p_max_conns int, p_servers int) returns setof ojs.finding
language sql stable
as $$
    with has as (
        select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as room,
            (select count(*) from pg_catalog.pg_stat_activity a where a.backend_type = 'client backend') as used,
            p_max_conns + 2 as each
    )
    select s.severity::ojs.severity, 'settings', s.finding, s.advice, s.runbook
    from (values
        (current_setting('fsync') = 'off', 'error', 'fsync is off: when the machine stops, the database may be lost with all jobs.',
            'Set fsync = on.', 'maintenance.md'),
        (current_setting('full_page_writes') = 'off', 'error',
            'full_page_writes is off: when the machine stops in the middle of a write, pages may be torn.', 'Set full_page_writes = on.',
            'maintenance.md'),
        (current_setting('synchronous_commit') = 'off', 'warning',
            'synchronous_commit is off: jobs that were accepted in the last moment before a crash are lost, and some run twice.',
            'Set synchronous_commit = on, for this database or for the role of the server.', 'maintenance.md'),
        (current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off', 'error',
            'autovacuum does not run (autovacuum or track_counts is off): small tables that change all the time grow without bounds.',
            'Set autovacuum = on and track_counts = on.', 'bloat.md'),
        (current_setting('server_encoding') <> 'UTF8', 'error',
            'The encoding of the database is not UTF8: jobs with other characters fail.',
            'Move the jobs to a database that is made with encoding UTF8.', 'backup-and-restore.md'),
        ((select r.postgres <> current_setting('server_version_num')::int / 10000 from ojs.schema_release r), 'warning',
            (select format('The functions were made for PostgreSQL %s, and some would be faster on this one.', r.postgres)
                from ojs.schema_release r),
            'Run ojs-pg migrate up.', 'upgrade.md'),
        ((select h.used >= h.room * 0.9 from has h), 'error',
            (select format('%s of %s connections are taken: servers will be refused.', h.used, h.room) from has h),
            'Lower --max-conns, put PgBouncer between, or raise max_connections.', 'postgres-away.md'),
        ((select h.each * p_servers > h.room from has h), 'warning',
            (select format('%s servers may open %s connections, and PostgreSQL has %s.', p_servers, h.each * p_servers, h.room) from has h),
            'Lower --max-conns, put PgBouncer between, or raise max_connections.', 'postgres-away.md'),
        (current_setting('idle_in_transaction_session_timeout')::interval = '0', 'note',
            'idle_in_transaction_session_timeout is 0: a forgotten transaction stays open until its session is ended.',
            'Set it for the roles of producers, to some minutes.', 'long-transaction.md'),
        ((select age(d.datfrozenxid) > 1000000000 from pg_catalog.pg_database d where d.datname = current_database()), 'error',
            'Vacuum has not frozen the oldest rows for a billion transactions: at two billion PostgreSQL stops.',
            'Find what holds vacuum back, then vacuum (freeze) the oldest tables.', 'bloat.md')
    ) s(holds, severity, finding, advice, runbook)
    where s.holds
    union all
    -- ojs-pg sets these for its own sessions, except behind a pooler. Other programs that call the
    -- functions get the values set here.
    select case when c.name in ('row_security', 'default_transaction_read_only') then 'error' else 'warning' end::ojs.severity, 'settings',
        format('Sessions of %s begin with %s = %s: %s.', o.whose, c.name, c.value, c.means),
        format('alter %s reset %s', o.whose, c.name), 'maintenance.md'
    from pg_catalog.pg_db_role_setting d
    left join pg_catalog.pg_roles r on r.oid = d.setrole
    cross join lateral (
        select concat_ws(' in ', case when d.setrole <> 0 then format('role %I', r.rolname) when d.setdatabase = 0 then 'role all' end,
            case when d.setdatabase <> 0 then format('database %I', current_database()) end) as whose
    ) o
    cross join lateral (
        select split_part(e, '=', 1) as name, substr(e, strpos(e, '=') + 1) as value from unnest(d.setconfig) e
    ) x
    cross join lateral (
        select x.name, x.value, case
            when x.name = 'default_transaction_isolation' and x.value <> 'read committed' then
                'ojs.fetch and changes of the configuration are refused'
            when x.name = 'client_encoding' and pg_char_to_encoding(x.value) <> pg_char_to_encoding('UTF8') then
                'one job with a character that it lacks makes each ojs.fetch of its queue fail'
            when x.name = 'row_security' and not x.value::boolean then 'each call of a function and each read of a view is an error'
            -- A single role may be that of a producer with two-phase commit.
            when x.name = 'ojs.notify' and x.value = 'off' and d.setrole = 0 then
                'no commit wakes a FETCH that waits, which finds a job up to 25 seconds later'
            -- A single role may be meant to read only.
            when x.name = 'default_transaction_read_only' and x.value::boolean and d.setrole = 0 then 'no session can enqueue or fetch' end
            as means
    ) c
    where d.setdatabase in (0, (select b.oid from pg_catalog.pg_database b where b.datname = current_database())) and c.means is not null
      and (d.setrole = 0 or r.rolcanlogin and not r.rolsuper and exists (
        select from unnest('{ojs_service,ojs_operator,ojs_producer,ojs_worker,ojs_tenant}'::text[]) g
        where pg_has_role(r.oid, g, 'member')))
$$;
comment on function ojs._doctor_settings(int, int) is
'The findings of ojs.doctor about PostgreSQL''s settings.';

create or replace function ojs._doctor_roles() returns setof ojs.finding
language sql stable
as $$
    with login as (
        select r.rolname, r.rolsuper, r.rolbypassrls, pg_has_role(r.oid, 'ojs_service', 'member') as serves,
            pg_has_role(r.oid, 'ojs_operator', 'member') or pg_has_role(r.oid, 'ojs_producer', 'member')
                or pg_has_role(r.oid, 'ojs_worker', 'member') as sees_all, pg_has_role(r.oid, 'ojs_tenant', 'member') as is_tenant,
            (select string_agg(c, ', ') from pg_catalog.pg_db_role_setting s cross join lateral unnest(s.setconfig) c
                where s.setrole = r.oid and s.setdatabase in (0, (select d.oid from pg_catalog.pg_database d
                    where d.datname = current_database())) and c ~ '^(statement|transaction)_timeout=' and c !~ '=0') as cut_by
        from pg_catalog.pg_roles r where r.rolcanlogin
    )
    select 'error'::ojs.severity, 'roles',
        format('Role %I is a tenant''s and also a member of another group: it sees jobs of all tenants.', l.rolname),
        format('revoke the group from it, such as: revoke ojs_service from %I', l.rolname), 'maintenance.md'
    from login l where l.is_tenant and (l.serves or l.sees_all) and not l.rolsuper
    union all
    select 'error', 'roles', format('Role %I is a tenant''s and passes row security: it sees all tenants.', l.rolname),
        format('alter role %I nobypassrls', l.rolname), 'maintenance.md'
    from login l where l.is_tenant and l.rolbypassrls and not l.rolsuper
    union all
    select 'warning', 'roles',
        format('Statements of role %I, which serves, are cut off by %s: the upkeep may need hours.', l.rolname, l.cut_by),
        format('alter role %I reset statement_timeout; the server limits its statements itself.', l.rolname), 'drop-finished-jobs.md'
    from login l where l.serves and l.cut_by is not null and not l.rolsuper
    union all
    select 'note', 'roles', 'No role but superusers can log in as the server.',
        'Run scripts/server-role.sql, and let servers log in as that role: they need no more.', 'maintenance.md'
    where not exists (select from login l where l.serves and not l.rolsuper)
    union all
    select 'note', 'roles', 'This role may not see how long others'' transactions have been open: nothing is said of them.',
        format('grant pg_read_all_stats to %I', session_user), 'long-transaction.md'
    where not pg_has_role(session_user, 'pg_read_all_stats', 'usage')
    union all
    select 'note', 'roles', 'This role may not end sessions of other roles: pg_terminate_backend is refused.',
        format('grant pg_signal_backend to %I', session_user), 'long-transaction.md'
    where not pg_has_role(session_user, 'pg_signal_backend', 'usage')
$$;
comment on function ojs._doctor_roles() is 'The findings of ojs.doctor about roles.';

create or replace function ojs._doctor_clock() returns setof ojs.finding
language sql stable
as $$
    select s.severity::ojs.severity, s.topic, s.finding, s.advice, s.runbook
    from ojs.clock_status c
    cross join lateral (select greatest(c.timers_late, c.leases_late) as late) l
    cross join lateral (values
        (ojs.schema_hash() is null, 'error', 'schema', 'The schema is not complete: rows that belong to it are missing.',
            'Take an empty database, and run ojs-pg migrate up.', 'failed-migration.md'),
        (ojs.schema_changing(), 'note', 'schema', 'A migration is under way, or was begun within the last minute.',
            'Wait for it.', 'upgrade.md'),
        (c.held_at is not null, 'error', 'dispatch', format('Dispatch is held since %s: nothing runs.', c.held_at),
            'Look at what would run, then call ojs.resume_dispatch().', 'after-restore.md'),
        (c.restored, 'error', 'dispatch',
            'The database was restored from another cluster, and no tick has run since: fetches are refused.',
            'Start a server, or call ojs.tick().', 'backup-and-restore.md'),
        (c.held_at is null and not c.on_duty, 'error', 'clock',
            'No server is on duty: nothing that is due happens, no retry, no cron job, no lease that ends.',
            'Start ojs-pg serve, or look at its log; until then call ojs.tick().', 'lost-server.md'),
        (c.held_at is null and c.on_duty and l.late > interval '10 seconds', 'error', 'clock',
            format('The clock is %s late.', date_trunc('second', l.late)),
            'Look at the log of the server on duty, and for what holds its statements up.', 'lost-server.md'),
        (c.held_at is null and c.on_duty and c.rolled_up_ago > interval '30 seconds', 'warning', 'clock',
            format('Changes have waited for %s to be added to the statistics: reading them becomes slow.',
                date_trunc('second', c.rolled_up_ago)),
            'Look at the log of the server on duty, and for what holds its statements up.', 'lost-server.md'),
        (c.journal_rows > 10000, 'warning', 'clock', 'More than 10,000 rows of the journal wait for a decision.',
            'Look for a transaction that holds the lane, or a large one that has just committed.', 'long-transaction.md')
    ) s(holds, severity, topic, finding, advice, runbook)
    where s.holds
    union all
    select 'warning', 'clock', format('The clock of server %s is %s %s PostgreSQL''s: tokens are refused or pass too long, and '
            || 'times over HTTP such as +PT5M are off by as much.', c.server, date_trunc('second', greatest(c.ahead, -c.ahead)),
            case when c.ahead > interval '0' then 'ahead of' else 'behind' end),
        'Let NTP set the clocks of both machines.', 'lost-server.md'
    from ojs.server_clock c
    where c.noted_at between clock_timestamp() - interval '3 minutes' and clock_timestamp()
$$;
comment on function ojs._doctor_clock() is
'The findings of ojs.doctor about the schema, the clock and dispatch.';
