create or replace function ojs._journal_retention() returns interval
language sql stable
as $$ select greatest(case when s.retention = '0' then s.journal_retention else least(s.journal_retention, s.retention) end,
    interval '1 minute') from ojs.settings s $$;
comment on function ojs._journal_retention() is
'How long rows of the journal are kept. At least a minute, because statistics of the last minute
come from it; no longer than jobs are kept, or the journal would be larger than they are.';

create or replace function ojs._counted_snapshot() returns pg_snapshot
language plpgsql stable
as $$
begin
    return (
        select c.snapshot
        from ((select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1) union all
            select f.snapshot from ojs._folded() f where exists (select from ojs.rule r where r.most is not null)) c
        -- The earlier of the two snapshots: a row has to stay until both the statistics and the
        -- fold have read it.
        order by pg_snapshot_xmax(c.snapshot), (select count(*) from pg_snapshot_xip(c.snapshot)) desc limit 1);
end;
$$;
comment on function ojs._counted_snapshot() is
'The journals up to which both the statistics and, where rules limit something, ojs.usage have
counted.';

-- Removes journal rows that are old, have been rolled up, and are not needed for anything else.
-- Locks the row of ojs.clock_mark (skip locked).
-- Writes a version of the mark if it has removed something.
create or replace function ojs._prune(p_limit int) returns boolean
language plpgsql
as $$
declare
    v_mark  ojs.clock_mark := ojs._clock_mark();
    v_old   timestamptz := ojs.now() - ojs._journal_retention();
    v_tally pg_snapshot := ojs._counted_snapshot();
    -- A transaction of which only a part has been folded is not folded yet; its rows must stay.
    v_fold  pg_snapshot := (select case when f.part_xid is null then f.snapshot else ojs._snapshot_before(f.snapshot, f.part_xid) end
        from ojs._folded() f);
    v_done  record;
    v_rows  int[];
    -- Transactions that pruning has passed and has to come back to.
    v_open  xid8[];
begin
    perform from ojs.clock_mark m where m.rev = v_mark.rev for update skip locked;
    if not found then
        return false;
    end if;
    delete from ojs.waiter w where w.expires_at < ojs.now() - interval '1 minute';
    delete from ojs.sleeper s where s.expires_at < ojs.now() - interval '1 minute';

    select * into v_done from ojs._prune_journal(v_mark, v_old, v_tally, v_fold, p_limit);
    v_mark.journal := v_done.o_until;
    v_rows := array[v_done.o_rows];
    v_open := v_done.o_left;
    select * into v_done from ojs._prune_leases(v_mark, v_old, v_tally, p_limit);
    v_mark.lease := v_done.o_until;
    v_rows := v_rows || v_done.o_rows;
    v_open := v_open || v_done.o_left;
    select * into v_done from ojs._prune_releases(v_mark, v_old, v_tally, p_limit);
    v_mark.release := v_done.o_until;
    v_rows := v_rows || v_done.o_rows;
    v_open := v_open || v_done.o_left;
    if 0 = all (v_rows) then
        return false;
    end if;
    update ojs.clock_mark m
    set rev = m.rev + 1, journal = v_mark.journal, lease = v_mark.lease, release = v_mark.release,
        open = array(select unnest(v_open) union select x from pg_snapshot_xip(v_tally) x
            where x < greatest(v_mark.journal, v_mark.lease, v_mark.release))
    where m.rev = v_mark.rev;
    return p_limit <= any (v_rows);
end;
$$;
comment on function ojs._prune(int) is
'Removes journal rows that are old (ojs._journal_retention) and have been folded and rolled up, up
to p_limit of each journal, and returns whether there are more. A transaction that stays open
keeps only its own rows. If another session prunes, it does nothing.';

