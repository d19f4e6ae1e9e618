-- Configuration of queues (ojs-queue-config): defaults of new jobs, and how long jobs are kept at
-- least. Called by operators. A queue need not be configured. enqueue/job_ruled.sql fills in the
-- defaults.

-- Configures a queue; with p_new, only a queue that has no configuration yet.
-- Locks ojs.queue against other sessions that configure; with tenant_fairness, ojs.lane.
-- Writes ojs.queue, queue_weight, tenant_fairness, dispatch_state; makes or drops ojs._job_rules.
create or replace function ojs.configure_queue(p_queue text, p_config anycompatible default '{}', p_new boolean default false)
returns ojs.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_given     jsonb := p_config::jsonb;
    v_queue     ojs.queue;
    v_retention interval;
    -- Tenants may read the configuration of a queue, and must not see the weights of other tenants.
    v_config    jsonb;
begin
    perform ojs._check_queue_config(v_given);
    v_config := v_given #- '{tenant_fairness, weights}';
    perform ojs._alone_with_queues();
    -- Asked before the lock, two calls at once would both find the queue new.
    if p_new and exists (select from ojs.queue q where q.queue = p_queue and q.updated_at is not null) then
        perform ojs._raise('OJ410', format('queue %s is configured already', p_queue), '{"field": "queue"}',
            'Change it without p_new.');
    end if;
    insert into ojs.queue as q (queue, config, updated_at) values (p_queue, jsonb_strip_nulls(v_config), ojs.now())
    on conflict (queue) do update
    set updated_at = excluded.updated_at,
        config = (q.config || v_config) - array(select e.key from jsonb_each(v_config) e where e.value = 'null')
    returning * into v_queue;
    v_retention := (select nullif(s.retention, '0') from ojs.settings s);
    if v_retention is not null then
        perform ojs._check_retention(v_retention, array[p_queue]);
    end if;
    perform ojs._arm_job_rules();
    perform ojs._share_by(p_queue, v_given -> 'tenant_fairness') where v_given ? 'tenant_fairness';
    perform ojs._bound_queue(p_queue, v_queue.config) where v_given ?| '{max_size,backpressure}';
    v_queue.config := ojs._whole_config(p_queue, v_queue.config);
    return v_queue;
end;
$$;
comment on function ojs.configure_queue(text, anycompatible, boolean) is
'Configures a queue for all tenants, and returns it (ojs-queue-config section 6).
p_config: members that are left out stay as they are, null removes one:
visibility_timeout: seconds, 1 to 604800; default_timeout: seconds of an attempt; default_retry: a
retry policy, used as a whole. New jobs that do not set these get them.
retention: {completed, discarded, cancelled}, ISO 8601 durations, at most ojs.settings.retention.
Jobs are kept for the latter.
description: text.
tenant_fairness: {enabled, strategy, weights, default_weight, unit, priority_scope}, replaced as a
whole. It acts on the whole backlog from the next dispatch on, and waits for the decision under
way.
- enabled: false: first in, first out across tenants.
- strategy: fair-share (default): by weight; round-robin: all tenants have the same weight.
- weights: by tenant, or by tenant: and the tenant; 0.000001 to 1000000.
- default_weight: of tenants without a weight (docs/scheduling.md has the order).
- unit: what tenants share: jobs (default), cost or time.
- priority_scope: priorities order the jobs of all tenants (queue, default) or only each tenant''s
own (tenant).
backpressure: {max_depth, warning_threshold}. max_depth: how many jobs of all tenants may not have
ended, 1 to 1000000000 (0: any number); further jobs are refused with QUEUE_FULL
(ojs-backpressure). warning_threshold: the part of it from which on events warn (0.8). max_size is
another name of max_depth.
p_new: fail with duplicate if the queue has a configuration; of several such calls at once one
succeeds.
Raises unsupported for members that this server does not honour, and for a longer retention;
invalid_request for unknown ones; validation_error; duplicate; with tenant_fairness, conflict in a
transaction that has fetched jobs. Waits for a session that configures queues. An open transaction
that has enqueued does not make it wait.';

