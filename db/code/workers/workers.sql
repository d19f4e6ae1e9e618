comment on type ojs.beat is
'The answer to a heartbeat or a registration: what the worker is to do (running, quiet, terminate),
the jobs that it still holds, the time, how often to send heartbeats, and after what silence a
worker counts as dead, milliseconds.';

-- Notes that a worker lives and still runs some jobs.
-- Locks the row of ojs.worker when it writes, and the rows of the jobs (skip locked).
-- Writes ojs.worker and ojs.worker_beat now and then, ojs.job, and ojs.timer and ojs.worker_load
-- for a worker that was unknown.
create or replace function ojs.heartbeat(
    p_worker_id text, p_ids uuid[] default '{}', p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_says   ojs.worker := ojs._worker_says(p_worker_id);
begin
    perform ojs._check_beat(p_ids, null, null, p_visibility_timeout_ms, v_tenant);
    perform ojs._record_beat(v_tenant, v_says, cardinality(p_ids), p_ids);
    return query select * from ojs._extend(p_worker_id, p_ids, p_visibility_timeout_ms, v_tenant);
end;
$$;
comment on function ojs.heartbeat(text, uuid[], int, text) is
'Notes that a worker is alive, and extends the leases of the jobs p_ids.
Returns the jobs it has extended (ojs-core section 7.5). A lease is not extended beyond the time
that the attempt may run. A job that is not returned is no longer this worker''s, or is being
ended by another session. From then on the worker is registered: when it falls silent, its jobs
are taken back (ojs.configure, p_heartbeat_timeout_ms). ojs.beat does the same, and also returns
what the worker is to do.
p_visibility_timeout_ms: from now; null: the job''s own, else 30000.
Raises invalid_request, ambiguous_job.';

-- Notes a heartbeat with everything that a worker may say about itself; returns what it is to do.
-- Locks the row of ojs.worker when it writes, and the rows of the jobs (skip locked).
-- Writes ojs.worker and ojs.worker_beat now and then, ojs.job, and ojs.timer and ojs.worker_load
-- for a worker that was unknown.
create or replace function ojs.beat(
    p_worker_id text, p_ids uuid[] default '{}', p_state text default null, p_visibility_timeout_ms int default null,
    p_tenant text default null, p_active int default null,
    p_hostname text default null, p_pid int default null, p_queues text[] default null, p_concurrency int default null,
    p_labels text[] default null, p_version text default null, p_metadata anycompatible default null,
    p_started_at timestamptz default null, p_pool text default null, p_strategy text default null, p_weights anycompatible default null
) returns ojs.beat
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_metadata));
    v_tenant   text := ojs._session_tenant(p_tenant);
    v_says     ojs.worker;
    v_worker   ojs.worker;
    v_extended uuid[];
begin
    v_says := ojs._worker_says(p_worker_id, p_hostname, p_pid, p_queues, p_concurrency, p_labels, p_version,
        p_metadata::jsonb, p_started_at, p_pool, p_strategy, p_weights::jsonb);
    perform ojs._check_beat(p_ids, p_state, p_active, p_visibility_timeout_ms, v_tenant);
    v_says.state := case p_state when 'draining' then 'drain' else p_state end;
    v_worker := ojs._record_beat(v_tenant, v_says, coalesce(p_active, cardinality(p_ids)), p_ids);
    if cardinality(p_ids) > 0 then
        select array_agg(j.id) into v_extended from ojs._extend(p_worker_id, p_ids, p_visibility_timeout_ms, v_tenant) j;
    end if;
    return ojs._answer_beat(v_worker, v_extended);
end;
$$;
comment on function ojs.beat(
    text, uuid[], text, int, text, int, text, int, text[], int, text[], text, anycompatible, timestamptz, text, text, anycompatible) is
