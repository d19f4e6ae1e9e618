-- The end of a tenant: its configuration is removed at once, its jobs are cancelled by the clock,
-- up to 500 at a time.

comment on table ojs.departure is
'Tenants that are being deregistered, and how far the clock is with their jobs. Written by
ojs.deregister_tenant and ojs.tick.';
comment on column ojs.departure.tenant_id is 'The tenant.';
comment on column ojs.departure.at is
'When it was deregistered. Jobs made later belong to a new tenant of that name.';
comment on column ojs.departure.jobs is 'How many of its jobs had not ended then.';
comment on column ojs.departure.queue is
'The queue whose jobs are being cancelled; null: the round is about to begin.';
comment on column ojs.departure.priority is 'The priority whose jobs are being cancelled.';
comment on column ojs.departure.seq is
'Jobs up to this seq are done; null: jobs without a seq come first.';
comment on column ojs.departure.missed is
'Whether a job could not be cancelled because it was locked, so that another round follows.';
comment on column ojs.departure.open is
'Transactions that may still bring jobs of the tenant: those that wrote when the first round began,
and were still open when the present round began.';
comment on column ojs.departure.done is
'Whether all jobs have ended, so that only the last step is left.';

comment on table ojs.leaving is
'Tenants that were deregistered, and what is done with their content afterwards. Written by
ojs.deregister_tenant, ojs.tick and ojs.upkeep. A row stays after the tenant is gone.';
comment on column ojs.leaving.tenant_id is 'The tenant.';
comment on column ojs.leaving.at is
'When it was deregistered. Jobs made later belong to a new tenant of that name.';
comment on column ojs.leaving.erase_at is
'When the content of its jobs is erased; null: it leaves with the partitions of the jobs.';
comment on column ojs.leaving.next is 'Jobs with this id or a higher one have been erased; null: none.';
comment on column ojs.leaving.missed is
'Whether another session had a job locked, so that erasing begins again.';
comment on column ojs.leaving.erased is 'How many jobs have been erased.';
comment on column ojs.leaving.gone_at is 'Since when it is gone: views list it no longer; null: it is leaving.';
comment on column ojs.leaving.total is
'How many jobs it had ever had when all had ended; with more, there is a new tenant of that name.';

-- Ends a tenant.
-- Locks what ojs.configure_tenant locks with a max_priority and a queue, and waits as long.
-- Writes what the functions that configure a tenant write, tenant_role, cron, cron_run,
-- replay_rule, departure, leaving, timer, audit.
create or replace function ojs.deregister_tenant(p_tenant text, p_confirm text default null, p_reason text default null,
    p_erase_after interval default null) returns ojs.departure
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row  ojs.departure;
    v_jobs bigint;
    v_ever bigint;
    v_dead bigint := (select count(*) from ojs.dead_letter d where d.tenant_id = p_tenant);
