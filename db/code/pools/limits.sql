-- Why the configuration of a pool, or the strategy of a FETCH, is refused.

create or replace function ojs._check_pool_name(p_pool text, p_all boolean default false) returns void
language plpgsql
as $$
begin
    if p_pool is null or (p_pool !~ '^[a-zA-Z0-9][a-zA-Z0-9._-]*$' or length(p_pool) > 128) and not (p_all and p_pool = '*') then
        perform ojs._raise('OJ400',
            'pool must consist of a-z, A-Z, 0-9, -, _ and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "pool"}');
    end if;
end;
$$;
comment on function ojs._check_pool_name(text, boolean) is
'Raises why a text cannot be the name of a pool. p_all: * is allowed, too.';

create or replace function ojs._read_pool(p_name text, p_config jsonb) returns ojs.pool
language plpgsql
as $$
declare
    c_known constant text[] := '{name, queues, concurrency, max_concurrency, strategy, weights, isolated, tenants,
        starvation_prevention}';
    v_pool  ojs.pool;
    v_field text;
begin
    if p_config is null or jsonb_typeof(p_config) <> 'object' then
        perform ojs._raise('OJ400', 'the configuration of a pool must be a JSON object', '{"field": "config"}');
    end if;
    -- A member that is null counts as left out; a null within a member does not.
    p_config := (select coalesce(jsonb_object_agg(f.key, f.value) filter (where f.value <> 'null'), '{}') from jsonb_each(p_config) f);
    v_field := (select k from jsonb_object_keys(p_config) k where k <> all (c_known) limit 1);
    if v_field is not null then
        perform ojs._misnamed(v_field, c_known);
        perform ojs._raise('OJ400', format('%s is no field of a pool', left(v_field, 100)),
            jsonb_build_object('field', left(v_field, 100)));
    elsif p_name = '*' and p_config ?| '{queues, concurrency, max_concurrency, isolated, tenants}' then
        perform ojs._raise('OJ422', 'for all FETCHes there can be strategy, weights and starvation_prevention only', '{"field": "name"}',
            'queues, concurrency, isolated and tenants are those of a pool.');
    elsif p_config ->> 'name' is distinct from p_name and p_config ? 'name' then
        perform ojs._raise('OJ400', 'name is not that of the pool', '{"field": "name"}');
    end if;
    v_pool.name := p_name;
    if jsonb_typeof(p_config -> 'queues') = 'object' then
        p_config := (select p_config || jsonb_build_object('queues', coalesce(jsonb_agg(q.key), '[]'), 'weights', coalesce(
                p_config -> 'weights', jsonb_object_agg(q.key, q.value -> 'weight') filter (where q.value ? 'weight'), '{}'))
            from jsonb_each(p_config -> 'queues') q);
    end if;
    v_pool.queues := ojs._pool_names(p_config -> 'queues', 'queues');
    v_pool.tenants := ojs._pool_names(p_config -> 'tenants', 'tenants');
    if p_config -> 'concurrency' <> p_config -> 'max_concurrency' then
        perform ojs._raise('OJ422', 'concurrency and max_concurrency are two names of one number', '{"field": "concurrency"}');
    end if;
    v_pool.max_concurrency := ojs._pool_number(coalesce(p_config -> 'concurrency', p_config -> 'max_concurrency'),
        'concurrency', 1, 1000000);
    v_pool.strategy := p_config ->> 'strategy';
    v_pool.weights := nullif(p_config -> 'weights', '{}');
    perform ojs._check_strategy(v_pool.strategy, v_pool.weights);
    v_pool.isolated := coalesce(p_config -> 'isolated', 'false') = 'true';
    if jsonb_typeof(p_config -> 'isolated') <> 'boolean' then
        perform ojs._raise('OJ422', 'isolated must be true or false', '{"field": "isolated"}');
    elsif v_pool.isolated and v_pool.queues is null and v_pool.tenants is null then
        perform ojs._raise('OJ422', 'an isolated pool needs queues or tenants', '{"field": "queues"}');
    end if;
    return ojs._read_prevention(v_pool, jsonb_strip_nulls(p_config -> 'starvation_prevention'));
end;
$$;
comment on function ojs._read_pool(text, jsonb) is
'Reads the p_config of ojs.configure_pool into a pool. Raises invalid_request, validation_error.';

create or replace function ojs._pool_names(p_names jsonb, p_field text) returns text[]
language plpgsql
as $$
declare
    v_names text[];
