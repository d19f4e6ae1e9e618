-- How finished jobs are removed: whole partitions of ojs.job are dropped. Jobs that have to stay
-- move into a small replacement (job_before_...); the old partition is renamed (job_dropped_...),
-- and the next call drops it. Dead letters move to ojs.dead_job before. Called by ojs.upkeep, and
-- by operators.

-- Makes the next step of dropping jobs that ended before p_before.
-- Locks ojs.cut against other cuts; dead letters (skip locked) or, waiting for 200 ms at most,
-- ojs.job and the partitions to be dropped.
-- Writes ojs.dead_job and ojs.dead_letter, or makes and drops partitions and writes ojs.timer for
-- jobs that moved.
create or replace function ojs.drop_finished(p_before timestamptz, p_keep int default 0) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms'
as $$
declare
    v_name  text;
    v_until timestamptz;
    v_old   record;
    v_jobs  int;
begin
    if p_before is null or p_before > ojs.now() then
        perform ojs._raise('OJ400', 'before must be a time that has passed', '{"field": "before"}');
    end if;
    if p_keep is null or p_keep not between 0 and 10000 then
        perform ojs._raise('OJ400', 'keep must be an integer between 0 and 10000', '{"field": "keep"}');
    end if;
    -- From here on no other session cuts or drops partitions.
    lock table ojs.cut in share row exclusive mode;
    -- First drop a partition that an earlier call has taken out.
    v_name := (select min(d) from ojs._detached_partitions() d);
    if v_name is not null then
        perform ojs._move_latecomers(v_name, p_before);
        execute format('drop table ojs.%I', v_name);
        return format('again: dropped %s, which held jobs that had ended', v_name);
    end if;
    select max(p.until_at) into v_until from ojs.job_partitions p
    where p.hi <= ojs._id_at(p_before) and not ojs._is_replacement(p.partition);
    if v_until is null then
        return ojs._nothing_to_drop(p_before);
    end if;
    -- Dead letters stay when their partition is dropped, and there may be many: move up to 1000 per
    -- call.
    v_jobs := ojs._put_aside(ojs._id_at(v_until));
    if v_jobs > 0 then
        return format('again: put %s dead letters aside', v_jobs);
    end if;
    v_old := ojs._choose_partitions(p_before, p_keep);
    if v_old.o_partitions is null then
        return ojs._nothing_to_drop(p_before);
    end if;
    if ojs._held_long('ojs.job'::regclass::oid || array(select format('ojs.%I', p)::regclass::oid from unnest(v_old.o_partitions) p)) then
        return ojs._in_use();
    end if;
    perform ojs._replace_partitions(v_old.o_partitions, v_old.o_lo, v_old.o_hi, v_old.o_ids, p_before);
    perform ojs._audit(null, 'jobs', null, 'purged', null,
        jsonb_build_object('before', ojs._utc(p_before), 'partitions', v_old.o_partitions))
    where pg_has_role(session_user, 'ojs_operator', 'member') and not ojs._trusted();
    return format('again: took out %s with %s jobs kept, to drop next', array_to_string(v_old.o_partitions, ', '),
        cardinality(v_old.o_ids));
exception when lock_not_available then
    return ojs._in_use();
end;
$$;
comment on function ojs.drop_finished(timestamptz, int) is
'Drops the partitions of ojs.job that hold only ids made before p_before.
With them the jobs that ended before p_before are gone. One step per call. Returns what it did: done
and why, or again and what; then call it again, in a transaction of its own. Dead letters move to
ojs.dead_job, 1000 per step. Statistics keep counting dropped jobs. It reads partitions without a lock that other
sessions wait for; then it waits for such a lock for 200 ms at most, and not while another
transaction has held the table for 100 ms.
p_keep: how many other jobs may move into a new partition that replaces the dropped ones, default
0, at most 10000. A partition with more of them stays. If only such partitions are left, it raises
conflict; the detail names some of these jobs.
Raises invalid_request, conflict.';

create or replace function ojs._nothing_to_drop(p_before timestamptz) returns text
language sql stable
as $$
    -- A partition goes as a whole, so the answer says until when the oldest one takes jobs.
    select 'done: no partition ends before ' || ojs._utc(p_before) || coalesce((
        select format('; the first, %s, ends %s', p.partition, coalesce(ojs._utc(p.until_at), 'never: ojs.cut_partition ends it'))
        from ojs.job_partitions p where not ojs._is_replacement(p.partition) order by p.lo nulls first limit 1), '')
