-- Upkeep: tasks that are due now and then, one small step per call. They cut the last partition,
-- drop old ones, remove expired idempotency keys, erase what tenants that left have stored, and
-- measure stored bytes. Every server calls ojs.upkeep all the time (internal/sched); a task on which
-- another session works is left to that session.

create or replace view ojs._upkeep_plan with (security_invoker = true) as
select make_interval(secs => r.seconds) as retention, p.period,
    greatest(least(p.period / 4, interval '1 day'), interval '5 seconds') as lead
from (select nullif(extract(epoch from s.retention), 0)::float8 as seconds from ojs.settings s) r
cross join lateral (select make_interval(secs => trunc(r.seconds * 2 / 3)) as period) p;
comment on view ojs._upkeep_plan is
'The retention in effect, computed in seconds, because a month has no fixed length. retention:
null: none; period: the span of ids of one partition; lead: how long before that span a cut is
made.';

create or replace function ojs._first_expiry() returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select i.expires_at from ojs.idempotency i order by i.expires_at limit 1);
end;
$$;
comment on function ojs._first_expiry() is
'When the first idempotency key expires; null: there is none.';

create or replace function ojs._first_measure() returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select min(coalesce(q.measure_at, '-infinity')) from ojs.quota q where q.resource = 'max_stored_bytes');
end;
$$;
comment on function ojs._first_measure() is
'When the stored bytes of tenants are to be measured next; null: no tenant has a limit on them.';

create or replace function ojs._first_erasure() returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select min(l.erase_at) from ojs.leaving l
        where l.gone_at is null and not exists (select from ojs.departure d where d.tenant_id = l.tenant_id));
end;
$$;
comment on function ojs._first_erasure() is
'When the content of a deregistered tenant is to be erased next; null: of none.';

create or replace view ojs.upkeep_status with (security_invoker = true) as
select d.task,
    case when d.due_at is not null and (d.task in ('cut', 'measure') or h.held_at is null) then
        least(greatest(d.due_at, t.not_before),
            case when d.undo_at is not null then greatest(d.undo_at, t.last_at + interval '2 seconds') end)
    end as next_at,
    d.due_at, t.last_step, t.last_at, coalesce(t.failures, 0) as failures
from (
    -- The last partition is cut while it is empty, before its first job can come.
    select 'cut' as task,
        case
            when exists (select from ojs.cut) then '-infinity'
            when p.retention is null then null
            when l.from_at > ojs.now() then l.from_at - p.lead
            else '-infinity'
        end as due_at,
        (select min(c.undo_at) from ojs.cut c) as undo_at
    from ojs._upkeep_plan p, ojs.job_partitions l where l.hi is null
    union all
    select 'drop',
        case
            when exists (select from ojs._detached_partitions()) then '-infinity'
            else (select min(o.until_at) from ojs.job_partitions o where not ojs._is_replacement(o.partition)) + p.retention
        end, null
    from ojs._upkeep_plan p
    union all
    -- A minute late, so that many keys are removed at once.
    select 'forget', ojs._first_expiry() + interval '1 minute', null
    union all
    select 'measure', ojs._first_measure(), null
    union all
    select 'erase', ojs._first_erasure(), null
) d
cross join ojs.settings h
left join ojs.upkeep_task t on t.task = d.task;
comment on view ojs.upkeep_status is
'The tasks of ojs.upkeep, one row per task.
task: cut: make a partition for future jobs. drop: drop partitions whose jobs all ended before the
retention. forget: remove expired idempotency keys. measure: measure the bytes of tenants that
have a limit on them. erase: erase the content of deregistered tenants (ojs.leaving).
due_at: when it is due by itself; -infinity: at once; null: not at all.
next_at: when the next step is made. Later than due_at after a step in vain; early if a cut has to
be given up; null, while ojs.hold_dispatch is in force, for tasks that remove something.
last_step: the result of the last step: done and what; again and why; not yet and why, or failed and the
error with its SQLSTATE (an operator has to look).
last_at: when the last step was made.
failures: how many steps in a row were in vain.';
comment on type ojs.upkeep_result is
'The result of ojs.upkeep: the task and the result of its step, null if no task was due; and in how
many milliseconds to call again.';

-- Makes the next step of a task that is due.
-- Locks the task's row in ojs.upkeep_task (skip locked), then what the step locks.
-- Writes ojs.upkeep_task, and what the step writes: partitions, ojs.cut, ojs.dead_job,
-- ojs.idempotency, ojs.quota, ojs.stripe, ojs.job, ojs.leaving.
create or replace function ojs.upkeep() returns ojs.upkeep_result
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_result ojs.upkeep_result;
    v_now    timestamptz := ojs.now();
    v_plan   ojs._upkeep_plan;
    v_vain   boolean;
