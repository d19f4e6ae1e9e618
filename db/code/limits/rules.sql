-- Rules that limit dispatch: how many jobs may run at once, and pauses; of a tenant, of a queue, or
-- of a tenant in a queue. dispatch/due.sql and limits/usage.sql apply them. No function here takes
-- the lane, but ojs._stop_decisions: decisions read of a change in ojs.journal.

-- Limits how many jobs run at once.
-- Waits only for a transaction that changes the same rule.
-- Writes rule and tenant, and a row of ojs.journal, by which the next decision counts the jobs.
create or replace function ojs.limit_concurrency(
    p_max_concurrency int, p_tenant text default null, p_queue text default null, p_reason text default null
) returns ojs.rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.rule;
begin
    p_queue := ojs._check_scope(p_tenant, p_queue);
    if p_tenant is null and p_queue = '' then
        perform ojs._raise('OJ400', 'a limit needs a tenant, a queue or both', '{"field": "tenant"}');
    end if;
    perform ojs._say_if_new(p_tenant, p_queue), ojs._fetched_nothing();
    insert into ojs.rule (tenant_id, queue, max_concurrency, limit_reason)
    values (coalesce(p_tenant, ''), p_queue, p_max_concurrency, left(p_reason, 1000))
    on conflict (tenant_id, queue) do update set max_concurrency = excluded.max_concurrency, limit_reason = excluded.limit_reason
    returning * into v_rule;
    perform ojs._apply_rule(v_rule);
    return coalesce((select r from ojs.rule r where r.tenant_id = v_rule.tenant_id and r.queue = v_rule.queue), v_rule);
end;
$$;
comment on function ojs.limit_concurrency(int, text, text, text) is
'Limits how many jobs may be active at once, and returns the rule (multi-tenancy section 7).
p_tenant, p_queue: the limit is of the tenant in all queues, of the tenant in the queue, or with
p_queue alone of all tenants together in it. Several limits hold together.
p_max_concurrency: 1 to 1000000; null: no limit any more.
p_reason: kept, and shown later.
From the next decision on no job is handed out beyond the limit; where more jobs run already, none
is handed out until fewer do. Jobs of other tenants are handed out instead. enqueue is never
refused. A tenant at its limit leaves the ring, and returns without credit or loss. A caller that
keeps its transaction open after ojs.fetch has the limits of the tenants locked whose jobs it got,
for 10 idle seconds at most: these tenants get no other job meanwhile.
Waits only for a session that changes the same rule. Raises invalid_request, validation_error,
conflict in a transaction that has fetched jobs.';

-- Stops dispatch of a queue, of a tenant, of a tenant in a queue, or of everything.
-- Waits only for a transaction that changes the same rule.
-- Writes rule; with a tenant what ojs.limit_concurrency writes, too.
create or replace function ojs.pause(
    p_queue text default null, p_tenant text default null, p_reason text default null, p_by text default session_user
) returns ojs.rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.rule;
begin
    p_queue := ojs._check_scope(p_tenant, p_queue);
    perform ojs._say_if_new(p_tenant, p_queue);
    insert into ojs.rule as r (tenant_id, queue, paused_at, paused_by, reason)
    values (coalesce(p_tenant, ''), p_queue, ojs.now(), left(p_by, 255), left(p_reason, 1000))
    on conflict (tenant_id, queue) do update
    set paused_at = coalesce(r.paused_at, excluded.paused_at), reason = excluded.reason,
        paused_by = case when r.paused_at is null then excluded.paused_by else r.paused_by end
    returning * into v_rule;
    perform ojs._apply_rule(v_rule) where p_tenant is not null;
    return v_rule;
end;
$$;
comment on function ojs.pause(text, text, text, text) is
'Stops dispatch from the next decision on, and returns the rule.
p_queue, p_tenant: of the queue, of the tenant (p_queue null), of the tenant in the queue, or of
everything (p_queue ''*'').
p_reason, p_by: why, and who pauses (by default the login); kept and shown later.
Enqueue, running jobs and the clock go on. If it is paused already, the time of the first pause
stays. Raises invalid_request.';

-- Lets dispatch go on.
-- Locks and writes what ojs.pause does; notifies.
create or replace function ojs.resume(p_queue text default null, p_tenant text default null) returns ojs.rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.rule;
begin
    p_queue := ojs._check_scope(p_tenant, p_queue);
    v_rule.tenant_id := coalesce(p_tenant, '');
    v_rule.queue := p_queue;
    update ojs.rule r set paused_at = null, paused_by = null, reason = null where r.tenant_id = v_rule.tenant_id and r.queue = v_rule.queue
    returning r.max_concurrency, r.throttled_to, r.most into v_rule.max_concurrency, v_rule.throttled_to, v_rule.most;
    if p_tenant is not null then
        perform ojs._apply_rule(v_rule);
    else
        delete from ojs.rule r where r.tenant_id = '' and r.queue = v_rule.queue and r.most is null;
        perform ojs._notify(array(select distinct w.queue from ojs.waiter w where p_queue in ('', w.queue)));
    end if;
    return v_rule;
