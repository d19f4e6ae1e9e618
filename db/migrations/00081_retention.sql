-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Becomes part of the query that asks.
-- +goose StatementBegin
create function ojs._stays(p_state ojs.job_state, p_finished_at timestamptz, p_before timestamptz) returns boolean
language sql immutable
as $$ select p_state not in ('completed', 'cancelled', 'discarded') or p_finished_at >= p_before $$;
-- +goose StatementEnd
comment on function ojs._stays(ojs.job_state, timestamptz, timestamptz) is
'Whether a job is kept when its partition is dropped: it has not ended, or only from p_before on.';

-- +goose StatementBegin
create function ojs._rescue(p_table text, p_before timestamptz) returns int
language plpgsql set lock_timeout = '200ms'
as $$
declare
    v_where constant text := $w$(ojs._stays(j.state, j.finished_at, $1) or j.state = 'discarded' and exists (select from ojs.dead_letter d where d.id = j.id and d.tenant_id = j.tenant_id and not d.aside))
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
    -- Not as new jobs: the journal knows them.
    execute format('alter table ojs.%I disable trigger user', v_home);
    execute format($f$
        with moved as (
            insert into ojs.%I select j.* from ojs.%I j where %s returning *
        )
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select ojs.now(), case when m.state = 'active' then 'lease' when m.state = 'available' then 'again' else 'due' end::ojs.timer_kind, array[m.tenant_id], array[m.id]
        from moved m where m.state in ('active', 'available', 'scheduled', 'retryable')
        $f$, v_home, p_table, v_where) using p_before;
    get diagnostics v_rows = row_count;
    execute format('alter table ojs.%I enable trigger user', v_home);
    return v_rows;
end;
$$;
-- +goose StatementEnd
comment on function ojs._rescue(text, timestamptz) is
'Moves jobs that came into a partition, or back to life, or into the dead letter queue at the moment it was taken out into the one in its
place, and has the clock look at them. Returns how many of them it will look at.';

-- +goose StatementBegin
create function ojs._put_aside(p_before uuid) returns int
language plpgsql
as $$
declare
    v_jobs int;