begin
    select s.task into v_result.task from ojs.upkeep_status s where s.next_at <= v_now order by s.task limit 1;
    if not found then
        v_result.next_in_ms := ojs._upkeep_next_ms();
        return v_result;
    end if;
    -- The row of a task makes its steps run in one session at a time.
    insert into ojs.upkeep_task (task, last_step, last_at, not_before) values (v_result.task, 'begun', v_now, '-infinity')
    on conflict do nothing;
    perform from ojs.upkeep_task t where t.task = v_result.task for update skip locked;
    if not found then
        v_result.task := null;
        v_result.next_in_ms := 1000;
        return v_result;
    end if;
    select * into v_plan from ojs._upkeep_plan;
    begin
        v_result.step := case v_result.task
            when 'cut' then ojs._upkeep_cut(v_plan, v_now)
            when 'drop' then ojs._upkeep_drop(v_plan, v_now)
            when 'measure' then ojs._measure()
            when 'erase' then ojs._erase_left()
            else ojs._delete_expired_keys(1000) end;
    exception
        when sqlstate 'OJ400' or sqlstate 'OJ409' then
            v_result.step := 'not yet: ' || sqlerrm;
        when others then
            -- An error that left this function would undo the note of it. The same task would be
            -- first again in each call, and keep the other tasks from their turn.
            v_result.step := format('failed: %s (%s)', sqlerrm, sqlstate);
    end;
    v_vain := v_result.step = ojs._in_use() or v_result.step like any ('{not yet%,failed%}');
    update ojs.upkeep_task t
    set last_step = v_result.step, last_at = v_now, failures = case when v_vain then t.failures + 1 else 0 end,
        -- Wait twice as long after each step in vain, because a step reads partitions, and its
        -- request for a lock makes other sessions wait.
        not_before = case when v_vain then ojs.now() + least(
                interval '1 second' * 2 ^ least(t.failures, 20), greatest(v_plan.lead / 2, interval '2 seconds'), interval '1 hour')
            else '-infinity' end
    where t.task = v_result.task;
    v_result.next_in_ms := ojs._upkeep_next_ms();
    return v_result;
end;
$$;
comment on function ojs.upkeep() is
'Makes the next step of a task that is due, and returns the task and the result.
See ojs.upkeep_status. Task and result are null if no task is due. next_in_ms: in how many
milliseconds to call again, at most a minute; 0: there is more to do. An error of a step is its
result, not an error of this call. Call it in a transaction of
its own. Servers call it all the time; without a server, call it yourself. Many sessions may call
it at once. The steps are those of ojs.cut_partition and ojs.drop_finished (with up to 10000 jobs
that move), removing 1000 idempotency keys, erasing 1000 jobs of a deregistered tenant, and reading
all jobs once for limits on bytes.';

create or replace function ojs._upkeep_cut(p_plan ojs._upkeep_plan, p_now timestamptz) returns text
language plpgsql
as $$
declare
    v_cut  ojs.cut;
    v_last record;
    v_at   timestamptz;
begin
    select * into v_cut from ojs.cut;
    if v_cut.undo_at <= p_now then
        return case when ojs._cut_undo() then 'again: a cut that was not made in time was given up' else ojs._in_use() end;
    elsif v_cut.cut_at is not null then
        return ojs.cut_partition(v_cut.cut_at);
    end if;
    select p.partition, p.from_at, ojs._cut_lead(p.partition) as lead into v_last from ojs.job_partitions p where p.hi is null;
    v_at := case when v_last.from_at > p_now then v_last.from_at + p_plan.period else p_now + 1.5 * p_plan.lead end;
    if v_last.lead > '0' or ojs._has_later(v_last.partition, ojs._id_at(v_at)) then
        -- A time that no client's ids reach yet, with hours to prepare the cut or to give it up.
        v_at := greatest(v_at, p_now + interval '1 day' + 1.5 * greatest(p_plan.lead, v_last.lead));
    end if;
    return ojs.cut_partition(v_at);
end;
$$;
comment on function ojs._upkeep_cut(ojs._upkeep_plan, timestamptz) is
'The next step of cutting the last partition: the cut in preparation, or a new one. A new cut is
one period after the partition begins, or, if it has begun, 1.5 leads from now.';

create or replace function ojs._upkeep_drop(p_plan ojs._upkeep_plan, p_now timestamptz) returns text
language plpgsql
as $$
declare
    v_due_at timestamptz := (select s.due_at from ojs.upkeep_status s where s.task = 'drop');
begin
    -- At first drop only partitions with few jobs to keep, which move at once. After a lead of
    -- waiting, also those with up to 10000.
    return ojs.drop_finished(p_now - coalesce(p_plan.retention, interval '36500 days'),
        case when v_due_at > p_now - p_plan.lead then 1000 else 10000 end);
end;
$$;
comment on function ojs._upkeep_drop(ojs._upkeep_plan, timestamptz) is
'The next step of dropping partitions whose retention is over.';

create or replace function ojs._delete_expired_keys(p_limit int) returns text
language plpgsql
as $$
declare
    v_rows int;
begin
    delete from ojs.idempotency i
    using (
        select x.tenant_id, x.key from ojs.idempotency x
        where x.expires_at <= ojs.now() order by x.expires_at limit p_limit for update skip locked
    ) old
    where i.tenant_id = old.tenant_id and i.key = old.key;
    get diagnostics v_rows = row_count;
    return case when v_rows < p_limit then 'done' else 'again: there are more' end;
end;
$$;
comment on function ojs._delete_expired_keys(int) is
'Removes idempotency keys that have expired, up to p_limit.';

create or replace function ojs._upkeep_next_ms() returns int
language sql volatile
as $$
    select coalesce(ceil(extract(epoch from
        greatest(least(min(s.next_at), ojs.now() + interval '1 minute'), ojs.now()) - ojs.now()) * 1000), 60000)::int
    from ojs.upkeep_status s
$$;
comment on function ojs._upkeep_next_ms() is 'Milliseconds until a task is due, at most a minute.';