begin
    if p_names is null then
        return null;
    elsif jsonb_typeof(p_names) <> 'array' or jsonb_array_length(p_names) not between 1 and 100
            or exists (select from jsonb_array_elements(p_names) n where jsonb_typeof(n) <> 'string') then
        perform ojs._raise('OJ422', format('%s must name between 1 and 100', p_field), jsonb_build_object('field', p_field));
    end if;
    v_names := array(select n.name from jsonb_array_elements_text(p_names) with ordinality n(name, i) group by n.name order by min(n.i));
    if exists (select from unnest(v_names) n
            where case p_field when 'queues' then ojs._queue_name(n) else ojs._tenant_valid(n) end is not true) then
        perform ojs._raise('OJ422', format('%s holds a name that none can have', p_field), jsonb_build_object('field', p_field));
    end if;
    return v_names;
end;
$$;
comment on function ojs._pool_names(jsonb, text) is
'The names in a member of p_config, each once; null: it is left out. Raises validation_error.';

create or replace function ojs._pool_number(p_number jsonb, p_field text, p_least numeric, p_most numeric) returns numeric
language plpgsql
as $$
begin
    if p_number is null then
        return null;
    elsif jsonb_typeof(p_number) <> 'number' or p_number::numeric not between p_least and p_most
            or p_most > 1 and p_number::numeric % 1 <> 0 then
        perform ojs._raise('OJ422', format('%s must be %s between %s and %s', p_field,
            case when p_most > 1 then 'an integer' else 'a number' end, p_least, p_most), jsonb_build_object('field', p_field));
    end if;
    return p_number::numeric;
end;
$$;
comment on function ojs._pool_number(jsonb, text, numeric, numeric) is
'The number in a member of p_config, an integer if p_most is more than 1; null: it is left out.
Raises validation_error.';

create or replace function ojs._read_prevention(p_pool ojs.pool, p_prevention jsonb) returns ojs.pool
language plpgsql
as $$
declare
    v_interval interval := coalesce(ojs._duration(p_prevention ->> 'rotation_interval'),
        case when not p_prevention ? 'rotation_interval' then interval '30 seconds' end);
    v_field text := (select k from jsonb_object_keys(case when jsonb_typeof(p_prevention) = 'object' then p_prevention else '{}' end) k
        where k <> all ('{enabled, rotation_interval, min_dispatch_ratio}') limit 1);
begin
    if p_prevention is null then
        return p_pool;
    elsif jsonb_typeof(p_prevention) <> 'object' or v_field is not null or jsonb_typeof(p_prevention -> 'enabled') <> 'boolean' then
        perform ojs._raise('OJ422',
            'starvation_prevention must be an object of enabled (boolean), rotation_interval and min_dispatch_ratio',
            jsonb_build_object('field', concat_ws('.', 'starvation_prevention', left(v_field, 100))));
    end if;
    p_pool.min_dispatch_ratio := coalesce(
        ojs._pool_number(p_prevention -> 'min_dispatch_ratio', 'starvation_prevention.min_dispatch_ratio', 0, 1), 0.05);
    p_pool.rotation_interval := v_interval;
    if (v_interval between interval '1 second' and interval '1 day') is not true then
        perform ojs._raise('OJ422', 'rotation_interval must be an ISO 8601 duration between PT1S and P1D, such as PT30S',
            '{"field": "starvation_prevention.rotation_interval"}');
    elsif p_pool.min_dispatch_ratio * cardinality(p_pool.queues) > 1 then
        perform ojs._raise('OJ422', format('min_dispatch_ratio of %s queues is more than all there is', cardinality(p_pool.queues)),
            '{"field": "starvation_prevention.min_dispatch_ratio"}');
    elsif p_prevention -> 'enabled' is distinct from 'true' then
        p_pool.min_dispatch_ratio := null;
        p_pool.rotation_interval := null;
    end if;
    return p_pool;
end;
$$;
comment on function ojs._read_prevention(ojs.pool, jsonb) is
'Adds starvation_prevention to a pool. Raises validation_error.';

create or replace function ojs._check_strategy(p_strategy text, p_weights jsonb) returns void
language plpgsql stable
as $$
begin
    if p_strategy not in ('strict', 'round-robin', 'weighted', 'least-loaded') then
        perform ojs._raise('OJ422', 'strategy must be strict, round-robin, weighted or least-loaded', '{"field": "strategy"}');
    elsif jsonb_typeof(p_weights) <> 'object' then
        perform ojs._raise('OJ422', 'weights must be an object: a weight for each queue', '{"field": "weights"}');
    elsif exists (select from jsonb_each(p_weights) w
            where case when jsonb_typeof(w.value) = 'number' then w.value::numeric not between 1 and 1000000 or w.value::numeric % 1 <> 0
                else true end) then
        perform ojs._raise('OJ422', 'weights must be integers between 1 and 1000000', '{"field": "weights"}',
            'A queue that is to give no jobs is left out, or paused.');
    end if;
end;
$$;
comment on function ojs._check_strategy(text, jsonb) is
'Raises why a strategy, or its weights, is refused.';