'Notes a heartbeat as ojs.heartbeat does, and returns what the worker is to do.
See ojs-worker-protocol section 4. It also returns the jobs that the worker still holds. A worker
that is quiet, drains or terminates gets no jobs. A null leaves a value as it was.
p_state: what it does: running, quiet, drain or terminate.
p_active: how many jobs it runs; null: as many as p_ids.
p_pool, p_strategy, p_weights: its pool, and how its FETCHes go over queues, as for ojs.fetch.
The other parameters describe the worker.
Raises invalid_request, ambiguous_job, payload_too_large, conflict (it is in another pool),
validation_error (more than 10000 workers of the tenant).';

-- Registers a worker that has started.
-- Locks the row of ojs.worker, if there is one, and the rows of its old process's jobs (skip locked).
-- Writes ojs.worker and ojs.worker_beat, ojs.timer and ojs.worker_load for a worker that was
-- unknown, and what the end of an attempt writes.
create or replace function ojs.register_worker(
    p_worker_id text, p_hostname text default null, p_pid int default null, p_queues text[] default null,
    p_concurrency int default null, p_labels text[] default null, p_version text default null, p_metadata anycompatible default null,
    p_started_at timestamptz default null, p_tenant text default null,
    p_pool text default null, p_strategy text default null, p_weights anycompatible default null
) returns ojs.beat
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_metadata));
    v_tenant text := ojs._session_tenant(p_tenant);
    v_says   ojs.worker;
begin
    v_says := ojs._worker_says(p_worker_id, p_hostname, p_pid, p_queues, p_concurrency, p_labels, p_version,
        p_metadata::jsonb, p_started_at, p_pool, p_strategy, p_weights::jsonb);
    return ojs._answer_beat(ojs._record_beat(v_tenant, v_says, 0, '{}', true), null);
end;
$$;
comment on function ojs.register_worker(
    text, text, int, text[], int, text[], text, anycompatible, timestamptz, text, text, text, anycompatible) is
'Registers a worker that has started, and returns how often it is to send heartbeats.
See ojs-worker-protocol section 3. Everything known about an earlier worker of that name is
forgotten, its directive included. If p_started_at is later than before, or p_pid is another on the
same p_hostname, the earlier process has ended, and its jobs are taken back at once; otherwise when
their leases end. A heartbeat registers, too, and takes nothing back.
p_concurrency: by strategy least-loaded it gets no more jobs at once.
Raises as ojs.beat does.';

