-- +goose Up
-- What the jobs of a tenant take up, for max_stored_bytes. Whoever enqueues takes a token for each byte (admit). Nobody gives it back where
-- the job goes: upkeep measures now and then what is there, and makes up the difference.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._size(
    p_args json, p_meta jsonb, p_tags text[] default null, p_retry jsonb default null, p_options json default null,
    p_extra json default null, p_result json default null, p_errors jsonb default null
) returns bigint
language sql stable
as $$
    -- A bare row with its entries in two indexes, and half of each page left for changes, takes 580 bytes (TestWhatAJobTakesUp).
    select 512 + pg_column_size(p_args) + pg_column_size(p_meta) + coalesce(pg_column_size(p_tags), 0)
        + coalesce(pg_column_size(p_retry), 0) + coalesce(pg_column_size(p_options), 0) + coalesce(pg_column_size(p_extra), 0)
        + coalesce(pg_column_size(p_result), 0) + coalesce(pg_column_size(p_errors), 0)::bigint
$$;
-- +goose StatementEnd
comment on function ojs._size(json, jsonb, text[], jsonb, json, json, json, jsonb) is
'What a job takes up, in bytes: as it was sent, or less once PostgreSQL has compressed it. Reads no wide value. Becomes part of the query
that asks.';

-- Measures what jobs take up, and gives limits their tokens.
-- Locks stripes that nobody else has; waits for nobody.
-- Writes stripe, quota.
-- +goose StatementBegin
create function ojs._measure() returns text
language plpgsql
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_looks ojs.quota_look[];
    v_left  bigint[];
    v_asked int;
begin
    -- One statement, because in each snapshot bytes, tokens and room are the maximum in sum: a transaction that commits turns tokens into
    -- bytes, and only this function, one at a time, and whoever changes the maximum make room into tokens.
    with due as materialized (
        select q.id, q.tenant_id, q.maximum, (select coalesce(sum(s.tokens), 0) from ojs.stripe s where s.quota = q.id) as tokens
        from ojs.quota q where q.resource = 'max_stored_bytes' and (q.measure_at is null or q.measure_at <= ojs.now())
    ), stored as materialized (
        select j.tenant_id, sum(ojs._size(j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors)) as bytes
        from (
            select j.tenant_id, j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors from ojs.job j
            union all
            select j.tenant_id, j.args, j.meta, j.tags, j.retry, j.options, j.extra, j.result, j.errors from ojs.dead_job j
        ) j where j.tenant_id in (select d.tenant_id from due d) group by j.tenant_id
    )
    select array_agg(row(d.id, floor(d.maximum - coalesce(s.bytes, 0) - d.tokens), s.bytes, d.maximum)::ojs.quota_look) into v_looks
    from due d left join stored s on s.tenant_id = d.tenant_id;
    v_asked := cardinality(v_looks);
    -- A maximum that was changed meanwhile has taken or given tokens that are not in this look.
    v_looks := array(select l from unnest(v_looks) l
        cross join lateral (select from ojs.quota q where q.id = l.id and q.maximum = l.used_up for update skip locked) q);
    v_left := array(select g from ojs._grant(v_looks) g);
    -- What all of this costs is at most a fiftieth of the time of one session.
    update ojs.quota q
    set due = true, used = coalesce(l.used, 0), measure_at = ojs.now() + greatest(50 * (clock_timestamp() - v_began),
        case when q.id = any (v_left) then interval '1 second' else '1 minute' end)
    from unnest(v_looks) l where q.id = l.id;
    return case when cardinality(v_looks) < v_asked then ojs._in_use() else 'done' end;
end;
$$;
-- +goose StatementEnd
comment on function ojs._measure() is
'Measures what the jobs of tenants take up whose limit in bytes is new, or was not measured for a while, and makes their tokens as many as
there is room. Reads all jobs, wide values excepted.';
reset role;
