-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._skim(p_queue text, p_priority int, p_tenant text, p_locked boolean default false) returns int
language plpgsql
as $$
declare
    c_rows  constant int := case when p_locked then 1000 else 5000 end;
    v_fair  ojs.tenant_fairness;
    v_seen  record;
    v_range ojs.again;
    v_rows  int := 0;
    v_from  bigint;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    if not v_fair.behind then
        v_seen := ojs._passed(v_fair, v_fair.head + 1, null, c_rows, p_locked);
        if v_seen.o_rows = 0 and (v_fair.lines[1]).works then
            perform ojs._next_line(v_fair);
            return 1;
        end if;
        update ojs.tenant_fairness f set rev = f.rev + 1, head = v_seen.o_upto
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev
          and v_seen.o_upto > f.head;
        return v_seen.o_rows;
    end if;
    v_from := v_fair.again_lo;
    for v_range in
        select a.* from ojs.again a
        where a.queue = p_queue and a.priority = v_fair.job_priority and a.tenant_id = p_tenant and a.lo >= v_fair.again_lo
          and a.hi > v_fair.again_seq
        order by a.lo limit c_rows
    loop
        v_fair.again_lo := v_range.lo;
        if v_range.hi > v_fair.again_seq then
            v_seen := ojs._passed(v_fair, greatest(v_range.lo, v_fair.again_seq + 1), v_range.hi, c_rows - v_rows, p_locked);
            v_fair.again_seq := coalesce(v_seen.o_upto, v_range.hi);
            v_rows := v_rows + 1 + v_seen.o_rows;
            exit when v_fair.again_seq < v_range.hi or v_rows >= c_rows;
        end if;
    end loop;
    delete from ojs.again a
    where a.queue = p_queue and a.priority = v_fair.job_priority and a.tenant_id = p_tenant and a.lo between v_from and v_fair.again_seq
      and a.hi <= v_fair.again_seq;
    update ojs.tenant_fairness f
    set rev = f.rev + 1, again_lo = v_fair.again_lo, again_seq = v_fair.again_seq, behind = exists (
        select from ojs.again a
        where a.queue = f.queue and a.priority = f.job_priority and a.tenant_id = f.tenant_id and a.lo >= v_fair.again_lo
          and a.hi > v_fair.again_seq)
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
    return v_rows;
end;
$$;
-- +goose StatementEnd
comment on function ojs._skim(text, int, text, boolean) is
'Moves a tenant''s cursors past about 5000 jobs in a row that cannot be had, on to its next priority where there are none (1), and returns
how many rows it looked at. p_locked: past about 1000, those that somebody has locked among them, which are looked at again.';