create or replace function ojs._prune_journal(
    p_mark ojs.clock_mark, p_old timestamptz, p_tally pg_snapshot, p_fold pg_snapshot, p_limit int, out o_until xid8, out o_left xid8[],
    out o_rows int
)
language sql
as $$
    with line as materialized (
        (select j.* from (
            (select j.ctid as place, j.xid, j.lo, j.at from ojs.journal j where j.lo is not null and j.xid >= p_mark.journal
                order by j.xid limit p_limit)
            union all
            (select j.ctid, j.xid, j.lo, j.at from ojs.journal j where j.lo is null and j.xid >= p_mark.journal
                order by j.xid limit p_limit)
        ) j order by j.xid limit p_limit)
        union all
        select j.* from unnest(p_mark.open) x(xid)
        cross join lateral (
            select j.ctid as place, j.xid, j.lo, j.at from ojs.journal j where j.lo is not null and j.xid = x.xid and j.xid < p_mark.journal
            union all
            select j.ctid, j.xid, j.lo, j.at from ojs.journal j where j.lo is null and j.xid = x.xid and j.xid < p_mark.journal
            offset 0) j
    ), gone as (
        delete from ojs.journal j using line l
        where j.ctid = l.place and l.at < p_old and pg_visible_in_snapshot(l.xid, p_tally)
          and (l.lo is null or pg_visible_in_snapshot(l.xid, p_fold))
        returning j.xid, j.ctid as place
    )
    select u.xid, array(select distinct l.xid from line l where l.xid < u.xid and l.place not in (select g.place from gone g)), u.rows
    from (select greatest(p_mark.journal, max(g.xid)) as xid, count(*)::int as rows from gone g) u
$$;
comment on function ojs._prune_journal(ojs.clock_mark, timestamptz, pg_snapshot, pg_snapshot, int) is
'Removes old rows of ojs.journal that have been rolled up and, if they have a lo, folded. o_until:
the transaction up to which it came; o_left: transactions before that of which rows had to stay.';

create or replace function ojs._prune_leases(p_mark ojs.clock_mark, p_old timestamptz, p_tally pg_snapshot, p_limit int, out o_until xid8,
    out o_left xid8[], out o_rows int)
language sql
as $$
    with line as materialized (
        (select l.* from ojs.lease l where l.xid >= p_mark.lease order by l.xid, l.n limit p_limit)
        union all
        select l.* from unnest(p_mark.open) x(xid)
        cross join lateral (select l.* from ojs.lease l where l.xid = x.xid and l.xid < p_mark.lease offset 0) l
    ), gone as (
        -- A row of ojs.lease tells the clock when its jobs' leases end, so it stays until the
        -- clock's snapshot has seen it.
        delete from ojs.lease d using line l
        where d.xid = l.xid and d.n = l.n and l.at < p_old and pg_visible_in_snapshot(l.xid, p_tally)
            and pg_visible_in_snapshot(l.xid, p_mark.seen)
        returning d.xid, d.n, d.due_at, d.tenants, d.ids
    ), reminded as (
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select g.due_at, 'lease', g.tenants, g.ids from gone g where g.due_at >= p_mark.lease_at
    )
    select u.xid, array(select distinct l.xid from line l where l.xid < u.xid and l.n not in (select g.n from gone g)), u.rows
    from (select greatest(p_mark.lease, max(g.xid)) as xid, count(*)::int as rows from gone g) u
$$;
comment on function ojs._prune_leases(ojs.clock_mark, timestamptz, pg_snapshot, int) is
'Removes old rows of ojs.lease that have been rolled up. Leases that have not ended become timers.
o_until: the transaction up to which it came; o_left: transactions before that of which rows had
to stay.';

create or replace function ojs._prune_releases(p_mark ojs.clock_mark, p_old timestamptz, p_tally pg_snapshot, p_limit int, out o_until xid8,
    out o_left xid8[], out o_rows int)
language sql
as $$
    with line as materialized (
        (select r.xid, r.seq, r.at from ojs.release r where r.xid >= p_mark.release order by r.xid, r.seq limit p_limit)
        union all
        select r.* from unnest(p_mark.open) x(xid)
        cross join lateral (select r.xid, r.seq, r.at from ojs.release r where r.xid = x.xid and r.xid < p_mark.release offset 0) r
    ), gone as (
        delete from ojs.release d using line l
        where d.xid = l.xid and d.seq = l.seq and l.at < p_old and pg_visible_in_snapshot(l.xid, p_tally)
        returning d.xid, d.seq
    )
    select u.xid, array(select distinct l.xid from line l where l.xid < u.xid and l.seq not in (select g.seq from gone g)), u.rows
    from (select greatest(p_mark.release, max(g.xid)) as xid, count(*)::int as rows from gone g) u
$$;
comment on function ojs._prune_releases(ojs.clock_mark, timestamptz, pg_snapshot, int) is
'Removes old rows of ojs.release that have been rolled up. o_until: the transaction up to which it
came; o_left: transactions before that of which rows had to stay.';
