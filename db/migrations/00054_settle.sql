-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._settlement_refusal(p_given json, p_n int, p_own text) returns ojs.refusal
language plpgsql stable
as $$
declare
    v_bad     record;
    v_refusal ojs.refusal;
begin
    if json_typeof(p_given) <> 'object' then
        perform ojs._raise('OJ400', format('settlements[%s] must be a JSON object', p_n), jsonb_build_object('field', '', 'index', p_n));
    elsif not ojs._readable(p_given) then
        return row('OJ401', 'the settlement holds ' || ojs._bad_escape(p_given::text), '{"field": "settlement"}')::ojs.refusal;
    end if;
    select m.key, case
        when m.kind is null then format('has an unknown field %I', m.key)
        when m.again then format('has the field %I twice', m.key)
        else format('%I must be a JSON %s', m.key, m.kind) end as fault into v_bad
    from (
        select x.key, json_typeof(x.value) as given, lag(x.key) over (order by x.key) = x.key as again,
            '{"id": "string", "lease": "string", "worker_id": "string", "tenant": "string", "result": "any", "error": "any", "requeue": "boolean"}'::jsonb ->> x.key as kind
        from json_each(p_given) x
    ) m
    where m.kind is null or m.again or m.given <> 'null' and m.kind not in ('any', m.given) limit 1;
    if found then
        perform ojs._raise('OJ400', format('settlements[%s] %s', p_n, v_bad.fault), jsonb_build_object('field', v_bad.key, 'index', p_n));
    end if;

    select '22P02', format('invalid input syntax for type uuid: "%s"', left(f.value, 100)), jsonb_build_object('field', f.field) into v_refusal
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
-- +goose StatementEnd
comment on function ojs._settlement_refusal(json, int, text) is
'Why element p_n of ojs.settle is refused before its job is looked for, or null. Raises what spoils the whole call. p_own: the tenant of
the role that logged in.';

-- +goose StatementBegin
create function ojs.settle(p_settlements json, p_jobs boolean default true) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := ojs.now();
    v_own text := ojs._session_tenant(null);