-- +goose StatementBegin
create function ojs._passed(
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
    if o_rows < p_rows and p_hi is not null then
        o_upto := p_hi;
    end if;
    if p_locked then
        perform ojs._look_again(array_agg(p_fair.tenant_id), array_agg(j.id)) from ojs.job j
        where j.queue = p_fair.queue and j.priority = p_fair.job_priority and j.tenant_id = p_fair.tenant_id and j.seq >= p_lo
          and j.seq <= coalesce(v_first - 1, o_upto) and j.state = 'available';
    end if;
    o_upto := coalesce(v_first - 1, o_upto);
end;
$$;
-- +goose StatementEnd
comment on function ojs._passed(ojs.tenant_fairness, bigint, bigint, int, boolean) is
'Looks at up to p_rows of a tenant''s jobs from p_lo on, up to p_hi (null: without end): how many they are, and up to which job.seq none
can be had. p_locked: has those that somebody has locked looked at again.';

-- +goose StatementBegin
create function ojs._true_times(p_level ojs.level, p_count int, p_ask ojs.ask) returns ojs.level
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_moment numeric;
begin
    loop
        with behind as materialized (
            select d.spot, d.vtime as was, min(d.seq) as seq from ojs._due(p_level.queue, p_level.priority, p_level.low, p_count,
                p_ask.tenants, p_ask.but, false, 'none', v_now) d
            where d.id is not null group by d.spot, d.vtime having min(d.seq) > d.vtime
        ), moved as (
            update ojs.tenant_fairness f set rev = f.rev + 1, vtime = b.seq from behind b where f.ctid = b.spot
            returning f.weight * (b.seq - b.was) as moment
        )
        select sum(m.moment) into v_moment from moved m;
        exit when v_moment is null;
        perform ojs._move_level(p_level, 0, 0, v_moment, null);
        select * into p_level from ojs._level(p_level.queue, p_level.priority);
    end loop;
    return p_level;
end;
$$;
-- +goose StatementEnd
comment on function ojs._true_times(ojs.level, int, ojs.ask) is
'First in, first out: brings the times of the tenants at the front to their next jobs, where those that stood there have ended otherwise
(cancelled, expired). Returns the level as it is then.';

-- +goose StatementBegin
create function ojs._look_back(p_queue text, p_priority int, p_tenant text, p_los bigint[], p_his bigint[]) returns void
language plpgsql
as $$
declare
    v_fair   ojs.tenant_fairness;
    v_cursor ojs.cursor;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    v_cursor := ojs._moved_back(v_fair, row(v_fair.job_priority, v_fair.head, v_fair.behind, v_fair.again_lo, v_fair.again_seq, true),
        p_los, p_his);
    update ojs.tenant_fairness f
    set rev = f.rev + 1, behind = true, again_lo = v_cursor.again_lo, again_seq = v_cursor.again_seq
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
end;
$$;
-- +goose StatementEnd
comment on function ojs._look_back(text, int, text, bigint[], bigint[]) is
'Has ranges of job.seq behind a tenant''s cursor looked at again, before what lies ahead of it, first in first out.';

-- +goose StatementBegin
create function ojs._moved_back(p_fair ojs.tenant_fairness, p_cursor ojs.cursor, p_los bigint[], p_his bigint[]) returns ojs.cursor
language plpgsql
as $$
declare
    v_lo bigint := (select min(l) from unnest(p_los) l);
begin
    if p_cursor.behind and v_lo <= p_cursor.again_seq then
        -- The cursor moves back, and what it has passed of a range is not looked at twice.
        update ojs.again a set lo = p_cursor.again_seq + 1
        where a.queue = p_fair.queue and a.priority = p_cursor.job_priority and a.tenant_id = p_fair.tenant_id
            and a.lo >= p_cursor.again_lo and a.lo <= p_cursor.again_seq and a.hi > p_cursor.again_seq;
    end if;
    insert into ojs.again (queue, priority, tenant_id, lo, hi)
    select p_fair.queue, p_cursor.job_priority, p_fair.tenant_id, r.lo, r.hi from ojs._islands(p_los, p_his) r;
    -- What a cursor without ranges says of them is of ranges that are gone.
    p_cursor.again_lo := case when p_cursor.behind then least(p_cursor.again_lo, v_lo) else v_lo end;
    p_cursor.again_seq := case when p_cursor.behind then least(p_cursor.again_seq, v_lo - 1) else v_lo - 1 end;
    p_cursor.behind := true;
    return p_cursor;
end;
$$;
-- +goose StatementEnd
comment on function ojs._moved_back(ojs.tenant_fairness, ojs.cursor, bigint[], bigint[]) is
'A cursor of a tenant as it is once ranges of job.seq behind it are to be looked at again. Writes the ranges, but not the cursor.';

-- +goose StatementBegin
create function ojs._islands(p_los bigint[], p_his bigint[]) returns table (lo bigint, hi bigint)
language sql immutable rows 10
as $$
    select min(x.lo), max(x.hi)
    from (
        select r.lo, r.hi, sum(r.apart) over (order by r.lo, r.hi) as part
        from (
            select r.lo, r.hi, (r.lo > 1000 + max(r.hi) over (order by r.lo, r.hi rows between unbounded preceding
                and 1 preceding))::int as apart
            from unnest(p_los, p_his) r(lo, hi)
        ) r
    ) x
    group by coalesce(x.part, 0)
$$;
-- +goose StatementEnd
comment on function ojs._islands(bigint[], bigint[]) is
'Ranges in which those that lie close together have become one: each is read by itself, and few jobs between them are soon passed over.';
reset role;
