comment on table ojs.audit is
'Changes of the configuration: what, by whom and why; read through ojs.audit_trail. Rows are added,
never changed. The tick removes them after 90 days, or after ojs.settings.journal_retention if
that is longer.';
comment on column ojs.audit.n is 'Number of the row; later changes have higher ones.';
comment on column ojs.audit.at is 'When it was changed.';
comment on column ojs.audit.actor is
'The login role that changed it; for calls over HTTP, the principal of the request, if it has one.';
comment on column ojs.audit.tenant_id is
'The tenant that the change is about; null: no tenant, or all.';
comment on column ojs.audit.kind is
'What was changed: tenant, rule (a limit of concurrency or a pause), limit (on enqueueing), tier,
throttle, neighbours (when a tenant counts as noisy), queue, fairness, pool, deployment, api_key,
role, replay_rule, worker, dead_letters, jobs, usage.';
comment on column ojs.audit.name is
'The name of it: the queue of a rule, the pool, the role, the worker; null if it has no name, or
all are meant.';
comment on column ojs.audit.action is
'What was done: created, changed, removed. Rules: limited, unlimited, paused, resumed. The
deployment: held, resumed. Tenants: suspended, resumed, deregistered. Workers: directed. Jobs:
purged, cancelled. Usage: purged.';
comment on column ojs.audit.old is
'The members that have changed, as they were before; null: none.';
comment on column ojs.audit.new is 'The members that have changed, as they are since; null: none.';
comment on column ojs.audit.reason is
'Why, in the caller''s words: the reason given to the call, else the setting ojs.reason.';

-- A tenant reads its rows through this view (tenants/own_rows.sql).
create or replace view ojs._own_audit as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.audit r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_audit is
'The rows of ojs.audit about the caller''s tenant; empty for other callers.';

create or replace view ojs.audit_trail as
select a.n, a.at, a.actor, a.tenant_id, a.kind, a.name, a.action, a.old, a.new, a.reason from ojs.audit a where ojs._reads_all()
union all
-- A tenant must not learn which other roles act on its configuration, nor why.
select row_number() over (order by o.n), o.at, case when o.actor = session_user then o.actor else '' end, o.tenant_id,
    o.kind, o.name, o.action, o.old - 'reason', o.new - 'reason', case when o.actor = session_user then o.reason end from ojs._own_audit o;
comment on view ojs.audit_trail is
'Who changed what in the configuration, when and why (ojs.audit).
Operators see everything. A tenant''s login role sees the changes about its tenant, numbered
separately, with the actor and the reason only of its own changes. old and new hold only the
members that have changed. The reason is the one given to the call, or that of the session or
transaction: set ojs.reason = ''...''.';

create or replace function ojs._actor() returns text
language sql stable
as $$
    select left(case when ojs._trusted() then coalesce(nullif(current_setting('ojs.actor', true), ''), session_user) else session_user end,
        255)
$$;
comment on function ojs._actor() is
'The actor for the audit trail: the login role. The service acts for other principals, and names
them in the setting ojs.actor. Any session can set it, so it counts only for the service.';

create or replace function ojs._because(p_reason text) returns text
language plpgsql
as $$
declare
    v_before text := coalesce(current_setting('ojs.reason', true), '');
begin
    perform set_config('ojs.reason', p_reason, true) where p_reason <> '';
    return v_before;
end;
$$;
comment on function ojs._because(text) is
'Sets the reason of the changes that follow (null or empty: it stays as it is), and returns the
reason before. The caller sets ojs.reason back to that at its end, because other changes of the
transaction have another reason.';

create or replace function ojs._audit(
    p_tenant text, p_kind text, p_name text, p_action text, p_old jsonb default null, p_new jsonb default null, p_reason text default null
) returns void
language sql
as $$
    insert into ojs.audit (actor, tenant_id, kind, name, action, old, new, reason)
    select ojs._actor(), nullif(p_tenant, ''), p_kind, nullif(p_name, ''), p_action, ojs._differing(p_old, p_new),
        ojs._differing(p_new, p_old), left(nullif(coalesce(p_reason, current_setting('ojs.reason', true)), ''), 1000)
    where coalesce(p_old, p_new) is null or p_action in ('created', 'removed', 'suspended', 'resumed')
        or coalesce(ojs._differing(p_old, p_new), ojs._differing(p_new, p_old)) is not null
$$;
comment on function ojs._audit(text, text, text, text, jsonb, jsonb, text) is
'Appends to the audit trail, unless nothing has changed. p_old, p_new: the whole objects, of which
only the differing members are kept. p_reason: why; null: the setting ojs.reason.';

create or replace function ojs._differing(p_this jsonb, p_other jsonb) returns jsonb
language sql immutable
as $$
    select jsonb_object_agg(e.key, e.value) from jsonb_each(p_this) e
    where e.value <> 'null' and (p_other -> e.key) is distinct from e.value
$$;
comment on function ojs._differing(jsonb, jsonb) is
'The members of p_this that p_other lacks or has with another value; null: none.';