begin
    with held as materialized (
        select j.id, j.tenant_id
        from (select d.id, d.tenant_id from ojs.dead_letter d where d.id < p_before and not d.aside order by d.id limit 2147483647) d
        cross join lateral (select j.id, j.tenant_id from ojs.job j where j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'discarded' for update skip locked) j
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
-- +goose StatementEnd
comment on function ojs._put_aside(uuid) is 'Moves up to 1000 dead letters with ids before p_before out of ojs.job, and returns how many.';

-- +goose StatementBegin
create function ojs.drop_finished(p_before timestamptz, p_keep int default 0) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms'
as $$
declare
    v_old     record;
    v_part    record;
    v_parts   name[] := '{}';
    v_lo      uuid;
    v_hi      uuid;
    v_until   timestamptz;
    v_worth   boolean := false;
    v_full    name;
    v_name    text;
    v_storage text;
    v_some    uuid[];
    v_ids     uuid[] := '{}';
begin
    if p_before is null or p_before > ojs.now() then
        perform ojs._raise('OJ400', 'before must be a time that has passed', '{"field": "before"}');
    end if;
    if p_keep is null or p_keep not between 0 and 10000 then
        perform ojs._raise('OJ400', 'keep must be an integer between 0 and 10000', '{"field": "keep"}');
    end if;
    lock table ojs.cut in share row exclusive mode;
    -- What an earlier call has taken out.
    for v_old in select c.relname from pg_class c where c.relnamespace = 'ojs'::regnamespace and c.relname like 'job\_dropped\_%' and c.relkind = 'r' order by c.relname limit 1 loop
        perform ojs._rescue(v_old.relname, p_before);
        execute format('drop table ojs.%I', v_old.relname);
        return 'again: dropped ' || v_old.relname;
    end loop;

    select max(p.until_at) into v_until from ojs.job_partitions p where p.hi <= ojs._id_at(p_before) and p.partition not like 'job\_before\_%';
    if v_until is null then
        return 'done';
    end if;
    -- Dead letters stay when their partition goes, and there may be many.
    if ojs._put_aside(ojs._id_at(v_until)) > 0 then
        return 'again: put dead letters aside';
    end if;
    -- Neighbours are replaced together, as far as what they have to keep goes into one. A job that has ended stays so: those found here are all there
    -- will be, except for new ones and dead letters come or retried meanwhile, which are looked for again before the drop.
    for v_part in select p.partition, p.lo, p.hi from ojs.job_partitions p where p.hi <= ojs._id_at(p_before) order by p.lo nulls first loop
        execute format('select array(select j.id from ojs.%I j where ojs._stays(j.state, j.finished_at, $1) limit %s)', v_part.partition, p_keep + 1) into v_some using p_before;
        if cardinality(v_some) > p_keep then
            exit when v_worth;
            if v_part.partition not like 'job\_before\_%' and v_full is null then
                v_full := v_part.partition;
                v_old := row(v_some[:10]);
            end if;
            v_parts := '{}';
            v_ids := '{}';
        elsif cardinality(v_ids) + cardinality(v_some) > p_keep and v_worth then
            exit;
        else
            if cardinality(v_parts) = 0 or cardinality(v_ids) + cardinality(v_some) > p_keep then
                v_parts := '{}';
                v_ids := '{}';
                v_lo := v_part.lo;
            end if;
            v_parts := v_parts || v_part.partition;
            v_ids := v_ids || v_some;
            v_hi := v_part.hi;
            v_worth := v_worth or v_part.partition not like 'job\_before\_%';
        end if;
    end loop;
    if not v_worth then
        if v_full is not null then
            perform ojs._raise('OJ409', format('%s holds more than %s jobs that have not ended, or not long ago', v_full, p_keep), jsonb_build_object('partition', v_full, 'job_ids', v_old.f1));
        end if;
        return 'done';
    end if;
    if ojs._held_long('ojs.job'::regclass::oid || array(select format('ojs.%I', p)::regclass::oid from unnest(v_parts) p)) then
        return 'again: the table was in use';
    end if;

    lock table only ojs.job in access exclusive mode;
    v_storage := ojs._storage((select p.partition from ojs.job_partitions p where p.hi is null));
    v_name := 'job_before_' || to_char(ojs._id_time(v_hi) at time zone 'UTC', 'YYYYMMDD_HH24MISS');
    execute format('create table ojs.%I (like ojs.job including defaults including constraints including indexes) %s', v_name, v_storage);
    for v_part in select p as partition, format('ojs.%I', p)::regclass::oid as oid from unnest(v_parts) p loop
        execute format('alter table ojs.job detach partition ojs.%I', v_part.partition);
        execute format('insert into ojs.%I select j.* from ojs.%I j where j.id = any ($1) and ojs._stays(j.state, j.finished_at, $2)', v_name, v_part.partition) using v_ids, p_before;
        execute format('alter table ojs.%I rename to %I', v_part.partition, 'job_dropped_' || v_part.oid);
    end loop;
    execute format('alter table ojs.job attach partition ojs.%I for values from (%s) to (%L)', v_name, coalesce(quote_literal(v_lo), 'minvalue'), v_hi);
    perform ojs._partition_ready(v_name);
    return 'again: to drop what was taken out';
exception when lock_not_available then
    return 'again: the table was in use';
end;
$$;
-- +goose StatementEnd
comment on function ojs.drop_finished(timestamptz, int) is
'Drops the partitions of ojs.job that hold only ids made before p_before, and with them the jobs that ended before p_before. One step per
call; returns done, or again and why: call it again, in a transaction of its own. Up to p_keep other jobs (default 0, at most 10000) move
into a new partition in the place of those dropped. A partition that holds more of them stays, and when only such are left, the call is
refused with conflict; the detail names some. Dead letters are kept beside, a thousand per step. Statistics keep counting what was
dropped. Reads the partitions beside running work, then waits for a lock at most 200 ms, and not while a transaction is seen to hold on
to it. Raises invalid_request, conflict.';
reset role;
