-- Deletes everything that clients have stored, for conformance runs.
-- Locks ojs.lane, then all tables that it empties.
-- Writes them, the fold and the settings.
create or replace function ojs._reset() returns void
language plpgsql set lock_timeout = '100ms'
as $$
declare
    v_tables text;
begin
    -- Without the lane, a decision could be writing to the tables while they are emptied.
    perform from ojs.lane for update;
    select string_agg(format('ojs.%I', c.relname), ', ' order by c.relname) into strict v_tables
    from pg_catalog.pg_class c
    where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
      and c.relname not in ('problem', 'schema_hash', 'schema_release', 'code', 'lane', 'fold', 'tally_mark',
          'clock_mark', 'cut', 'upkeep_task', 'settings',
          'waiter', 'sleeper', 'duty', 'dead_letter_mark', 'tenant_role', 'neighbour_watch');
    execute 'truncate ' || v_tables;
    drop type if exists ojs._job_rules;
    update ojs.fold set part_xid = null, part_lo = null;
    delete from ojs.settings;
    insert into ojs.settings default values;
    delete from ojs.neighbour_watch;
    insert into ojs.neighbour_watch default values;
end;
$$;
comment on function ojs._reset() is
'Deletes everything that clients have stored; for a superuser. Three kinds of tables stay: those
that belong to the schema (problems, its hash, the lane), those of servers that run (which queues
they wait for), and marks of how far a journal has been read: they stay true when the journal is
empty. Servers take their locks in another order, so it gives up after 100 ms (55P03, 40P01): try
again.';