$$;
comment on function ojs._nothing_to_drop(timestamptz) is
'Returns the answer of ojs.drop_finished when it has nothing to drop.';

create or replace function ojs._choose_partitions(
    p_before timestamptz, p_keep int, out o_partitions name[], out o_lo uuid, out o_hi uuid, out o_ids uuid[]
)
language plpgsql
as $$
declare
    v_part  record;
    v_ids   uuid[];
    v_worth boolean := false;
    v_full  name;
    v_some  uuid[];
begin
    o_partitions := '{}';
    o_ids := '{}';
    -- A job that has ended stays ended, so these are all that have to stay, except jobs that are
    -- inserted or retried later (_move_latecomers).
    for v_part in
        select p.partition, p.lo, p.hi, ojs._is_replacement(p.partition) as replacement
        from ojs.job_partitions p where p.hi <= ojs._id_at(p_before) order by p.lo nulls first
    loop
        execute format('select array(select j.id from ojs.%I j where ojs._has_to_stay(j.state, j.finished_at, $1) limit %s)',
            v_part.partition, p_keep + 1) into v_ids using p_before;
        if v_worth and cardinality(o_ids) + cardinality(v_ids) > p_keep then
            exit;
        elsif cardinality(v_ids) > p_keep then
            -- This partition stays, so a replacement before it cannot join partitions after it.
            if not v_part.replacement and v_full is null then
                v_full := v_part.partition;
                v_some := v_ids[:10];
            end if;
            o_partitions := '{}';
            o_ids := '{}';
            continue;
        elsif o_partitions = '{}' or cardinality(o_ids) + cardinality(v_ids) > p_keep then
            o_partitions := '{}';
            o_ids := '{}';
            o_lo := v_part.lo;
        end if;
        o_partitions := o_partitions || v_part.partition;
        o_ids := o_ids || v_ids;
        o_hi := v_part.hi;
        v_worth := v_worth or not v_part.replacement;
    end loop;
    if not v_worth then
        o_partitions := null;
        if v_full is not null then
            perform ojs._raise('OJ409', format('%s holds more than %s jobs that have not ended, or not long ago', v_full, p_keep),
                jsonb_build_object('partition', v_full, 'job_ids', v_some));
        end if;
    end if;
end;
$$;
comment on function ojs._choose_partitions(timestamptz, int) is
'The next adjacent partitions that can be replaced together, because the jobs to keep fit into one:
their names, oldest first, their bounds, and the jobs to keep. o_partitions null: there are none.
Raises conflict if every old partition has more than p_keep jobs to keep.';

create or replace function ojs._replace_partitions(p_partitions name[], p_lo uuid, p_hi uuid, p_ids uuid[], p_before timestamptz)
returns void
language plpgsql
as $$
declare
    v_name text := 'job_before_' || to_char(ojs._id_time(p_hi) at time zone 'UTC', 'YYYYMMDD_HH24MISS');
    v_part record;
