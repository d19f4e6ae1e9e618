-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Every error that a caller can meet stands here once. A server reads the table at start and answers by it; nobody matches on message text.
create table ojs.problem (
    sqlstate    text collate "C" primary key,
    code        text not null,
    http_status int not null,
    retryable   boolean not null,
    title       text not null,
    hint        text not null
);
comment on table ojs.problem is
'Every error a caller can meet: SQLSTATE, OJS code, HTTP status, whether a retry can help. A key of two characters stands for the rest of
its SQLSTATE class.';
comment on column ojs.problem.sqlstate is 'SQLSTATE, five characters; or a class, two characters.';
comment on column ojs.problem.code is 'The code in an HTTP error body (ojs-errors).';
comment on column ojs.problem.http_status is 'The HTTP status it is answered with.';
comment on column ojs.problem.retryable is 'Whether the same request may succeed later unchanged.';
comment on column ojs.problem.title is 'One line for people; used when PostgreSQL''s own message must not leave the server.';
comment on column ojs.problem.hint is 'What the caller can do.';

insert into ojs.problem (sqlstate, code, http_status, retryable, title, hint) values
    ('OJ400', 'invalid_request',      400, false, 'A field has a value that is not allowed.',
        'Correct the field named in the details and send the request again.'),
    ('OJ416', 'unauthorized',         401, false, 'The request needs a valid credential.',
        'Send an API key or a token as Authorization: Bearer, or an API key as X-API-Key.'),
    ('OJ417', 'forbidden',            403, false, 'The credential does not allow this.',
        'Use a credential that allows it; the details name the scope or the queue.'),
    ('OJ401', 'invalid_payload',      400, false, 'The payload is not acceptable JSON text.',
        'Send valid UTF-8 JSON without NUL characters or repeated keys, within the depth limit.'),
    ('OJ402', 'TENANT_REQUIRED',      422, false, 'A tenant is required.',
        'Name the tenant in the X-OJS-Tenant header, in meta.tenant_id, or in p_tenant.'),
    ('OJ403', 'TENANT_ACCESS_DENIED', 403, false, 'The caller may not act for this tenant.',
        'Use a credential of that tenant, or leave the tenant out.'),
    ('OJ404', 'not_found',            404, false, 'No such resource.',
        'Check the id; finished jobs are removed after their retention.'),
    ('OJ405', 'TENANT_MISMATCH',      400, false, 'The tenant is named twice, differently.',
        'Name the tenant once, or the same tenant in both places.'),
    ('OJ406', 'TENANT_SUSPENDED',     403, false, 'The tenant is suspended.',
        'Ask the operator; new jobs are refused until the tenant is resumed.'),
    ('OJ407', 'TENANT_UNKNOWN',       403, false, 'The tenant is not known.',
        'Ask the operator to configure the tenant, or correct its name.'),
    ('OJ408', 'unsupported',          422, false, 'Not supported.',
        'See the manifest for what this server supports.'),
    ('OJ409', 'conflict',             409, false, 'The job is not in a state that allows this.',
        'Read the job: another worker, a cancellation or an expired lease came first.'),
    ('OJ410', 'duplicate',            409, false, 'A job with this id exists already.',
        'Leave the id out to have one made, or read the existing job.'),
    ('OJ411', 'ambiguous_job',        409, false, 'The id exists in more than one tenant.',
        'Name the tenant in the X-OJS-Tenant header or in p_tenant.'),
    ('OJ412', 'RESULT_TOO_LARGE',     413, false, 'The result is larger than the limit.',
        'Store the result elsewhere and acknowledge with a reference to it.'),
    ('OJ413', 'payload_too_large',    413, false, 'The payload is larger than the limit.',
        'Store the data elsewhere and pass a reference.'),
    ('OJ414', 'RESULT_PRUNED',        410, false, 'The result has been removed.',
        'Fetch results within result_ttl, or enqueue with a longer one.'),
    ('OJ415', 'timeout',              408, true,  'The wait is over.',
        'Ask again.'),
    ('OJ422', 'validation_error',     422, false, 'A policy has a value that is not allowed.',
        'Correct the field named in the details.'),
    ('OJ429', 'TENANT_LIMIT_EXCEEDED', 429, true, 'The tenant has reached a limit.',
        'Try again after the seconds that Retry-After or retry_after names.'),
    ('OJ430', 'QUEUE_FULL',           429, true,  'The queue has reached its depth bound.',
        'Try again after the seconds that Retry-After or retry_after names.'),
    ('OJ507', 'TENANT_LIMIT_EXCEEDED', 507, false, 'The tenant has no room left for what its jobs store.',
        'Room comes back when retention drops jobs; ojs.purge_dead_letters makes some now. The limit is max_stored_bytes.'),
    ('OJ503', 'backend_unavailable',  503, true,  'Dispatch is held up by another transaction.',
        'Try again shortly.'),
    ('0A000', 'backend_unavailable',  503, true,  'The schema has changed at this moment.',
        'Try again.'),
    ('22001', 'invalid_request',      400, false, 'A text is too long.',
        'Shorten it.'),
    ('22003', 'invalid_request',      400, false, 'A number is out of range.',
        'Use a smaller number.'),
    ('22007', 'invalid_request',      400, false, 'A timestamp has the wrong form.',
        'Use RFC 3339 with an offset.'),
    ('22008', 'invalid_request',      400, false, 'A timestamp is out of range.',
        'Use a year between 1 and 9999.'),
    ('22009', 'invalid_request',      400, false, 'A time zone is out of range.',
        'Use RFC 3339 with an offset of at most 15 hours.'),
    ('22021', 'invalid_payload',      400, false, 'The text is not valid UTF-8 or holds a NUL.',
        'Send valid UTF-8 without NUL characters.'),
    ('22P02', 'invalid_payload',      400, false, 'A value has the wrong form for its type.',
        'Check the form of ids, numbers and JSON.'),
    ('22P05', 'invalid_payload',      400, false, 'The text holds a character that cannot be stored.',
        'Remove NUL characters (\u0000).'),
    ('23502', 'invalid_request',      400, false, 'A required field is missing.',
        'Send every required field.'),
    ('23505', 'duplicate',            409, false, 'It exists already.',
        'Leave the id out to have one made, or read the existing row.'),
    ('23514', 'invalid_request',      400, false, 'A rule is violated.',
        'Correct the field named in the details.'),
    ('25006', 'backend_unavailable',  503, true,  'The database accepts reads only at the moment.',
        'Try again; a failover may be under way.'),
    ('40001', 'backend_unavailable',  503, true,  'A concurrent transaction won.',
        'Try again.'),
    ('40P01', 'backend_unavailable',  503, true,  'A concurrent transaction won.',
        'Try again.'),
    ('42501', 'TENANT_ACCESS_DENIED', 403, false, 'Permission denied.',
        'Use a role with the needed rights.'),
    ('54000', 'payload_too_large',    413, false, 'The payload is larger than the limit.',
        'Send less at once.'),
    ('54001', 'invalid_payload',      400, false, 'The JSON is nested too deeply.',
        'Nest less deeply.'),
    ('55P03', 'backend_unavailable',  503, true,  'A lock was not available in time.',
        'Try again.'),
    ('08',    'backend_unavailable',  503, true,  'The database cannot be reached.',
        'Try again.'),
    ('25',    'backend_unavailable',  503, true,  'The transaction cannot go on.',
        'Try again.'),
    ('53',    'backend_unavailable',  503, true,  'The database lacks resources at the moment.',
        'Try again later.'),
    ('57',    'backend_unavailable',  503, true,  'The database is interrupted, starting or stopping.',
        'Try again.'),
    ('58',    'backend_unavailable',  503, true,  'The database has a system error.',
        'Try again later.');