-- Removes the configuration of an empty queue.
-- Locks ojs.queue against other sessions that configure; ojs.lane.
-- Writes ojs.queue, queue_weight; drops ojs._job_rules if no other rule needs it.
create or replace function ojs.delete_queue(p_queue text, p_strategy text default 'reject') returns ojs.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue ojs.queue;
    v_jobs  bigint;
begin
    if p_strategy in ('discard', 'move') then
        perform ojs._raise('OJ408', format('strategy %s is not supported', p_strategy), '{"field": "strategy"}');
    elsif p_strategy is distinct from 'reject' then
        perform ojs._raise('OJ400', 'strategy must be "reject"', '{"field": "strategy"}');
    end if;
    perform ojs._alone_with_queues();
    delete from ojs.queue q where q.queue = p_queue returning * into v_queue;
    select sum(s.scheduled + s.available + s.pending + s.active + s.retryable) into v_jobs from ojs.shard_stats s where s.queue = p_queue;
    if v_jobs > 0 then
        perform ojs._raise('OJ409', format('queue %s holds %s jobs that have not ended', p_queue, v_jobs),
            jsonb_build_object('field', 'strategy', 'jobs', v_jobs), 'Let workers finish them, or cancel them.');
    elsif v_queue.queue is null and v_jobs is null and not exists (
            select from ojs.rule r where r.tenant_id = '' and r.queue = p_queue) then
        perform ojs._no_such('queue', left(p_queue, 128));
    end if;
    perform ojs.resume(p_queue);
    perform ojs.limit_concurrency(null, null, p_queue)
    where exists (select from ojs.rule r where r.tenant_id = '' and r.queue = p_queue);
    perform ojs._arm_job_rules();
    perform ojs._share_by(p_queue, null), ojs._bound_queue(p_queue, '{}');
    return v_queue;
end;
$$;
comment on function ojs.delete_queue(text, text) is
'Removes the configuration of a queue, with its pause, its own limits and its weights.
Returns the configuration as it was; nulls if there was none. Three things stay: jobs that have
ended; the numbers, so that a queue that ever had a job is still listed in ojs.queue_stats; limits
and pauses of single tenants in the queue. The next job makes the queue anew.
p_strategy: reject: refuses with conflict while jobs of the queue have not ended.
Raises conflict, not_found, unsupported, invalid_request.';

create or replace function ojs._check_queue_config(p_config jsonb) returns void
language plpgsql
as $$
declare
    c_known constant text[] := '{visibility_timeout, default_timeout, default_retry, retention, max_size, backpressure, tenant_fairness,
        description}';
    c_unsupported constant text[] := '{max_size_bytes, overflow_policy, concurrency, rate_limit, dead_letter_queue,
        dead_letter_max_size, dead_letter_ttl, allowed_job_types, producers}';
    v_field text;
begin
    if p_config is null or jsonb_typeof(p_config) <> 'object' then
        perform ojs._raise('OJ400', 'config must be a JSON object', '{"field": "config"}');
    end if;
    for v_field in select e.key from jsonb_each(p_config) e where e.value <> 'null' loop
        if v_field = any (c_unsupported) then
            perform ojs._raise('OJ408', format('%s of a queue is not supported', v_field), jsonb_build_object('field', v_field));
        elsif v_field = 'visibility_timeout' then
            perform ojs._check_seconds(p_config, v_field, 1, 604800);
        elsif v_field = 'default_timeout' then
            perform ojs._check_seconds(p_config, v_field, 0, 2147483);
        elsif v_field = 'description' then
            if jsonb_typeof(p_config -> v_field) <> 'string' or length(p_config ->> v_field) > 1000 then
                perform ojs._raise('OJ422', 'description must be a string of at most 1000 characters', '{"field": "description"}');
            end if;
        elsif v_field = 'default_retry' then
            perform ojs._check_default_retry(p_config -> v_field);
        elsif v_field = 'retention' then
            perform ojs._check_queue_retention(p_config -> v_field);
        elsif v_field in ('max_size', 'backpressure') then
            perform ojs._check_bound(p_config);
        elsif v_field = 'tenant_fairness' then
            perform ojs._check_fairness(p_config -> v_field, true);
        else
            perform ojs._misnamed(v_field, c_known || c_unsupported);
            perform ojs._raise('OJ400', format('%s is no field of a queue''s configuration', left(v_field, 100)),
                jsonb_build_object('field', left(v_field, 100)));
        end if;
    end loop;
