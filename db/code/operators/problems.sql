comment on table ojs.problem is
'Every error a caller can meet: SQLSTATE, OJS code, HTTP status, whether a retry can help. A key of
two characters stands for the rest of its SQLSTATE class.';
comment on column ojs.problem.sqlstate is 'SQLSTATE, five characters; or a class, two characters.';
comment on column ojs.problem.code is 'The code in an HTTP error body (ojs-errors).';
comment on column ojs.problem.http_status is 'The HTTP status of the answer.';
comment on column ojs.problem.retryable is 'Whether the same request may succeed later unchanged.';
comment on column ojs.problem.title is
'One line for people; sent instead of PostgreSQL''s own message where that must not leave the
server.';
comment on column ojs.problem.hint is 'What the caller can do.';
comment on type ojs.refusal is
'Why one job or item of several is refused: the error that a call about it alone would raise.';

create or replace function ojs._raise(p_sqlstate text, p_message text, p_detail jsonb default null, p_hint text default null)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = p_sqlstate,
        message = p_message,
        detail  = coalesce(p_detail::text, ''),
        hint    = coalesce(p_hint, (select p.hint from ojs.problem p where p.sqlstate = p_sqlstate), '');
end;
$$;
comment on function ojs._raise(text, text, jsonb, text) is
'Raises the problem with that SQLSTATE. p_detail: a JSON object for programs (field, index, job_id,
...), sent as the error''s DETAIL. It does not repeat the message. p_hint: replaces the problem''s
own. Never returns.';

create or replace function ojs._no_such(p_what text, p_name text) returns boolean
language plpgsql
as $$
begin
    return ojs._raise('OJ404', format('%s %s does not exist', p_what, p_name), jsonb_build_object('field', p_what),
        format('Check the name; the list of %ss shows those that there are.', p_what));
end;
$$;
comment on function ojs._no_such(text, text) is
'Raises that no queue, tier or tenant (p_what) of that name exists. Never returns.';

create or replace function ojs._with_fault(p_detail jsonb, p_message text) returns jsonb
language sql immutable
as $$
    select case when starts_with(p_message, (p_detail ->> 'field') || ' ') and not p_detail ? 'fault'
        then p_detail || jsonb_build_object('fault', substr(p_message, length(p_detail ->> 'field') + 2)) else p_detail end
$$;
comment on function ojs._with_fault(jsonb, text) is
'The detail of a problem, with a member "fault": the message without the field that it begins with.
A program that knows the field by another name can then say the same about it.';

create or replace function ojs._refuse(p_refusal ojs.refusal) returns boolean
language sql volatile
as $$ select ojs._raise(p_refusal.sqlstate, p_refusal.message, p_refusal.detail) $$;
comment on function ojs._refuse(ojs.refusal) is 'Raises a refusal as an error. Never returns.';

create or replace function ojs._check_limit(p_limit int, p_most int) returns void
language plpgsql
as $$
begin
    if p_limit is null or p_limit not between 1 and p_most then
        perform ojs._raise('OJ400', format('limit must be an integer between 1 and %s', p_most), '{"field": "limit"}');
    end if;
end;
$$;
comment on function ojs._check_limit(int, int) is
'Raises invalid_request if a limit is not between 1 and p_most.';