begin
    perform ojs._check_tenant(p_tenant);
    if p_erase_after not between interval '0' and interval '36500 days' then
        perform ojs._raise('OJ422', 'erase_after must be between 0 and 36500 days', '{"field": "erase_after"}');
    end if;
    perform ojs._alone_with_queues();
    select sum(s.scheduled + s.available + s.pending + s.active + s.retryable), sum(s.total_jobs) into v_jobs, v_ever
    from ojs.shard_stats s where s.tenant_id = p_tenant;
    if v_jobs + v_dead > 0 and p_confirm is distinct from p_tenant then
        perform ojs._raise('OJ409', format('tenant %s has %s jobs that have not ended, and %s dead letters', p_tenant, v_jobs, v_dead),
            jsonb_build_object('field', 'confirm', 'jobs', v_jobs, 'dead_letters', v_dead),
            'They are cancelled, or deleted, if the tenant''s name is given as confirm.');
    elsif (v_jobs is null or exists (
            select from ojs.leaving l where l.tenant_id = p_tenant and l.gone_at is not null and l.total >= v_ever))
            and not exists (select from ojs.tenant t where t.tenant_id = p_tenant)
            and not exists (select from ojs.tenant_role r where r.tenant_id = p_tenant) then
        perform ojs._no_such('tenant', p_tenant);
    end if;
    perform ojs._unconfigure(p_tenant);
    perform ojs.pause(null, p_tenant, coalesce(p_reason, 'deregistered'));
    insert into ojs.departure (tenant_id, jobs) values (p_tenant, coalesce(v_jobs, 0))
    on conflict (tenant_id) do update
    set at = excluded.at, jobs = excluded.jobs, queue = null, priority = null, seq = null, missed = false, open = null,
        done = false
    returning * into v_row;
    insert into ojs.leaving as l (tenant_id, at, erase_at)
    values (p_tenant, v_row.at, case when p_erase_after is not null then ojs._later(v_row.at, p_erase_after) end)
    on conflict (tenant_id) do update
    set at = excluded.at, erase_at = coalesce(excluded.erase_at, case when l.gone_at is null then l.erase_at end),
        next = null, missed = false, erased = 0, gone_at = null, total = null;
    perform ojs._audit(p_tenant, 'tenant', null, 'deregistered', null,
        jsonb_strip_nulls(jsonb_build_object('jobs', v_jobs, 'erase_after', ojs._iso_duration(p_erase_after))), p_reason);
    perform ojs._see_off_at(p_tenant, '0');
    return v_row;
end;
$$;
comment on function ojs.deregister_tenant(text, text, text, interval) is
'Ends a tenant, and returns how many jobs it had.
At once: its weights, limits, pauses, suspension, cron jobs and replay rules are removed, its
login roles are no longer mapped, its API keys are revoked, and none of its jobs is handed out.
By the clock, in many ticks if there are many: jobs that have not ended, running ones included,
are cancelled, also those of transactions that are open now; dead letters are deleted, because
rules for all tenants would retry them.
Finished jobs stay until their retention ends. With p_erase_after, ojs.upkeep erases the content of
all its jobs before, as ojs.erase does. Until then the tenant is listed as leaving; afterwards, or
without p_erase_after as soon as all its jobs have ended, it is gone from the lists of tenants. The
audit trail and the usage stay. Jobs made later belong to a new tenant of that name, and wait until
the clock is done.
p_erase_after: how long after this call; 0: as soon as its jobs have ended; null: not at all, or as
an earlier call said.
p_confirm: the tenant''s name, required if it has dead letters or jobs that have not ended.
p_reason: for the audit trail.
Raises not_found, conflict (also in a transaction that has fetched jobs), invalid_request,
backend_unavailable.';

create or replace function ojs._unconfigure(p_tenant text) returns void
language plpgsql
as $$
declare
    v_old ojs.tenant;
    v_new ojs.tenant;
begin
    -- Before the lane, because a session that has one of these rows locked would make decisions
    -- wait.
    delete from ojs.tenant_role r where r.tenant_id = p_tenant;
    delete from ojs.cron_run r where r.tenant_id = p_tenant;
    delete from ojs.tenant_tier t where t.tenant_id = p_tenant;
    -- Before its limits are deleted, keep the tick out: it would wait for these rows in the middle
    -- of a roll-up.
    perform ojs._alone_with_tally() where exists (select from ojs.quota q where q.tenant_id = p_tenant);
    delete from ojs.quota q where q.tenant_id = p_tenant;
    perform ojs._allow(p_tenant, a.queue) from (select a.queue from ojs.allowance a where a.tenant_id = p_tenant offset 0) a;
    perform ojs._cut_off(p_tenant, 'infinity');
    select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
    perform ojs._arm_max_priority(p_tenant, 100) where v_old.max_priority < 100;
    perform ojs.resume_tenant(p_tenant) where exists (select from ojs.suspended s where s.tenant_id = p_tenant);
    perform ojs._weigh_in(w.queue, w.tenant_id, null)
    from (select w.queue, w.tenant_id from ojs.queue_weight w
        where w.queue <> '' and w.tenant_id in (p_tenant, 'tenant:' || p_tenant) offset 0) w;
    perform ojs.limit_concurrency(null, p_tenant, nullif(r.queue, '')), ojs.resume(nullif(r.queue, ''), p_tenant)
    from (select r.queue from ojs.rule r where r.tenant_id = p_tenant offset 0) r;
    perform ojs._stop_decisions();
    perform ojs._end_throttle(p_tenant);
    -- The row stays until the tenant's pause is over; _depart ends it.
    update ojs.tenant t set weight = null, priority_boost = 0, max_priority = 100, over_priority = 'refuse', created_at = null
    where t.tenant_id = p_tenant returning * into v_new;
    if v_old.weight is not null or v_old.priority_boost <> 0 then
        perform ojs._reweigh(v_new, -v_old.priority_boost);
    end if;
    delete from ojs.neighbour n where n.tenant_id = p_tenant;