create or replace function ojs._audit_row() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
    -- to_jsonb writes times, intervals and floats by these settings. Without them, stored rows
    -- would depend on the caller's session.
    set timezone = 'UTC' set intervalstyle = 'postgres' set extra_float_digits = 1
as $$
declare
    v_kind   text := tg_argv[0];
    v_keys   text[] := array[tg_argv[1], 'tenant_id'];
    v_silent text[] := tg_argv[2]::text[];
    v_old    jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) end;
    v_new    jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) end;
    v_row    jsonb := coalesce(v_new, v_old);
    v_action text := case tg_op when 'INSERT' then 'created' when 'DELETE' then 'removed' else 'changed' end;
    v_why    text;
begin
    if tg_table_name = 'tenant' then
        -- A row without created_at exists only for a pause, a throttle or a suspension: its tenant
        -- has not been configured.
        v_old := case when v_old ->> 'created_at' is not null then v_old end;
        v_new := case when v_new ->> 'created_at' is not null then v_new end;
        v_action := case when v_old is null then 'created' when v_new is null then 'removed' else 'changed' end;
        if coalesce(v_old, v_new) is null then
            return null;
        end if;
    end if;
    if v_new ->> 'tenant_id' <> v_old ->> 'tenant_id' then
        -- A replay rule may move from one tenant to another. Each of the two sees its own part
        -- only, without the other's name.
        perform ojs._audit(v_old ->> 'tenant_id', v_kind, v_old ->> v_keys[1], 'removed', v_old - v_keys - v_silent);
        v_action := 'created';
        v_old := null;
    end if;
    if v_kind = 'rule' then
        v_action := ojs._rule_action(v_old, v_new);
        v_why := v_new ->> case when v_action = 'paused' then 'reason' when v_action in ('limited', 'unlimited') then 'limit_reason' end;
    elsif v_kind = 'throttle' then
        v_why := nullif(v_new ->> 'reason', 'manual');
    elsif tg_table_name = 'suspended' then
        v_action := case tg_op when 'INSERT' then 'suspended' when 'DELETE' then 'resumed' end;
        v_why := v_new ->> 'reason';
    elsif v_kind = 'deployment' and v_old -> 'held_at' is distinct from v_new -> 'held_at' then
        v_action := case when v_new ->> 'held_at' is null then 'resumed' else 'held' end;
    end if;
    perform ojs._audit(v_row ->> 'tenant_id', v_kind, v_row ->> v_keys[1], v_action, v_old - v_keys - v_silent, v_new - v_keys - v_silent,
        v_why)
    where v_action is not null;
    return null;
end;
$$;
comment on function ojs._audit_row() is
'Trigger: records that a row of configuration has changed. Arguments: the kind, the column with the
name, and columns that are left out.';

create or replace function ojs._rule_action(p_old jsonb, p_new jsonb) returns text
language sql immutable
as $$
    select case
        when p_old ->> 'paused_at' is null and p_new ->> 'paused_at' is not null then 'paused'
        when p_old ->> 'paused_at' is not null and p_new ->> 'paused_at' is null then 'resumed'
        when p_old ->> 'max_concurrency' is not distinct from p_new ->> 'max_concurrency' then null
        when p_new ->> 'max_concurrency' is null then 'unlimited'
        else 'limited' end
$$;
comment on function ojs._rule_action(jsonb, jsonb) is
'What has happened to a limit or a pause; null: nothing.';

create or replace function ojs._prune_audit(p_now timestamptz, p_limit int) returns boolean
language plpgsql
as $$
declare
    v_old  timestamptz := p_now - greatest(interval '90 days', (select s.journal_retention from ojs.settings s));
    v_rows int;
begin
    if ((select a.at from ojs.audit a order by a.n limit 1) < v_old) is not true then
        return false;
    end if;
    delete from ojs.audit d
    using (select a.n from (select a.n, a.at from ojs.audit a order by a.n limit p_limit) a where a.at < v_old) a
    where d.n = a.n;
    get diagnostics v_rows = row_count;
    return v_rows = p_limit;
end;
$$;
comment on function ojs._prune_audit(timestamptz, int) is
'Removes old rows of the audit trail, the first p_limit at most. Returns whether there may be more.';

create or replace function ojs._tenant_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || a.tenant_id || '_created_' || (extract(epoch from a.at) * 1000000)::bigint, 'tenant.created', a.at, a.tenant_id,
        null::text, a.tenant_id,
        jsonb_build_object('tenant_id', a.tenant_id, 'config', coalesce(a.new, '{}'))
    from (
        (select a.* from ojs.audit a where p_tenant is null and a.kind = 'tenant' and a.action = 'created' order by a.n desc limit p_limit)
        union all
        select a.* from ojs.audit a where a.tenant_id = p_tenant and a.kind = 'tenant' and a.action = 'created'
    ) a
    where (p_types is null or 'tenant.created' = any (p_types)) and p_queues is null
    order by a.n desc limit p_limit
$$;
comment on function ojs._tenant_events(text[], text[], int, text) is
'Events of tenants from the audit trail: tenant.created, when a tenant is first configured
(multi-tenancy section 11.1).';
