-- What ojs.doctor says about memory that all sessions of the cluster share: the NOTIFY queue and the
-- lock table. When the lock table is full, each statement fails that locks a table which all
-- databases share (pg_authid, pg_database), or more than 16 tables and indexes. So these functions
-- read pg_locks and functions of PostgreSQL, but not pg_stat_activity, which reads both.

create or replace function ojs._named_session(p_pid int) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_session record;
    v_role    text;
begin
    select a.usesysid, a.application_name, a.backend_start, a.xact_start into v_session
    from pg_stat_get_activity(p_pid) a where a.pid = p_pid;
    begin
        v_role := pg_get_userbyid(v_session.usesysid);
    exception when out_of_memory then
        v_role := 'with oid ' || v_session.usesysid;
    end;
    return case when p_pid is null then 'prepared transactions' else format('process %s (%s)', p_pid, concat_ws(', ', 'role ' || v_role,
        'application ' || quote_literal(nullif(v_session.application_name, '')),
        'in a transaction since ' || date_trunc('second', v_session.xact_start),
        case when v_session.xact_start is null then 'connected since ' || date_trunc('second', v_session.backend_start) end)) end;
end;
$$;
comment on function ojs._named_session(int) is
'A session as a finding names it: process, role, application, and since when, if the caller may see
that (pg_read_all_stats). Null: prepared transactions.';

create or replace function ojs._doctor_server() returns setof ojs.finding
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_usage float8 := pg_notification_queue_usage();
    -- Locks that are not fastpath, which alone take up the table.
    v_locks bigint := (select count(*) from pg_catalog.pg_locks l where not l.fastpath);
    v_room  bigint := current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int);
    v_pids  int[];
begin
    if v_usage > 0.5 then
        v_pids := array(select a.pid from pg_stat_get_activity(null) a
            where a.pid <> pg_backend_pid() and (a.xact_start is not null or a.backend_xmin is not null) and a.usesysid is not null
            order by a.xact_start nulls last, a.pid limit 3);
        return next ('error', 'server', format('PostgreSQL''s NOTIFY queue is %s %% full: commits notify no server, which look every 2 '
                || 'seconds instead. A session that listens keeps it while its transaction is open. The oldest transactions: %s.',
                round(100 * v_usage), coalesce(nullif(array_to_string(array(select ojs._named_session(p) from unnest(v_pids) p), '; '), ''),
                'not visible to this role')),
            coalesce(format('If it has run LISTEN: select pg_terminate_backend(%s)', v_pids[1]),
                format('grant pg_read_all_stats to %I, and look again.', session_user)), 'locks-or-notify-full.md')::ojs.finding;
    end if;
    if v_locks > 0.8 * v_room then
        v_pids := array(select l.pid from pg_catalog.pg_locks l where not l.fastpath and l.pid is distinct from pg_backend_pid()
            group by l.pid order by count(*) desc, l.pid limit 3);
        return next ('error', 'server', format('PostgreSQL''s lock table is nearly full: %s locks, and it is made for %s. When it is full, '
                || 'all tenants'' calls fail (SQLSTATE 53200). Most locks are held by %s.', v_locks, v_room,
                array_to_string(array(select format('%s: %s', ojs._named_session(p.pid),
                    (select count(*) from pg_catalog.pg_locks l where not l.fastpath and l.pid is not distinct from p.pid))
                    from unnest(v_pids) p(pid)), '; ')),
            coalesce(format('select pg_terminate_backend(%1$s). If that fails for lack of locks, on PostgreSQL''s machine: kill -TERM %1$s',
                v_pids[1]),
                'commit prepared or rollback prepared: select * from pg_prepared_xacts'), 'locks-or-notify-full.md')::ojs.finding;
    end if;
end;
$$;
comment on function ojs._doctor_server() is
'The findings of ojs.doctor about the NOTIFY queue and the lock table. Works while the lock table is
full.';