begin
    -- From here on all sessions that use jobs wait, until this transaction ends.
    lock table only ojs.job in access exclusive mode;
    execute format('create table ojs.%I (like ojs.job including defaults including constraints including indexes) %s',
        v_name, ojs._storage_options((select p.partition from ojs.job_partitions p where p.hi is null)));
    for v_part in select p as name, format('ojs.%I', p)::regclass::oid as oid from unnest(p_partitions) p loop
        execute format('alter table ojs.job detach partition ojs.%I', v_part.name);
        execute format('insert into ojs.%I select j.* from ojs.%I j
            where j.id = any ($1) and ojs._has_to_stay(j.state, j.finished_at, $2)', v_name, v_part.name) using p_ids, p_before;
        execute format('alter table ojs.%I rename to %I', v_part.name, 'job_dropped_' || v_part.oid);
    end loop;
    execute format('alter table ojs.job attach partition ojs.%I for values from (%s) to (%L)',
        v_name, coalesce(quote_literal(p_lo), 'minvalue'), p_hi);
    perform ojs._protect_partition(v_name);
end;
$$;
comment on function ojs._replace_partitions(name[], uuid, uuid, uuid[], timestamptz) is
'Makes one new partition in place of adjacent old ones, moves those of the jobs p_ids into it that
still have to stay, and renames the old ones.';

create or replace function ojs._move_latecomers(p_table text, p_before timestamptz) returns int
language plpgsql set lock_timeout = '200ms'
as $$
declare
    v_where constant text := $w$
        (ojs._has_to_stay(j.state, j.finished_at, $1)
            or j.state = 'discarded'
                and exists (select from ojs.dead_letter d where d.id = j.id and d.tenant_id = j.tenant_id and not d.aside))
        and not exists (select from ojs.job k where k.id = j.id and k.tenant_id = j.tenant_id)$w$;
    v_id    uuid;
    v_home  name;
    v_rows  int;
begin
    execute format('select j.id from ojs.%I j where %s limit 1', p_table, v_where) into v_id using p_before;
    if v_id is null then
        return 0;
    end if;
    select p.partition into v_home from ojs.job_partitions p where (p.lo is null or p.lo <= v_id) and v_id < p.hi;
    -- With triggers they would be journalled as new jobs.
    execute format('alter table ojs.%I disable trigger user', v_home);
    execute format($f$
        with moved as (
            insert into ojs.%I select j.* from ojs.%I j where %s returning *
        )
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select ojs.now(), case m.state when 'active' then 'lease' when 'available' then 'revisit' else 'due' end::ojs.timer_kind,
            array[m.tenant_id], array[m.id]
        from moved m where m.state in ('active', 'available', 'scheduled', 'retryable')
        $f$, v_home, p_table, v_where) using p_before;
    get diagnostics v_rows = row_count;
    execute format('alter table ojs.%I enable trigger user', v_home);
    return v_rows;
end;
$$;
comment on function ojs._move_latecomers(text, timestamptz) is
'Moves jobs from a partition that was taken out into its replacement: jobs that were inserted,
became active again or became dead letters while it was being taken out. Sets timers for jobs that
the clock has to look at, and returns how many these are.';

create or replace function ojs._put_aside(p_before uuid) returns int
language plpgsql
as $$
declare
    v_jobs int;
begin
    with held as materialized (
        select j.id, j.tenant_id
        from (
            -- This limit keeps the direction of the join: dead letters first, then one index lookup
            -- of each job.
            select d.id, d.tenant_id from ojs.dead_letter d where d.id < p_before and not d.aside order by d.id limit 2147483647
        ) d
        cross join lateral (
            select j.id, j.tenant_id from ojs.job j
            where j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'discarded' for update skip locked
        ) j
        limit 1000
    ), moved as (
        delete from ojs.job j using held h where j.id = h.id and j.tenant_id = h.tenant_id returning j.*
    ), kept as (
        insert into ojs.dead_job select m.* from moved m
    ), marked as (
        update ojs.dead_letter d set aside = true from held h where d.id = h.id and d.tenant_id = h.tenant_id
    )
    select count(*) into v_jobs from held;
    return v_jobs;
end;
$$;
comment on function ojs._put_aside(uuid) is
'Moves up to 1000 dead letters with ids before p_before from ojs.job to ojs.dead_job, and returns
how many.';

create or replace function ojs._has_to_stay(p_state ojs.job_state, p_finished_at timestamptz, p_before timestamptz) returns boolean
language sql immutable
as $$ select not ojs._ended(p_state) or p_finished_at >= p_before $$;
comment on function ojs._has_to_stay(ojs.job_state, timestamptz, timestamptz) is
'Whether a job is kept when its partition is dropped: it has not ended, or it ended at p_before or
later. Becomes part of the query that asks.';

create or replace function ojs._is_replacement(p_partition name) returns boolean
language sql immutable
as $$ select starts_with(p_partition, 'job_before_') $$;
comment on function ojs._is_replacement(name) is
'Whether a partition holds jobs kept from dropped ones.';

create or replace function ojs._detached_partitions() returns setof name
language sql stable
as $$
    select c.relname from pg_catalog.pg_class c
    where c.relnamespace = 'ojs'::regnamespace and starts_with(c.relname, 'job_dropped_') and c.relkind = 'r'
$$;
comment on function ojs._detached_partitions() is
'Partitions that have been taken out of ojs.job and are to be dropped.';
