-- Bounds of queues (ojs-backpressure): how many jobs of all tenants together a queue may hold.

create or replace function ojs._check_bound(p_config jsonb) returns void
language plpgsql immutable
as $$
declare
    v_bound jsonb := coalesce(nullif(p_config -> 'backpressure', 'null'), '{}');
    v_depth jsonb := coalesce(nullif(p_config -> 'max_size', 'null'), v_bound -> 'max_depth');
    c_known constant text[] := '{max_depth, strategy, warning_threshold}';
    v_field text;
begin
    if jsonb_typeof(v_bound) <> 'object' then
        perform ojs._raise('OJ422', 'backpressure must be an object', '{"field": "backpressure"}');
    end if;
    v_field := (select min(k) from jsonb_object_keys(v_bound) k where k <> all (c_known));
    perform ojs._misnamed(v_field, c_known, 'backpressure.') where v_field is not null;
    if v_field is not null or v_bound ->> 'strategy' in ('block', 'drop_oldest') then
        v_field := coalesce(v_field, 'strategy');
        perform ojs._raise('OJ408', format('backpressure.%s%s is not supported', left(v_field, 100), case v_field when 'strategy' then
            ' ' || (v_bound ->> v_field) else '' end), jsonb_build_object('field', 'backpressure.' || left(v_field, 100)));
    elsif v_bound -> 'strategy' <> '"reject"' then
        perform ojs._raise('OJ422', 'backpressure.strategy must be "reject"', '{"field": "backpressure.strategy"}');
    elsif v_bound -> 'max_depth' <> v_depth then
        perform ojs._raise('OJ422', 'backpressure.max_depth disagrees with max_size', '{"field": "backpressure.max_depth"}');
    elsif not (case when jsonb_typeof(v_depth) = 'number' and v_depth::text ~ '^[0-9]{1,10}$' then v_depth::text::bigint <= 1000000000
            else v_depth is null end) then
        v_field := case when v_bound ? 'max_depth' then 'backpressure.max_depth' else 'max_size' end;
        perform ojs._raise('OJ422', v_field || ' must be an integer between 0 and 1000000000', jsonb_build_object('field', v_field));
    elsif v_bound ? 'warning_threshold' and (jsonb_typeof(v_bound -> 'warning_threshold') = 'number'
            and (v_bound ->> 'warning_threshold')::numeric between 0 and 1) is not true then
        perform ojs._raise('OJ422', 'backpressure.warning_threshold must be a number between 0 and 1',
            '{"field": "backpressure.warning_threshold"}');
    end if;
end;
$$;
comment on function ojs._check_bound(jsonb) is
'Raises why the bound in the configuration of a queue is refused.';

create or replace function ojs._bound_queue(p_queue text, p_config jsonb) returns void
language plpgsql
as $$
declare
    v_depth bigint := nullif(coalesce(p_config #>> '{backpressure,max_depth}', p_config ->> 'max_size')::bigint, 0);
begin
    if v_depth is null and not exists (select from ojs.quota q where q.tenant_id = '' and q.queue = p_queue) then
        return;
    end if;
    -- One of the two members may have been set before and the other one now, so check them
    -- together.
    perform ojs._check_bound(p_config);
    perform ojs._alone_with_tally();
    perform ojs._set_quota('', p_queue, 'max_depth', case when v_depth is not null then jsonb_strip_nulls(jsonb_build_object(
        'limit', v_depth, 'warn_from', p_config #> '{backpressure,warning_threshold}')) end, null);
    perform ojs._give_room(ojs.now());
end;
$$;
comment on function ojs._bound_queue(text, jsonb) is
'Sets the bound of a queue from its configuration. Only after ojs._alone_with_queues.';
