-- +goose Up
set local role ojs_owner;
-- +goose StatementBegin
create function ojs.fetch_many(p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[], p_tenant text default null) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_all ojs.job[];
    v_got ojs.job;
    v_n int := 0;
begin
    for i in 1 .. cardinality(p_counts) loop
        v_n := 0;
        for v_got in select * from ojs.fetch(p_queues, p_counts[i], nullif(p_worker_ids[i], ''), nullif(p_visibility_timeouts_ms[i], 0), p_tenant) loop
            v_n := v_n + 1;
            return next v_got;
        end loop;
        exit when v_n < p_counts[i];
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch_many(text[], int[], text[], int[], text) is 'Provisional.';

grant execute on function ojs.fetch_many(text[], int[], text[], int[], text) to ojs_service, ojs_operator;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.fetch_many(text[], int[], text[], int[], text);
reset role;
