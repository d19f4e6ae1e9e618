comment on type ojs.violation is
'Why a job is refused: the SQLSTATE of the problem, the wrong field, and a sentence.';

-- Each function that runs with its owner's rights and takes JSON of any type calls this first. A
-- cast from another type may be a function that any user wrote, and would run with the owner's
-- rights.
create or replace function ojs._json_type(p_type regtype) returns boolean
language sql stable
as $$
    select p_type in ('json'::regtype, 'jsonb'::regtype, 'text'::regtype, 'varchar'::regtype, 'unknown'::regtype) or ojs._no_json(p_type)
$$;
comment on function ojs._json_type(regtype) is
'Returns true for the types that JSON parameters may have: json, jsonb and text. Raises
invalid_request for others. Becomes part of the expression that asks.';

create or replace function ojs._no_json(p_type regtype) returns boolean
language plpgsql stable
as $$
begin
    return ojs._raise('OJ400', format('JSON must be given as json, jsonb or text, not as %s', p_type), null, 'Cast it to jsonb.');
end;
$$;
comment on function ojs._no_json(regtype) is 'Raises that JSON is not accepted in a type.';

-- A number in jsonb has at most 131072 digits before the point and 16383 after it. A number with
-- more has a long run of digits or a large exponent.
create or replace function ojs._fits_jsonb(p_json json) returns boolean
language sql stable
as $$
    select p_json::text !~ '[0-9][eE][-+]?[0-9]{3}' and (octet_length(p_json::text) < 16000 or p_json::text !~ '[0-9]{255}')
$$;
comment on function ojs._fits_jsonb(json) is
'Returns whether all numbers of a JSON text certainly fit numeric, so that the text can become
jsonb. Becomes part of the query that asks.';

