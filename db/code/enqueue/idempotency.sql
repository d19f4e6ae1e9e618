create or replace view ojs._once with (security_invoker = true) as
select false as replayed, j.* from ojs.job j where false;
comment on view ojs._once is
'Row type of ojs.enqueue_once; holds no rows. replayed: whether an earlier call enqueued the jobs.
The other columns are the job as it was when it was enqueued.';

-- Does what ojs.enqueue_many does, once for each key and tenant.
-- Locks the key, so that a second call with it waits for the first.
-- Writes idempotency, and what ojs.enqueue_many writes.
create or replace function ojs.enqueue_once(
    p_idempotency_key text, p_jobs anycompatible, p_tenant text default null, p_fingerprint bytea default null
) returns setof ojs._once
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_jobs));
    v_tenant      text := ojs._session_tenant(p_tenant);
    v_now         timestamptz := ojs.now();
    v_jobs        json := p_jobs::json;
    v_fingerprint bytea := coalesce(p_fingerprint, sha256(convert_to(p_jobs::text, 'UTF8')));
    v_known       ojs.idempotency;
begin
    if p_idempotency_key is null or length(p_idempotency_key) not between 1 and 256 then
        perform ojs._raise('OJ400', 'idempotency_key must have between 1 and 256 characters', '{"field": "idempotency_key"}');
    end if;
    v_known.tenant_id := coalesce(v_tenant, v_jobs #>> '{0,tenant}', v_jobs #>> '{0,tenant_id}', v_jobs #>> '{0,meta,tenant_id}',
        ojs._default_tenant());
    if v_fingerprint is null or ojs._tenant_valid(v_known.tenant_id) is not true then
        -- The jobs or the tenant are wrong: ojs.enqueue_many raises why.
        perform ojs.enqueue_many(v_jobs, v_tenant);
    end if;
    insert into ojs.idempotency as i (tenant_id, key, fingerprint, expires_at)
    select v_known.tenant_id, p_idempotency_key, v_fingerprint, ojs._later(v_now, s.idempotency_window) from ojs.settings s
    on conflict (tenant_id, key) do update set fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, answer = null
    where i.expires_at <= v_now;
    if not found then
        select * into v_known from ojs.idempotency i where i.tenant_id = v_known.tenant_id and i.key = p_idempotency_key;
        if v_known.fingerprint <> v_fingerprint then
            perform ojs._raise('OJ409', 'the idempotency key was used for another request', '{"field": "idempotency_key"}',
                'Choose a new key for each request, and repeat a request unchanged.');
        end if;
        return query select true, j.* from json_populate_recordset(null::ojs.job, v_known.answer) j;
        return;
    end if;
    return query
    with made as materialized (
        select m.* from ojs.enqueue_many(v_jobs, v_tenant) m
    ), kept as (
        update ojs.idempotency i set answer = (select json_agg(row_to_json(m)) from made m)
        where i.tenant_id = v_known.tenant_id and i.key = p_idempotency_key
    )
    select false, m.* from made m;
end;
$$;
comment on function ojs.enqueue_once(text, anycompatible, text, bytea) is
'Enqueues as ojs.enqueue_many does, once for each key and tenant.
A later call within ojs.settings.idempotency_window returns the jobs as the first one did, with
replayed true, whatever has become of them.
p_idempotency_key: 1 to 256 characters.
p_jobs: as for ojs.enqueue_many.
p_tenant: the tenant; else that of the first job.
p_fingerprint: identifies the request (default: SHA-256 of p_jobs as sent); a call with the key and
another fingerprint is refused with conflict.
A call with the same key as an open transaction waits for it. A call that failed may be repeated
with its key. Raises conflict and what ojs.enqueue_many raises.';
