-- What a heartbeat writes: the row of ojs.worker if the worker says something new, and the row of
-- ojs.worker_beat if the last one is older than a fifteenth of the heartbeat timeout. The clock
-- waits that much longer before a worker counts as dead. Called by every heartbeat and
-- registration.

create or replace function ojs._record_beat(p_tenant text, p_says ojs.worker, p_active int, p_ids uuid[], p_anew boolean default false)
returns ojs.worker
language plpgsql
as $$
declare
    v_tenant text := coalesce(p_tenant, '');
    v_ids    uuid[] := array(select distinct i from unnest(p_ids) i where i is not null);
    v_now    timestamptz;
    v_known  ojs.worker;
    v_new    ojs.worker;
    v_beat   ojs.worker_beat;
begin
    loop
        v_now := ojs.now();
        select * into v_known from ojs.worker w where w.tenant_id = v_tenant and w.worker_id = p_says.worker_id;
        if not found then
            v_new := ojs._add_worker(v_tenant, p_says, p_active, v_ids);
            -- Another session has added the worker since: read again.
            continue when v_new.id is null;
            return v_new;
        end if;
        select * into v_beat from ojs.worker_beat b
        where b.tenant_id = v_tenant and b.worker_id = p_says.worker_id order by b.rev desc limit 1;
        -- Without this check each heartbeat would lock one row and write another.
        if not p_anew and v_beat.seen_at between v_now - ojs._heartbeat_timeout() / 15 and v_now
                and ojs._merge_worker(v_known, p_says, p_anew) is not distinct from v_known then
            return v_known;
        end if;
        select * into v_known from ojs.worker w where w.tenant_id = v_tenant and w.id = v_known.id for no key update;
        -- The registration has ended since: read again.
        continue when not found;
        v_new := ojs._merge_worker(v_known, p_says, p_anew);
        if p_anew then
            v_new.registered_at := v_now;
            if ojs._follows(p_says, v_known) then
                perform ojs._take_from_old_process(v_known);
            end if;
        end if;
        if v_new is distinct from v_known then
            v_new := ojs._change_worker(v_known, v_new);
        end if;
        -- The greater of the two: another session may have noted a later heartbeat while this one
        -- waited.
        update ojs.worker_beat b set rev = b.rev + 1, seen_at = greatest(b.seen_at, v_now), active = p_active, ids = v_ids
        where b.tenant_id = v_tenant and b.worker_id = p_says.worker_id
          and b.rev = (
            select l.rev from ojs.worker_beat l
            where l.tenant_id = v_tenant and l.worker_id = p_says.worker_id order by l.rev desc limit 1);
        return v_new;
    end loop;
end;
$$;
comment on function ojs._record_beat(text, ojs.worker, int, uuid[], boolean) is
'Notes that a worker is alive, and returns its row; registers it if it has none. p_says: what it
says about itself; null: not said. p_anew: it has just started; jobs that an old process of it holds
are taken back.';

create or replace function ojs._add_worker(p_tenant text, p_says ojs.worker, p_active int, p_ids uuid[]) returns ojs.worker
language plpgsql
as $$
declare
    c_most   constant int := 10000;
    v_now    timestamptz := ojs.now();
    v_worker ojs.worker;
begin
    if exists (select from ojs.worker w where w.tenant_id = p_tenant order by w.worker_id offset c_most - 1 limit 1) then
        perform ojs._raise('OJ422', format('at most %s workers of a tenant can be registered', c_most), '{"field": "worker_id"}');
    end if;
    insert into ojs.worker (tenant_id, worker_id, state, hostname, pid, queues, concurrency, labels, version, metadata,
        started_at, registered_at, pool, strategy, weights)
    values (p_tenant, p_says.worker_id, coalesce(p_says.state, 'running'), p_says.hostname, p_says.pid, p_says.queues, p_says.concurrency,
        p_says.labels, p_says.version, p_says.metadata, p_says.started_at, v_now, p_says.pool, p_says.strategy, p_says.weights)
    on conflict do nothing returning * into v_worker;
    if found then
        insert into ojs.worker_beat (tenant_id, worker_id, rev, seen_at, active, ids)
        values (p_tenant, p_says.worker_id, 1, v_now, p_active, p_ids);
        insert into ojs.worker_load (tenant_id, worker_id, rev, ids) values (p_tenant, p_says.worker_id, 1, '{}') on conflict do nothing;
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        values (v_now + ojs._dead_after(), 'worker', array[p_tenant], array[v_worker.id]);
    end if;
    return v_worker;
end;
$$;
comment on function ojs._add_worker(text, ojs.worker, int, uuid[]) is
'Registers a worker, and sets a timer for the clock to check whether it has fallen silent. Null: it
is registered already. Raises validation_error.';

