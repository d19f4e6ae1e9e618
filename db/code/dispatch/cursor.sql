-- Moves the cursors of tenants: forward past jobs that cannot be handed out, and back to ranges in
-- which jobs can be handed out again. All writes here need the lane.

create or replace function ojs._pass_ended(p_queue text, p_priority int, p_tenant text, p_locked boolean default false) returns int
language plpgsql
as $$
declare
    c_rows  constant int := case when p_locked then 1000 else 5000 end;
    v_fair  ojs.tenant_fairness;
    v_seen  record;
    v_range ojs.revisit;
    v_rows  int := 0;
    v_from  bigint;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    if v_fair.revisit_lo is null then
        -- No ranges: the jobs ahead of the cursor.
        v_seen := ojs._passed(v_fair, v_fair.head + 1, null, c_rows, p_locked);
        -- The tenant has no more jobs at this priority. In a queue with priority_scope tenant it
        -- may have work at its next one.
        if v_seen.o_rows = 0 and (v_fair.cursors[1]).works then
            perform ojs._next_priority(v_fair);
            return 1;
        end if;
        update ojs.tenant_fairness f set rev = f.rev + 1, head = v_seen.o_upto
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev
          -- head never goes back. It stays where the first job read can be handed out.
          and v_seen.o_upto > f.head;
        return v_seen.o_rows;
    end if;
    v_from := v_fair.revisit_lo;
    for v_range in
        select r.* from ojs.revisit r
        where r.queue = p_queue and r.priority = v_fair.job_priority and r.tenant_id = p_tenant and r.lo >= v_fair.revisit_lo
          and r.hi > v_fair.revisit_seq
        order by r.lo limit c_rows
    loop
        v_fair.revisit_lo := v_range.lo;
        if v_range.hi > v_fair.revisit_seq then
            v_seen := ojs._passed(v_fair, greatest(v_range.lo, v_fair.revisit_seq + 1), v_range.hi, c_rows - v_rows, p_locked);
            v_fair.revisit_seq := coalesce(v_seen.o_upto, v_range.hi);
            v_rows := v_rows + 1 + v_seen.o_rows;
            exit when v_fair.revisit_seq < v_range.hi or v_rows >= c_rows;
        end if;
    end loop;
    -- These ranges are passed whole. A range that is passed in part stays.
    delete from ojs.revisit r
    where r.queue = p_queue and r.priority = v_fair.job_priority and r.tenant_id = p_tenant
      and r.lo between v_from and v_fair.revisit_seq and r.hi <= v_fair.revisit_seq;
    update ojs.tenant_fairness f
    set rev = f.rev + 1, revisit_seq = v_fair.revisit_seq, revisit_lo = case when exists (
        select from ojs.revisit r
        where r.queue = f.queue and r.priority = f.job_priority and r.tenant_id = f.tenant_id and r.lo >= v_fair.revisit_lo
          and r.hi > v_fair.revisit_seq) then v_fair.revisit_lo end
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
    return v_rows;
end;
$$;
comment on function ojs._pass_ended(text, int, text, boolean) is
'Moves a tenant''s cursor past up to 5000 jobs in a row that cannot be handed out.
Returns how many rows and ranges it read. If the tenant has no more jobs at this priority, moves it
to its next one with work and returns 1.
p_locked: past up to 1000 jobs, also those that another session has locked, which are revisited.';

create or replace function ojs._passed(
    p_fair ojs.tenant_fairness, p_lo bigint, p_hi bigint, p_rows int, p_locked boolean, out o_rows int, out o_upto bigint
)
language plpgsql
as $$
declare
    v_now   timestamptz := ojs.now();
    v_first bigint;
begin
    with line as materialized (
        select j.seq, j.id, j.ctid as place, j.state = 'available' and (j.expires_at > v_now) is not false as waits from ojs.job j
        where j.queue = p_fair.queue and j.priority = p_fair.job_priority and j.tenant_id = p_fair.tenant_id and j.seq >= p_lo
          and j.seq <= coalesce(p_hi, 9223372036854775807)
        order by j.seq limit p_rows
    )
    select (select count(*) from line), (select max(l.seq) from line l), case
        when not p_locked then (select min(l.seq) from line l where l.waits)
        else (select l.seq from line l cross join lateral (select from ojs.job j
            where l.waits and j.ctid = l.place and j.id = l.id and j.state = 'available' for update skip locked) h limit 1) end
    into o_rows, o_upto, v_first;
    -- The range has no more rows, so the cursor may pass all of it.
    if o_rows < p_rows and p_hi is not null then
        o_upto := p_hi;
    end if;
    if p_locked then
        -- The cursor is about to pass these jobs, which other sessions have locked. Without the
        -- timer a job whose session rolls back would never be dealt.
        perform ojs._revisit_later(array_agg(p_fair.tenant_id), array_agg(j.id)) from ojs.job j
        where j.queue = p_fair.queue and j.priority = p_fair.job_priority and j.tenant_id = p_fair.tenant_id and j.seq >= p_lo
          and j.seq <= coalesce(v_first - 1, o_upto) and j.state = 'available';
    end if;
    o_upto := coalesce(v_first - 1, o_upto);
