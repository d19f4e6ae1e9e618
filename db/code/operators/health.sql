-- The state of the database: its tables, transactions that stay open, and the clock.

create or replace view ojs.table_health with (security_invoker = true) as
select s.relname::text as table_name, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows,
    round(s.n_dead_tup::numeric / nullif(s.n_live_tup + s.n_dead_tup, 0), 4) as dead_part,
    pg_total_relation_size(s.relid) as bytes, round(pg_total_relation_size(s.relid)::numeric / nullif(s.n_live_tup, 0)) as bytes_per_row,
    i.inhrelid is not null as is_partition, greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
    s.vacuum_count + s.autovacuum_count as vacuums, greatest(s.last_analyze, s.last_autoanalyze) as analyzed_at,
    age(c.relfrozenxid)::bigint as unfrozen_xids
from pg_catalog.pg_stat_user_tables s
join pg_catalog.pg_class c on c.oid = s.relid
left join pg_catalog.pg_inherits i on i.inhrelid = s.relid
where s.schemaname = 'ojs' and c.relkind = 'r';
comment on view ojs.table_health is
'Tables of the schema, by PostgreSQL''s statistics, which are some seconds old.
Each partition of ojs.job has a row.';
comment on column ojs.table_health.table_name is 'The table.';
comment on column ojs.table_health.live_rows is 'How many rows it has, by an estimate.';
comment on column ojs.table_health.dead_rows is
'How many row versions wait for vacuum, by an estimate.';
comment on column ojs.table_health.dead_part is
'The dead rows'' part of all row versions; null: there are none.';
comment on column ojs.table_health.bytes is 'Its size with indexes and wide values, bytes.';
comment on column ojs.table_health.bytes_per_row is
'Bytes for each row; null: it has no rows. If this grows while the number of rows does not, the
table is bloated: vacuum has freed space that is not used again.';
comment on column ojs.table_health.is_partition is 'Whether it is a partition of ojs.job.';
comment on column ojs.table_health.vacuumed_at is 'When it was last vacuumed; null: never.';
comment on column ojs.table_health.vacuums is 'How often it was vacuumed.';
comment on column ojs.table_health.analyzed_at is
'When its statistics were last made; null: never.';
comment on column ojs.table_health.unfrozen_xids is
'How many transactions ago the oldest row was written that is not frozen; PostgreSQL stops at two
billion.';

create or replace function ojs._lane_holders() returns table (pid int, xid xid)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    -- FOR UPDATE writes the id of its transaction, or of a subtransaction, into the row (xmax). It
    -- stays there after the transaction has ended, so ask for the transaction's status.
    with lane as (
        select l.xmax as xid, pg_xact_status((n.next - (n.next - l.xmax::text::bigint + 2147483648) % 4294967296
            + 2147483648)::text::xid8) as status
        from ojs.lane l
        cross join (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint) n(next)
        where l.lane = 0
    -- Sessions that tried in vain to lock the row hold this lock on the table, too.
    ), tried as (
        select l.pid, x.transactionid as xid, coalesce(bool_or(x.transactionid = n.xid) over (), false) as known,
            exists (select from pg_catalog.pg_locks w where w.pid = l.pid and not w.granted) as waits
        from lane n
        cross join pg_catalog.pg_locks l
        join pg_catalog.pg_locks x on x.virtualtransaction = l.virtualtransaction and x.locktype = 'transactionid' and x.granted
        where n.status = 'in progress' and l.relation = 'ojs.lane'::regclass and l.mode = 'RowShareLock' and l.granted
          and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    )
    select t.pid, t.xid from tried t join lane n on t.xid = n.xid or not t.known and not t.waits
$$;
comment on function ojs._lane_holders() is
'Returns the transaction that holds the lane, with its process; pid null: a prepared transaction.
No row: the lane is free. If a subtransaction locked it, all transactions that may be its parent:
those that tried to lock the lane and wait for nothing.';

create or replace view ojs.open_transactions with (security_invoker = true) as
-- Reading all locks is expensive, so find the holder once.
with holder (pid, xid) as (select h.* from ojs._lane_holders() h)
select 'session' as kind, a.pid::text as name, a.usename::text as role_name, a.application_name as application, a.state,
    clock_timestamp() - a.xact_start as open_for,
    greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as holds_back_xids,
    a.pid = any (array(select h.pid from holder h)) is true as holds_lane,
    a.wait_event_type = 'Lock' as waits, left(a.query, 200) as query
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and (a.xact_start is not null or a.backend_xmin is not null)
union all
select 'prepared', p.gid, p.owner::text, null, 'prepared', clock_timestamp() - p.prepared, age(p.transaction)::bigint,
    p.transaction = any (array(select h.xid from holder h)), false, null