-- Ends the registration of a worker that has ended.
-- Locks the row of ojs.worker.
-- Writes ojs.worker, ojs.worker_beat and ojs.worker_load.
create or replace function ojs.deregister_worker(p_worker_id text, p_tenant text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := coalesce(ojs._session_tenant(p_tenant), '');
begin
    perform ojs._worker_says(p_worker_id);
    delete from ojs.worker w where w.tenant_id = v_tenant and w.worker_id = p_worker_id;
    if not found then
        return false;
    end if;
    delete from ojs.worker_beat b where b.tenant_id = v_tenant and b.worker_id = p_worker_id;
    perform ojs._forget_loads(array[v_tenant], array[p_worker_id]);
    return true;
end;
$$;
comment on function ojs.deregister_worker(text, text) is
'Ends the registration of a worker that has ended, and returns whether it was registered.
See ojs-worker-protocol section 3.4. Jobs that it still holds stay its own until their leases end.
Raises invalid_request.';

create or replace function ojs._check_beat(p_ids uuid[], p_state text, p_active int, p_visibility_timeout_ms int, p_tenant text)
returns void
language plpgsql stable
as $$
begin
    if p_state not in ('running', 'quiet', 'drain', 'draining', 'terminate') then
        perform ojs._raise('OJ400', 'state must be running, quiet, drain or terminate', '{"field": "state"}');
    elsif p_visibility_timeout_ms not between 1000 and 604800000 then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    elsif cardinality(p_ids) > 10000 then
        perform ojs._raise('OJ400', 'active_jobs must name at most 10000 jobs', '{"field": "active_jobs"}');
    elsif p_active < 0 then
        perform ojs._raise('OJ400', 'active_jobs must not be negative', '{"field": "active_jobs"}');
    elsif p_tenant is null and exists (select from ojs.job j where j.id = any (p_ids) group by j.id having count(*) > 1) then
        perform ojs._raise('OJ411', 'a job id in active_jobs exists in more than one tenant', '{"field": "X-OJS-Tenant"}');
    end if;
end;
$$;
comment on function ojs._check_beat(uuid[], text, int, int, text) is
'Raises why a heartbeat is refused, except for what describes the worker (_worker_says):
invalid_request, or ambiguous_job if two tenants have a job with one of the ids and the call names
no tenant.';

create or replace function ojs._worker_says(
    p_worker_id text, p_hostname text default null, p_pid int default null, p_queues text[] default null, p_concurrency int default null,
    p_labels text[] default null, p_version text default null, p_metadata jsonb default null, p_started_at timestamptz default null,
    p_pool text default null, p_strategy text default null, p_weights jsonb default null
) returns ojs.worker
language plpgsql
as $$
declare
    v_says ojs.worker;
begin
    if p_worker_id is null or p_worker_id = '' or length(p_worker_id) > 255 then
        perform ojs._raise('OJ400', 'worker_id is required and has at most 255 characters', '{"field": "worker_id"}');
    elsif p_pid < 0 then
        perform ojs._raise('OJ400', 'pid must not be negative', '{"field": "pid"}');
    elsif p_concurrency < 1 then
        perform ojs._raise('OJ400', 'concurrency must be at least 1', '{"field": "concurrency"}');
    elsif length(p_hostname) > 255 then
        perform ojs._raise('OJ400', 'hostname is longer than 255 characters', '{"field": "hostname"}');
    elsif length(p_version) > 255 then
        perform ojs._raise('OJ400', 'version is longer than 255 characters', '{"field": "version"}');
    elsif cardinality(p_queues) > 100 or exists (select from unnest(p_queues) q where ojs._queue_name(q) is not true) then
        perform ojs._raise('OJ400', 'queues must be at most 100, consist of a-z, 0-9, - and ., begin with a letter or digit and have '
            'at most 128 characters', '{"field": "queues"}');
    elsif cardinality(p_labels) > 100 or exists (select from unnest(p_labels) l where l is null or octet_length(l) > 255) then
        perform ojs._raise('OJ400', 'labels must be at most 100 of at most 255 bytes', '{"field": "labels"}');
    elsif jsonb_typeof(p_metadata) <> 'object' then
        perform ojs._raise('OJ400', 'metadata must be a JSON object', '{"field": "metadata"}');
    elsif octet_length(p_metadata::text) > 16384 then
        perform ojs._raise('OJ413', 'metadata is larger than 16384 bytes', '{"field": "metadata"}');
    elsif not isfinite(p_started_at) or p_started_at not between '0001-01-01 00:00Z' and '9999-12-31 23:59:59.999999Z' then
        perform ojs._raise('OJ400', 'started_at must be a time between the years 1 and 9999', '{"field": "started_at"}');
    end if;
    if p_pool is not null then
        perform ojs._check_pool_name(p_pool);
    end if;
    perform ojs._check_strategy(p_strategy, p_weights);
    v_says.worker_id := p_worker_id;
    v_says.hostname := p_hostname;
    v_says.pid := p_pid;
    v_says.queues := p_queues;
    v_says.concurrency := p_concurrency;
    v_says.labels := p_labels;
    v_says.version := p_version;
    v_says.metadata := p_metadata;
    v_says.started_at := p_started_at;
    v_says.pool := p_pool;
    v_says.strategy := p_strategy;
    v_says.weights := p_weights;
    return v_says;
end;
$$;
comment on function ojs._worker_says(text, text, int, text[], int, text[], text, jsonb, timestamptz, text, text, jsonb) is
'Checks what a worker says about itself, and returns it as a row; null: not said. Raises
invalid_request, payload_too_large, validation_error.';