end;
$$;
comment on function ojs._passed(ojs.tenant_fairness, bigint, bigint, int, boolean) is
'Reads up to p_rows jobs of a tenant with a job.seq from p_lo to p_hi (null: no upper end).
o_rows: how many it read; o_upto: up to which job.seq no job can be handed out.
p_locked: a job that another session has locked counts as one that cannot be handed out, and a timer
has it revisited.';

create or replace function ojs._revisit_later(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
begin
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select ojs.now() + interval '1 second', 'revisit', p_tenants, p_ids where cardinality(p_ids) > 0;
end;
$$;
comment on function ojs._revisit_later(text[], uuid[]) is
'Sets a timer by which the tick has jobs revisited in a second. The cursors have passed them because
another session had them locked.';

create or replace function ojs._true_times(p_queue text, p_level ojs.level, p_count int, p_ask ojs.ask) returns void
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
begin
    loop
        -- Raising one time may bring another tenant with a time that is too low to the front:
        -- repeat.
        with behind as materialized (
            select d.spot, min(d.seq) as seq from ojs._due(p_queue, p_level.priority, p_level.low, p_count,
                p_ask.tenants, p_ask.except_tenants, false, false, null::ojs.uncounted, 'none', v_now) d
            where d.id is not null group by d.spot, d.vtime having min(d.seq) > d.vtime
        )
        update ojs.tenant_fairness f set rev = f.rev + 1, vtime = b.seq from behind b where f.ctid = b.spot;
        exit when not found;
    end loop;
end;
$$;
comment on function ojs._true_times(text, ojs.level, int, ojs.ask) is
'Raises the virtual times of tenants at the front of a level to the job.seq of their next jobs.
For queues that are first in, first out, where the time of a tenant is that number. It is too low
where the jobs at the front have been cancelled or have expired.';

create or replace function ojs._revisit(p_queue text, p_priority int, p_tenant text, p_los bigint[], p_his bigint[]) returns void
language plpgsql
as $$
declare
    v_fair   ojs.tenant_fairness;
    v_cursor ojs.cursor;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    v_cursor := ojs._moved_back(v_fair, row(v_fair.job_priority, v_fair.head, v_fair.revisit_lo, v_fair.revisit_seq, true), p_los, p_his);
    update ojs.tenant_fairness f set rev = f.rev + 1, revisit_lo = v_cursor.revisit_lo, revisit_seq = v_cursor.revisit_seq
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
end;
$$;
comment on function ojs._revisit(text, int, text, bigint[], bigint[]) is
'Has ranges of job.seq behind a tenant''s cursor revisited, lowest first, before the jobs ahead of
the cursor.';

create or replace function ojs._moved_back(p_fair ojs.tenant_fairness, p_cursor ojs.cursor, p_los bigint[], p_his bigint[])
returns ojs.cursor
language plpgsql
as $$
declare
    v_lo bigint := (select min(l) from unnest(p_los) l);
begin
    if v_lo <= p_cursor.revisit_seq and p_cursor.revisit_lo is not null then
        -- revisit_seq is about to go back. Cut the range that it has passed in part, or the jobs
        -- passed would be read again.
        update ojs.revisit r set lo = p_cursor.revisit_seq + 1
        where r.queue = p_fair.queue and r.priority = p_cursor.job_priority and r.tenant_id = p_fair.tenant_id
            and r.lo >= p_cursor.revisit_lo and r.lo <= p_cursor.revisit_seq and r.hi > p_cursor.revisit_seq;
    end if;
    insert into ojs.revisit (queue, priority, tenant_id, lo, hi)
    select p_fair.queue, p_cursor.job_priority, p_fair.tenant_id, r.lo, r.hi from ojs._islands(p_los, p_his) r;
    -- Without ranges revisit_seq is left over from ranges that are deleted, so it is no bound.
    p_cursor.revisit_seq := case when p_cursor.revisit_lo is null then v_lo - 1 else least(p_cursor.revisit_seq, v_lo - 1) end;
    p_cursor.revisit_lo := least(p_cursor.revisit_lo, v_lo);
    return p_cursor;
end;
$$;
comment on function ojs._moved_back(ojs.tenant_fairness, ojs.cursor, bigint[], bigint[]) is
'Returns a cursor of a tenant set back so that ranges of job.seq behind it are revisited. Inserts
the ranges; the caller writes the cursor.';

create or replace function ojs._islands(p_los bigint[], p_his bigint[]) returns table (lo bigint, hi bigint)
language sql immutable rows 10
as $$
    select min(x.lo), max(x.hi)
    from (
        select r.lo, r.hi, sum(r.far) over (order by r.lo, r.hi) as island
        from (
            select r.lo, r.hi, (r.lo > 1000 + max(r.hi) over (order by r.lo, r.hi rows between unbounded preceding
                and 1 preceding))::int as far
            from unnest(p_los, p_his) r(lo, hi)
        ) r
    ) x
    group by coalesce(x.island, 0)
$$;
comment on function ojs._islands(bigint[], bigint[]) is
'Merges ranges of job.seq that lie within 1000 numbers of each other. Each range costs a read of its
own, while the few jobs between two ranges are soon passed.';
