-- A trigger validates jobs after the statement has inserted all of them. A name that is too long
-- for an index would fail before that, with an error of PostgreSQL that does not name the field, so
-- a policy refuses such names with this function. It is part of the plan and costs an insert less
-- than a trigger's condition, which PostgreSQL prepares anew for every statement.
create or replace function ojs._refuse_long(p_queue text, p_tenant text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if length(p_queue) > 128 then
        perform ojs._raise('OJ400', 'queue is longer than 128 characters', '{"field": "queue"}');
    elsif octet_length(p_tenant) > 256 then
        perform ojs._raise('OJ400', 'the tenant is longer than 256 bytes', '{"field": "tenant"}');
    end if;
    return true;
end;
$$;
comment on function ojs._refuse_long(text, text) is
'Returns true, or raises that the queue or the tenant is too long.';
