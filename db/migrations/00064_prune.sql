-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._journal_retention() returns interval
language sql stable
as $$ select greatest(case when s.retention = '0' then s.journal_retention else least(s.journal_retention, s.retention) end, interval '1 minute') from ojs.settings s $$;
-- +goose StatementEnd
comment on function ojs._journal_retention() is
'How long the journal is kept: the statistics of the last minute come from it, and it would outweigh jobs that stay for less.';

-- +goose StatementBegin
create function ojs._prune(p_limit int) returns boolean
language plpgsql
as $$
declare
    v_mark   ojs.clock_mark;
    v_until  xid8;
    v_before timestamptz := ojs.now() - ojs._journal_retention();
    v_rows   int;
    v_more   boolean := false;
begin
    select m.* into v_mark from ojs.clock_mark m order by m.rev desc limit 1;
    perform from ojs.clock_mark m where m.rev = v_mark.rev for update skip locked;
    if not found then
        return false;
    end if;
    delete from ojs.waiter w where w.expires_at < ojs.now() - interval '1 minute';
    delete from ojs.sleeper s where s.expires_at < ojs.now() - interval '1 minute';
    select least(pg_snapshot_xmin((select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1)), pg_snapshot_xmin(t.snapshot))
    into v_until from ojs.tally_mark t order by t.rev desc limit 1;
    delete from ojs.wake w using (select x.xid, x.seq from ojs.wake x where x.xid >= v_mark.wake and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where w.xid = old.xid and w.seq = old.seq and w.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    delete from ojs.lease l using (select x.xid, x.seq from ojs.lease x where x.xid >= v_mark.lease and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where l.xid = old.xid and l.seq = old.seq and l.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    delete from ojs.release r using (select x.xid, x.seq from ojs.release x where x.xid >= v_mark.release and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where r.xid = old.xid and r.seq = old.seq and r.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    -- Nobody inserts below v_until any more: all those transactions had ended when the journal was folded and rolled up.
    update ojs.clock_mark m
    set rev = m.rev + 1,
        wake = greatest(m.wake, least(v_until, (select w.xid from ojs.wake w where w.xid >= m.wake order by w.xid, w.seq limit 1))),
        lease = greatest(m.lease, least(v_until, (select l.xid from ojs.lease l where l.xid >= m.lease order by l.xid, l.seq limit 1))),
        release = greatest(m.release, least(v_until, (select r.xid from ojs.release r where r.xid >= m.release order by r.xid, r.seq limit 1)))
    where m.rev = v_mark.rev;
    return v_more;
end;
$$;
-- +goose StatementEnd
comment on function ojs._prune(int) is
'Removes journal rows that are old (ojs._journal_retention) and have been folded and rolled up, up to p_limit of each, and returns whether
there are more. Another session at it: does nothing.';
reset role;
