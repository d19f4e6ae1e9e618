-- +goose Up
-- Tokens for what comes most often: few jobs, and a stripe that has enough for them. More than that stands in (admit).
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._take_at_once(p_quota ojs.quota, p_jobs int) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_own int := pg_backend_pid() % p_quota.stripes;
begin
    update ojs.stripe s
    set tokens = ojs._grown(p_quota, s.tokens, s.at, v_now) - p_jobs, at = ojs._seen_at(s.at, v_now), uses = s.uses + 1,
        rev = s.rev + (s.uses % 64 = 63)::int
    from (select o.ctid as spot from ojs.stripe o where o.quota = p_quota.id and o.n = v_own
        order by o.rev desc limit 1 for update skip locked) o
    where s.ctid = o.spot and ojs._grown(p_quota, s.tokens, s.at, v_now) >= p_jobs;
    if found then
        return true;
    end if;
    -- Somebody has that one, for as long as a commit takes. The others begin at different ones, too, or they would meet at one.
    update ojs.stripe s
    set tokens = ojs._grown(p_quota, s.tokens, s.at, v_now) - p_jobs, at = ojs._seen_at(s.at, v_now), uses = s.uses + 1,
        rev = s.rev + (s.uses % 64 = 63)::int
    from (select o.ctid as spot from ojs.stripe o where o.quota = p_quota.id and ojs._grown(p_quota, o.tokens, o.at, v_now) >= p_jobs
        order by (o.n + v_own) % p_quota.stripes limit 1 for update skip locked) o
    where s.ctid = o.spot and ojs._grown(p_quota, s.tokens, s.at, v_now) >= p_jobs;
    return found;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_at_once(ojs.quota, int) is
'Takes tokens for so many jobs from one stripe, that of the session or any other that nobody has locked, and returns whether it has. It
waits for nobody, and by rows'' places: a version that it cannot see yet is left to whoever asks again.';

-- +goose StatementBegin
create function ojs._seen_at(p_at timestamptz, p_now timestamptz) returns timestamptz
language sql immutable
as $$ select case when p_at < p_now + interval '1 minute' then greatest(p_at, p_now) else p_now end $$;
-- +goose StatementEnd
comment on function ojs._seen_at(timestamptz, timestamptz) is
'When a stripe is used that was used at p_at: not before that, which another session may have read a moment later; but a clock that was set
back must not stop its growth. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._leaving(p_tenant text, p_queue text) returns float8
language sql stable
as $$
    select sum(p.jobs) / 60.0 from ojs.pace p
    where p.kind = case when p_tenant = '' then 'queue' else 'tenant' end
        and p.name = case when p_tenant = '' then p_queue else p_tenant end and p.at > ojs.now() - interval '1 minute'
$$;
-- +goose StatementEnd
comment on function ojs._leaving(text, text) is 'How many jobs of a tenant, or of a queue, were handed out per second in the last minute.';
reset role;