create type ojs.refusal as (sqlstate text, message text, detail jsonb);
comment on type ojs.refusal is 'Why one of many is refused: what a call about it alone would raise.';

-- +goose StatementBegin
create function ojs._raise(p_sqlstate text, p_message text, p_detail jsonb default null, p_hint text default null) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = p_sqlstate,
        message = p_message,
        detail  = coalesce(ojs._with_fault(p_detail, p_message)::text, ''),
        hint    = coalesce(p_hint, (select p.hint from ojs.problem p where p.sqlstate = p_sqlstate), '');
end;
$$;
-- +goose StatementEnd
comment on function ojs._raise(text, text, jsonb, text) is
'Raises the problem with that SQLSTATE. p_detail is a JSON object for programs (field, index, job_id, ...), sent as the error''s
DETAIL, with the fault beside the field; p_hint replaces the problem''s own. Never returns.';

-- +goose StatementBegin
create function ojs._no_such(p_what text, p_name text) returns boolean
language plpgsql
as $$
begin
    return ojs._raise('OJ404', format('%s %s does not exist', p_what, p_name), jsonb_build_object('field', p_what),
        format('Check the name; the list of %ss shows those that there are.', p_what));
end;
$$;
-- +goose StatementEnd
comment on function ojs._no_such(text, text) is 'Raises that there is no queue, tier or tenant (p_what) of a name. Never returns.';

-- +goose StatementBegin
create function ojs._with_fault(p_detail jsonb, p_message text) returns jsonb
language sql immutable
as $$
    select case when starts_with(p_message, (p_detail ->> 'field') || ' ') and not p_detail ? 'fault'
        then p_detail || jsonb_build_object('fault', substr(p_message, length(p_detail ->> 'field') + 2)) else p_detail end
$$;
-- +goose StatementEnd
comment on function ojs._with_fault(jsonb, text) is
'The detail of a problem with the fault in it, which is the message without the field that it begins with: a program that knows the field
by another name can then say the same about it.';

-- +goose StatementBegin
create function ojs._refuse(p_refusal ojs.refusal) returns boolean
language sql volatile
as $$ select ojs._raise(p_refusal.sqlstate, p_refusal.message, p_refusal.detail) $$;
-- +goose StatementEnd
comment on function ojs._refuse(ojs.refusal) is 'Raises what one of many was refused for. Never returns.';

-- +goose StatementBegin
create function ojs._check_limit(p_limit int, p_most int) returns void
language plpgsql
as $$
begin
    if p_limit is null or p_limit not between 1 and p_most then
        perform ojs._raise('OJ400', format('limit must be an integer between 1 and %s', p_most), '{"field": "limit"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_limit(int, int) is 'Raises invalid_request when a limit is not between 1 and p_most.';
reset role;
