-- The size of a tenant's jobs, for max_stored_bytes. An enqueue takes a token for each byte
-- (limits/admit.sql). No call gives it back when the job leaves: upkeep measures from time to time
-- how much is stored, and adds the difference.

create or replace function ojs._size(
    p_args json, p_meta jsonb, p_tags text[] default null, p_retry jsonb default null, p_options json default null,
    p_extra json default null, p_result json default null, p_errors jsonb default null
) returns bigint
language sql stable
as $$
    -- A row without content takes 580 bytes, with its entries in two indexes and half of each page
    -- left for changes (TestWhatAJobTakesUp).
    select 512 + pg_column_size(p_args) + pg_column_size(p_meta) + coalesce(pg_column_size(p_tags), 0)
        + coalesce(pg_column_size(p_retry), 0) + coalesce(pg_column_size(p_options), 0) + coalesce(pg_column_size(p_extra), 0)
        + coalesce(pg_column_size(p_result), 0) + coalesce(pg_column_size(p_errors), 0)::bigint
$$;
comment on function ojs._size(json, jsonb, text[], jsonb, json, json, json, jsonb) is
'Returns the size of a job in bytes: as it was sent, or less where PostgreSQL has compressed it.
Does not read wide values. Becomes part of the query that asks.';

-- Measures the size of jobs, and gives limits their tokens.
-- Locks stripes with skip locked, and so never waits.
-- Writes stripe, quota.
create or replace function ojs._measure() returns text
language plpgsql
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_looks ojs.quota_look[];
    v_asked int;
begin
    -- One statement, because in each snapshot bytes, tokens and missing are the maximum in sum,
    -- except for what jobs have added or removed since the last measurement. A transaction that
    -- commits turns tokens into bytes, and a change of the maximum changes missing by as much.
    with due as materialized (
        select q.tenant_id, q.queue, q.nth, q.maximum - q.missing - u.tokens as taken
        from ojs.quota q join ojs._quota_use u on u.tenant_id = q.tenant_id and u.queue = q.queue and u.resource = q.resource
        where q.resource = 'max_stored_bytes' and (q.measure_at is null or q.measure_at <= ojs.now())
    ), stored as materialized (
        select j.tenant_id, sum(ojs._size(j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors)) as bytes
        from (
            select j.tenant_id, j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors from ojs.job j
            union all
            select j.tenant_id, j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors from ojs.dead_job j
        ) j where j.tenant_id in (select d.tenant_id from due d) group by j.tenant_id
    )
    select array_agg(row(d.tenant_id, d.queue, d.nth, floor(d.taken - coalesce(s.bytes, 0)), s.bytes, 0)::ojs.quota_look) into v_looks
    from due d left join stored s on s.tenant_id = d.tenant_id;
    v_asked := cardinality(v_looks);
    v_looks := array(select row(l.tenant_id, l.queue, l.nth, q.missing + l.missing, l.used, 0)::ojs.quota_look from unnest(v_looks) l
        cross join lateral (select q.missing from ojs.quota q where q.tenant_id = l.tenant_id and q.queue = l.queue and q.nth = l.nth
            for update skip locked) q);
    with granted as materialized (
        select l.tenant_id, l.queue, l.nth, l.used, ojs._grant(l) as missing from unnest(v_looks) l
    )
    -- The next measurement waits 50 times as long as this one took, so that measuring takes at most
    -- a fiftieth of one session's time.
    update ojs.quota q
    set due = true, used = coalesce(g.used, 0), missing = g.missing, measure_at = ojs.now() + greatest(50 * (clock_timestamp() - v_began),
        case when g.missing <> 0 then interval '1 second' else '1 minute' end)
    from granted g where q.tenant_id = g.tenant_id and q.queue = g.queue and q.nth = g.nth;
    return case when cardinality(v_looks) < v_asked then ojs._in_use() else 'done' end;
end;
$$;
comment on function ojs._measure() is
'Measures the size of the jobs of tenants with max_stored_bytes, and makes their tokens as many as
bytes are left.
Measures a tenant if its limit is new or measure_at has come. Reads all jobs, but not their wide
values. Returns done, or that rows are in use.';