begin
    if p_settlements is null or json_typeof(p_settlements) <> 'array' then
        perform ojs._raise('OJ400', 'settlements must be a JSON array', '{"field": "settlements"}');
    elsif json_array_length(p_settlements) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'settlements must hold between 1 and 10000 settlements', '{"field": "settlements"}');
    end if;
    return query
    with parsed as materialized (
        select (e.ord - 1)::int as n, e.given, x.id, x.lease, x.worker_id #>> '{}' as worker_id, x.tenant #>> '{}' as tenant, x.requeue::text = 'true' as requeue,
            -- What is null as JSON is null here, too; the count tells.
            case when k.plain then x.result else r.given -> 'result' end as result, case when k.plain then x.error else r.given -> 'error' end as error,
            k.plain and ojs._plain_uuid(x.id) and (x.lease is null or ojs._plain_uuid(x.lease)) and (x.worker_id is null or json_typeof(x.worker_id) = 'string')
                and (x.tenant is null or json_typeof(x.tenant) = 'string') and (x.requeue is null or json_typeof(x.requeue) = 'boolean')
                and (x.result is null or ojs._plain_json(x.result)) and case when x.error is null then true
                    when ojs._plain_json(x.error) and ojs._fits_jsonb(x.error) then ojs._error_refusal(x.error::jsonb) is null end as plain
        from json_array_elements(p_settlements) with ordinality e(given, ord)
        cross join lateral (select case when json_typeof(e.given) = 'object' and ojs._readable(e.given) then e.given else '{}' end as given) r
        cross join lateral json_to_record(r.given) as x(id json, lease json, worker_id json, tenant json, result json, error json, requeue json)
        -- Nothing but the keys asked for, each once and none null: as many bytes as they take when written without blanks, or as many keys.
        cross join lateral (select case when octet_length(r.given::text) = 1 + coalesce(octet_length(x.id::text) + 6, 0) + coalesce(octet_length(x.lease::text) + 9, 0)
            + coalesce(octet_length(x.worker_id::text) + 13, 0) + coalesce(octet_length(x.tenant::text) + 10, 0) + coalesce(octet_length(x.result::text) + 10, 0)
            + coalesce(octet_length(x.error::text) + 9, 0) + coalesce(octet_length(x.requeue::text) + 11, 0) then true
            else (select count(*) from json_object_keys(r.given)) = num_nonnulls(x.id, x.lease, x.worker_id, x.tenant, x.result, x.error, x.requeue) end as plain offset 0) k
    ), checked as materialized (
        select p.*, case when p.plain and (p.tenant is null or p.tenant = v_own or v_own is null and ojs._tenant_valid(p.tenant)) then null
            else ojs._settlement_refusal(p.given, p.n, v_own) end as refusal
        from parsed p
    ), given as materialized (
        -- Locks are taken in the order of the ids, so that two calls cannot lock each other out.
        select c.n, c.worker_id, c.result, c.error, coalesce(c.requeue, false) as requeue, c.refusal, coalesce(v_own, c.tenant) as tenant,
            case when c.plain then substr(c.id::text, 2, 36)::uuid when c.refusal is null then (c.id #>> '{}')::uuid end as id,
            case when c.plain then substr(c.lease::text, 2, 36)::uuid when c.refusal is null then (c.lease #>> '{}')::uuid end as lease
        from checked c
        order by id, tenant
    ), held as materialized (
        select g.n, g.lease, g.worker_id, g.result, g.error, g.requeue, j.*,
            (select count(*) from (select from ojs.job k where k.id = g.id and (g.tenant is null or k.tenant_id = g.tenant) limit 2) k) as twins
        from given g
        cross join lateral (
            select j.id, j.tenant_id, j.state, j.lease as job_lease, j.worker_id as job_worker, j.attempt, j.max_attempts, j.retry
            from ojs.job j where j.id = g.id and (g.tenant is null or j.tenant_id = g.tenant)
            for update skip locked
        ) j
        where g.refusal is null
    ), judged as materialized (
        select h.*, min(h.n) filter (where h.twins = 1 and ojs._holds(h.state, h.job_lease, h.job_worker, h.lease, h.worker_id)) over (partition by h.id, h.tenant_id) as winner
        from held h
    ), winning as materialized (
        select w.*, case when w.error is null then 'completed' else ojs._failed_state(w.entry, w.requeue, w.attempt, w.max_attempts, w.retry) end as to_state
        from (select d.*, case when d.error is not null then ojs._error_entry(d.error::jsonb, d.attempt, v_now) end as entry from judged d where d.n = d.winner) w
    ), settled as (
        update ojs.job j
        set state = w.to_state, lease = null, lease_expires_at = null,
            finished_at = case when w.to_state in ('completed', 'discarded') then v_now end,
            result = case when w.error is null then w.result else j.result end,
            errors = case when w.error is null then j.errors else ojs._errors_with(j.errors, w.entry) end,
            retry_at = case when w.error is null then j.retry_at when w.to_state = 'retryable' then v_now + ojs._retry_delay_ms(j.retry, j.attempt) * interval '1 millisecond' end,
            enqueued_at = case when w.to_state = 'available' then v_now else j.enqueued_at end
        from winning w where j.id = w.id and j.tenant_id = w.tenant_id
        returning w.n, w.lease is not null or w.worker_id is not null as fenced, j.*
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
        select s.tenant_id, s.queue, s.priority, s.id, s.type, s.attempt, 'active', s.state, s.started_at, s.fenced from settled s order by s.n
    ), notified as materialized (
        select ojs._notify(array_agg(distinct s.queue)) as done from settled s where s.state = 'available' having count(*) > 0
    ), woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select s.tenant_id, s.queue, s.priority, 'available', 'available', 1, s.seq, s.seq from settled s, notified d where s.state = 'available' and d.done is not null order by s.n
    ), reminded as (
        -- Jobs that come back within the same twentieth of a second share a reminder.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select max(s.retry_at), 'due', array_agg(s.tenant_id), array_agg(s.id)
        from settled s where s.state = 'retryable' group by date_bin('50 milliseconds', s.retry_at, 'epoch')
    ), buried as materialized (
        select ojs._bury(array_agg(s.tenant_id), array_agg(s.id), array_agg(s.queue), array_agg(s.type), array_agg(s.errors -> -1), v_now)
        from settled s where s.state = 'discarded' and ojs._to_dead_letters(s.retry, s.errors -> -1) having count(*) > 0
    ), refused as (
        select d.n, case when d.twins > 1 then ojs._ambiguous(d.id)
            when d.n > d.winner then ojs._hold_refusal(d.action, d.id, (select w.to_state from winning w where w.n = d.winner), null, d.job_worker, d.lease, d.worker_id)
            else ojs._hold_refusal(d.action, d.id, d.state, d.job_lease, d.job_worker, d.lease, d.worker_id) end as refusal
        from (select d.*, case when d.error is null then 'acknowledge' else 'fail' end as action, row_number() over (partition by d.n) as twin from judged d) d
        where d.twin = 1 and d.n is distinct from d.winner
        union all
        select g.n, coalesce(g.refusal, case
            when exists (select from ojs.job j where j.id = g.id and (g.tenant is null or j.tenant_id = g.tenant)) then
                row('55P03', format('job %s is locked by another transaction', g.id), jsonb_build_object('job_id', g.id))::ojs.refusal
            else ojs._unknown(g.id) end)
        from given g where g.n not in (select h.n from held h)
    )
    select o.*
    from (
        select s.n, null::text, null::text, null::jsonb, s.state, s.attempt, s.lease, s.started_at, s.lease_expires_at, s.finished_at, s.retry_at, s.enqueued_at, s.worker_id,
            s.errors, case when p_jobs then s.result end, s.seq, s.tenant_id, s.id, s.queue, s.type, s.priority, s.max_attempts, s.created_at, s.scheduled_at, s.expires_at,
            s.timeout_ms, s.visibility_timeout_ms, s.tags, case when p_jobs then s.args end, case when p_jobs then s.meta end, s.retry, case when p_jobs then s.options end,
            case when p_jobs then s.extra end
        from settled s left join buried on true
        union all
        select r.n, (r.refusal).sqlstate, (r.refusal).message, (r.refusal).detail, (null::ojs.job).* from refused r
    ) o
    order by o.n;
end;
$$;
-- +goose StatementEnd
comment on function ojs.settle(json, boolean) is
'Acknowledges and fails 1 to 10000 jobs, each for itself, and returns one row per element in the order given: n from 0, then either the
job as it is now, or sqlstate, message and detail of what ojs.ack or ojs.nack would raise. p_settlements: a JSON array of {id, lease,
worker_id, tenant, result, error, requeue}; with error it is a nack, else an ack. Never waits: a job that another transaction has locked
gets 55P03, and ojs.ack or ojs.nack would wait for it. Without p_jobs, args, meta, options, extra and result stay null. Raises
invalid_request when p_settlements as a whole is malformed.';
reset role;