end;
$$;
comment on function ojs._unconfigure(text) is
'Removes all configuration of a tenant. Only after ojs._alone_with_queues; locks ojs.lane.';

create or replace function ojs._cut_off(p_tenant text, p_until timestamptz) returns void
language sql
as $$
    delete from ojs.cron c where c.tenant_id = p_tenant and c.created_at <= p_until;
    delete from ojs.replay_rule r where r.tenant_id = p_tenant and r.created_at <= p_until;
    update ojs.api_key k set revoked_at = ojs.now(), reason = 'deregistered'
    where k.tenant_id = p_tenant and k.revoked_at is null and k.created_at <= p_until;
$$;
comment on function ojs._cut_off(text, timestamptz) is
'Removes a tenant''s cron jobs and replay rules, and revokes its API keys, those made up to
p_until: they would make new jobs.';

create or replace function ojs._see_off_at(p_tenant text, p_later interval) returns void
language sql
as $$
    insert into ojs.timer (due_at, kind, tenant_ids, ids) values (ojs.now() + p_later, 'departure', array[p_tenant], array[ojs._uuid_v7()])
$$;
comment on function ojs._see_off_at(text, interval) is
'Sets a timer for the clock to go on with a tenant that is being deregistered.';

create or replace function ojs._see_off(p_tenants text[]) returns void
language plpgsql
as $$
declare
    v_tenant text;
    v_until  timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_row    ojs.departure;
    v_more   boolean;
begin
    foreach v_tenant in array array(select distinct t from unnest(p_tenants) t) loop
        select * into v_row from ojs.departure d where d.tenant_id = v_tenant for update skip locked;
        if not found then
            -- The tenant has departed, or another session has its row locked and deregisters it
            -- again.
            perform ojs._see_off_at(d.tenant_id, '100 milliseconds') from ojs.departure d where d.tenant_id = v_tenant;
            continue;
        end if;
        if v_row.queue is null then
            -- Before the jobs are read: jobs of these transactions are visible only after they have
            -- ended. Without the list, deregistering could end while one of them is open.
            update ojs.departure d
            set open = array(select distinct l.virtualtransaction from pg_locks l
                where l.database = (select b.oid from pg_database b where b.datname = current_database()) and l.granted
                    and l.relation = any ('{ojs.job,ojs.cron,ojs.replay_rule,ojs.api_key}'::regclass[]) and l.mode = 'RowExclusiveLock'
                    and l.pid is distinct from pg_backend_pid() and (d.open is null or l.virtualtransaction = any (d.open)))
            where d.tenant_id = v_tenant;
            perform ojs._cut_off(v_tenant, v_row.at);
        end if;
        loop
            v_more := ojs._cancel_bite(v_row);
            select * into v_row from ojs.departure d where d.tenant_id = v_tenant;
            exit when not v_more or clock_timestamp() > v_until;
        end loop;
        if v_more then
            perform ojs._see_off_at(v_tenant, '0');
        elsif v_row.missed or v_row.open <> '{}' or exists (select from ojs.dead_letter d where d.tenant_id = v_tenant) then
            update ojs.departure d set queue = null, priority = null, seq = null, missed = false where d.tenant_id = v_tenant;
            perform ojs._see_off_at(v_tenant, '1 second');
        else
            update ojs.departure d set done = true where d.tenant_id = v_tenant;
        end if;
    end loop;
