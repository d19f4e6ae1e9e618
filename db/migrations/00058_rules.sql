-- +goose Up
-- Rules that hold dispatch back: how many jobs may run at once, and pauses; of a tenant, of a queue, of a tenant in a queue. What decisions
-- do about them stands in (due), (charge) and (slots).
set local role ojs_owner;
set local check_function_bodies = off;

-- Limits how many jobs run at once.
-- Waits for the decision under way, and locks ojs.lane until the end of the transaction.
-- Writes rule, usage, slot_mark, fold, tenant, tenant_fairness, level and backlog; takes back what was decided ahead.
-- +goose StatementBegin
create function ojs.limit_concurrency(
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
    perform ojs._say_if_new(p_tenant, p_queue), ojs._stop_ahead();
    insert into ojs.rule (tenant_id, queue, max_concurrency, limit_reason)
    values (coalesce(p_tenant, ''), p_queue, p_max_concurrency, left(p_reason, 1000))
    on conflict (tenant_id, queue) do update set max_concurrency = excluded.max_concurrency, limit_reason = excluded.limit_reason
    returning * into v_rule;
    perform ojs._apply_limit(v_rule);
    return v_rule;
end;
$$;
-- +goose StatementEnd
comment on function ojs.limit_concurrency(int, text, text, text) is
'Limits how many jobs may be active at once (multi-tenancy section 7): of a tenant in all queues, with p_tenant and p_queue of a tenant in
a queue, with p_queue alone of all tenants together in it. p_max_concurrency: 1 to 1000000; null: no limit any more. Several limits hold
together. Never exceeded by jobs that are handed out from the next dispatch on; where more run already, nothing is handed out until fewer
do. What one may not have, others get, and enqueue is never refused. A tenant without room takes no turns, and comes back without credit
or loss. Only decisions hand out what is counted: the tenant''s own login cannot fetch any more (unsupported), and while a caller keeps its
transaction open after ojs.fetch, for 10 idle seconds at most, others get jobs without limits only. p_reason: for whoever asks later.
Returns the rule. Waits for a running dispatch. Raises invalid_request, validation_error, conflict in a transaction that has fetched jobs.';

-- Stops dispatch of a queue, of a tenant, of a tenant in a queue, or of everything.
-- With a tenant, waits for the decision under way, and locks ojs.lane until the end of the transaction.
-- Writes rule; with a tenant what ojs.limit_concurrency writes, too.
-- +goose StatementBegin
create function ojs.pause(
    p_queue text default null, p_tenant text default null, p_reason text default null, p_by text default session_user
) returns ojs.rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.rule;
begin
    p_queue := ojs._check_scope(p_tenant, p_queue);
    perform ojs._say_if_new(p_tenant, p_queue);
    if p_tenant is not null then
        perform ojs._stop_ahead();
    end if;
    insert into ojs.rule as r (tenant_id, queue, paused_at, paused_by, reason)
    values (coalesce(p_tenant, ''), p_queue, ojs.now(), left(p_by, 255), left(p_reason, 1000))
    on conflict (tenant_id, queue) do update
    set paused_at = coalesce(r.paused_at, excluded.paused_at), reason = excluded.reason,
        paused_by = case when r.paused_at is null then excluded.paused_by else r.paused_by end
    returning * into v_rule;
    if p_tenant is not null then
        perform ojs._apply_rule(v_rule);
    end if;
    return v_rule;
end;
$$;
-- +goose StatementEnd
comment on function ojs.pause(text, text, text, text) is
'Stops dispatch from the next decision on: of a queue, of a tenant (p_queue null), of a tenant in a queue, or of everything (p_queue ''*'').
Enqueue, running jobs and the clock go on. p_reason, p_by: why and who (by default the login), for whoever asks later. What is paused
twice stays paused since the first time. Returns the rule. Raises invalid_request.';

-- Lets dispatch go on.
-- Locks and writes what ojs.pause does; notifies.
-- +goose StatementBegin
create function ojs.resume(p_queue text default null, p_tenant text default null) returns ojs.rule
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule ojs.rule;
begin
    p_queue := ojs._check_scope(p_tenant, p_queue);
    v_rule.tenant_id := coalesce(p_tenant, '');
    v_rule.queue := p_queue;
    if p_tenant is not null then
        perform ojs._stop_ahead();
    end if;
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
-- +goose StatementEnd
comment on function ojs.resume(text, text) is
'Lets dispatch go on that ojs.pause has stopped with the same arguments, and wakes waiting workers. Returns what is left of the rule.';

-- +goose StatementBegin
create function ojs._check_scope(p_tenant text, p_queue text) returns text
language plpgsql
as $$
begin
    perform ojs._session_tenant(p_tenant);
    if p_tenant is null and p_queue is null then
        -- Null may be a mistake, and everything would stop.
        perform ojs._raise('OJ400', 'a queue must be named, a tenant, or both', '{"field": "queue"}', 'All queues: ''*''.');
    elsif p_queue <> '*' and not ojs._queue_name(p_queue) then
        perform ojs._raise('OJ400', 'queue must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters',
            '{"field": "queue"}');
    end if;
    return coalesce(nullif(p_queue, '*'), '');
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_scope(text, text) is
'Raises why a rule cannot be about this tenant and queue, or returns the queue as ojs.rule has it: null and * are all queues, and empty.';

-- +goose StatementBegin
create function ojs._stop_ahead() returns void
language plpgsql
as $$
declare
    v_queue text;
begin
    perform ojs._fetched_nothing();
    perform ojs._enter_lane();
    -- Jobs decided ahead go back; otherwise the next fetches would still follow the old settings.
    for v_queue in select distinct t.queue from ojs.turn t loop
        perform ojs._revoke(v_queue);
    end loop;
    -- Jobs that have not been taken in yet join now, under the settings that held when they committed: as many as others can wait for.
    perform ojs._fold_on();
end;
$$;
-- +goose StatementEnd
comment on function ojs._stop_ahead() is
'Waits for the decision under way and takes back what was decided ahead: a setting is about to change.';

-- +goose StatementBegin
create function ojs._begin_count(p_rule ojs.rule) returns void
language plpgsql
as $$
declare
    v_jobs  int;
    v_seen  pg_snapshot;
    v_shard boolean := p_rule.tenant_id <> '' and p_rule.queue <> '';
begin
    select c.o_jobs, c.o_seen into v_jobs, v_seen from ojs._count_active(p_rule.tenant_id, p_rule.queue) c;
    if exists (select from ojs._slot_mark()) then
        -- The others come to the same moment; otherwise ends that this count has seen would be taken away again.
        loop
            perform ojs._take_ends(v_seen);
            -- One bite may not be all.
            exit when not exists (select from ojs._slot_mark() m cross join lateral ojs._ends(m.ended, v_seen));
        end loop;
        -- From here on, or what ends while others are counted would not be taken away from this one.
        update ojs.slot_mark m set rev = m.rev + 1, ended = v_seen, shards = m.shards or v_shard
        where m.rev = (select n.rev from ojs._slot_mark() n);
    else
        insert into ojs.slot_mark (rev, ended, shards) values (1, v_seen, v_shard);
    end if;
    insert into ojs.usage (tenant_id, queue, rev, active, counted) values (p_rule.tenant_id, p_rule.queue, 1, v_jobs, v_seen);
end;
$$;
-- +goose StatementEnd
comment on function ojs._begin_count(ojs.rule) is 'Counts the jobs that a new limit is about.';

-- Stable, so that all it reads is of one moment.
-- +goose StatementBegin
create function ojs._count_active(p_tenant text, p_queue text, out o_jobs int, out o_seen pg_snapshot)
language plpgsql stable
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    o_seen := ojs._snapshot();
    o_jobs := (
        select coalesce(sum(n.jobs), 0)
        from (
            -- Apart, because a plan for both would read the numbers of all tenants while decisions wait.
            select t.tenant_id, t.queue, t.active as jobs from ojs.tally t where p_tenant <> '' and t.tenant_id = p_tenant
            union all
            select t.tenant_id, t.queue, t.active from ojs.tally t where p_tenant = ''
            union all
            select c.tenant_id, c.queue, c.active from ojs._changes(v_mark, o_seen) c
            union all
            -- Somebody is taking them at this moment.
            select t.tenant_id, t.queue, 1 from ojs.turn t
        ) n
        where (p_tenant = '' or n.tenant_id = p_tenant) and (p_queue = '' or n.queue = p_queue));
end;
$$;
-- +goose StatementEnd
comment on function ojs._count_active(text, text) is
'How many jobs of a tenant (empty: of all) in a queue (empty: in all) are active or decided ahead, and the snapshot that says so.';

-- +goose StatementBegin
create function ojs._apply_rule(p_rule ojs.rule) returns void
language plpgsql
as $$
declare
    v_limited boolean;
begin
    delete from ojs.rule r
    where r.tenant_id = p_rule.tenant_id and r.queue = p_rule.queue and r.most is null and r.paused_at is null;
    if p_rule.tenant_id = '' then
        v_limited := exists (select from ojs.rule r where r.tenant_id = '' and r.queue = p_rule.queue and r.most is not null);
        insert into ojs.backlog (queue, rev, priorities) select p_rule.queue, 1, '{}'
        where not exists (select from ojs._backlog(p_rule.queue));
        update ojs.backlog b set rev = b.rev + 1, limited = v_limited
        where b.queue = p_rule.queue and b.rev = (select c.rev from ojs._backlog(p_rule.queue) c) and b.limited <> v_limited;
    else
        v_limited := exists (select from ojs.rule r where r.tenant_id = p_rule.tenant_id);
        insert into ojs.tenant as t (tenant_id, limited, created_at)
        values (p_rule.tenant_id, v_limited, case when p_rule.max_concurrency is not null then ojs.now() end)
        on conflict (tenant_id) do update set limited = v_limited, created_at = coalesce(t.created_at, excluded.created_at)
        where t.limited <> v_limited or t.created_at is null;
        perform ojs._drop_tenant(p_rule.tenant_id);
        -- By the rows' places: whatever the statistics say, no plan reads all levels for each row.
        update ojs.tenant_fairness f set rev = f.rev + 1, limited = v_limited
        from (
            select n.spot from (select distinct l.queue, l.priority from ojs.level l) l
            cross join lateral (select x.ctid as spot, x.limited from ojs.tenant_fairness x
                where x.queue = l.queue and x.priority = l.priority and x.tenant_id = p_rule.tenant_id order by x.rev desc limit 1) n
            where n.limited <> v_limited
        ) n
        where f.ctid = n.spot;
        perform ojs._unpark(array[p_rule.tenant_id]);
    end if;
    perform ojs._count_or_not();
    perform ojs._notify(array(select distinct w.queue from ojs.waiter w));
end;
$$;
-- +goose StatementEnd
comment on function ojs._apply_rule(ojs.rule) is
'Has a rule that has changed act from the next decision on. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._count_or_not() returns void
language plpgsql
as $$
declare
    v_counts boolean := exists (select from ojs.rule r where r.tenant_id <> '' or r.most is not null);
begin
    if v_counts and not exists (select from ojs._slot_mark()) then
        insert into ojs.slot_mark (rev, ended) values (1, ojs._snapshot());
    elsif not v_counts then
        delete from ojs.slot_mark m where not exists (select from ojs.tenant_fairness f where f.parked);
    end if;
    update ojs.slot_mark m set rev = m.rev + 1, shards = x.shards
    from (select exists (select from ojs.rule r where r.tenant_id <> '' and r.queue <> '' and r.most is not null) as shards) x
    where m.rev = (select n.rev from ojs._slot_mark() n) and m.shards <> x.shards;
    update ojs.fold f set rev = f.rev + 1, counts = x.counts
    from (select exists (select from ojs.slot_mark) as counts) x
    where f.rev = (select n.rev from ojs._folded() n) and f.counts <> x.counts;
end;
$$;
-- +goose StatementEnd
comment on function ojs._count_or_not() is
'Has decisions take in ends of attempts where some rule is about a tenant or limits something, and not otherwise.';

-- +goose StatementBegin
create function ojs._recount_slots() returns void
language plpgsql
as $$
declare
    v_rule ojs.rule;
begin
    -- In another cluster the statistics begin anew.
    perform ojs._roll_up();
    delete from ojs.usage;
    delete from ojs.slot_mark;
    for v_rule in select r.* from ojs.rule r where r.most is not null loop
        perform ojs._begin_count(v_rule);
        if v_rule.tenant_id = '' then
            perform ojs._apply_rule(v_rule);
        end if;
    end loop;
    perform ojs._count_or_not();
end;
$$;
-- +goose StatementEnd
comment on function ojs._recount_slots() is 'Counts all jobs anew that rules are about, by the statistics.';
reset role;