create or replace function ojs._change_worker(p_known ojs.worker, p_new ojs.worker) returns ojs.worker
language plpgsql
as $$
declare
    v_worker ojs.worker;
begin
    update ojs.worker w
    set state = p_new.state, directive = p_new.directive, hostname = p_new.hostname, pid = p_new.pid, queues = p_new.queues,
        concurrency = p_new.concurrency, labels = p_new.labels, version = p_new.version, metadata = p_new.metadata,
        started_at = p_new.started_at, registered_at = p_new.registered_at, pool = p_new.pool, strategy = p_new.strategy,
        weights = p_new.weights, asks = p_new.asks, asked_at = p_new.asked_at
    where w.tenant_id = p_known.tenant_id and w.worker_id = p_known.worker_id
    returning * into v_worker;
    if p_known.resting and not v_worker.resting then
        perform ojs._wake('awake');
    end if;
    return v_worker;
end;
$$;
comment on function ojs._change_worker(ojs.worker, ojs.worker) is
'Writes what is new about a worker, and wakes its waiting FETCH if it no longer rests. Returns its
row.';

create or replace function ojs._merge_worker(p_known ojs.worker, p_says ojs.worker, p_anew boolean) returns ojs.worker
language plpgsql immutable
as $$
declare
    v_new ojs.worker := p_known;
    v_old ojs.worker := case when not p_anew then p_known end;
begin
    if p_says.pool <> v_old.pool then
        perform ojs._raise('OJ409', format('worker %s is in pool %s', p_known.worker_id, v_old.pool), '{"field": "pool"}',
            'A worker that registers anew may be in another one.');
    end if;
    v_new.state := coalesce(p_says.state, v_old.state, 'running');
    -- A directive is for one process. That process has ended if the worker registers again, has
    -- another pid or start, or goes on after terminate.
    if p_anew or p_says.pid <> p_known.pid or p_says.started_at <> p_known.started_at
            or p_known.state = 'terminate' and p_says.state <> 'terminate' then
        v_new.directive := null;
        v_new.asks := null;
        v_new.asked_at := null;
    elsif p_known.directive = 'running' and v_new.state = 'running' then
        -- The worker has followed it. If the directive stayed, the worker could not become quiet by
        -- itself later.
        v_new.directive := null;
    end if;
    v_new.hostname := coalesce(p_says.hostname, v_old.hostname);
    v_new.pid := coalesce(p_says.pid, v_old.pid);
    v_new.queues := coalesce(p_says.queues, v_old.queues);
    v_new.concurrency := coalesce(p_says.concurrency, v_old.concurrency);
    v_new.labels := coalesce(p_says.labels, v_old.labels);
    v_new.version := coalesce(p_says.version, v_old.version);
    v_new.metadata := coalesce(p_says.metadata, v_old.metadata);
    v_new.started_at := coalesce(p_says.started_at, v_old.started_at);
    v_new.pool := coalesce(p_says.pool, v_old.pool);
    v_new.strategy := coalesce(p_says.strategy, v_old.strategy);
    v_new.weights := coalesce(p_says.weights, v_old.weights);
    v_new.resting := coalesce(v_new.directive, v_new.state) <> 'running';
    v_new.apart := v_new.resting or coalesce(v_new.pool, v_new.strategy) is not null or v_new.weights is not null;
    return v_new;
end;
$$;
comment on function ojs._merge_worker(ojs.worker, ojs.worker, boolean) is
'The row of a worker after what it says now. p_anew: nothing known before holds. Raises conflict
for another pool.';

create or replace function ojs._answer_beat(p_worker ojs.worker, p_extended uuid[]) returns ojs.beat
language sql stable
as $$
    select row(
        case
            when not p_worker.resting then 'running'
            when coalesce(p_worker.directive, p_worker.state) = 'terminate' then 'terminate'
            else 'quiet'
        end, coalesce(p_extended, '{}'), ojs.now(), s.heartbeat_timeout_ms / 6, s.heartbeat_timeout_ms)::ojs.beat
    from ojs.settings s
$$;
comment on function ojs._answer_beat(ojs.worker, uuid[]) is
'The answer to a heartbeat. A worker that rests of its own accord is told to go on resting.';

create or replace function ojs._heartbeat_timeout() returns interval
language sql stable
as $$ select s.heartbeat_timeout_ms * interval '1 millisecond' from ojs.settings s $$;
comment on function ojs._heartbeat_timeout() is
'How long a worker may be silent before it counts as dead.';

create or replace function ojs._dead_after() returns interval
language sql stable
as $$ select ojs._heartbeat_timeout() * 16 / 15 $$;
comment on function ojs._dead_after() is
'How old the last noted heartbeat of a dead worker is at least: the heartbeat timeout, plus the
fifteenth in which no heartbeat is noted.';
