comment on type ojs._settlement is
'An element of ojs.settle: its number from 0, its fields (tenant: of a tenant''s login its own), and
why it is refused before its job is looked for.';
comment on type ojs._verdict is
'What becomes of an element of ojs.settle: the state that its job enters, and the result or the
error that the job keeps; or why it is refused.';

-- Acknowledges and fails jobs, each of which succeeds or fails alone.
-- Locks the rows of the jobs in the order of their ids, with skip locked.
-- Writes the jobs and what ojs._book writes.
create or replace function ojs.settle(p_settlements anycompatible, p_jobs boolean default true) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_settlements));
    v_now timestamptz := ojs.now();
    v_own text := ojs._session_tenant(null);
    v_all json := p_settlements::json;
begin
    perform ojs._check_settlements(v_all);
    return query
    with judged as materialized (
        select v.* from ojs._judge(v_all, v_own, v_now) v
    ), settled as (
        update ojs.job j
        set state = w.to_state, lease = null, lease_expires_at = null,
            finished_at = case when w.to_state in ('completed', 'discarded') then v_now end,
            result = case when ojs._erased(j.retry) then null when w.entry is null then w.result else j.result end,
            errors = case when w.entry is null or ojs._erased(j.retry) then j.errors else ojs._errors_with(j.errors, w.entry) end,
            retry_at = case when w.entry is null then j.retry_at
                when w.to_state = 'retryable' then ojs._retry_at(j.retry, j.attempt, v_now) end,
            enqueued_at = case when w.to_state = 'available' then v_now else j.enqueued_at end
        from judged w where w.to_state is not null and j.id = w.id and j.tenant_id = w.tenant_id
        returning w.n, w.entry, w.fenced, j.*
    ), booked as materialized (
        select ojs._book(array_agg((s.tenant_id, s.id, s.queue, s.priority, s.type, s.seq, s.attempt, s.started_at, s.state, s.retry_at,
            s.expires_at, s.retry, s.entry, s.fenced, null, s.pool, s.charged)::ojs._attempt_end order by s.n), v_now) from settled s
    )
    select o.*
    from (
        select s.n, null::text, null::text, null::jsonb, s.state, s.attempt, s.lease, s.started_at, s.lease_expires_at, s.finished_at,
            s.retry_at, s.enqueued_at, s.worker_id, s.pool, s.charged,
            case when p_jobs then s.errors else jsonb_path_query_array(s.errors, '$[last]') end, case when p_jobs then s.result end, s.seq,
            s.tenant_id, s.id, s.queue, s.type, s.priority, s.max_attempts, s.created_at, s.scheduled_at, s.expires_at, s.timeout_ms,
            s.visibility_timeout_ms,
            s.tags, case when p_jobs then s.args end, case when p_jobs then s.meta end, s.retry, case when p_jobs then s.options end,
            case when p_jobs then s.extra end
        from settled s cross join booked
        union all
        select w.n, (w.refusal).sqlstate, (w.refusal).message, (w.refusal).detail, (null::ojs.job).*
        from judged w where w.to_state is null
    ) o
    order by o.n;
end;
$$;
comment on function ojs.settle(anycompatible, boolean) is
'Acknowledges and fails 1 to 10000 jobs, each alone, and returns one row per element.
The rows are in the order given. Each has n, from 0, and then either the job as it is now, or
sqlstate, message and detail of what ojs.ack or ojs.nack would raise.
p_settlements: a JSON array of {id, lease, worker_id, tenant, result, error, requeue}; with error it
is a nack, else an ack.
p_jobs: false: args, meta, options, extra and result stay null, and errors has the last one only.
Never waits: a job that another transaction has locked gets 55P03, where ojs.ack or ojs.nack would
wait. Raises invalid_request when p_settlements as a whole is malformed.';

create or replace function ojs._check_settlements(p_settlements json) returns void
language plpgsql
as $$
begin
    if p_settlements is null or json_typeof(p_settlements) <> 'array' then
        perform ojs._raise('OJ400', 'settlements must be a JSON array', '{"field": "settlements"}');
    elsif json_array_length(p_settlements) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'settlements must hold between 1 and 10000 settlements', '{"field": "settlements"}');
    end if;
end;
$$;
comment on function ojs._check_settlements(json) is
'Raises why the list of ojs.settle as a whole is refused; else does nothing.';

