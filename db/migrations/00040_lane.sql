-- +goose Up
-- The lane, and the state of fairness as it is now.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._enter_lane(p_patience_ms int default 0) returns boolean
language plpgsql
as $$
declare
    v_lock_timeout text := current_setting('lock_timeout');
begin
    perform from ojs.lane l where l.lane = 0 for update skip locked;
    if not found then
        if p_patience_ms < 0 then
            return false;
        elsif p_patience_ms = 0 then
            perform from ojs.lane l where l.lane = 0 for update;
        else
            begin
                perform set_config('lock_timeout', p_patience_ms::text, true);
                perform from ojs.lane l where l.lane = 0 for update;
            exception when lock_not_available or deadlock_detected then
                return false;
            end;
            perform set_config('lock_timeout', v_lock_timeout, true);
        end if;
    end if;
    perform set_config('ojs.lane', 'held', true),
        case when current_setting('idle_in_transaction_session_timeout')::interval not between '1 millisecond' and '10 seconds' then
            set_config('idle_in_transaction_session_timeout', '10s', true) end,
        -- Before PostgreSQL 17 this setting is unknown, and null here.
        case when current_setting('transaction_timeout', true)::interval not between '1 millisecond' and '10 seconds' then
            set_config('transaction_timeout', '10s', true) end;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._enter_lane(int) is
'Waits for the row of ojs.lane, p_patience_ms at most (0: as long as it takes; negative: not at all), and says whether it holds it, which
it does until the transaction ends. Whoever holds it keeps decisions waiting, so the session is ended when it then idles for 10 seconds,
and from PostgreSQL 17 on when its transaction is still open after 10 seconds.';

-- +goose StatementBegin
create function ojs._await_lane(p_patience_ms int) returns boolean
language plpgsql
as $$
begin
    perform set_config('lock_timeout', p_patience_ms::text, true);
    perform from ojs.lane l where l.lane = 0 for update;
    raise sqlstate 'OJ000';
exception
    when sqlstate 'OJ000' then
        return true;
    when lock_not_available or deadlock_detected then
        return false;
end;
$$;
-- +goose StatementEnd
comment on function ojs._await_lane(int) is
'Waits until the decision under way has ended, p_patience_ms at most, and says whether it has. Holds nothing afterwards: the row lock goes
with the subtransaction.';

-- +goose StatementBegin
create function ojs._lingers() returns boolean
language sql stable
as $$ select statement_timestamp() - transaction_timestamp() > interval '20 milliseconds' $$;
-- +goose StatementEnd
comment on function ojs._lingers() is
'Whether the caller has been in its transaction for a while: it may stay there, and must not keep decisions waiting. Becomes part of the
expression that asks.';

-- +goose StatementBegin
create function ojs._folded() returns setof ojs.fold
language sql stable rows 1
as $$ select f.* from ojs.fold f order by f.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._folded() is 'How far decisions have taken in the journal.';

-- +goose StatementBegin
create function ojs._copied(p_fold ojs.fold) returns boolean
language sql stable
as $$ select p_fold.home <> 'ojs.fold'::regclass::oid or ojs._foreign(p_fold.snapshot) $$;
-- +goose StatementEnd
comment on function ojs._copied(ojs.fold) is
'Whether this database is a logical copy in which dispatch has not begun. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._backlog(p_queue text) returns setof ojs.backlog
language sql stable rows 1
as $$ select b.* from ojs.backlog b where b.queue = p_queue order by b.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._backlog(text) is 'The priorities of a queue at which tenants have work; no row: none ever had.';

-- +goose StatementBegin
create function ojs._level(p_queue text, p_priority int) returns setof ojs.level
language sql stable rows 1
as $$ select l.* from ojs.level l where l.queue = p_queue and l.priority = p_priority order by l.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._level(text, int) is 'A level as it is now; no row: there is none.';

-- +goose StatementBegin
create function ojs._fair(p_queue text, p_priority int, p_tenant text) returns setof ojs.tenant_fairness
language sql stable rows 1
as $$
    select f.* from ojs.tenant_fairness f
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.rev desc limit 1
$$;
-- +goose StatementEnd
comment on function ojs._fair(text, int, text) is 'A tenant''s row of ojs.tenant_fairness as it is now; no row: there is none.';

-- +goose StatementBegin
create function ojs._rank(p_queue text, p_priority int, p_boost int) returns table (priority int, unit ojs.unit, own_order boolean)
language sql stable rows 1
as $$
    select case when b.own_order then 0 else p_priority + coalesce(p_boost, 0) end, b.unit, b.own_order is true
    from (select 1) one left join lateral ojs._backlog(p_queue) b on true
$$;
-- +goose StatementEnd
comment on function ojs._rank(text, int, int) is
'The effective priority, the one place: at which a tenant with a boost (null: 0) takes turns for jobs of some priority of its own in a
queue; and what its tenants share.';
reset role;
