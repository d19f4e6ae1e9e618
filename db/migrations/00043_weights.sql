-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs.configure_tenant(p_tenant text, p_weight numeric default null, p_priority_boost int default null) returns ojs.tenant
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old    ojs.tenant;
    v_new    ojs.tenant;
    v_row    ojs.tenant_fairness;
    v_ring   ojs.ring;
    v_vtime  numeric;
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    end if;
    if p_weight = 'NaN' then
        perform ojs._raise('OJ422', 'weight must be a number', '{"field": "weight"}');
    end if;
    perform ojs._enter_lane();
    -- What was decided under the old settings is decided again.
    perform ojs._revoke(q.queue) from (select distinct q.queue from ojs.queue_priority q offset 0) q where ojs._has_run(q.queue);
    -- Wakes of this tenant that are not folded yet join under the settings that held when they committed.
    while ojs._fold() loop
    end loop;
    select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
    insert into ojs.tenant (tenant_id, weight, priority_boost) values (p_tenant, coalesce(p_weight, 1), coalesce(p_priority_boost, 0))
    on conflict (tenant_id) do update set weight = coalesce(p_weight, ojs.tenant.weight), priority_boost = coalesce(p_priority_boost, ojs.tenant.priority_boost)
    returning * into v_new;
    if v_new.weight = coalesce(v_old.weight, 1) and v_new.priority_boost = coalesce(v_old.priority_boost, 0) then
        return v_new;
    end if;

    for v_row in
        select f.* from ojs.queue_priority q
        cross join lateral (select f.* from ojs.tenant_fairness f
            where f.queue = q.queue and f.priority = q.priority and f.tenant_id = p_tenant order by f.rev desc limit 1) f
        order by f.queue, f.priority * case when v_new.priority_boost > coalesce(v_old.priority_boost, 0) then -1 else 1 end
    loop
        v_ring := ojs._ring(v_row.queue, v_row.priority);
        v_vtime := v_row.vtime;
        if v_row.backlogged then
            -- What it is owed stays the same number of jobs.
            v_vtime := v_ring.v - round((v_ring.v - v_row.vtime) * v_row.weight / v_new.weight, 15);
            perform ojs._ring_changed(ojs._ring_tidy(ojs._ring_join(v_ring, v_row.class, -1, -v_row.weight, v_row.vtime)));
        end if;
        if v_row.job_priority + v_new.priority_boost <> v_row.priority then
            -- Jobs on the small list move along; a ring of another priority has a virtual time of its own.
            with moved as (
                delete from ojs.reentry e where e.queue = v_row.queue and e.priority = v_row.priority and e.tenant_id = p_tenant returning e.*
            )
            insert into ojs.reentry (queue, priority, tenant_id, id)
            select m.queue, v_row.job_priority + v_new.priority_boost, m.tenant_id, m.id from moved m where m.n > v_row.reentry_head order by m.n;
            v_ring := ojs._ring_here(v_row.queue, v_row.job_priority + v_new.priority_boost);
            v_vtime := v_ring.v + case when v_row.backlogged then 0 else v_ring.drift end;
        end if;
        update ojs.tenant_fairness f
        set priority = v_row.job_priority + v_new.priority_boost, rev = f.rev + 1, vtime = v_vtime, weight = v_new.weight, class = ojs._weight_class(v_new.weight),
            drift = case when v_row.backlogged then 0 when v_row.job_priority + v_new.priority_boost <> v_row.priority then v_ring.drift else f.drift end
        where f.queue = v_row.queue and f.priority = v_row.priority and f.tenant_id = p_tenant and f.rev = v_row.rev;
        if v_row.backlogged then
            perform ojs._ring_changed(ojs._ring_join(ojs._ring(v_row.queue, v_row.job_priority + v_new.priority_boost),
                ojs._weight_class(v_new.weight), 1, v_new.weight, v_vtime));
        end if;
    end loop;
    return v_new;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure_tenant(text, numeric, int) is
'Sets a tenant''s weight (0.000001 to 1000000, default 1) and priority boost (-100 to 100, default 0), and returns its configuration; a
null argument leaves its setting as it is. Acts on the whole backlog from the next dispatch on. Waits for a running dispatch. Raises
validation_error.';
reset role;