create or replace function ojs._judge(p_settlements json, p_own text, p_now timestamptz) returns setof ojs._verdict
language sql
as $$
    with given as materialized (
        select g.* from ojs._settlements(p_settlements, p_own) g
    ), held as materialized (
        select g.n, g.lease, g.worker_id, g.result, g.error, g.requeue, j.*,
            case when g.tenant is null then (select count(*) from (select from ojs.job k where k.id = g.id limit 2) k) else 1 end as twins
        from given g
        cross join lateral (
            select j.id, j.tenant_id, j.state, j.lease as job_lease, j.worker_id as job_worker, j.attempt, j.max_attempts, j.retry
            from ojs.job j where j.id = g.id and (g.tenant is null or j.tenant_id = g.tenant)
            for update skip locked
        ) j
        where g.refusal is null
    ), judged as materialized (
        select h.*, min(h.n) filter (where h.twins = 1 and ojs._holds(h.state, h.job_lease, h.job_worker, h.lease, h.worker_id))
            over (partition by h.id, h.tenant_id) as winner
        from held h
    ), winning as materialized (
        select w.*, t.to_state, t.to_state <> 'discarded' or not ojs._to_dead_letters(w.retry, w.entry) or ojs._can_bury(w.tenant_id, w.id)
            as free
        from (select d.*, case when d.error is not null then ojs._error_entry(d.error::jsonb, d.attempt, d.job_worker, p_now) end as entry
            from judged d where d.n = d.winner) w
        cross join lateral (select case when w.error is null then 'completed'
            else ojs._failed_state(w.entry, w.requeue, w.attempt, w.max_attempts, w.retry) end as to_state offset 0) t
    )
    select w.n, case when w.free then w.tenant_id end, case when w.free then w.id end, case when w.free then w.to_state end,
        w.lease is not null or w.worker_id is not null, w.result, w.entry, case when not w.free then ojs._locked(w.id) end
    from winning w
    union all
    -- If a call names a job twice, the second element is judged by the state that the first one
    -- gives the job.
    select d.n, null, null, null, null, null, null, case when d.twins > 1 then ojs._ambiguous(d.id)
        else ojs._hold_refusal(case when d.error is null then 'acknowledge' else 'fail' end, d.id, coalesce(w.to_state, d.state),
            case when w.n is null then d.job_lease end, d.job_worker, d.lease, d.worker_id) end
    from (select distinct on (d.n) d.* from judged d where d.n is distinct from d.winner order by d.n) d
    left join winning w on w.n = d.winner and w.n < d.n
    union all
    select g.n, null, null, null, null, null, null, coalesce(g.refusal, ojs._not_met(g.id, g.tenant))
    from given g where g.n not in (select h.n from held h)
$$;
comment on function ojs._judge(json, text, timestamptz) is
'Locks the jobs of ojs.settle with skip locked, and returns what becomes of each element.';

create or replace function ojs._settlements(p_settlements json, p_own text) returns setof ojs._settlement
language sql
as $$
    with parsed as materialized (
        select (e.ord - 1)::int as n, e.given, x.id, x.lease, x.worker_id #>> '{}' as worker_id, x.tenant #>> '{}' as tenant,
            x.requeue::text = 'true' as requeue,
            -- A JSON null counts as a result or an error. json_to_record does not distinguish it
            -- from an absent field, so it is read from the object.
            case when k.known then x.result else r.given -> 'result' end as result,
            case when k.known then x.error else r.given -> 'error' end as error,
            k.known and ojs._plain_uuid(x.id) and (x.lease is null or ojs._plain_uuid(x.lease))
                and (x.worker_id is null or json_typeof(x.worker_id) = 'string')
                and (x.tenant is null or json_typeof(x.tenant) = 'string') and (x.requeue is null or json_typeof(x.requeue) = 'boolean')
                and (x.result is null or ojs._plain_json(x.result)) and case when x.error is null then true
                    when ojs._plain_json(x.error) and ojs._fits_jsonb(x.error) then ojs._error_refusal(x.error::jsonb) is null end as plain
        from json_array_elements(p_settlements) with ordinality e(given, ord)
        cross join lateral (select case when json_typeof(e.given) = 'object' and ojs._readable(e.given) then e.given
            else '{}' end as given) r
        cross join lateral json_to_record(r.given) as x(id json, lease json, worker_id json, tenant json, result json, error json,
            requeue json)
        -- known: the object has no other keys than these, each once and none null.
        cross join lateral (select (select count(*) from json_object_keys(r.given))
            = num_nonnulls(x.id, x.lease, x.worker_id, x.tenant, x.result, x.error, x.requeue) as known offset 0) k
    ), checked as materialized (
        select p.*, case when p.plain and (p.tenant is null or p.tenant = p_own or p_own is null and ojs._tenant_valid(p.tenant)) then null
            else ojs._settlement_refusal(p.given, p.n, p_own) end as refusal
        from parsed p
    )
    -- Locks are taken in the order of the ids, so that two calls for the same jobs do not each get
    -- a part of them.
    select c.n, coalesce(p_own, c.tenant) as tenant,
        case when c.plain then substr(c.id::text, 2, 36)::uuid when c.refusal is null then (c.id #>> '{}')::uuid end as id,
        case when c.plain then substr(c.lease::text, 2, 36)::uuid when c.refusal is null then (c.lease #>> '{}')::uuid end as lease,
        c.worker_id, c.result, c.error, coalesce(c.requeue, false), c.refusal
    from checked c
    order by id, tenant
$$;
comment on function ojs._settlements(json, text) is
'Returns the elements of ojs.settle, in the order in which their jobs are to be locked. p_own: the
tenant of the role that logged in. Raises an error that concerns the whole call.';

create or replace function ojs._locked(p_id uuid) returns ojs.refusal
language sql immutable
as $$ select row('55P03', format('job %s is locked by another transaction', p_id), jsonb_build_object('job_id', p_id))::ojs.refusal $$;
comment on function ojs._locked(uuid) is
'Returns the refusal of a job that another transaction has locked, where ojs.ack or ojs.nack would
wait.';

create or replace function ojs._not_met(p_id uuid, p_tenant text) returns ojs.refusal
language sql stable
as $$
    select case when exists (select from ojs.job j where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant))
        then ojs._locked(p_id) else ojs._unknown(p_id) end
$$;
comment on function ojs._not_met(uuid, text) is
'Returns why no job with an id could be locked: there is no such job, or another session has it
locked.';

create or replace function ojs._settlement_refusal(p_given json, p_n int, p_own text) returns ojs.refusal
language plpgsql stable
as $$
declare
    c_kinds   constant jsonb := '{"id": "string", "lease": "string", "worker_id": "string", "tenant": "string", "result": "any",
        "error": "any", "requeue": "boolean"}';
    c_aliases constant jsonb := '{"job_id": "id", "lease_token": "lease", "lease_id": "lease", "tenant_id": "tenant",
        "worker": "worker_id"}';
    v_bad     record;
    v_refusal ojs.refusal;