end;
$$;
comment on function ojs._check_queue_config(jsonb) is
'Raises why the configuration of a queue is refused.';

create or replace function ojs._check_seconds(p_config jsonb, p_field text, p_least int, p_most int) returns void
language plpgsql immutable
as $$
begin
    if jsonb_typeof(p_config -> p_field) <> 'number' or p_config ->> p_field !~ '^[0-9]{1,9}$'
            or (p_config ->> p_field)::int not between p_least and p_most then
        perform ojs._raise('OJ422', format('%s must be an integer of seconds between %s and %s', p_field, p_least, p_most),
            jsonb_build_object('field', p_field));
    end if;
end;
$$;
comment on function ojs._check_seconds(jsonb, text, int, int) is
'Raises an error if a member is not a whole number of seconds in a range.';

create or replace function ojs._check_queue_retention(p_retention jsonb) returns void
language plpgsql
as $$
declare
    v_state text;
begin
    if jsonb_typeof(p_retention) <> 'object' then
        perform ojs._raise('OJ422', 'retention must be a JSON object', '{"field": "retention"}');
    end if;
    select r.key into v_state from jsonb_each(p_retention) r
    where r.key not in ('completed', 'discarded', 'cancelled')
       or jsonb_typeof(r.value) <> 'string' or ojs._duration(r.value #>> '{}') is null
    limit 1;
    if found then
        perform ojs._raise('OJ422', 'retention holds completed, discarded and cancelled, each an ISO 8601 duration such as P7D',
            jsonb_build_object('field', 'retention.' || left(v_state, 100)));
    end if;
end;
$$;
comment on function ojs._check_queue_retention(jsonb) is
'Raises an error if the retention of a queue is not an object of durations by final state.';

create or replace function ojs._check_retention(p_retention interval, p_queues text[]) returns void
language plpgsql stable
as $$
declare
    v_bad record;
begin
    -- In seconds, as partitions are cut: a month has no fixed length.
    select q.queue, r.key, r.value into v_bad
    from ojs.queue q cross join lateral jsonb_each_text(q.config -> 'retention') r
    where q.queue = any (p_queues) and extract(epoch from ojs._duration(r.value)) > extract(epoch from p_retention)
    limit 1;
    if found then
        perform ojs._raise('OJ408', format('retention.%s of queue %s, %s, is longer than that of the deployment, %s',
                v_bad.key, v_bad.queue, v_bad.value, p_retention),
            jsonb_build_object('field', 'retention.' || v_bad.key, 'queue', v_bad.queue),
            'Jobs leave by the partition, for all queues together: set ojs.configure(p_retention => ...) to the longest.');
    end if;
end;
$$;
comment on function ojs._check_retention(interval, text[]) is
'Raises an error if a queue promises to keep jobs for longer than the deployment does.';

create or replace function ojs._alone_with_queues() returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform ojs._raise('OJ408', 'queues are configured in transactions of isolation level read committed',
            '{"field": "transaction_isolation"}');
    end if;
    lock table ojs.queue in share update exclusive mode;
end;
$$;
comment on function ojs._alone_with_queues() is
'Waits until no other session configures queues, and keeps them out until the transaction ends. The
functions called after it read all queues, so they have to see what the session before has
written. Pausing a queue does not wait.';
