-- What has to be done now and then, one small step per call: cut the last partition, drop old ones, remove idempotency keys that expired.
-- Called by every server all the time (internal/sched); what another session is doing is left to it.

create or replace view ojs._upkeep_plan with (security_invoker = true) as
select make_interval(secs => r.seconds) as retention, p.period,
    greatest(least(p.period / 4, interval '1 day'), interval '5 seconds') as lead
from (select nullif(extract(epoch from s.retention), 0)::float8 as seconds from ojs.settings s) r
cross join lateral (select make_interval(secs => trunc(r.seconds * 2 / 3)) as period) p;
comment on view ojs._upkeep_plan is
'The settings in effect, in seconds, whatever the length of a month: retention, null: none; period: how long a partition lasts; lead: how
long before its time a cut is made.';

create or replace function ojs._first_expiry() returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select i.expires_at from ojs.idempotency i order by i.expires_at limit 1);
end;
$$;
comment on function ojs._first_expiry() is 'When the first idempotency key expires; null if there is none.';

create or replace function ojs._first_measure() returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select min(coalesce(q.measure_at, '-infinity')) from ojs.quota q where q.resource = 'max_stored_bytes');
end;
$$;
comment on function ojs._first_measure() is 'When the jobs of a tenant are to be measured next; null: not at all.';

create or replace view ojs.upkeep_status with (security_invoker = true) as
select d.task,
    case when d.due_at is not null and (d.task in ('cut', 'measure') or h.held_at is null) then
        least(greatest(d.due_at, t.not_before),
            case when d.undo_at is not null then greatest(d.undo_at, t.last_at + interval '2 seconds') end)
    end as next_at,
    d.due_at, t.last_step, t.last_at, coalesce(t.failures, 0) as failures
from (
    -- The last partition is cut while it is empty: before it begins.
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
    -- A minute late, so that many go at once.
    select 'forget', ojs._first_expiry() + interval '1 minute', null
    union all
    select 'measure', ojs._first_measure(), null
) d
cross join ojs.settings h
left join ojs.upkeep_task t on t.task = d.task;
comment on view ojs.upkeep_status is
'What ojs.upkeep has to do, one row per task. cut: a partition for the jobs to come; drop: partitions whose jobs all ended before the
retention. forget: idempotency keys whose time is over. measure: what the jobs of tenants take up that have a limit of it. due_at: when it
is due by itself, -infinity: at once, null: not at all; next_at: when the next step is made, which is later after one that came to nothing,
soon when a cut has to be given up, and null for what removes anything while ojs.hold_dispatch is in force. last_step: what the last step
came to: done; again and why; not yet and why (what an operator has to look at); last_at: when; failures: how many steps in a row came to
nothing.';
comment on type ojs.upkeep_result is
'What a call of ojs.upkeep did: the task and what its step came to, null when nothing was due; and milliseconds until the next call.';

-- The next step of whatever is due.
-- Locks the task's row in ojs.upkeep_task (skip locked), then what the step locks.
-- Writes ojs.upkeep_task, and what the step writes: partitions, ojs.cut, ojs.dead_job, ojs.idempotency, ojs.quota, ojs.stripe.
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
            else ojs._delete_expired_keys(1000) end;
    exception when sqlstate 'OJ400' or sqlstate 'OJ409' then
        v_result.step := 'not yet: ' || sqlerrm;
    end;
    v_vain := v_result.step = ojs._in_use() or v_result.step like 'not yet%';
    update ojs.upkeep_task t
    set last_step = v_result.step, last_at = v_now, failures = case when v_vain then t.failures + 1 else 0 end,
        -- Twice as long from time to time, because a look reads partitions, and a request for a lock makes others wait.
        not_before = case when v_vain then ojs.now() + least(
                interval '1 second' * 2 ^ least(t.failures, 20), greatest(v_plan.lead / 2, interval '2 seconds'), interval '1 hour')
            else '-infinity' end
    where t.task = v_result.task;
    v_result.next_in_ms := ojs._upkeep_next_ms();
    return v_result;
end;
$$;
comment on function ojs.upkeep() is
'Does the next step of what is due (ojs.upkeep_status), and returns task and step, or nulls when nothing is due, and when to call again:
next_in_ms milliseconds later, at most a minute; 0: there is more to do. Call it in a transaction of its own. Servers call it all the
time; without a server, call it yourself. Safe from many sessions at once: what another one is doing is left to it. Steps are those of
ojs.cut_partition and ojs.drop_finished, of which up to 10000 jobs that have to stay move along, 1000 idempotency keys, and one
reading of all jobs for limits in bytes.';

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
        -- Where no client's ids can be, and with hours to prepare it, or to give it up.
        v_at := greatest(v_at, p_now + interval '1 day' + 1.5 * greatest(p_plan.lead, v_last.lead));
    end if;
    return ojs.cut_partition(v_at);
end;
$$;
comment on function ojs._upkeep_cut(ojs._upkeep_plan, timestamptz) is
'The next step of cutting the last partition: the cut in preparation, or a new one a partition''s time from now.';

create or replace function ojs._upkeep_drop(p_plan ojs._upkeep_plan, p_now timestamptz) returns text
language plpgsql
as $$
declare
    v_due_at timestamptz := (select s.due_at from ojs.upkeep_status s where s.task = 'drop');
begin
    -- At first only what keeps few jobs, which move in a moment; after a while of waiting in vain also what keeps more.
    return ojs.drop_finished(p_now - coalesce(p_plan.retention, interval '36500 days'),
        case when v_due_at > p_now - p_plan.lead then 1000 else 10000 end);
end;
$$;
comment on function ojs._upkeep_drop(ojs._upkeep_plan, timestamptz) is 'The next step of dropping partitions whose retention is over.';

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
comment on function ojs._delete_expired_keys(int) is 'Removes idempotency keys that have expired, up to p_limit.';

create or replace function ojs._upkeep_next_ms() returns int
language sql volatile
as $$
    select coalesce(ceil(extract(epoch from
        greatest(least(min(s.next_at), ojs.now() + interval '1 minute'), ojs.now()) - ojs.now()) * 1000), 60000)::int
    from ojs.upkeep_status s
$$;
comment on function ojs._upkeep_next_ms() is 'Milliseconds until a task is due, at most a minute.';