-- From PostgreSQL 16 on "is json with unique keys" finds repeated keys. Before, this counts the
-- pairs in the text (every colon outside of strings) and compares them with the pairs left in the
-- jsonb, which keeps one of each key. Without escapes that could be a colon, the strings can stay,
-- because jsonb has the same colons in them.
do $do$
begin
    if current_setting('server_version_num')::int >= 160000 then
        execute $fn$
            create or replace function ojs._repeats_key(p_json json) returns boolean language sql stable
            as $$ select not (p_json is json with unique keys) $$
        $fn$;
        -- A database that was upgraded from an older PostgreSQL has this function.
        drop function if exists ojs._repeats_key_exactly(json);
    else
        execute $fn$
            create or replace function ojs._repeats_key_exactly(p_json json) returns boolean language plpgsql immutable
            as $$
            begin
                return length(regexp_replace(regexp_replace(p_json::text, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g'), '[^:]', '', 'g'))
                    <> length(regexp_replace(regexp_replace(p_json::jsonb::text, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g'), '[^:]', '', 'g'));
            exception when numeric_value_out_of_range then
                -- A number too large for numeric is allowed in json, but the text cannot become
                -- jsonb to be compared.
                return false;
            end;
            $$
        $fn$;
        comment on function ojs._repeats_key_exactly(json) is 'ojs._repeats_key for texts with escapes or large numbers.';
        execute $fn$
            create or replace function ojs._repeats_key(p_json json) returns boolean language sql stable
            as $$
                select case
                    when strpos(p_json::text, '{') = 0 then false
                    when strpos(p_json::text, E'\\u') > 0 or octet_length(p_json::text) > 100000 or not ojs._fits_jsonb(p_json) then
                        ojs._repeats_key_exactly(p_json)
                    -- The two sides count colons in different ways: lengths are faster, but on this
                    -- side would convert jsonb to text twice.
                    else octet_length(p_json::text) - octet_length(replace(p_json::text, ':', ''))
                        <> cardinality(string_to_array(p_json::jsonb::text, ':')) - 1 end
            $$
        $fn$;
    end if;
end;
$do$;
comment on function ojs._repeats_key(json) is
'Returns whether an object anywhere in a JSON text has the same key twice.';

create or replace function ojs._bad_escape(p_text text) returns text
language plpgsql immutable
as $$
declare
    v_escapes text;
begin
    if strpos(p_text, E'\\u') > 0 then
        -- First remove escaped backslashes and whole surrogate pairs, because both would match the
        -- patterns below.
        v_escapes := regexp_replace(p_text, E'\\\\\\\\|\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g');
        if strpos(v_escapes, E'\\u0000') > 0 then
            return E'a NUL character (\\u0000)';
        elsif v_escapes ~ E'\\\\u[dD][89a-fA-F]' then
            return 'half of a surrogate pair';
        end if;
    end if;
    return null;
end;
$$;
comment on function ojs._bad_escape(text) is
'Returns which escape of a JSON text json keeps but text cannot represent, or null.';

create or replace function ojs._too_deep(p_json jsonb) returns boolean
language plpgsql immutable
as $$
declare
    v_text text := p_json::text;
begin
    -- Brackets are counted first, because few values have so many and the path query is slow.
    return length(v_text) - length(translate(v_text, '[{', '')) > 100
        and jsonb_path_exists(p_json, 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")');
end;
$$;
comment on function ojs._too_deep(jsonb) is
'Returns whether JSON is nested more than 100 levels deep.';

create or replace function ojs._json_violation(p_json json, p_field text, p_kind text, p_max_bytes int) returns ojs.violation
language plpgsql immutable
as $$
declare
    v_text   text := p_json::text;
    v_escape text := ojs._bad_escape(v_text);
begin
    if octet_length(v_text) > p_max_bytes then
        return row('OJ413', p_field, format('%s is larger than %s bytes', p_field, p_max_bytes))::ojs.violation;
    end if;
    if p_kind is not null and json_typeof(p_json) <> p_kind then
        return row('OJ400', p_field, format('%s must be a JSON %s', p_field, p_kind))::ojs.violation;
    end if;
    if v_escape is not null then
        return row('OJ401', p_field, format('%s holds %s', p_field, v_escape))::ojs.violation;
    end if;
    if length(v_text) - length(translate(v_text, '[{', '')) > 100 then
        begin
            if ojs._too_deep(p_json::jsonb) then
                return row('OJ401', p_field, format('%s is nested more than 100 levels deep', p_field))::ojs.violation;
            end if;
        exception when numeric_value_out_of_range then
            return row('OJ401', p_field,
                format('%s holds more than 100 brackets and a number beyond 131072 digits', p_field))::ojs.violation;
        end;
    end if;
    if ojs._repeats_key(p_json) then
        return row('OJ401', p_field, format('%s holds an object with the same key twice', p_field))::ojs.violation;
    end if;
    return null;
end;
$$;
comment on function ojs._json_violation(json, text, text, int) is
'Returns why a JSON value that is stored byte for byte is refused, or null.
Reasons: it is larger than p_max_bytes; it is not of kind p_kind (a json_typeof; null: any); it has
a NUL character, half of a surrogate pair, more than 100 levels, or a repeated key.';

-- This test must never accept more than the rules: a value that passes it is stored without a call
-- of ojs._json_violation.
create or replace function ojs._plain_json(p_json json) returns boolean
language sql stable
as $$
    select octet_length(p_json::text) <= 65536 and strpos(p_json::text, E'\\u') = 0
        and (octet_length(p_json::text) < 200
            or octet_length(p_json::text) - octet_length(replace(replace(p_json::text, '[', ''), '{', '')) <= 100)
        and not ojs._repeats_key(p_json)
$$;
comment on function ojs._plain_json(json) is
'Returns whether a JSON value certainly breaks no rule of ojs._json_violation but that of its kind:
it is short, and has no \u escapes, few brackets, and no repeated key. Becomes part of the query
that asks.';

create or replace function ojs._readable(p_json json) returns boolean
language sql stable
as $$ select strpos(p_json::text, E'\\u') = 0 or ojs._bad_escape(p_json::text) is null $$;
comment on function ojs._readable(json) is
'Returns whether PostgreSQL can parse a JSON value: it fails at escapes of characters that text
cannot hold.';

create or replace function ojs._plain_uuid(p_json json) returns boolean
language sql stable
as $$
    select p_json::text like '"________-____-____-____-____________"' and octet_length(replace(p_json::text, '-', '')) = 34
        and p_json::text ~ '^"[0-9a-fA-F-]+"$'
$$;
comment on function ojs._plain_uuid(json) is
'Returns whether a JSON value is a text that is certainly a UUID.';

create or replace function ojs._plain_time(p_json json) returns boolean
language sql stable
as $$
    select p_json::text ~ ('^"(19|20|21)[0-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])'
        || 'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[-+](0[0-9]|1[0-4]):[0-5][0-9])"$')
$$;
comment on function ojs._plain_time(json) is
'Returns whether a JSON value is a text that is certainly a time.';

create or replace function ojs._uuid(p_text text) returns uuid
language plpgsql immutable
as $$
begin
    return p_text::uuid;
exception when invalid_text_representation then
    return null;
end;
$$;
comment on function ojs._uuid(text) is 'Returns a text as a UUID; null if it is not a UUID.';