begin
    if json_typeof(p_given) <> 'object' then
        perform ojs._raise('OJ400', format('settlements[%s] must be a JSON object', p_n), jsonb_build_object('field', '', 'index', p_n));
    elsif not ojs._readable(p_given) then
        return row('OJ401', 'the settlement holds ' || ojs._bad_escape(p_given::text), '{"field": "settlement"}')::ojs.refusal;
    end if;
    select m.key, case
        when m.kind is null then format('has an unknown field %I', m.key) || coalesce('; ' || coalesce(c_aliases ->> m.key,
            ojs._meant(m.key, array(select jsonb_object_keys(c_kinds)))) || ' is probably meant', '')
        when m.again then format('has the field %I twice', m.key)
        else format('%I must be a JSON %s', m.key, m.kind) end as fault into v_bad
    from (
        select x.key, json_typeof(x.value) as given, lag(x.key) over (order by x.key) = x.key as again,
            c_kinds ->> x.key as kind
        from json_each(p_given) x
    ) m
    where m.kind is null or m.again or m.given <> 'null' and m.kind not in ('any', m.given) limit 1;
    if found then
        perform ojs._raise('OJ400', format('settlements[%s] %s', p_n, v_bad.fault), jsonb_build_object('field', v_bad.key, 'index', p_n));
    end if;

    select '22P02', format('invalid input syntax for type uuid: "%s"', left(f.value, 100)),
        jsonb_build_object('field', f.field) into v_refusal
    from (values (1, 'id', p_given ->> 'id'), (2, 'lease', p_given ->> 'lease')) f(ord, field, value)
    where f.value is not null and ojs._uuid(f.value) is null order by f.ord limit 1;
    if found then
        return v_refusal;
    end if;
    if p_given -> 'error' is null then
        v_refusal := ojs._result_refusal(p_given -> 'result');
    else
        begin
            v_refusal := ojs._error_refusal((p_given -> 'error')::jsonb);
        exception when data_exception or statement_too_complex then
            v_refusal := row(sqlstate, sqlerrm, '{"field": "error"}')::ojs.refusal;
        end;
    end if;
    if v_refusal is null then
        v_refusal := ojs._tenant_refusal(p_own, p_given ->> 'tenant');
    end if;
    if v_refusal is null and p_given ->> 'id' is null then
        v_refusal := row('OJ400', 'id is required', '{"field": "id"}');
    end if;
    return v_refusal;
end;
$$;
comment on function ojs._settlement_refusal(json, int, text) is
'Returns why element p_n of ojs.settle is refused before its job is looked for, or null. Raises an
error that concerns the whole call. p_own: the tenant of the role that logged in.';
