-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._check_worker(
    p_worker_id text, p_ids uuid[], p_state text, p_active int, p_visibility_timeout_ms int, p_hostname text, p_pid int, p_queues text[], p_concurrency int, p_labels text[],
    p_version text, p_metadata jsonb, p_started_at timestamptz
) returns void
language plpgsql
as $$
begin
    if p_worker_id is null or p_worker_id = '' or length(p_worker_id) > 255 then
        perform ojs._raise('OJ400', 'worker_id is required and has at most 255 characters', '{"field": "worker_id"}');
    end if;
    if p_state not in ('running', 'quiet', 'drain', 'draining', 'terminate') then
        perform ojs._raise('OJ400', 'state must be running, quiet, drain or terminate', '{"field": "state"}');
    end if;
    if p_visibility_timeout_ms not between 1000 and 604800000 then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    end if;
    if cardinality(p_ids) > 10000 then
        perform ojs._raise('OJ400', 'active_jobs must name at most 10000 jobs', '{"field": "active_jobs"}');
    end if;
    if p_active < 0 then
        perform ojs._raise('OJ400', 'active_jobs must not be negative', '{"field": "active_jobs"}');
    end if;
    if p_pid < 0 then
        perform ojs._raise('OJ400', 'pid must not be negative', '{"field": "pid"}');
    end if;
    if p_concurrency < 1 then
        perform ojs._raise('OJ400', 'concurrency must be at least 1', '{"field": "concurrency"}');
    end if;
    if length(p_hostname) > 255 then
        perform ojs._raise('OJ400', 'hostname is longer than 255 characters', '{"field": "hostname"}');
    end if;
    if length(p_version) > 255 then
        perform ojs._raise('OJ400', 'version is longer than 255 characters', '{"field": "version"}');
    end if;
    if cardinality(p_queues) > 100 or exists (select from unnest(p_queues) q where q is null or q !~ '^[a-z0-9][a-z0-9.-]*$' or length(q) > 128) then
        perform ojs._raise('OJ400', 'queues must be at most 100, consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters', '{"field": "queues"}');
    end if;
    if cardinality(p_labels) > 100 or exists (select from unnest(p_labels) l where l is null or octet_length(l) > 255) then
        perform ojs._raise('OJ400', 'labels must be at most 100 of at most 255 bytes', '{"field": "labels"}');
    end if;
    if jsonb_typeof(p_metadata) <> 'object' then
        perform ojs._raise('OJ400', 'metadata must be a JSON object', '{"field": "metadata"}');
    end if;
    if octet_length(p_metadata::text) > 16384 then
        perform ojs._raise('OJ413', 'metadata is larger than 16384 bytes', '{"field": "metadata"}');
    end if;
    if not isfinite(p_started_at) or p_started_at not between '0001-01-01 00:00Z' and '9999-12-31 23:59:59.999999Z' then
        perform ojs._raise('OJ400', 'started_at must be a time between the years 1 and 9999', '{"field": "started_at"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_worker(text, uuid[], text, int, int, text, int, text[], int, text[], text, jsonb, timestamptz) is
'Raises why what a worker says of itself is refused; else does nothing.';

-- +goose StatementBegin
create function ojs._silence() returns interval
language sql stable
as $$ select s.heartbeat_timeout_ms * interval '1 millisecond' from ojs.settings s $$;
-- +goose StatementEnd
comment on function ojs._silence() is 'How long a worker may be silent before it is taken for dead.';

-- A heartbeat is written down when the last one written is older than a fifteenth of the timeout, or when it says something new. So the clock waits for a fifteenth longer.
-- +goose StatementBegin
create function ojs._seen(p_tenant text, p_said ojs.worker, p_active int, p_ids uuid[], p_anew boolean default false) returns ojs.worker
language plpgsql
as $$
declare
    c_most   constant int := 10000;
    v_tenant text := coalesce(p_tenant, '');
    v_ids    uuid[] := array(select distinct i from unnest(p_ids) i where i is not null);
    v_now    timestamptz;
    v_quiet  interval := ojs._silence();
    v_known  ojs.worker;
    v_new    ojs.worker;
    v_beat   ojs.worker_beat;
begin
    loop
        v_now := ojs.now();
        select * into v_known from ojs.worker w where w.tenant_id = v_tenant and w.worker_id = p_said.worker_id;
        if not found then
            if exists (select from ojs.worker w where w.tenant_id = v_tenant order by w.worker_id offset c_most - 1 limit 1) then
                perform ojs._raise('OJ422', format('at most %s workers of a tenant can be registered', c_most), '{"field": "worker_id"}');
            end if;
            insert into ojs.worker (tenant_id, worker_id, state, hostname, pid, queues, concurrency, labels, version, metadata, started_at, registered_at)
            values (v_tenant, p_said.worker_id, coalesce(p_said.state, 'running'), p_said.hostname, p_said.pid, p_said.queues, p_said.concurrency, p_said.labels, p_said.version,
                p_said.metadata, p_said.started_at, v_now)
            on conflict do nothing returning * into v_new;
            continue when not found;
            insert into ojs.worker_beat (tenant_id, worker_id, rev, seen_at, active, ids) values (v_tenant, p_said.worker_id, 1, v_now, p_active, v_ids);
            insert into ojs.timer (due_at, kind, tenant_ids, ids) values (v_now + v_quiet * 16 / 15, 'worker', array[v_tenant], array[v_new.id]);
            return v_new;
        end if;
        select * into v_beat from ojs.worker_beat b where b.tenant_id = v_tenant and b.worker_id = p_said.worker_id order by b.rev desc limit 1;
        v_new := ojs._said(v_known, p_said, p_anew);
        if not p_anew and v_new is not distinct from v_known and v_beat.seen_at between v_now - v_quiet / 15 and v_now then
            return v_known;
        end if;
        select * into v_known from ojs.worker w where w.tenant_id = v_tenant and w.id = v_known.id for no key update;
        -- Gone meanwhile: it fell silent, or signed off.
        continue when not found;
        v_new := ojs._said(v_known, p_said, p_anew);
        if p_anew then
            v_new.registered_at := v_now;
        end if;
        if v_new is distinct from v_known then
            update ojs.worker w
            set state = v_new.state, directive = v_new.directive, hostname = v_new.hostname, pid = v_new.pid, queues = v_new.queues, concurrency = v_new.concurrency, labels = v_new.labels,
                version = v_new.version, metadata = v_new.metadata, started_at = v_new.started_at, registered_at = v_new.registered_at
            where w.tenant_id = v_tenant and w.worker_id = p_said.worker_id
            returning * into v_new;
            if v_known.resting and not v_new.resting then
                perform pg_notify('ojs_wake', 'awake');
            end if;
        end if;
        update ojs.worker_beat b set rev = b.rev + 1, seen_at = greatest(b.seen_at, v_now), active = p_active, ids = v_ids
        where b.tenant_id = v_tenant and b.worker_id = p_said.worker_id
          and b.rev = (select l.rev from ojs.worker_beat l where l.tenant_id = v_tenant and l.worker_id = p_said.worker_id order by l.rev desc limit 1);
        return v_new;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._seen(text, ojs.worker, int, uuid[], boolean) is
'Writes down that a worker is alive, and returns its row; registers it if it has none. p_said: what it says of itself, null where it says
nothing. p_anew: it has just begun.';

-- +goose StatementBegin
create function ojs._said(p_known ojs.worker, p_said ojs.worker, p_anew boolean) returns ojs.worker
language plpgsql immutable
as $$
declare
    v_new ojs.worker := p_known;
begin
    v_new.state := coalesce(p_said.state, case when p_anew then 'running' else p_known.state end);
    -- A process that had said it ends has ended, and so has one that began at another time or has another number: what it was told is not for the next.
    if p_anew or p_said.pid <> p_known.pid or p_said.started_at <> p_known.started_at or p_known.state = 'terminate' and p_said.state <> 'terminate' then
        v_new.directive := null;
    elsif p_known.directive = 'running' and v_new.state = 'running' then
        -- Done: from now on it may rest by itself.
        v_new.directive := null;
    end if;
    v_new.hostname := case when p_anew then p_said.hostname else coalesce(p_said.hostname, p_known.hostname) end;
    v_new.pid := case when p_anew then p_said.pid else coalesce(p_said.pid, p_known.pid) end;
    v_new.queues := case when p_anew then p_said.queues else coalesce(p_said.queues, p_known.queues) end;
    v_new.concurrency := case when p_anew then p_said.concurrency else coalesce(p_said.concurrency, p_known.concurrency) end;
    v_new.labels := case when p_anew then p_said.labels else coalesce(p_said.labels, p_known.labels) end;
    v_new.version := case when p_anew then p_said.version else coalesce(p_said.version, p_known.version) end;
    v_new.metadata := case when p_anew then p_said.metadata else coalesce(p_said.metadata, p_known.metadata) end;
    v_new.started_at := case when p_anew then p_said.started_at else coalesce(p_said.started_at, p_known.started_at) end;
    v_new.resting := coalesce(v_new.directive, v_new.state) <> 'running';
    return v_new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._said(ojs.worker, ojs.worker, boolean) is
'What is known of a worker after what it says now. p_anew: nothing that was known before holds.';

create type ojs.beat as (state text, jobs_extended uuid[], server_time timestamptz, heartbeat_interval_ms int, heartbeat_timeout_ms int);
comment on type ojs.beat is
'The answer to a heartbeat or a registration: what the worker is to do (running, quiet, terminate), which of its jobs it still holds, the
time, how often to send heartbeats and after what silence a worker is taken for dead, milliseconds.';

-- +goose StatementBegin
create function ojs._beat(p_worker ojs.worker, p_extended uuid[]) returns ojs.beat
language sql stable
as $$
    select row(case when p_worker.resting then case coalesce(p_worker.directive, p_worker.state) when 'terminate' then 'terminate' else 'quiet' end else 'running' end,
        coalesce(p_extended, '{}'), ojs.now(), s.heartbeat_timeout_ms / 6, s.heartbeat_timeout_ms)::ojs.beat
    from ojs.settings s
$$;
-- +goose StatementEnd
comment on function ojs._beat(ojs.worker, uuid[]) is 'The answer to a worker. Who rests by itself is told to go on resting.';

-- +goose StatementBegin
create function ojs._check_beat_ids(p_ids uuid[], p_tenant text) returns void
language plpgsql stable
as $$
begin
    if p_tenant is null and exists (select from ojs.job j where j.id = any (p_ids) group by j.id having count(*) > 1) then
        perform ojs._raise('OJ411', 'a job id in active_jobs exists in more than one tenant', '{"field": "X-OJS-Tenant"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_beat_ids(uuid[], text) is
'Raises ambiguous_job when two tenants have a job with one of the ids and neither is named.';

-- +goose StatementBegin
create function ojs.heartbeat(
    p_worker_id text, p_ids uuid[] default '{}', p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_said   ojs.worker;
begin
    perform ojs._check_worker(p_worker_id, p_ids, null, null, p_visibility_timeout_ms, null, null, null, null, null, null, null, null);
    perform ojs._check_beat_ids(p_ids, v_tenant);
    v_said.worker_id := p_worker_id;
    perform ojs._seen(v_tenant, v_said, cardinality(p_ids), p_ids);
    return query select * from ojs._extend(p_worker_id, p_ids, p_visibility_timeout_ms, v_tenant);
end;
$$;
-- +goose StatementEnd
comment on function ojs.heartbeat(text, uuid[], int, text) is
'Says that a worker is alive and still runs the jobs p_ids; extends their leases by p_visibility_timeout_ms (else the job''s own, else
30000 ms) from now, but not beyond the time that the attempt may run, and returns those it extended (ojs-core section 7.5). A job not
returned is no longer this worker''s, or is being ended at this moment. The worker is registered from then on: when it falls silent, its
jobs go back (ojs.configure, p_heartbeat_timeout_ms). ojs.beat does the same and tells what the worker is to do. Raises invalid_request,
ambiguous_job.';

-- +goose StatementBegin
create function ojs.beat(
    p_worker_id text, p_ids uuid[] default '{}', p_state text default null, p_visibility_timeout_ms int default null, p_tenant text default null, p_active int default null,
    p_hostname text default null, p_pid int default null, p_queues text[] default null, p_concurrency int default null, p_labels text[] default null, p_version text default null,
    p_metadata jsonb default null, p_started_at timestamptz default null
) returns ojs.beat
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant   text := ojs._session_tenant(p_tenant);
    v_said     ojs.worker;
    v_extended uuid[];
begin
    perform ojs._check_worker(p_worker_id, p_ids, p_state, p_active, p_visibility_timeout_ms, p_hostname, p_pid, p_queues, p_concurrency, p_labels, p_version, p_metadata, p_started_at);
    perform ojs._check_beat_ids(p_ids, v_tenant);
    v_said.worker_id := p_worker_id;
    v_said.state := case p_state when 'draining' then 'drain' else p_state end;
    v_said.hostname := p_hostname;
    v_said.pid := p_pid;
    v_said.queues := p_queues;
    v_said.concurrency := p_concurrency;
    v_said.labels := p_labels;
    v_said.version := p_version;
    v_said.metadata := p_metadata;
    v_said.started_at := p_started_at;
    v_said := ojs._seen(v_tenant, v_said, coalesce(p_active, cardinality(p_ids)), p_ids);
    if cardinality(p_ids) > 0 then
        select array_agg(j.id) into v_extended from ojs._extend(p_worker_id, p_ids, p_visibility_timeout_ms, v_tenant) j;
    end if;
    return ojs._beat(v_said, v_extended);
end;
$$;
-- +goose StatementEnd
comment on function ojs.beat(text, uuid[], text, int, text, int, text, int, text[], int, text[], text, jsonb, timestamptz) is
'ojs.heartbeat with everything a worker may say of itself and be told (ojs-worker-protocol section 4). p_state: what it does, running,
quiet, drain or terminate; p_active: how many jobs it runs, if not as many as p_ids; the rest describes it, and what is null stays as it
was. Returns what it is to do and the jobs it still holds. A worker that drains, is quiet or ends gets no jobs. Raises invalid_request,
ambiguous_job, payload_too_large, validation_error (more than 10000 workers of the tenant).';

-- +goose StatementBegin
create function ojs.register_worker(
    p_worker_id text, p_hostname text default null, p_pid int default null, p_queues text[] default null, p_concurrency int default null, p_labels text[] default null,
    p_version text default null, p_metadata jsonb default null, p_started_at timestamptz default null, p_tenant text default null
) returns ojs.beat
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_said   ojs.worker;
begin
    perform ojs._check_worker(p_worker_id, '{}', null, null, null, p_hostname, p_pid, p_queues, p_concurrency, p_labels, p_version, p_metadata, p_started_at);
    v_said.worker_id := p_worker_id;
    v_said.hostname := p_hostname;
    v_said.pid := p_pid;
    v_said.queues := p_queues;
    v_said.concurrency := p_concurrency;
    v_said.labels := p_labels;
    v_said.version := p_version;
    v_said.metadata := p_metadata;
    v_said.started_at := p_started_at;
    return ojs._beat(ojs._seen(v_tenant, v_said, 0, '{}', true), null);
end;
$$;
-- +goose StatementEnd
comment on function ojs.register_worker(text, text, int, text[], int, text[], text, jsonb, timestamptz, text) is
'Says that a worker has started (ojs-worker-protocol section 3), and returns how often it is to send heartbeats. What was known of a
worker of that name, and what it was told to do, is forgotten; jobs it still held are its leases'' affair. A heartbeat registers, too.
Raises as ojs.beat does.';

-- +goose StatementBegin
create function ojs.deregister_worker(p_worker_id text, p_tenant text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := coalesce(ojs._session_tenant(p_tenant), '');
begin
    perform ojs._check_worker(p_worker_id, '{}', null, null, null, null, null, null, null, null, null, null, null);
    delete from ojs.worker w where w.tenant_id = v_tenant and w.worker_id = p_worker_id;
    if not found then
        return false;
    end if;
    delete from ojs.worker_beat b where b.tenant_id = v_tenant and b.worker_id = p_worker_id;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs.deregister_worker(text, text) is
'Says that a worker has ended (ojs-worker-protocol section 3.4), and returns whether it was registered. Jobs that it still holds stay its
own until their leases end. Raises invalid_request.';
reset role;
