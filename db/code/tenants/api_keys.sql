-- API keys: credentials for HTTP (multi-tenancy section 5.2). The secret is shown once; only its
-- hash is kept.

comment on table ojs.api_key is
'Credentials for HTTP. Written by ojs.create_api_key, ojs.rotate_api_key, ojs.revoke_api_key;
last_used_at by servers. Read as ojs.api_keys.';
comment on column ojs.api_key.id is 'The id by which operators name it.';
comment on column ojs.api_key.prefix is
'The first characters of the secret, shown in logs and lists.';
comment on column ojs.api_key.hash is 'SHA-256 of the secret, which has 244 random bits.';
comment on column ojs.api_key.tenant_id is
'The tenant that its bearer acts for; null: all tenants.';
comment on column ojs.api_key.scopes is 'What its bearer may do: produce, work, read, admin; and all-tenants, see ojs.create_api_key.';
comment on column ojs.api_key.queues is
'The queues that its bearer may use: jobs and cron jobs in other queues are refused; null: all.';
comment on column ojs.api_key.name is 'A name that says what it is for.';
comment on column ojs.api_key.created_at is 'When it was made.';
comment on column ojs.api_key.created_by is 'The login that made it.';
comment on column ojs.api_key.expires_at is
'When it expires and is refused; null: it does not expire.';
comment on column ojs.api_key.revoked_at is
'Since when it is revoked and refused; null: it is not revoked.';
comment on column ojs.api_key.reason is 'Why it was revoked.';
comment on column ojs.api_key.last_used_at is 'When it was last used, to the minute; null: never.';
comment on column ojs.api_key.rotated_to is 'The key that replaces it; null: none.';

create or replace view ojs.api_keys with (security_invoker = true) as
select k.id, k.prefix, k.tenant_id, k.scopes, k.queues, k.name, case
        when k.revoked_at is not null then 'revoked' when k.expires_at <= ojs.now() then 'expired' else 'valid' end as state,
    k.created_at, k.created_by, k.expires_at, k.revoked_at, k.reason, k.last_used_at, k.rotated_to
from ojs.api_key k;
comment on view ojs.api_keys is 'Credentials for HTTP, without their hashes; for operators.';
comment on column ojs.api_keys.id is 'The id by which operators name it.';
comment on column ojs.api_keys.prefix is 'The first characters of the secret.';
comment on column ojs.api_keys.tenant_id is
'The tenant that its bearer acts for; null: all tenants.';
comment on column ojs.api_keys.scopes is 'What its bearer may do: produce, work, read, admin; and all-tenants, see ojs.create_api_key.';
comment on column ojs.api_keys.queues is
'The queues that its bearer may use: jobs and cron jobs in other queues are refused; null: all.';
comment on column ojs.api_keys.name is 'A name that says what it is for.';
comment on column ojs.api_keys.state is 'valid, expired or revoked.';
comment on column ojs.api_keys.created_at is 'When it was made.';
comment on column ojs.api_keys.created_by is 'The login that made it.';
comment on column ojs.api_keys.expires_at is
'When it expires and is refused; null: it does not expire.';
comment on column ojs.api_keys.revoked_at is
'Since when it is revoked and refused; null: it is not revoked.';
comment on column ojs.api_keys.reason is 'Why it was revoked.';
comment on column ojs.api_keys.last_used_at is 'When it was last used, to the minute; null: never.';
comment on column ojs.api_keys.rotated_to is 'The key that replaces it; null: none.';

-- A view, so that the row type has all columns of ojs.api_keys.
create or replace view ojs._new_api_key with (security_invoker = true) as
select ''::text as secret, k.* from ojs.api_keys k where false;
comment on view ojs._new_api_key is
'Row type of ojs.create_api_key; it holds no rows. secret: what clients send, shown only this once.';

-- Makes an API key.
-- Locks nothing.
-- Writes api_key.
create or replace function ojs.create_api_key(
    p_tenant text, p_scopes text[], p_name text default '', p_queues text[] default null, p_expires_at timestamptz default null
) returns setof ojs._new_api_key
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    -- Each of the two UUIDs has 122 random bits.
    v_secret text := 'ojs_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
    v_id     uuid;
begin
    if p_tenant is not null and not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    elsif (cardinality(p_scopes) > 0 and p_scopes <@ '{produce,work,read,admin,all-tenants}') is not true
        or p_scopes <@ '{all-tenants}' then
        perform ojs._raise('OJ422', 'scopes must be one or more of produce, work, read, admin; all-tenants stands beside one of them',
            '{"field": "scopes"}');
    elsif p_tenant is null and not p_scopes && '{admin,all-tenants}' then
        -- Otherwise a call that forgets the tenant would make a key for all tenants.
        perform ojs._raise('OJ422', 'a key without a tenant needs the scope all-tenants, too', '{"field": "tenant"}',
            'Name the tenant. For a worker of all tenants use the scopes work and all-tenants; for an operator use admin.');
    elsif p_tenant is not null and 'all-tenants' = any (p_scopes) then
        perform ojs._raise('OJ422', 'a key of one tenant cannot have the scope all-tenants', '{"field": "scopes"}',
            'Leave out the tenant, or the scope all-tenants.');
    elsif exists (select from unnest(p_queues) q where ojs._queue_name(q) is not true) or cardinality(p_queues) not between 1 and 100 then
        perform ojs._raise('OJ400', 'queues must be at most 100 names of queues', '{"field": "queues"}');
    elsif length(p_name) > 255 then
        perform ojs._raise('OJ400', 'name is longer than 255 characters', '{"field": "name"}');
    elsif p_expires_at <= ojs.now() then
        perform ojs._raise('OJ422', 'expires_at must be in the future', '{"field": "expires_at"}');
    end if;
    insert into ojs.api_key (prefix, hash, tenant_id, scopes, queues, name, expires_at)
    select left(v_secret, 12), sha256(convert_to(v_secret, 'UTF8')), p_tenant, array(select distinct s from unnest(p_scopes) s order by s),
        p_queues, coalesce(p_name, ''), p_expires_at
    returning id into v_id;
    return query select v_secret, k.* from ojs.api_keys k where k.id = v_id;
