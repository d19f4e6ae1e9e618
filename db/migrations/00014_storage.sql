-- +goose Up
-- Small tables that change all the time are vacuumed every minute.
set local role ojs_owner;

-- Small tables that change all the time are vacuumed every minute. To give their last pages back to the system, vacuum would lock them
-- against everybody, and the pages would be needed again in the next second.
-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array '{
        timer, fold, dispatch_state, tenant_fairness, usage, revisit, rotation, tally, pool_tally, tally_mark,
        pace, history, shard, quota, stripe, newcomer, tenant_tier,
        waiter, sleeper, duty, clock_mark, worker_beat, worker_load, dead_letter_mark}'::text[]
    loop
        execute format('alter table ojs.%I set (vacuum_truncate = off)', v_table);
    end loop;
end;
$$;
-- +goose StatementEnd
reset role;
