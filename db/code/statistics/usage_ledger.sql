-- The usage ledger (ojs.usage_batch): what each tenant used in each hour, for billing. The first
-- roll-up of an hour closes the hours before it: for each tenant it takes the numbers of ojs.tally,
-- less those that are closed already (ojs.usage_mark), and writes the row and the mark in one
-- transaction. So a crash loses no number and counts no number twice, and of several servers the
-- one that has ojs.tally_mark locked closes.

create or replace function ojs._usage_text(p_of ojs.usage_batch) returns text
language sql stable
as $$
    select format('{"tenant_id":%s,"n":%s,"hour":"%s","closed_at":"%s","enqueued":%s,"attempts":%s,"completed":%s,"failed":%s,'
        || '"failed_attempts":%s,"worker_ms":%s,"stored_bytes":%s,"refused_429":%s,"refused_507":%s,"previous":%s}',
        to_json(p_of.tenant_id), p_of.n, to_char(p_of.hour at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        to_char(p_of.closed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), p_of.enqueued, p_of.attempts, p_of.completed,
        p_of.failed, p_of.failed_attempts, p_of.worker_ms, coalesce(p_of.stored_bytes::text, 'null'), p_of.refused_429, p_of.refused_507,
        coalesce('"' || p_of.previous || '"', 'null'))
$$;
comment on function ojs._usage_text(ojs.usage_batch) is
'Returns the canonical text of a row of the usage ledger: JSON without spaces, members in a fixed
order, times in UTC. It holds the hash of the row before, and no setting of the session changes it.';

create or replace function ojs._usage_hash(p_of ojs.usage_batch) returns text
language sql stable
as $$ select encode(sha256(convert_to(ojs._usage_text(p_of), 'UTF8')), 'hex') $$;
comment on function ojs._usage_hash(ojs.usage_batch) is
'Returns the hash of a row of the usage ledger: the SHA-256 of its canonical text, in hex.';

-- Closes the hours before p_now in the usage ledger.
-- Locks the row of ojs.tally_mark (skip locked).
-- Writes usage_batch, usage_mark, refused and the mark, once an hour; nothing if nothing happened.
create or replace function ojs._close_usage(p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_mark ojs.tally_mark := (select t from ojs.tally_mark t order by t.rev desc limit 1);
    v_this timestamptz := date_trunc('hour', p_now, 'UTC');
    v_hour timestamptz := date_trunc('hour', v_mark.at, 'UTC');
    v_left boolean;
begin
    -- One look an hour. In the hour of the last roll-up more is to come.
    if date_trunc('hour', v_mark.usage_at, 'UTC') = v_this
            or not (v_mark.rev > v_mark.usage_rev and v_hour <> v_this)
                and not exists (select from ojs.refused r where r.at < v_this and r.requests > r.counted) then
        return;
    end if;
    -- Not found: another server has the row locked, or has moved it to a higher rev since it was
    -- read.
    perform from ojs.tally_mark t where t.rev = v_mark.rev and t.usage_at = v_mark.usage_at for update skip locked;
    if not found then
        return;
    end if;
    with used as materialized (
        select t.tenant_id, sum(t.total)::bigint as enqueued, sum(t.dispatched)::bigint as attempts, sum(t.completed)::bigint as completed,
            sum(t.failed_jobs)::bigint as failed, sum(t.failed)::bigint as failed_attempts, sum(t.worker_ms)::bigint as worker_ms
        from ojs.tally t where v_hour <> v_this group by t.tenant_id
    ), refusals as materialized (
        select r.tenant_id, max(date_trunc('hour', r.at, 'UTC')) as hour,
            coalesce(sum(r.requests - r.counted) filter (where r.resource <> 'max_stored_bytes'), 0)::bigint as refused_429,
            coalesce(sum(r.requests - r.counted) filter (where r.resource = 'max_stored_bytes'), 0)::bigint as refused_507
        -- With an empty tenant: the depth bound of a queue refused, which is no limit of a tenant.
        from ojs.refused r where r.at < v_this and r.requests > r.counted and r.tenant_id <> '' group by r.tenant_id
    ), moved as materialized (
        select tenant_id, r.hour as refused_hour, coalesce(m.n, 0) + 1 as n, m.hash as previous,
            coalesce(u.enqueued - coalesce(m.enqueued, 0), 0) as enqueued, coalesce(u.attempts - coalesce(m.attempts, 0), 0) as attempts,
            coalesce(u.completed - coalesce(m.completed, 0), 0) as completed, coalesce(u.failed - coalesce(m.failed, 0), 0) as failed,
            coalesce(u.failed_attempts - coalesce(m.failed_attempts, 0), 0) as failed_attempts,
            coalesce(u.worker_ms - coalesce(m.worker_ms, 0), 0) as worker_ms,
            coalesce(r.refused_429, 0) as refused_429, coalesce(r.refused_507, 0) as refused_507
        from used u full join refusals r using (tenant_id) left join ojs.usage_mark m using (tenant_id)
    ), due as materialized (
        select d.*, f.hour
        from (select w.*, (w.enqueued, w.attempts, w.completed, w.failed, w.failed_attempts, w.worker_ms) <> (0, 0, 0, 0, 0, 0) as grew
            from moved w) d
        -- The hour of the last roll-up. After the wall clock was set back it may have a row already:
        -- then the hour that ended last, unless that has one, too. Then the numbers wait.
        left join lateral (
            select h.hour
            from (values (1, case when d.grew then v_hour else d.refused_hour end), (2, v_this - interval '1 hour')) h(nth, hour)
            where not exists (select from ojs.usage_batch b where b.tenant_id = d.tenant_id and b.hour = h.hour)
            order by h.nth limit 1
        ) f on true
        where d.grew or d.refused_429 + d.refused_507 > 0
    ), closed as (
        insert into ojs.usage_batch (tenant_id, n, hour, closed_at, enqueued, attempts, completed, failed, failed_attempts, worker_ms,
            stored_bytes, refused_429, refused_507, previous, hash)
        select (w.b).tenant_id, (w.b).n, (w.b).hour, (w.b).closed_at, (w.b).enqueued, (w.b).attempts, (w.b).completed, (w.b).failed,
            (w.b).failed_attempts, (w.b).worker_ms, (w.b).stored_bytes, (w.b).refused_429, (w.b).refused_507, (w.b).previous,
            ojs._usage_hash(w.b)
        from (
            select row(d.tenant_id, d.n, d.hour, p_now, d.enqueued, d.attempts, d.completed, d.failed, d.failed_attempts, d.worker_ms,
                (select q.current from ojs._quota_use q
                    where q.tenant_id = d.tenant_id and q.queue = '' and q.resource = 'max_stored_bytes'),
                d.refused_429, d.refused_507, d.previous, '')::ojs.usage_batch as b
            from due d where d.hour is not null offset 0
        ) w
        returning *
    ), marked as (
        insert into ojs.usage_mark as m (tenant_id, n, hash, enqueued, attempts, completed, failed, failed_attempts, worker_ms)
        select c.tenant_id, c.n, c.hash, c.enqueued, c.attempts, c.completed, c.failed, c.failed_attempts, c.worker_ms from closed c
        on conflict (tenant_id) do update set n = excluded.n, hash = excluded.hash, enqueued = m.enqueued + excluded.enqueued,
            attempts = m.attempts + excluded.attempts, completed = m.completed + excluded.completed, failed = m.failed + excluded.failed,
            failed_attempts = m.failed_attempts + excluded.failed_attempts, worker_ms = m.worker_ms + excluded.worker_ms
    ), counted as (
        update ojs.refused r set counted = r.requests
        where r.at < v_this and r.requests > r.counted and (r.tenant_id = '' or r.tenant_id in (select c.tenant_id from closed c))
    )
    select exists (select from due d where d.hour is null) into v_left;
    update ojs.tally_mark t set usage_at = p_now, usage_rev = case when v_left or v_hour = v_this then t.usage_rev else t.rev end
    where t.rev = v_mark.rev;
end;
$$;
comment on function ojs._close_usage(timestamptz) is
'Closes the hours before p_now in the usage ledger, at most once an hour. Called before each
roll-up, so that an hour has what was rolled up in it. If another server does it, it does nothing.';

create or replace function ojs._rebase_usage(p_sign int) returns void
language sql
as $$
    insert into ojs.usage_mark as m (tenant_id, enqueued, attempts, completed, failed, failed_attempts, worker_ms)
    select t.tenant_id, p_sign * sum(t.total), p_sign * sum(t.dispatched), p_sign * sum(t.completed), p_sign * sum(t.failed_jobs),
        p_sign * sum(t.failed), p_sign * sum(t.worker_ms)
    from ojs.tally t group by t.tenant_id
    on conflict (tenant_id) do update set enqueued = m.enqueued + excluded.enqueued, attempts = m.attempts + excluded.attempts,
        completed = m.completed + excluded.completed, failed = m.failed + excluded.failed,
        failed_attempts = m.failed_attempts + excluded.failed_attempts, worker_ms = m.worker_ms + excluded.worker_ms
$$;
comment on function ojs._rebase_usage(int) is
'Adds the numbers of ojs.tally to those that ojs.usage_mark has as closed (p_sign 1), or subtracts
them (-1). Called before and after ojs.tally is made anew, so that what is not closed yet stays the
same.';

-- Verifies the chains of the usage ledger.
-- Locks nothing.
create or replace function ojs.verify_usage(p_tenant text default null) returns setof ojs.usage_fault
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    return query
    with line as (
        select b.tenant_id, b.n, b.hour, b.hash, b.previous, ojs._usage_hash(b) as is_hash, lag(b.n) over w as n_before,
            lag(b.hash) over w as hash_before, row_number() over (partition by b.tenant_id, b.hour order by b.n) as nth_of_hour
        from ojs.usage_batch b where v_tenant is null or b.tenant_id = v_tenant
        window w as (partition by b.tenant_id order by b.n)
    ), faults as (
        select l.tenant_id, l.n, l.hour, case
            when m.tenant_id is null or l.n < m.first_n or l.n > m.n then 'added'
            when l.n <> coalesce(l.n_before + 1, m.first_n) then 'missing before'
            when l.hash <> l.is_hash then 'changed'
            when l.previous is distinct from case when l.n_before is null then m.first_previous else l.hash_before end
                or l.n = m.n and l.hash <> m.hash then 'not chained'
            when l.nth_of_hour > 1 then 'hour twice' end as fault
        from line l left join ojs.usage_mark m on m.tenant_id = l.tenant_id
        union all
        -- The end of a chain, of which no later row would tell that it is missing.
        select m.tenant_id, m.n, null, 'missing' from ojs.usage_mark m
        where m.n > 0 and (v_tenant is null or m.tenant_id = v_tenant)
            and not exists (select from ojs.usage_batch b where b.tenant_id = m.tenant_id and b.n = m.n)
    )
    select distinct on (f.tenant_id) f.tenant_id, f.n, f.hour, f.fault from faults f where f.fault is not null
    order by f.tenant_id, f.n;
end;
$$;
comment on function ojs.verify_usage(text) is
'Verifies the usage ledger, of one tenant or of all, and returns the first fault of each tenant; no
row: there is none.
p_tenant: the tenant; null: all, of a tenant''s login its own.
n, hour: the row. fault: changed: its numbers are not those that were hashed. missing before: there
is a gap before it. missing: it is the last row of the chain, and is not there (hour is null).
added: ojs.usage_mark knows of no such row. not chained: the hash of the row before is another one.
hour twice: the hour has a row already.
Reads all rows of the tenant. Raises forbidden for another tenant.';

-- Removes old rows of the usage ledger.
-- Locks the row of ojs.tally_mark, and the rows of ojs.usage_mark.
-- Writes usage_batch, usage_mark, audit.
create or replace function ojs.prune_usage(p_before timestamptz) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows bigint;
begin
    if p_before is null or p_before > ojs.now() then
        perform ojs._raise('OJ400', 'before must be a time in the past', '{"field": "before"}');
    end if;
    -- No hour is closed meanwhile: the clock finds the mark locked, and closes at its next tick.
    perform from ojs.tally_mark t order by t.rev desc limit 1 for update;
    with cut as materialized (
        -- Only from the beginning of a chain, whose order is that of n, and never its last row.
        select m.tenant_id, c.n, c.hash
        from ojs.usage_mark m
        cross join lateral (
            select b.n, b.hash from ojs.usage_batch b
            where b.tenant_id = m.tenant_id and b.n < least(m.n, (
                select min(k.n) from ojs.usage_batch k where k.tenant_id = m.tenant_id and k.hour >= p_before))
            order by b.n desc limit 1
        ) c
    ), marked as (
        update ojs.usage_mark m set first_n = c.n + 1, first_previous = c.hash from cut c where m.tenant_id = c.tenant_id
    ), gone as (
        delete from ojs.usage_batch b using cut c where b.tenant_id = c.tenant_id and b.n <= c.n returning b.n
    )
    select count(*) into v_rows from gone;
    perform ojs._audit(null, 'usage', null, 'purged', null, jsonb_build_object('before', p_before, 'rows', v_rows)) where v_rows > 0;
    return v_rows;
end;
$$;
comment on function ojs.prune_usage(timestamptz) is
'Removes the rows of the usage ledger whose hour began before p_before, and returns how many.
The last row of each tenant stays, and ojs.usage_mark keeps the hash before the first row that is
left, so that ojs.verify_usage works as before. Rows are removed by this function alone. Raises
invalid_request.';

create or replace view ojs._own_usage_batch as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.usage_batch r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_usage_batch is
'The usage ledger of the tenant that reads; no rows for other roles.';

create or replace view ojs.usage_batches as
select b.tenant_id, b.n, b.hour, b.closed_at, b.enqueued, b.attempts, b.completed, b.failed, b.failed_attempts, b.worker_ms,
    b.stored_bytes, b.refused_429, b.refused_507, b.previous, b.hash
from (select * from ojs.usage_batch where ojs._reads_all() union all select * from ojs._own_usage_batch) b;
comment on view ojs.usage_batches is
'The usage ledger: what each tenant used in each hour, one row per tenant and hour that has ended.
There is no row for an hour in which a tenant did nothing. An hour has what was rolled up in it, at
most two seconds after it was committed. Rows never change; each has the hash of the row before
(ojs.verify_usage). A tenant sees its own.';
comment on table ojs.usage_batch is
'The usage ledger: a row for each tenant and hour in which it used anything; read as
ojs.usage_batches. No role may change rows; only ojs.prune_usage removes them.';
comment on column ojs.usage_batch.tenant_id is
'The tenant.';
comment on column ojs.usage_batch.n is
'Number of the row in the tenant''s chain, from 1.';
comment on column ojs.usage_batch.hour is
'When the hour began (UTC).';
comment on column ojs.usage_batch.closed_at is
'When the row was written.';
comment on column ojs.usage_batch.enqueued is
'Jobs enqueued.';
comment on column ojs.usage_batch.attempts is
'Attempts begun: jobs handed out to workers.';
comment on column ojs.usage_batch.completed is
'Jobs completed.';
comment on column ojs.usage_batch.failed is
'Jobs discarded, because their attempts were used up, or they had expired.';
comment on column ojs.usage_batch.failed_attempts is
'Attempts that failed, timed out or were lost with their worker.';
comment on column ojs.usage_batch.worker_ms is
'How long the attempts that ended in the hour had run, in sum, milliseconds, also before the hour.';
comment on column ojs.usage_batch.stored_bytes is
'Bytes that the tenant''s jobs took up when the hour was closed; null: the tenant has no limit
max_stored_bytes, and is not measured.';
comment on column ojs.usage_batch.refused_429 is
'Requests over HTTP, or jobs of a batch, that limits of the tenant refused with 429.';
comment on column ojs.usage_batch.refused_507 is
'The same with 507: the tenant had no bytes left.';
comment on column ojs.usage_batch.previous is
'Hash of the row before, in hex; null: it is the tenant''s first row.';
comment on column ojs.usage_batch.hash is
'SHA-256 of the canonical text of the row, in hex (ojs._usage_text).';
comment on table ojs.usage_mark is
'How far the usage ledger of each tenant has come: the ends of its chain, and which part of the
numbers of ojs.tally is closed.';
comment on column ojs.usage_mark.tenant_id is 'The tenant.';
comment on column ojs.usage_mark.n is 'Number of its last row; 0: it has none.';
comment on column ojs.usage_mark.hash is 'Hash of that row; null: there is none.';
comment on column ojs.usage_mark.first_n is 'Number of its first row that ojs.prune_usage has left.';
comment on column ojs.usage_mark.first_previous is 'Hash of the row before that; null: it is the first of all.';
comment on column ojs.usage_mark.enqueued is 'Of the jobs enqueued by ojs.tally, how many are closed.';
comment on column ojs.usage_mark.attempts is 'The same of attempts begun.';
comment on column ojs.usage_mark.completed is 'The same of jobs completed.';
comment on column ojs.usage_mark.failed is 'The same of jobs discarded.';
comment on column ojs.usage_mark.failed_attempts is 'The same of attempts that failed.';
comment on column ojs.usage_mark.worker_ms is 'The same of milliseconds that attempts ran.';
comment on type ojs.usage_fault is
'What ojs.verify_usage found: the tenant, the number and the hour of the row, and the fault.';
