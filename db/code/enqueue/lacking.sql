-- Features that a job can ask for and this server does not have. The job is refused: if the request
-- were ignored, a job that is to be unique could run twice.

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
'Returns why a job is refused that asks for a feature which the server does not have, by its
manifest. Null: it asks for no such feature, or ojs.configure says that such fields are only kept
(unsupported carry).';