from pg_catalog.pg_prepared_xacts p where p.database = current_database()
union all
select 'slot', r.slot_name::text, null, r.plugin::text, case when r.active then 'active' else 'inactive' end, null,
    greatest(age(r.xmin), age(r.catalog_xmin))::bigint, false, false, null
from pg_catalog.pg_replication_slots r where r.xmin is not null or r.catalog_xmin is not null;
comment on view ojs.open_transactions is
'Open transactions that keep vacuum from removing old rows, or hold up dispatch.
Transactions of this database, prepared transactions and replication slots. PostgreSQL shows only
to members of pg_read_all_stats how long the transactions of other roles have been open, and their
statements.';
comment on column ojs.open_transactions.kind is
'session, prepared (a transaction prepared for two-phase commit), or slot (of replication).';
comment on column ojs.open_transactions.name is
'For a session the process id, for pg_terminate_backend; for a prepared transaction its name, for
rollback prepared; for a slot its name.';
comment on column ojs.open_transactions.role_name is 'The role that owns it; null: no role.';
comment on column ojs.open_transactions.application is
'The application_name of the session; the plugin of a slot.';
comment on column ojs.open_transactions.state is 'Its state; idle in transaction: it does nothing.';
comment on column ojs.open_transactions.open_for is 'How long it has been open; null: not known.';
comment on column ojs.open_transactions.holds_back_xids is
'How many transactions ago the oldest rows were current that it keeps; null: it keeps none.';
comment on column ojs.open_transactions.holds_lane is
'Whether it holds the lane: each FETCH waits for it in vain, and then takes jobs without the lane.';
comment on column ojs.open_transactions.waits is 'Whether it waits for a lock itself.';
comment on column ojs.open_transactions.query is 'The beginning of its last statement.';

create or replace function ojs._clock_lag(
    out timers_late interval, out leases_late interval, out journal_rows bigint, out rolled_up_ago interval, out restored boolean
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := ojs.now();
    v_at   timestamptz;
    v_oldest timestamptz;
    v_mark ojs.clock_mark := (select m from ojs.clock_mark m order by m.rev desc limit 1);
    v_roll ojs.tally_mark := (select t from ojs.tally_mark t order by t.rev desc limit 1);
begin
    timers_late := greatest(v_now - (select t.due_at from ojs.timer t where t.due_at >= v_mark.due_at order by t.due_at limit 1), '0');
    leases_late := greatest(v_now - (select l.due_at from ojs.lease l where l.due_at >= v_mark.lease_at order by l.due_at limit 1), '0');
    restored := ojs._foreign(v_roll.snapshot) or (select ojs._copied(f) from ojs._folded() f);
    if not restored then
        journal_rows := (select count(*) from (select from ojs._unfolded() limit 10001) u);
        v_at := greatest(v_roll.at, (select d.since from ojs.duty d));
        -- The mark stays where it is while nothing happens, so that the first change after an idle hour
        -- would look an hour late. 10,000 changes are enough to tell that a roll-up is late.
        v_oldest := (select min(s.at) from (select m.at from ojs._since(v_roll.snapshot, null, false) m limit 10000) s);
        rolled_up_ago := case when v_oldest is null then '0' when isfinite(v_at) then greatest(v_now - greatest(v_at, v_oldest), '0') end;
    end if;
end;
$$;
comment on function ojs._clock_lag() is
'The columns of ojs.clock_status that come from private tables.';

create or replace view ojs.clock_status with (security_invoker = true) as
select coalesce(d.on_duty, false) as on_duty, d.since, d.backend, s.held_at, c.timers_late, c.leases_late, c.journal_rows, c.rolled_up_ago,
    c.restored
from ojs.settings s
cross join ojs._clock_lag() c
left join (select u.since, u.backend, u.expires_at > ojs.now() as on_duty from ojs.duty u) d on true;
comment on view ojs.clock_status is
'Whether a server on duty runs the clock, and how late it is. One row.';
comment on column ojs.clock_status.on_duty is 'Whether a server is on duty.';
comment on column ojs.clock_status.since is 'Since when a server is, or was last, on duty.';
comment on column ojs.clock_status.backend is
'The process of that server''s listening connection; null: it has none.';
comment on column ojs.clock_status.held_at is
'Since when dispatch is held, and the clock stands still; null: it is not held.';
comment on column ojs.clock_status.timers_late is
'How long the first timer has been due; 0: none is due yet; null: there is none.';
comment on column ojs.clock_status.leases_late is
'How long ago the first lease ended that the clock has not looked at; 0: none has ended; null:
there is none.';
comment on column ojs.clock_status.journal_rows is
'Rows of ojs.journal that the next decision has to fold; 10001: more than 10,000.';
comment on column ojs.clock_status.rolled_up_ago is
'For how long changes have waited until ojs.tally is brought up to date, by a server that was on duty
all the time; 0: none waits; null: it never was.';
comment on column ojs.clock_status.restored is
'Whether the rows come from another cluster: the next tick begins dispatch anew.';