end;
$$;
comment on function ojs._see_off(text[]) is
'Goes on with tenants that are being deregistered, for about 50 ms in all, and at least one step
for each; the next tick does the rest. Waits for no lock.';

create or replace function ojs._cancel_bite(p_row ojs.departure) returns boolean
language plpgsql
as $$
declare
    c_bite   constant int := 500;
    v_shard  record;
    v_line   uuid[];
    v_last   bigint;
    v_missed boolean;
begin
    if p_row.queue is null and exists (select from ojs.dead_letter d where d.tenant_id = p_row.tenant_id)
            and ojs._delete_oldest(p_row.tenant_id, null, c_bite) > 0 then
        return true;
    elsif p_row.queue is null or p_row.seq = 9223372036854775807 then
        select s.queue, s.priority into v_shard from ojs._shards(p_row.tenant_id) s
        where p_row.queue is null or (s.queue, s.priority) > (p_row.queue, p_row.priority) order by s.queue, s.priority limit 1;
        update ojs.departure d set queue = v_shard.queue, priority = v_shard.priority, seq = null
        where d.tenant_id = p_row.tenant_id and v_shard.queue is not null;
        return v_shard.queue is not null;
    end if;
    select array_agg(l.id), max(l.seq) into v_line, v_last
    from (
        (select j.id, j.seq from ojs.job j
        where j.queue = p_row.queue and j.priority = p_row.priority and j.tenant_id = p_row.tenant_id and j.seq > p_row.seq
        order by j.seq limit c_bite)
        union all
        -- Jobs that were never available have no seq. Cancelled ones get a seq, so that the next
        -- call does not find them here.
        (select j.id, null from ojs.job j
        where p_row.seq is null and j.queue = p_row.queue and j.priority = p_row.priority and j.tenant_id = p_row.tenant_id
            and j.seq is null and not ojs._ended(j.state) and j.created_at <= p_row.at limit c_bite)
    ) l;
    v_missed := ojs._cancel_line(p_row, v_line);
    update ojs.departure d
    set missed = d.missed or v_missed,
        seq = case when p_row.seq is not null then coalesce(v_last, 9223372036854775807) when v_line is null or v_missed then 0 end
    where d.tenant_id = p_row.tenant_id;
    return true;
end;
$$;
comment on function ojs._cancel_bite(ojs.departure) is
'Deletes up to 500 dead letters of a tenant that is being deregistered. If there are no dead
letters, cancels up to 500 of its jobs in the present queue and priority, or goes on to the next
ones. Returns false after the last.';

create or replace function ojs._cancel_line(p_row ojs.departure, p_ids uuid[]) returns boolean
language plpgsql
as $$
declare
    v_job ojs.job;
begin
    for v_job in
        select j.* from unnest(p_ids) l(id)
        cross join lateral (select j.* from ojs.job j where j.id = l.id and j.tenant_id = p_row.tenant_id and not ojs._ended(j.state)
            and j.created_at <= p_row.at for update skip locked) j
    loop
        update ojs.job j
        set state = 'cancelled', finished_at = ojs.now(), lease = null, lease_expires_at = null, retry_at = null,
            seq = coalesce(j.seq, nextval('ojs.job_seq'))
        where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
        perform ojs._released(v_job, 'cancelled', true);
    end loop;
    return exists (select from unnest(p_ids) l(id) join ojs.job j on j.id = l.id and j.tenant_id = p_row.tenant_id
        where not ojs._ended(j.state) and j.created_at <= p_row.at);
end;
$$;
comment on function ojs._cancel_line(ojs.departure, uuid[]) is
'Cancels the given jobs that have not ended and that no other session has locked; returns whether
some are left.';

create or replace function ojs._depart_due() returns boolean
language plpgsql
as $$
declare
    v_tenant text;
