-- Partitions of ojs.job, and how the last one is cut so that future jobs get a partition of their
-- own (docs/design/0001). Called by ojs.upkeep, which servers call all the time, and by operators.
-- ojs.drop_finished (upkeep/retention.sql) drops old partitions.

create or replace function ojs._id_at(p_at timestamptz) returns uuid
language sql immutable
as $$
    select (left(x.ms, 8) || '-' || right(x.ms, 4) || '-0000-0000-000000000000')::uuid
    from (
        select lpad(to_hex(least(greatest(floor(extract(epoch from p_at) * 1000), 0), 281474976710655)::bigint), 12, '0') as ms
    ) x
$$;
comment on function ojs._id_at(timestamptz) is
'The lowest UUIDv7 of a time, a bound between the ids made before it and those made from it on. A
time outside the range of such ids counts as the first or the last one.';

create or replace function ojs._id_time(p_id uuid) returns timestamptz
language sql immutable
as $$ select to_timestamp(('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) $$;
comment on function ojs._id_time(uuid) is 'The time in a UUIDv7.';

create or replace view ojs.job_partitions with (security_invoker = true) as
select c.relname as partition, ojs._id_time(b.lo) as from_at, ojs._id_time(b.hi) as until_at,
    greatest(c.reltuples, 0)::bigint as jobs, pg_total_relation_size(c.oid) as bytes, b.lo, b.hi
from pg_catalog.pg_inherits i
join pg_catalog.pg_class c on c.oid = i.inhrelid
cross join lateral (
    select substring(x.bound from 'FROM [(]''([^'']+)''[)]')::uuid as lo, substring(x.bound from 'TO [(]''([^'']+)''[)]')::uuid as hi
    from (select pg_get_expr(c.relpartbound, c.oid) as bound) x
) b
where i.inhparent = 'ojs.job'::regclass
order by b.lo nulls first;
comment on view ojs.job_partitions is
'Partitions of ojs.job, oldest first.
from_at, until_at: the times in the ids of its jobs; null: unbounded. A job''s id says when the
job was made, unless its producer chose another id.
jobs: how many, by PostgreSQL''s estimate.
bytes: with indexes and wide values.
lo, hi: the bounds of the ids.';

-- Makes the next step of cutting the last partition at p_at; a small partition is cut in one call,
-- a large one is read in a call before.
-- Locks ojs.cut against other cuts, then, waiting for 200 ms at most, ojs.job and its last
-- partition.
-- Writes ojs.cut; makes a partition, and moves up to 10000 jobs into it.
create or replace function ojs.cut_partition(p_at timestamptz) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms'
as $$
declare
    v_at   timestamptz := date_trunc('second', p_at);
    v_id   uuid := ojs._id_at(v_at);
    v_last record;
    v_cut  ojs.cut;
begin
    if v_at is null or v_at <= ojs.now() or v_at >= '10000-01-01 00:00Z' then
        perform ojs._raise('OJ400', 'at must be a time to come, before the year 10000', '{"field": "at"}');
    end if;
    if exists (select from ojs.job_partitions p where p.lo = v_id) then
        return format('done: a partition begins at %s already', ojs._utc(v_at));
    end if;
    lock table ojs.cut in share row exclusive mode;
    -- The partitions are read under the lock of ojs.cut: only one session at a time changes them.
    select p.partition, p.lo, ojs._cut_lead(p.partition) as lead into v_last from ojs.job_partitions p where p.hi is null;
    if v_id <= v_last.lo then
        perform ojs._raise('OJ409', format('the last partition, %s, begins at %s already; it can be cut at a later time only',
            v_last.partition, ojs._utc(ojs._id_time(v_last.lo))), '{"field": "at"}');
    end if;
    select * into v_cut from ojs.cut;
    if v_cut.cut_at <> v_at then
        return case when ojs._cut_undo() then 'again: another cut was being prepared' else ojs._in_use() end;
    end if;
    -- Up to 10000 later jobs move into the new partition; otherwise a client could stop the cut
    -- with one id from the future. A cut with a constraint allows none: the constraint could not be
    -- validated.
    perform ojs._refuse_later(v_last.partition, v_id, case when v_last.lead = '0' and v_cut.cut_at is null then 10000 else 0 end);
    if ojs._held_long(array['ojs.job', format('ojs.%I', v_last.partition)]::regclass[]::oid[]) then
        return ojs._in_use();
    end if;
    if v_cut.cut_at is null and v_last.lead > '0' then
        perform ojs._prepare_cut(v_at, v_last.partition, v_last.lead);
        return 'again: to read what is there';
    end if;
    if v_cut.cut_at is not null and not (select c.convalidated from pg_constraint c
            where c.conrelid = format('ojs.%I', v_cut.partition)::regclass and c.conname = 'job_cut') then
        execute format('alter table ojs.%I validate constraint job_cut', v_cut.partition);
        return 'again: to make the cut';
    end if;
    perform ojs._make_cut(v_at, v_last.partition, v_last.lo, v_cut.cut_at is not null);
    return format('done: cut %s; later jobs have a partition that begins at %s', v_last.partition, ojs._utc(v_at));
exception when lock_not_available then
    return ojs._in_use();
end;
$$;
comment on function ojs.cut_partition(timestamptz) is
'Cuts the last partition of ojs.job: jobs with ids made from p_at on get a new one.
One step per call. Returns what it did: done and what, or again and why; then call it again, in a
transaction of its own. A small partition (4 MB) takes one call, and up to 10000 jobs with later ids move; so cut early,
while the partition is empty. A larger one is read once, without a lock that other sessions wait
for; until the cut is made, jobs with ids after p_at are refused with backend_unavailable. It
waits for a lock for 200 ms at most, then returns again.
p_at: for a large partition, at least 10 minutes ahead and 1 more for each gigabyte; better a day.
ojs.upkeep gives up a cut when a quarter of that time, or 5 minutes, are left.
Raises invalid_request, conflict.';

create or replace function ojs._prepare_cut(p_at timestamptz, p_partition text, p_lead interval) returns void
language plpgsql
as $$
declare
    v_id uuid := ojs._id_at(p_at);
begin
    if p_at < ojs.now() + p_lead then
        perform ojs._raise('OJ400', format('at must be at least %s minutes ahead, since the last partition is large',
            extract(epoch from p_lead)::int / 60), '{"field": "at"}');
    end if;
    -- Without the lock, a job enqueued between the check and the constraint could violate the
    -- constraint, and could then not be changed.
    execute format('lock table ojs.%I in access exclusive mode', p_partition);
    perform ojs._refuse_later(p_partition, v_id, 0);
    -- The first half refuses later jobs with an error that says why. The second half lets
    -- PostgreSQL attach the partition again without reading it.
    execute format('alter table ojs.%1$I add constraint job_cut check ((id < %2$L or ojs._raise(%3$L, %4$L)) and id < %2$L) not valid',
        p_partition, v_id, 'OJ503', 'a partition is being cut, and holds no later ids meanwhile');
    insert into ojs.cut (cut_at, partition, undo_at)
    values (p_at, p_partition, p_at - greatest((p_at - ojs.now()) / 4, interval '5 minutes'));
end;
$$;
comment on function ojs._prepare_cut(timestamptz, text, interval) is
'Adds to a large partition the constraint that no id is later than the cut; a later call validates
it while other sessions work. Raises invalid_request if p_at is less than p_lead ahead, conflict
if there are later ids.';

create or replace function ojs._make_cut(p_at timestamptz, p_partition text, p_lo uuid, p_prepared boolean) returns void
language plpgsql
as $$
declare
    v_id   uuid := ojs._id_at(p_at);
    v_name text := 'job_from_' || to_char(p_at at time zone 'UTC', 'YYYYMMDD_HH24MISS');
begin
    lock table only ojs.job in access exclusive mode;
    execute format('alter table ojs.job detach partition ojs.%I', p_partition);
    execute format('create table ojs.%I partition of ojs.job for values from (%L) to (maxvalue) %s',
        v_name, v_id, ojs._storage_options(p_partition));
    perform ojs._protect_partition(v_name);
    if not p_prepared then
        -- With triggers the jobs that move would be journalled as new jobs.
        execute format('alter table ojs.%I disable trigger user', v_name);
        execute format('with moved as (delete from ojs.%I j where j.id >= %L returning j.*) insert into ojs.%I select m.* from moved m',
            p_partition, v_id, v_name);
        execute format('alter table ojs.%I enable trigger user', v_name);
    end if;
    execute format('alter table ojs.job attach partition ojs.%I for values from (%s) to (%L)',
        p_partition, coalesce(quote_literal(p_lo), 'minvalue'), v_id);
    if p_prepared then
        execute format('alter table ojs.%I drop constraint job_cut', p_partition);
    end if;
    delete from ojs.cut;
end;
$$;
comment on function ojs._make_cut(timestamptz, text, uuid, boolean) is
'Cuts the last partition, which begins at p_lo. p_prepared: a validated constraint says that no id
is later; else later jobs move into the new partition.';

create or replace function ojs._cut_undo() returns boolean
language plpgsql set lock_timeout = '200ms'
as $$
declare
    v_cut  ojs.cut;
    v_late boolean;
begin
    lock table ojs.cut in share row exclusive mode;
    select * into v_cut from ojs.cut;
    if not found then
        return true;
    end if;
    -- Short transactions that overlap can leave no gap for this lock. If later ids will be refused
    -- within a minute, let other sessions wait up to a second for it.
    v_late := v_cut.cut_at < ojs.now() + interval '1 minute';
    if ojs._held_long(array[format('ojs.%I', v_cut.partition)::regclass::oid], case when v_late then 10 else 1 end) then
        return false;
    end if;
    if v_late then
        set local lock_timeout = '1s';
    end if;
    execute format('alter table ojs.%I drop constraint if exists job_cut', v_cut.partition);
    delete from ojs.cut;
    return true;
exception when lock_not_available then
    return false;
end;
$$;
comment on function ojs._cut_undo() is
'Gives up the cut in preparation, if there is one: later ids are refused until it is made or given
up. False: another transaction holds the partition; try again.';

create or replace function ojs._cut_lead(p_table text) returns interval
language sql stable
as $$
    select case when b > 4 * 1024 * 1024 then make_interval(mins => (10 + b / 1073741824)::int) else interval '0' end
    from pg_relation_size(format('ojs.%I', p_table)::regclass) b
$$;
comment on function ojs._cut_lead(text) is
'How long before its time the cut of a partition has to begin: 10 minutes, and 1 for each gigabyte,
because a large partition is read for it. 0: up to 4 MB, which are cut in one call.';

create or replace function ojs._has_later(p_table text, p_id uuid, p_most int default 10000) returns boolean
language plpgsql stable
as $$
declare
    v_more boolean;
begin
    execute format('select exists (select from ojs.%I j where j.id >= $1 offset $2)', p_table) into v_more using p_id, p_most;
    return v_more;
end;
$$;
comment on function ojs._has_later(text, uuid, int) is
'Whether a partition holds more than p_most jobs with ids from p_id on, which clients chose.';

create or replace function ojs._refuse_later(p_table text, p_id uuid, p_most int) returns void
language plpgsql
as $$
begin
    if ojs._has_later(p_table, p_id, p_most) then
        perform ojs._raise('OJ409', format('%s holds jobs with ids later than that', p_table), '{"field": "at"}');
    end if;
end;
$$;
comment on function ojs._refuse_later(text, uuid, int) is
'Raises conflict if a partition holds more than p_most jobs with ids from p_id on.';

create or replace function ojs._held_long(p_tables oid[], p_tenths int default 1) returns boolean
language plpgsql
as $$
declare
    c_database constant oid := (select d.oid from pg_database d where d.datname = current_database());
    v_holders text[];
begin
    v_holders := array(
        select l.virtualtransaction from pg_locks l
        where l.database = c_database and l.relation = any (p_tables) and l.granted and l.pid is distinct from pg_backend_pid());
    for i in 1..p_tenths loop
        exit when cardinality(v_holders) = 0;
        perform pg_sleep(0.1);
        v_holders := array(
            select l.virtualtransaction from pg_locks l
            where l.database = c_database and l.relation = any (p_tables) and l.granted and l.virtualtransaction = any (v_holders));
    end loop;
    return cardinality(v_holders) > 0;
end;
$$;
comment on function ojs._held_long(oid[], int) is
'Whether one transaction has held a lock on one of the tables for p_tenths of a second. A request
for an exclusive lock would wait for it, and all other sessions would wait behind the request.';

create or replace function ojs._in_use() returns text
language sql immutable
as $$ select 'again: the table was in use' $$;
comment on function ojs._in_use() is
'The result of a step on partitions that gets no lock. ojs.upkeep then waits longer before the next
step.';

create or replace function ojs._protect_partition(p_table text) returns void
language plpgsql
as $$
declare
    v_column name;
begin
    execute format('alter table ojs.%I enable row level security', p_table);
    execute format('alter table ojs.%I force row level security', p_table);
    execute format('create policy functions on ojs.%I to ojs_owner using (true) with check (true)', p_table);
    execute format('comment on table ojs.%I is %L', p_table, 'A partition of ojs.job; see ojs.job_partitions.');
    for v_column in
        select a.attname from pg_attribute a
        where a.attrelid = 'ojs.job'::regclass and a.attnum > 0 and not a.attisdropped and a.attname <> 'seq'
    loop
        execute format('alter table ojs.%I alter column %I set statistics 0', p_table, v_column);
    end loop;
end;
$$;
comment on function ojs._protect_partition(text) is
'Gives a new partition what migrations gave the first: row security, and no planner statistics,
which would tell tenants about other tenants.';

create or replace function ojs._storage_options(p_table text) returns text
language sql stable
as $$
    select coalesce('with (' || array_to_string(c.reloptions, ', ') || ')', '')
    from pg_class c where c.oid = format('ojs.%I', p_table)::regclass
$$;
comment on function ojs._storage_options(text) is
'The storage parameters of a table, for a new table like it.';