end;
$$;
comment on function ojs.resume(text, text) is
'Lets dispatch go on that ojs.pause has stopped with the same arguments, and wakes waiting workers.
Returns what is left of the rule. Raises invalid_request.';

create or replace function ojs._check_scope(p_tenant text, p_queue text) returns text
language plpgsql
as $$
begin
    perform ojs._session_tenant(p_tenant);
    if p_tenant is null and p_queue is null then
        -- Null is refused, because it may be a mistake, and would stop everything.
        perform ojs._raise('OJ400', 'a queue must be named, a tenant, or both', '{"field": "queue"}', 'All queues: ''*''.');
    elsif p_queue <> '*' and not ojs._queue_name(p_queue) then
        perform ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queue"}');
    end if;
    return coalesce(nullif(p_queue, '*'), '');
end;
$$;
comment on function ojs._check_scope(text, text) is
'Raises why a rule cannot be about this tenant and queue, or returns the queue as ojs.rule has it:
empty for null and ''*'', which are all queues.';

create or replace function ojs._stop_decisions() returns void
language plpgsql
as $$
begin
    perform ojs._fetched_nothing(), ojs._enter_lane();
    -- Jobs that are not folded yet join now, under the settings that held when they committed;
    -- within 100 ms, because other sessions wait.
    perform ojs._fold_on();
end;
$$;
comment on function ojs._stop_decisions() is
'Waits for the decision under way, and holds the lane until the transaction ends, because a setting
that decisions read is about to change. Raises conflict in a transaction that has fetched jobs.';

create or replace function ojs._apply_rule(p_rule ojs.rule) returns void
language plpgsql
as $$
begin
    delete from ojs.rule r
    where r.tenant_id = p_rule.tenant_id and r.queue = p_rule.queue and r.most is null and r.paused_at is null;
    -- A new limit gets a new limit_xid, so that the count of an earlier one does not fit, and it
    -- allows no jobs until it is counted.
    update ojs.rule r set limit_xid = case when r.most is not null then pg_current_xact_id() end
    where r.tenant_id = p_rule.tenant_id and r.queue = p_rule.queue and (r.most is null) <> (r.limit_xid is null);
    if p_rule.tenant_id <> '' then
        insert into ojs.tenant as t (tenant_id, created_at)
        values (p_rule.tenant_id, case when p_rule.max_concurrency is not null then ojs.now() end)
        on conflict (tenant_id) do update set created_at = coalesce(t.created_at, excluded.created_at)
        where t.created_at is null and excluded.created_at is not null;
        perform ojs._drop_tenant(p_rule.tenant_id);
    end if;
    perform ojs._rule_changed(p_rule.tenant_id, p_rule.queue), ojs._notify(array(select distinct w.queue from ojs.waiter w));
    -- A tenant whose own login is its only worker takes no decision. Without this, a new limit would
    -- allow the login no job until the clock wakes by itself, up to 10 seconds later.
    perform ojs._wake(s.token) from ojs.sleeper s where p_rule.most is not null and s.expires_at > ojs.now();
end;
$$;
comment on function ojs._apply_rule(ojs.rule) is
'Makes a changed rule effective from the next decision on, and removes it if it neither limits nor
pauses. With a limit, notifies the clocks that sleep: the next tick counts for it.';

create or replace function ojs._recount_usage() returns void
language plpgsql
as $$
begin
    -- After a restore into another cluster the statistics, by which jobs are counted, begin anew.
    perform ojs._roll_up();
    -- Skip locked, because the session holds the lane and must not wait. With the new limit_xid,
    -- counts that other sessions have locked fit no limit any more.
    delete from ojs.usage u using (select u.ctid as spot from ojs.usage u for update skip locked) l where u.ctid = l.spot;
    update ojs.rule r set limit_xid = pg_current_xact_id() where r.most is not null;
    perform ojs._rule_changed(r.tenant_id, r.queue) from ojs.rule r where r.most is not null;
end;
$$;
comment on function ojs._recount_usage() is
'Has the next decision count the active jobs of all limits anew, by the statistics. Only with the
rows of ojs.rule locked.';
