-- +goose Up
-- PostgreSQL 18 keeps what it knows of run-time partition pruning once for a statement and for the second look that the statement takes at a row somebody has just changed. After that look it
-- is freed memory, and the statement, and with it the whole server, ends by signal 11 (18.4; a look is enough). What writes goes without pruning, on all versions: a job is looked up in each
-- partition, and with the four or five that there are that costs what pruning does (docs/design/0011-no-pruning.md).
set local role ojs_owner;

-- +goose StatementBegin
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.prosecdef and p.provolatile = 'v' loop
        execute format('alter function %s set enable_partition_pruning = off', v_function);
    end loop;
end;
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local role ojs_owner;
-- +goose StatementBegin
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace and 'enable_partition_pruning=off' = any (p.proconfig) loop
        execute format('alter function %s reset enable_partition_pruning', v_function);
    end loop;
end;
$$;
-- +goose StatementEnd
reset role;
