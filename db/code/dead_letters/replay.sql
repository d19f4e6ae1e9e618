-- Rules by which the clock retries dead letters (ojs-dead-letter section 7). A dead letter that a
-- rule matches gets a timer when it is made (settle/fail.sql). For dead letters older than the
-- rule, ojs._catch_up_replays makes the timers. Operators set rules; the tick does the rest.

-- Sets a rule, new or in place of the rule of that name.
-- Locks its row.
-- Writes ojs.replay_rule.
create or replace function ojs.set_replay_rule(
    p_name text, p_delay interval default '1 hour', p_max_replays int default 3,
    p_queue text default null, p_type text default null, p_error_type text default null,
    p_of_tenant text default null, p_enabled boolean default true
) returns ojs.replay_rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.replay_rule;
begin
    if p_name is null or p_name = '' or length(p_name) > 128 then
        perform ojs._raise('OJ400', 'name is required and has at most 128 characters', '{"field": "name"}');
    elsif p_delay is null or p_delay not between interval '1 second' and interval '180 days' then
        perform ojs._raise('OJ400', 'delay must be between a second and 180 days', '{"field": "delay"}');
    elsif p_max_replays is null or p_max_replays not between 1 and 1000 then
        perform ojs._raise('OJ400', 'max_replays must be an integer between 1 and 1000', '{"field": "max_replays"}');
    elsif not ojs._tenant_valid(p_of_tenant) then
        perform ojs._raise('OJ400', 'of_tenant is no valid tenant', '{"field": "of_tenant"}');
    elsif not ojs._queue_name(p_queue) then
        perform ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queue"}');
    elsif p_type = '' then
        perform ojs._raise('OJ400', 'type must not be empty', '{"field": "type"}');
    elsif p_error_type = '' then
        perform ojs._raise('OJ400', 'error_type must not be empty', '{"field": "error_type"}');
    elsif p_enabled is null then
        perform ojs._raise('OJ400', 'enabled must be true or false', '{"field": "enabled"}');
    end if;
    insert into ojs.replay_rule as r (name, tenant_id, queue, type, error_type, delay, max_replays, enabled)
    values (p_name, p_of_tenant, p_queue, p_type, p_error_type, p_delay, p_max_replays, p_enabled)
    on conflict (name) do update
    set tenant_id = excluded.tenant_id, queue = excluded.queue, type = excluded.type, error_type = excluded.error_type,
        delay = excluded.delay, max_replays = excluded.max_replays, enabled = excluded.enabled,
        known_from = null, caught_up = false
    returning * into v_rule;
    return v_rule;
end;
$$;
comment on function ojs.set_replay_rule(text, interval, int, text, text, text, text, boolean) is
'Sets a rule by which dead letters are retried, and returns it (ojs-dead-letter section 7).
The clock retries a dead letter that matches p_delay after it was discarded. Dead letters that are
in the queue already are included, once the transactions that are open now have ended. The meta of
a retried job gets ojs.replay_count, ojs.last_replayed_at and ojs.replay_rule. The rules are in
the table ojs.replay_rule.
p_name: a rule of that name is replaced.
p_delay: a second to 180 days.
p_max_replays: no more once rules have retried the job so many times, 1 to 1000.
p_queue, p_type, p_error_type (type or code of the last error), p_of_tenant: which dead letters
match; null: any.
Raises invalid_request.';

-- Deletes a rule.
-- Locks its row.
-- Writes ojs.replay_rule.
create or replace function ojs.delete_replay_rule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from ojs.replay_rule r where r.name = p_name;
    if not found then
        perform ojs._raise('OJ404', format('replay rule %s not found', p_name),
            jsonb_build_object('resource_type', 'replay_rule', 'resource_id', p_name),
            'Check the name; the list of replay rules shows those that there are.');
    end if;
end;
$$;
comment on function ojs.delete_replay_rule(text) is
'Deletes a rule of ojs.set_replay_rule.
Raises not_found.';

create or replace function ojs._catch_up_replays() returns void
language plpgsql
as $$
declare
    v_rule ojs.replay_rule;
