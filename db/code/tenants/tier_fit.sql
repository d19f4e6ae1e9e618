-- Copying tiers to tenants. First limits on enqueueing, which need no lane, then weights, boosts
-- and max_concurrency, which do. The tick copies to some tenants at a time and waits for no lock.

create or replace function ojs._tier_fields(p_config jsonb) returns jsonb
language plpgsql
as $$
declare
    c_known  constant text[] := '{limits, fairness_weight, weight, priority_boost}';
    v_fields jsonb;
    v_bad    record;
begin
    if jsonb_typeof(p_config) is distinct from 'object' then
        perform ojs._raise('OJ400', 'config must be an object', '{"field": "config"}');
    end if;
    perform ojs._not_a_setting(k, c_known, 'A tier has fairness_weight, priority_boost and limits, under which all limits stand.')
    from jsonb_object_keys(p_config) k where k <> all (c_known) order by k limit 1;
    v_fields := p_config - '{limits,weight}'::text[] || case when p_config ? 'weight' and not p_config ? 'fairness_weight' then
            jsonb_build_object('fairness_weight', p_config -> 'weight') else '{}' end
        || ojs._limit_fields(coalesce(p_config -> 'limits', '{}'), null);
    select c.field, c.must into v_bad from (values
        (1, 'weight', p_config -> 'weight' <> v_fields -> 'fairness_weight', 'disagrees with fairness_weight'),
        (2, 'fairness_weight', jsonb_typeof(v_fields -> 'fairness_weight') <> 'number' or case
            when jsonb_typeof(v_fields -> 'fairness_weight') = 'number' then
                (v_fields ->> 'fairness_weight')::numeric not between 0.000001 and 1000000 end,
            'must be a number between 0.000001 and 1000000'),
        (3, 'priority_boost', jsonb_typeof(v_fields -> 'priority_boost') <> 'number' or v_fields ->> 'priority_boost' !~ '^-?[0-9]{1,3}$'
            or case when v_fields ->> 'priority_boost' ~ '^-?[0-9]{1,3}$' then abs((v_fields ->> 'priority_boost')::int) > 100 end,
            'must be an integer between -100 and 100'),
        (4, 'max_concurrency', (v_fields #>> '{max_concurrency,limit}')::bigint not between 1 and 1000000,
            'must be an integer between 1 and 1000000'),
        (5, 'max_enqueue_rate', (v_fields #>> '{max_enqueue_rate,limit}')::bigint < 1, 'must be an integer between 1 and 1000000000'),
        (6, 'max_enqueue_rate.burst', (v_fields #>> '{max_enqueue_rate,burst}')::bigint < 1, 'must be an integer between 1 and 1000000000'),
        (7, 'max_enqueue_rate.period', ojs._duration(v_fields #>> '{max_enqueue_rate,period}') not between '1 second' and '31 days',
            'must be between PT1S and P31D'),
        (8, 'max_in_flight_requests', (v_fields #>> '{max_in_flight_requests,limit}')::bigint < 1, 'must be at least 1'),
        (9, 'max_request_rate', (v_fields #>> '{max_request_rate,limit}')::bigint < 1, 'must be an integer between 1 and 1000000000'),
        (10, 'max_request_rate.burst', (v_fields #>> '{max_request_rate,burst}')::bigint < 1,
            'must be an integer between 1 and 1000000000'),
        (11, 'max_request_rate.period', ojs._duration(v_fields #>> '{max_request_rate,period}') not between '1 second' and '31 days',
            'must be between PT1S and P31D'),
        (12, 'max_waiting_polls', (v_fields #>> '{max_waiting_polls,limit}')::bigint < 1, 'must be at least 1')
    ) c(n, field, wrong, must) where c.wrong order by c.n limit 1;
    if found then
        perform ojs._raise('OJ422', v_bad.field || ' ' || v_bad.must, jsonb_build_object('field', v_bad.field));
    end if;
    return v_fields;
end;
$$;
comment on function ojs._tier_fields(jsonb) is
'The fields of a tier as one flat object: fairness_weight, priority_boost, and limits as
ojs._limit_fields returns them. Raises what is wrong with it, ranges included: constraints of the
tables would raise only when a tenant gets the tier.';

create or replace function ojs._fit_tenants(p_tenants text[], p_wait boolean) returns boolean
language plpgsql
as $$
declare
    c_share constant text[] := '{fairness_weight,priority_boost,max_concurrency}';
    v_until timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_row   record;
begin
    if p_wait then
        -- Wait here for a session that configures the same tenant: under the lane, decisions would
        -- wait, too.
        perform ojs._know(t) from unnest(p_tenants) t;
    end if;
    perform ojs._fit_limits(array(select t.tenant_id from ojs.tenant_tier t
        where t.tenant_id = any (p_tenants) and t.due - c_share <> '{}'), c_share);
    update ojs.tenant_tier t
    -- A tenant that is not configured keeps an empty due, so that _fit_share makes its row.
    set due = coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(t.due) f where f.key = any (c_share)),
        case when not exists (select from ojs.tenant n where n.tenant_id = t.tenant_id and n.created_at is not null) then '{}'::jsonb end)
    where t.tenant_id = any (p_tenants);
    -- From here on decisions wait.
    for v_row in
        select t.tenant_id, t.due, coalesce(r.reason, 'tier ' || t.tier) as reason
        from ojs.tenant_tier t left join ojs.tier r on r.name = t.tier where t.tenant_id = any (p_tenants) and t.due is not null
    loop
        if not ojs._enter_lane(case when p_wait then 0 else -1 end) then
            return true;
        end if;
        perform ojs._fit_share(v_row.tenant_id, v_row.due, v_row.reason);
        update ojs.tenant_tier t set due = null where t.tenant_id = v_row.tenant_id;
        exit when clock_timestamp() > v_until;
    end loop;
    return false;
end;
$$;
comment on function ojs._fit_tenants(text[], boolean) is
'Copies the due fields of their tiers to tenants, and returns whether another session holds the
lane. After 50 ms under the lane the rest stays due. p_wait: waits for other sessions. Only after
ojs._alone_with_queues or ojs._alone_at_once.';

create or replace function ojs._fit_limits(p_tenants text[], p_but text[]) returns void
language plpgsql
as $$
begin
    if p_tenants = '{}' then
        return;
    end if;
    perform ojs._alone_with_tally();
    perform ojs._set_limits(t.tenant_id, t.due - p_but, t.reason)
    from (
        select t.tenant_id, t.due, coalesce(r.reason, 'tier ' || t.tier) as reason
        from ojs.tenant_tier t left join ojs.tier r on r.name = t.tier where t.tenant_id = any (p_tenants) offset 0
    ) t;
    perform ojs._give_room(ojs.now());
end;
$$;
comment on function ojs._fit_limits(text[], text[]) is
'Sets the limits on enqueueing that are due for tenants. p_but: fields that are not limits on
enqueueing.';

create or replace function ojs._set_limits(p_tenant text, p_fields jsonb, p_reason text) returns void
language sql
as $$
    -- A limit that is the same already keeps its reason.
    select ojs._set_quota(p_tenant, '', f.key, nullif(f.value, 'null'), p_reason)
    from (select f.key, f.value, ojs._duration(f.value ->> 'period') as period, (f.value ->> 'limit')::bigint as maximum
        from jsonb_each(p_fields) f) f
    where not exists (select from ojs.quota q
        where q.tenant_id = p_tenant and q.queue = '' and q.resource = f.key and q.maximum = f.maximum
            and q.period is not distinct from f.period and q.soft = coalesce((f.value ->> 'soft')::boolean, false)
            and q.burst is not distinct from case when f.period is not null then coalesce((f.value ->> 'burst')::bigint, f.maximum) end)
$$;
comment on function ojs._set_limits(text, jsonb, text) is
'Sets those of a tenant''s limits on enqueueing that differ from the fields of a tier. The caller
has locked the row of ojs.tally_mark.';

create or replace function ojs._fit_share(p_tenant text, p_fields jsonb, p_reason text) returns void
language plpgsql
as $$
declare
    v_tenant ojs.tenant;
    v_weight numeric := (p_fields ->> 'fairness_weight')::numeric;
    v_boost  int := (p_fields ->> 'priority_boost')::int;
    v_jobs   int := (p_fields #>> '{max_concurrency,limit}')::int;
begin
    perform ojs._know(p_tenant);
    select * into v_tenant from ojs.tenant t where t.tenant_id = p_tenant;
    if coalesce(v_weight <> coalesce(v_tenant.weight, 0), false) or coalesce(v_boost <> v_tenant.priority_boost, false) then
        perform ojs.configure_tenant(p_tenant, v_weight, v_boost);
    end if;
    if p_fields ? 'max_concurrency' and v_jobs is distinct from (
            select r.max_concurrency from ojs.rule r where r.tenant_id = p_tenant and r.queue = '') then
        perform ojs.limit_concurrency(v_jobs, p_tenant, null, p_reason);
    end if;
end;
$$;
comment on function ojs._fit_share(text, jsonb, text) is
'Sets a tenant''s weight, boost and limit of concurrency, if the fields of a tier name them and
they differ. Only under the lane.';

create or replace function ojs._alone_at_once() returns boolean
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        return false;
    end if;
    begin
        lock table ojs.queue in share update exclusive mode nowait;
    exception when lock_not_available then
        return false;
    end;
    perform from ojs.settings s for update skip locked;
    if not found then
        return false;
    end if;
    perform from ojs.tally_mark t where t.rev = (select max(n.rev) from ojs.tally_mark n) for update skip locked;
    return found;
end;
$$;
comment on function ojs._alone_at_once() is
'Locks ojs.queue, settings and ojs.tally_mark, under which tiers are copied. Waits for no lock.
False: another session has one of them locked, or the isolation level is not read committed.';

create or replace function ojs._fit_due() returns boolean
language plpgsql
as $$
declare
    c_most   constant int := 50;
    v_fields jsonb;
    v_new    text[];
begin
    if not exists (select from ojs.tenant_tier t where t.due is not null) and not exists (select from ojs.newcomer)
            or ojs._has_fetched() then
        return false;
    elsif not ojs._alone_at_once() then
        return true;
    end if;
    select r.fields into v_fields from ojs.tier r where r.name = 'default';
    v_new := array(select n.tenant_id from ojs.newcomer n order by n.tenant_id limit c_most);
    perform ojs._give_tier(n, 'default', 'it had no tier') from unnest(v_new) n
    where v_fields is not null and not ojs._met(n) and not ojs._has_left(n);
    update ojs.tenant_tier t
    set due = (select coalesce(jsonb_object_agg(f.key, f.value), '{}') from jsonb_each(t.due) f where not ojs._has_own(t.tenant_id, f.key))
    where t.tenant_id = any (v_new) and t.tier = 'default' and t.due is not null;
    delete from ojs.newcomer n where n.tenant_id = any (v_new);
    perform ojs._fit_tenants(array(select t.tenant_id from ojs.tenant_tier t where t.due is not null order by t.tenant_id limit c_most),
        false);
    return exists (select from ojs.tenant_tier t where t.due is not null) or exists (select from ojs.newcomer);
end;
$$;
comment on function ojs._fit_due() is
'Copies tiers to tenants whose fields are due, and to newcomers, 50 at a time. Waits for no lock,
and returns whether some are left.';

create or replace function ojs._met(p_tenant text) returns boolean
language sql stable
as $$ select exists (select from ojs.tenant_tier t where t.tenant_id = p_tenant) $$;
comment on function ojs._met(text) is 'Whether a tenant has a tier.';

create or replace function ojs._has_own(p_tenant text, p_field text) returns boolean
language sql stable
as $$
    select case p_field
        when 'fairness_weight' then exists (select from ojs.tenant t where t.tenant_id = p_tenant and t.weight is not null)
        when 'priority_boost' then exists (select from ojs.tenant t where t.tenant_id = p_tenant and t.priority_boost <> 0)
        when 'max_concurrency' then
            exists (select from ojs.rule r where r.tenant_id = p_tenant and r.queue = '' and r.max_concurrency is not null)
        else exists (select from ojs.quota q where q.tenant_id = p_tenant and q.queue = '' and q.resource = p_field) end
$$;
comment on function ojs._has_own(text, text) is
'Whether a tenant has a value of its own for a field of tiers.';

create or replace function ojs._meet(p_from pg_snapshot, p_to pg_snapshot) returns void
language sql
as $$
    insert into ojs.newcomer (tenant_id)
    select distinct c.tenant_id from ojs._changes(p_from, p_to) c where not ojs._met(c.tenant_id) on conflict do nothing
$$;
comment on function ojs._meet(pg_snapshot, pg_snapshot) is
'Notes tenants without a tier whose jobs came or ended between two snapshots. Only under the lock
of ojs.tally_mark.';

create or replace function ojs._meet_all() returns void
language sql
as $$
    insert into ojs.newcomer (tenant_id)
    select distinct u.tenant_id from (select t.tenant_id from ojs.tally t union all select r.tenant_id from ojs._recent() r) u
    where not ojs._met(u.tenant_id) on conflict do nothing
$$;
comment on function ojs._meet_all() is
'Notes all tenants without a tier. Only under the lock of ojs.tally_mark.';

create or replace function ojs._meet_rolled_up(p_from pg_snapshot) returns void
language plpgsql
as $$
begin
    if exists (select from ojs.tier r where r.name = 'default') then
        perform ojs._meet(p_from, (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1));
    end if;
end;
$$;
comment on function ojs._meet_rolled_up(pg_snapshot) is
'If there is a tier named default, notes the newcomers between a snapshot and that of
ojs.tally_mark. The caller has locked that row.';

create or replace function ojs._meet_newcomers() returns int
language plpgsql
as $$
declare
    v_mark pg_snapshot;
begin
    if not exists (select from ojs.tier r where r.name = 'default') then
        return null;
    end if;
    select t.snapshot into v_mark from ojs.tally_mark t
    where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if found and not ojs._foreign(v_mark) then
        perform ojs._meet(v_mark, null);
    end if;
    return 250;
end;
$$;
comment on function ojs._meet_newcomers() is
'If there is a tier named default, notes the newcomers since ojs.tally_mark, and returns in how
many milliseconds to check again; null: there is no such tier.';