end;
$$;
comment on function ojs.create_api_key(text, text[], text, text[], timestamptz) is
'Makes an API key and returns it with its secret, which is shown only this once.
p_tenant: the tenant that its bearer acts for; null: all tenants, which needs the scope admin or
all-tenants.
p_scopes: produce (enqueue, cancel, activate, cron and dead letters), work (fetch, ack, nack,
heartbeat), read (jobs, queues, statistics, events), admin (everything; with a tenant, everything
about that tenant). all-tenants stands beside produce, work or read in a key without a tenant: work
then reaches the jobs of all tenants; to produce and to read, each request names its tenant.
p_queues: its bearer may use only these queues.
Raises invalid_request, validation_error.';

-- Makes a new key in place of an old one.
-- Locks the row of the old one.
-- Writes api_key.
create or replace function ojs.rotate_api_key(p_id uuid, p_overlap interval default '1 day') returns setof ojs._new_api_key
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.api_key;
    v_new ojs._new_api_key;
begin
    -- Without the lock, two calls at once would both rotate the key.
    select * into v_old from ojs.api_key k where k.id = p_id for update;
    if v_old.id is null or v_old.revoked_at is not null or v_old.expires_at <= ojs.now() then
        perform ojs._raise('OJ404', format('no valid API key %s', p_id), '{"field": "id"}',
            'Check the id; a key that has ended cannot be rotated.');
    elsif v_old.rotated_to is not null then
        -- The key now expires at the end of the overlap, and a new key would be given the same end.
        perform ojs._raise('OJ409', format('API key %s has been rotated already', p_id), jsonb_build_object('field', 'id'),
            format('It is valid until %s, which cannot be changed; ojs.revoke_api_key ends it now. The key after it, %s, can be rotated.',
                ojs._utc(v_old.expires_at), v_old.rotated_to));
    elsif (p_overlap between '0' and '31 days') is not true then
        perform ojs._raise('OJ422', 'overlap must be between 0 and 31 days', '{"field": "overlap"}');
    end if;
    select * into v_new from ojs.create_api_key(v_old.tenant_id, v_old.scopes, v_old.name, v_old.queues, v_old.expires_at);
    update ojs.api_key k set expires_at = least(k.expires_at, ojs._later(ojs.now(), p_overlap)), rotated_to = v_new.id where k.id = p_id;
    return next v_new;
end;
$$;
comment on function ojs.rotate_api_key(uuid, interval) is
'Makes a new key like an old one, and returns it with its secret.
It has the tenant, scopes, queues, name and end of the old key.
p_overlap: how long the old key stays valid; default 1 day; 0 to 31 days.
Raises not_found for a key that is revoked or expired, conflict for one that was rotated already,
validation_error.';

-- Revokes an API key.
-- Locks its row.
-- Writes api_key.
create or replace function ojs.revoke_api_key(p_id uuid, p_reason text default null) returns setof ojs.api_keys
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update ojs.api_key k set revoked_at = coalesce(k.revoked_at, ojs.now()), reason = coalesce(k.reason, left(p_reason, 1000))
    where k.id = p_id;
    if not found then
        perform ojs._raise('OJ404', format('no API key %s', p_id), '{"field": "id"}', 'Check the id; the list of keys shows it.');
    end if;
    return query select k.* from ojs.api_keys k where k.id = p_id;
end;
$$;
comment on function ojs.revoke_api_key(uuid, text) is
'Revokes an API key and returns it; every server refuses it within a second.
p_reason: kept, and shown later.
Raises not_found.';

-- Writes api_key, at most once a minute for each key.
create or replace function ojs._key_owner(p_hash bytea) returns setof ojs.api_keys
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- With skip locked, requests that use the key at the same time do not wait for each other.
    update ojs.api_key k set last_used_at = ojs.now()
    where k.ctid = (select u.ctid from ojs.api_key u
        where u.hash = p_hash and (u.last_used_at > ojs.now() - interval '1 minute') is not true for update skip locked);
    return query select k.* from ojs.api_keys k where k.id = (select u.id from ojs.api_key u where u.hash = p_hash) and k.state = 'valid';
end;
$$;
comment on function ojs._key_owner(bytea) is
'The valid key whose secret has this SHA-256, or no row; notes when it was used. For servers, which
keep the answer for a second.';
