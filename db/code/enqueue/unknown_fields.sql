-- A queue or tenant that does not exist yet may be configured, but its name may be misspelt, so a
-- notice says so.

create or replace function ojs._say_if_new(p_tenant text, p_queue text) returns void
language plpgsql stable
as $$
begin
    if p_queue <> '' and not exists (select from ojs.tally t where t.queue = p_queue)
            and not exists (select from ojs._recent() r where r.queue = p_queue)
            and not exists (select from ojs.queue q where q.queue = p_queue) then
        raise notice 'queue % has no jobs and no configuration yet', p_queue;
    end if;
    if p_tenant <> '' and not exists (select from ojs.tally t where t.tenant_id = p_tenant)
            and not exists (select from ojs._recent() r where r.tenant_id = p_tenant)
            and not exists (select from ojs.tenant t where t.tenant_id = p_tenant) then
        raise notice 'tenant % has no jobs and no configuration yet', p_tenant;
    end if;
end;
$$;
comment on function ojs._say_if_new(text, text) is
'Raises a notice if the tenant or the queue has no jobs and no configuration yet.';
