-- +goose Up
-- How tokens are taken: most often few of them, from a stripe that has enough (_take_at_once), else from the fewest stripes that have.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._take_tokens(p_quota ojs.quota, p_want bigint, p_wait boolean) returns boolean
language plpgsql
as $$
declare
    v_stripes ojs.stripe[];
    v_stripe  ojs.stripe;
    v_left    float8 := p_want;
begin
    if ojs._take_at_once(p_quota, p_want) then
        return true;
    end if;
    v_stripes := array(select s from ojs._gather(p_quota, p_want, false, p_wait) s);
    if not p_quota.soft and (select coalesce(sum(s.tokens), 0) from unnest(v_stripes) s) + 1e-6 < p_want then
        return false;
    end if;
    foreach v_stripe in array v_stripes loop
        -- The last one may go a trifle below zero, so that no rounding makes tokens, and far below of a soft limit.
        update ojs.stripe s
        set tokens = v_stripe.tokens - case when v_stripe = v_stripes[cardinality(v_stripes)] then v_left
                else greatest(0, least(v_left, v_stripe.tokens)) end,
            at = v_stripe.at, uses = s.uses + 1, rev = s.rev + (s.uses % 64 = 63)::int
        where s.quota = v_stripe.quota and s.n = v_stripe.n and s.rev = v_stripe.rev;
        v_left := v_left - greatest(0, least(v_left, v_stripe.tokens));
    end loop;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_tokens(ojs.quota, bigint, boolean) is
'Takes so many tokens, and returns whether there were as many; a soft limit has always as many.';

-- +goose StatementBegin
create function ojs._take_at_once(p_quota ojs.quota, p_want bigint) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_own int := pg_backend_pid() % p_quota.stripes;
begin
    update ojs.stripe s
    set tokens = ojs._grown(p_quota, s.tokens, s.at, v_now) - p_want, at = ojs._seen_at(s.at, v_now), uses = s.uses + 1,
        rev = s.rev + (s.uses % 64 = 63)::int
    from (select o.ctid as spot from ojs.stripe o where o.quota = p_quota.id and o.n = v_own
        order by o.rev desc limit 1 for update skip locked) o
    where s.ctid = o.spot and ojs._grown(p_quota, s.tokens, s.at, v_now) >= p_want;
    if found then
        return true;
    end if;
    -- Somebody has that one, for as long as a commit takes. The others begin at different ones, too, or they would meet at one.
    update ojs.stripe s
    set tokens = ojs._grown(p_quota, s.tokens, s.at, v_now) - p_want, at = ojs._seen_at(s.at, v_now), uses = s.uses + 1,
        rev = s.rev + (s.uses % 64 = 63)::int
    from (select o.ctid as spot from ojs.stripe o where o.quota = p_quota.id and ojs._grown(p_quota, o.tokens, o.at, v_now) >= p_want
        order by (o.n + v_own) % p_quota.stripes limit 1 for update skip locked) o
    where s.ctid = o.spot and ojs._grown(p_quota, s.tokens, s.at, v_now) >= p_want;
    return found;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_at_once(ojs.quota, bigint) is
'Takes so many tokens from one stripe, that of the session or any other that nobody has locked, and returns whether it has. It
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
create function ojs._gather(p_quota ojs.quota, p_want bigint, p_part boolean, p_wait boolean) returns setof ojs.stripe
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_stripe ojs.stripe;
    v_rest   int[];
    v_sum    float8;
    v_got    float8 := 0;
begin
    select array_agg(s.n order by s.tokens desc, s.n), sum(s.tokens) into v_rest, v_sum
    from (select s.n, ojs._grown(p_quota, s.tokens, s.at, v_now) as tokens from ojs.stripe s where s.quota = p_quota.id) s;
    -- There are none of a limit that somebody has just removed.
    if v_rest is null or v_sum + 1e-6 < p_want and not p_part and not p_quota.soft then
        return;
    end if;
    -- Nobody waits for a soft limit.
    for v_try in 1 .. case when p_wait and not p_quota.soft then 3 else 1 end loop
        if v_try = 2 then
            -- One that has enough: whoever waits for all keeps those that come free from the others.
            perform ojs._await_stripes(p_quota.id, array(select s.n from ojs.stripe s where s.quota = p_quota.id and s.n = any (v_rest)
                and ojs._grown(p_quota, s.tokens, s.at, v_now) + v_got >= p_want order by (s.n + pg_backend_pid()) % 16 limit 1));
        elsif v_try = 3 then
            perform ojs._await_stripes(p_quota.id, v_rest);
        end if;
        for i in 1 .. cardinality(v_rest) loop
            exit when v_got + 1e-6 >= p_want;
            v_stripe := ojs._stripe(p_quota, v_rest[i], v_now);
            if v_stripe.n is not null then
                v_got := v_got + v_stripe.tokens;
                v_rest[i] := null;
                return next v_stripe;
            end if;
        end loop;
        v_rest := array_remove(v_rest, null);
        exit when v_got + 1e-6 >= p_want or v_rest = '{}';
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._gather(ojs.quota, bigint, boolean, boolean) is
'Locks the fewest stripes of a limit that hold so many tokens, and returns them as of now. If there are too few tokens, returns
nothing; with p_part, or of a soft limit, as many as it can. p_wait: waits for other transactions for a moment, if they have what is
missing.';

-- +goose StatementBegin
create function ojs._await_stripes(p_quota bigint, p_stripes int[]) returns void
language plpgsql set lock_timeout = '100ms'
as $$
begin
    perform from ojs.stripe s where s.quota = p_quota and s.n = any (p_stripes) order by s.n for update;
exception when lock_not_available or deadlock_detected then
    null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._await_stripes(bigint, int[]) is
'Waits until nobody else has these stripes locked, a tenth of a second for each at most.';

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

-- +goose StatementBegin
create function ojs._drop_stripes(p_now timestamptz) returns void
language sql
as $$
    -- Whoever has just read an old limit still takes from its stripes.
    delete from ojs.stripe s using (
        select o.quota, o.n, o.rev from ojs.stripe o
        where o.at < p_now - interval '1 minute' and not exists (select from ojs.quota q where q.id = o.quota) for update skip locked
    ) o where s.quota = o.quota and s.n = o.n and s.rev = o.rev
$$;
-- +goose StatementEnd
comment on function ojs._drop_stripes(timestamptz) is
'Removes the stripes of limits that are gone. Reads all stripes, so whoever sets a limit does not call it.';
reset role;