begin
    if not exists (select from ojs.departure d where d.done) or ojs._has_fetched() then
        return false;
    elsif not ojs._enter_lane(-1) then
        return true;
    end if;
    for v_tenant in select d.tenant_id from ojs.departure d where d.done limit 10 for update skip locked loop
        -- A session that configures the tenant has this row locked. Waiting for it under the lane
        -- would make decisions wait.
        perform from ojs.tenant t where t.tenant_id = v_tenant for update skip locked;
        if found or not exists (select from ojs.tenant t where t.tenant_id = v_tenant) then
            perform ojs._depart(v_tenant);
        end if;
    end loop;
    return exists (select from ojs.departure d where d.done);
end;
$$;
comment on function ojs._depart_due() is
'The last step of deregistering tenants whose jobs have all ended, 10 at a time. Waits for no lock,
and returns whether some are left.';

create or replace function ojs._depart(p_tenant text) returns void
language plpgsql
as $$
begin
    delete from ojs.departure d where d.tenant_id = p_tenant;
    perform ojs._end_throttle(p_tenant);
    perform ojs.resume(null, p_tenant);
    -- All jobs of the tenant have ended, and while it was paused no job of a new tenant of its name has:
    -- the jobs that have not ended are not counted.
    update ojs.leaving l
    set gone_at = case when l.erase_at is null then ojs.now() end, total = (
        select coalesce(sum(u.total - u.scheduled - u.available - u.pending - u.active - u.retryable), 0)
        from (
            select t.total, t.scheduled, t.available, t.pending, t.active, t.retryable from ojs.tally t where t.tenant_id = p_tenant
            union all
            select r.total, r.scheduled, r.available, r.pending, r.active, r.retryable from ojs._recent() r where r.tenant_id = p_tenant
        ) u)
    where l.tenant_id = p_tenant;
end;
$$;
comment on function ojs._depart(text) is
'The last step of deregistering a tenant. Only under the lane.';

create or replace function ojs._has_left(p_tenant text) returns boolean
language sql stable
as $$
    select exists (select from ojs.leaving l where l.tenant_id = p_tenant and (l.total >= (
            select coalesce(sum(u.total), 0) from (
                select t.total from ojs.tally t where t.tenant_id = p_tenant
                union all
                select r.total from ojs._recent() r where r.tenant_id = p_tenant) u)) is not false)
        and not exists (select from ojs.tenant t where t.tenant_id = p_tenant)
$$;
comment on function ojs._has_left(text) is
'Whether a tenant was deregistered, and there is no new tenant of its name: neither configured nor
with jobs.';

create or replace function ojs._erase_left() returns text
language plpgsql
as $$
declare
    v_row  ojs.leaving;
    v_done ojs.erasure;
begin
    select * into v_row from ojs.leaving l
    where l.gone_at is null and l.erase_at <= ojs.now() and not exists (select from ojs.departure d where d.tenant_id = l.tenant_id)
    order by l.erase_at, l.tenant_id limit 1 for update skip locked;
    if not found then
        return ojs._in_use();
    end if;
    -- Jobs made after the end belong to a new tenant of that name.
    v_done := ojs._erase_page(v_row.tenant_id, null, null, null, null, v_row.at + interval '1 microsecond', v_row.next, 1000);
    if v_done.next is not null or v_row.missed or v_done.locked > 0 then
        -- After the last page, begin again for jobs that another session had locked.
        update ojs.leaving l
        set next = v_done.next, missed = v_done.next is not null and (v_row.missed or v_done.locked > 0), erased = l.erased + v_done.jobs
        where l.tenant_id = v_row.tenant_id;
        return case when v_done.next is null and v_done.locked > 0 then 'not yet: jobs of a tenant that left are locked'
            else format('again: erased %s jobs of a tenant that left', v_done.jobs) end;
    end if;
    update ojs.leaving l set erased = l.erased + v_done.jobs, next = null, gone_at = ojs.now()
    where l.tenant_id = v_row.tenant_id returning * into v_row;
    perform ojs._audit(v_row.tenant_id, 'jobs', null, 'erased', null, jsonb_build_object('jobs', v_row.erased), 'deregistered');
    return format('done: erased %s jobs of a tenant that left', v_row.erased);
end;
$$;
comment on function ojs._erase_left() is
'Erases the next page of the jobs of a deregistered tenant whose period is over. After the last one
the tenant is gone.';
