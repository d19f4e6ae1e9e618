-- Overloads of the functions that take args, for args of other JSON types than the type that
-- PostgreSQL assumes for a literal without a type.

-- PostgreSQL takes a literal such as '[]', and a parameter to which the driver gives no type, as
-- text if one of the candidates takes text. So such calls reach the functions with p_args text, and
-- all other calls reach the functions here. The functions here have no default for p_args;
-- otherwise ojs.enqueue('a') would be ambiguous. All other JSON parameters are anycompatible, which
-- accepts each type, but only one in a call. These functions must stay a single select in language
-- sql without settings, so that they become part of the query that calls them.

-- Makes one job, as ojs.enqueue with args as text.
-- Locks and writes what that function does.
create or replace function ojs.enqueue(
    p_type text, p_args anyelement, p_queue text default 'default', p_priority int default 0,
    p_scheduled_at timestamptz default null, p_expires_at timestamptz default null, p_meta anycompatible default '{}',
    p_retry anycompatible default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_pending boolean default false,
    p_options anycompatible default null, p_extra anycompatible default null, p_id uuid default null, p_tenant text default null
) returns ojs.job
language sql
as $$
    select ojs.enqueue(p_type, p_args::text, p_queue, p_priority, p_scheduled_at, p_expires_at, p_meta, p_retry, p_max_attempts,
        p_timeout_ms, p_visibility_timeout_ms, p_tags, p_pending, p_options, p_extra, p_id, p_tenant)
$$;
comment on function ojs.enqueue(
    text, anyelement, text, int, timestamptz, timestamptz, anycompatible, anycompatible, int, int, int, text[], boolean, anycompatible,
    anycompatible, uuid, text) is
'Does what ojs.enqueue does, for p_args of type json, kept byte for byte, or jsonb.';

-- A literal without a type stays json[] in enqueue_bulk: p_type is varchar in the functions for
-- other lists, which PostgreSQL prefers less for the literal before it.

-- Makes jobs that differ in their args only, as ojs.enqueue_bulk with args as json[].
-- Locks and writes what that function does.
create or replace function ojs.enqueue_bulk(
    p_type varchar, p_args jsonb[], p_queue text default 'default', p_priority int default 0,
    p_scheduled_at timestamptz default null, p_expires_at timestamptz default null, p_meta anycompatible default '{}',
    p_retry anycompatible default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_tenant text default null
) returns setof uuid
language sql
as $$
    select ojs.enqueue_bulk(p_type::text, p_args::json[], p_queue, p_priority, p_scheduled_at, p_expires_at, p_meta, p_retry,
        p_max_attempts, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_tenant)
$$;
comment on function ojs.enqueue_bulk(
    varchar, jsonb[], text, int, timestamptz, timestamptz, anycompatible, anycompatible, int, int, int, text[], text) is
'Does what ojs.enqueue_bulk with p_args of type json[] does, for jsonb[].';

-- Makes jobs that differ in their args only, as ojs.enqueue_bulk with args as json[].
-- Locks and writes what that function does.
create or replace function ojs.enqueue_bulk(
    p_type varchar, p_args text[], p_queue text default 'default', p_priority int default 0,
    p_scheduled_at timestamptz default null, p_expires_at timestamptz default null, p_meta anycompatible default '{}',
    p_retry anycompatible default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_tenant text default null
) returns setof uuid
language sql
as $$
    select ojs.enqueue_bulk(p_type::text, p_args::json[], p_queue, p_priority, p_scheduled_at, p_expires_at, p_meta, p_retry,
        p_max_attempts, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_tenant)
$$;
comment on function ojs.enqueue_bulk(
    varchar, text[], text, int, timestamptz, timestamptz, anycompatible, anycompatible, int, int, int, text[], text) is
'Does what ojs.enqueue_bulk with p_args of type json[] does, for text[].';

-- Makes or changes a cron job, as ojs.put_cron with args as text.
-- Locks and writes what that function does.
create or replace function ojs.put_cron(
    p_name text, p_expression text, p_type text, p_args anyelement, p_timezone text default 'UTC',
    p_queue text default 'default', p_priority int default 0, p_meta anycompatible default '{}', p_retry anycompatible default null,
    p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null,
    p_tags text[] default null, p_options anycompatible default null, p_extra anycompatible default null,
    p_overlap_policy text default 'skip', p_catch_up text default 'once',
    p_enabled boolean default null, p_description text default null, p_tenant text default null
) returns ojs.cron
language sql
as $$
    select ojs.put_cron(p_name, p_expression, p_type, p_args::text, p_timezone, p_queue, p_priority, p_meta, p_retry, p_max_attempts,
        p_timeout_ms, p_visibility_timeout_ms, p_tags, p_options, p_extra, p_overlap_policy, p_catch_up, p_enabled, p_description,
        p_tenant)
$$;
comment on function ojs.put_cron(
    text, text, text, anyelement, text, text, int, anycompatible, anycompatible, int, int, int, text[], anycompatible, anycompatible,
    text, text, boolean, text, text) is
'Does what ojs.put_cron does, for p_args of type json, kept byte for byte, or jsonb.';
