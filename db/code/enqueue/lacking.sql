-- What a job can ask for and this server cannot do. Taken in silence, a job that is to be unique would run twice.

create or replace function ojs._lacking(p_options json, p_extra json) returns ojs.violation
language plpgsql stable
as $$
declare
    c_features constant jsonb := '{"unique": "unique_jobs", "rate_limit": "rate_limiting", "throttle": "rate_limiting",
        "workflow": "workflows", "depends_on": "workflows"}';
    v_asked record;
begin
    select a.field, c_features ->> a.key as feature into v_asked
    from (
        select o.key, 'options.' || o.key as field, o.value from json_each(p_options) o
        union all
        select e.key, e.key, e.value from json_each(p_extra) e
    ) a
    where c_features ? a.key and json_typeof(a.value) <> 'null' limit 1;
    if not found or (select s.unsupported = 'carry' from ojs.settings s) then
        return null;
    end if;
    return row('OJ408', v_asked.field, format('%s is not supported: this server does not have %s', v_asked.field,
        replace(v_asked.feature, '_', ' ')))::ojs.violation;
end;
$$;
comment on function ojs._lacking(json, json) is
'Why a job is refused that asks for a feature which the manifest says the server does not have, or null: there is none, or ojs.configure
says that such words are carried.';