begin
    for v_rule in select * from ojs.replay_rule r where not r.caught_up for update skip locked loop
        -- First note from which transaction on the rule is known. A number above the highest one
        -- here comes from another cluster (a restored copy), and is noted anew.
        if v_rule.known_from is null or v_rule.known_from > pg_snapshot_xmax(pg_current_snapshot()) then
            update ojs.replay_rule r set known_from = pg_snapshot_xmax(pg_current_snapshot()) where r.name = v_rule.name;
        elsif v_rule.known_from <= pg_snapshot_xmin(pg_current_snapshot()) then
            -- All transactions that did not know the rule have ended, so their dead letters are
            -- visible here. Later transactions make the timers themselves.
            insert into ojs.timer (due_at, kind, tenant_ids, ids)
            select max(d.at) + v_rule.delay, 'replay', array_agg(d.tenant_id), array_agg(d.id)
            from (
                select d.*, date_trunc('minute', d.at) as minute, row_number() over (order by d.at) / 1000 as part
                from ojs.dead_letter d where v_rule.enabled and ojs._ruled(v_rule, d)
            ) d
            group by d.minute, d.part;
            update ojs.replay_rule r set caught_up = true where r.name = v_rule.name;
        end if;
    end loop;
end;
$$;
comment on function ojs._catch_up_replays() is
'Makes timers for dead letters that are older than a new rule, as soon as every transaction has
ended that may not have known the rule.';

create or replace function ojs._replay(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_dead record;
begin
    select array_agg(x.tenant_id) as tenants, array_agg(x.id) as ids, array_agg(x.name) as rules into v_dead
    from (
        select distinct on (d.id, d.tenant_id) d.id, d.tenant_id, r.name
        from unnest(p_ids, p_tenants) a(id, tenant_id)
        join ojs.dead_letter d on d.id = a.id and d.tenant_id = a.tenant_id
        join ojs.replay_rule r on r.enabled and ojs._ruled(r, d) and ojs._later(d.at, r.delay) <= v_now
        cross join lateral ojs._dead_letter_job(d.id, d.tenant_id, d.aside) j
        where ojs._replay_count(j.meta) < r.max_replays and (j.expires_at > v_now) is not false
        order by d.id, d.tenant_id, r.delay, r.name
    ) x;
    if ojs._retry_dead(v_dead.tenants, v_dead.ids, v_dead.rules) < cardinality(v_dead.ids) then
        -- Dead letters that another session has locked are tried again in a second. A job in
        -- ojs.dead_job cannot return while another job has its id. No event says when that job is
        -- gone, so try again every hour.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select v_now + l.wait, 'replay', array_agg(l.tenant_id), array_agg(l.id)
        from (
            select d.tenant_id, d.id,
                case when d.aside and exists (select from ojs.job j where j.id = d.id and j.tenant_id = d.tenant_id)
                    then interval '1 hour' else interval '1 second' end as wait
            from unnest(v_dead.ids, v_dead.tenants) a(id, tenant_id)
            join ojs.dead_letter d on d.id = a.id and d.tenant_id = a.tenant_id
        ) l
        group by l.wait;
    end if;
end;
$$;
comment on function ojs._replay(text[], uuid[]) is
'Retries the given dead letters that have waited for a rule''s delay. Makes timers for dead letters
that could not be retried now.';

create or replace function ojs._replay_count(p_meta jsonb) returns int
language sql immutable
as $$
    select case
        when jsonb_typeof(p_meta -> 'ojs.replay_count') = 'number' and p_meta ->> 'ojs.replay_count' ~ '^[0-9]{1,8}$'
            then (p_meta ->> 'ojs.replay_count')::int
        else 0 end
$$;
comment on function ojs._replay_count(jsonb) is
'How many times rules have retried a job, by its meta.';

create or replace function ojs._replayed_meta(p_meta jsonb, p_rule text, p_at timestamptz) returns jsonb
language sql stable
as $$
    select case when p_rule is null then p_meta else p_meta || jsonb_build_object(
        'ojs.replay_count', ojs._replay_count(p_meta) + 1, 'ojs.replay_rule', p_rule,
        'ojs.last_replayed_at', to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) end
$$;
comment on function ojs._replayed_meta(jsonb, text, timestamptz) is
'The meta of a job that the rule p_rule retries; unchanged if p_rule is null.';
