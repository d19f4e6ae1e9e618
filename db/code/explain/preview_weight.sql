-- Shows what another weight would change.
-- Locks nothing.
-- Reads only: as many numbers as ojs.tenant_shares.
create or replace function ojs.preview_weight(p_tenant text, p_weight numeric)
returns table (tenant_id text, weight_now numeric, weight_then numeric, share_now numeric, share_then numeric)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    elsif (p_weight between 0.000001 and 1000000) is not true then
        perform ojs._raise('OJ422', 'weight must be between 0.000001 and 1000000', '{"field": "weight"}');
    end if;
    return query
    with tenants as materialized (
        select s.tenant_id, s.weight as weight_now, s.ideal_share,
            case when s.tenant_id = p_tenant then coalesce(w.alike, p_weight * coalesce(t.throttle, 1)) else s.weight end as weight_then
        from ojs.tenant_shares s left join ojs.tenant t on t.tenant_id = s.tenant_id cross join ojs._usual_weight w
        where s.ideal_share is not null
    )
    select t.tenant_id, t.weight_now, t.weight_then, t.ideal_share, round(t.weight_then / sum(t.weight_then) over (), 4)
    from tenants t order by t.weight_then desc, t.tenant_id;
end;
$$;
comment on function ojs.preview_weight(text, numeric) is
'Shows the shares that all tenants would have if one tenant had another weight.
A row for each tenant with jobs available or active, the largest share first: weight and share
now, and then. The numbers are those of ojs.tenant_shares; a throttle lowers the weight. Nothing
is changed (ojs.configure_tenant changes it).
p_tenant: without jobs, it has no share and no row.
p_weight: 0.000001 to 1000000.
Raises invalid_request, validation_error.';
