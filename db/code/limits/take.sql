-- How tokens are taken: nearly always from one stripe that has enough for each limit
-- (_take_at_once), else from several (_take).

-- Nearly all jobs take their tokens here. PostgreSQL prepares each expression anew in every
-- transaction, so there are few of them.
create or replace function ojs._take_at_once(p_from ojs.allowance[], p_want float8[]) returns ojs.allowance[]
language plpgsql
as $$
declare
    v_now   timestamptz := ojs.now();
    v_of    ojs.allowance;
    v_one   record;
    v_gain  float8;
    v_left  float8;
    v_short ojs.allowance[];
begin
    <<allowances>>
    foreach v_of in array p_from loop
        <<tries>>
        for i in 1 .. 2 loop
            if i = 1 then
                select s.ctid as version, s.tokens, s.at into v_one from ojs.stripe s
                where s.tenant_id = v_of.tenant_id and s.queue = v_of.queue and s.n = pg_backend_pid() % v_of.stripes
                order by s.rev desc limit 1 for update skip locked;
            else
                -- Another session has the first stripe locked, or it has too few tokens. Sessions
                -- begin at different stripes here, too, or all would try the same one.
                select s.ctid as version, s.tokens, s.at into v_one from ojs.stripe s
                where s.tenant_id = v_of.tenant_id and s.queue = v_of.queue and s.n < v_of.stripes and not exists (
                    select from generate_series(1, 5) k where v_of.hard[k] and p_want[k] > 0
                        and ojs._grown(v_of, k, s.n, s.tokens, s.at, v_now) < p_want[k])
                order by (s.n + pg_backend_pid()) % v_of.stripes limit 1 for update skip locked;
            end if;
            continue when v_one.version is null;
            v_gain := ojs._growing(v_one.at, v_now);
            for k in 1 .. 5 loop
                continue when v_of.hard[k] is null;
                v_left := least(v_of.caps[k], v_one.tokens[k] + v_of.growth[k] * v_gain) - p_want[k];
                continue tries when v_of.hard[k] and p_want[k] > 0 and v_left < 0;
                v_one.tokens[k] := v_left;
            end loop;
            update ojs.stripe s
            set tokens = v_one.tokens, at = ojs._used_at(s.at, v_now), uses = s.uses + 1,
                rev = s.rev + s.uses % 64 / 63
            where s.ctid = v_one.version;
            continue allowances;
        end loop;
        v_short := v_short || v_of;
    end loop;
    return v_short;
end;
$$;
comment on function ojs._take_at_once(ojs.allowance[], float8[]) is
'Takes tokens from one stripe of each allowance, and returns the allowances of which no stripe has
enough (null: all had).
Tries the session''s own stripe, and then any other that is not locked. Locks the stripes, and never
waits.';

create or replace function ojs._give_back(p_to ojs.allowance[], p_tokens float8[]) returns void
language plpgsql
as $$
begin
    perform ojs._take_at_once(p_to, array(select -t from unnest(p_tokens) with ordinality u(t, k) order by k));
end;
$$;
comment on function ojs._give_back(ojs.allowance[], float8[]) is
'Gives back tokens that this transaction has taken for jobs that were not made. The tick would not
give them back, because it looks only at limits where jobs have come or gone.';

create or replace function ojs._take(
    p_from ojs.allowance[], p_tenant text, p_queue text, p_want float8[], p_wait boolean, p_groups ojs._new_group[]
) returns ojs.refusal
language plpgsql
as $$
declare
    v_of      ojs.allowance;
    v_held    record;
    v_stripe  ojs.stripe;
    v_left    float8[];
    v_part    float8;
    v_refusal ojs.refusal;
begin
    -- In one order, or statements that wait could wait for each other.
    for v_of in select a.* from unnest(p_from) a order by a.tenant_id, a.queue loop
        loop
            v_held := ojs._gather(v_of, p_want, false, p_wait);
            exit when v_held.lacks is null;
            v_refusal := ojs._beyond(v_of, v_held.lacks, p_tenant, p_queue, p_want[v_held.lacks], p_groups);
            if v_refusal.sqlstate is not null then
                return v_refusal;
            end if;
            -- This limit was removed since p_from was read. The jobs still take tokens of the others.
            v_of.hard[v_held.lacks] := null;
        end loop;
        v_left := p_want;
        for i in 1 .. cardinality(v_held.stripes) loop
            v_stripe := v_held.stripes[i];
            for k in 1 .. 5 loop
                continue when v_of.hard[k] is null;
                -- The last stripe may go slightly below zero, so that rounding creates no tokens;
                -- that of a soft limit may go far below.
                v_part := case when i = cardinality(v_held.stripes) then v_left[k]
                    else greatest(0, least(v_left[k], v_stripe.tokens[k])) end;
                v_stripe.tokens[k] := v_stripe.tokens[k] - v_part;
                v_left[k] := v_left[k] - v_part;
            end loop;
            update ojs.stripe s set tokens = v_stripe.tokens, at = v_stripe.at, uses = s.uses + 1, rev = s.rev + s.uses % 64 / 63
            where s.tenant_id = v_stripe.tenant_id and s.queue = v_stripe.queue and s.n = v_stripe.n and s.rev = v_stripe.rev;
        end loop;
    end loop;
    return null;
end;
$$;
comment on function ojs._take(ojs.allowance[], text, text, float8[], boolean, ojs._new_group[]) is
'Takes tokens of some allowances, each from as many stripes as it needs, or returns why a limit
refuses the jobs.
p_wait: waits up to 100 ms for each stripe that another session has locked. p_groups: as for
ojs._beyond.';

create or replace function ojs._gather(
    p_of ojs.allowance, p_want float8[], p_part boolean, p_wait boolean, out stripes ojs.stripe[], out got float8[], out lacks int
)
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_stripe ojs.stripe;
begin
    stripes := '{}';
    got := '{0,0,0,0,0}';
    lacks := ojs._lacking(p_of, ojs._sums(p_of, v_now), p_want);
    if lacks is not null and not p_part then
        return;
    end if;
    for v_try in 1 .. case when p_wait then 3 else 1 end loop
        -- Wait for one stripe with enough tokens first. A session that waits for all stripes would
        -- keep those that it gets first from other sessions.
        perform ojs._await_stripes(p_of, array(
            select s.n from ojs.stripe s where s.tenant_id = p_of.tenant_id and s.queue = p_of.queue
                and (v_try = 3 or ojs._grown(p_of, lacks, s.n, s.tokens, s.at, v_now) + got[lacks] >= p_want[lacks])
            order by (s.n + pg_backend_pid()) % 16 limit case v_try when 2 then 1 end)) where v_try > 1;
        loop
            lacks := ojs._lacking(p_of, got, p_want);
            -- At least one stripe is locked, also for a soft limit: jobs beyond it are written
            -- there, too.
            exit when lacks is null and stripes <> '{}';
            select s.tenant_id, s.queue, s.n, s.rev,
                array(select ojs._grown(p_of, k, s.n, s.tokens, s.at, v_now) from generate_series(1, 5) k),
                ojs._used_at(s.at, v_now), s.uses into v_stripe
            from (select s.* from ojs.stripe s
                where s.tenant_id = p_of.tenant_id and s.queue = p_of.queue
                    and s.n <> all (array(select h.n from unnest(stripes) h))
                order by ojs._grown(p_of, coalesce(lacks, 2), s.n, s.tokens, s.at, v_now) desc, s.n limit 1 for update skip locked) s;
            exit when not found;
            stripes := stripes || v_stripe;
            got := array(select g + greatest(t, 0) from unnest(got, v_stripe.tokens) with ordinality u(g, t, k) order by k);
        end loop;
        exit when lacks is null;
    end loop;
end;
$$;
comment on function ojs._gather(ojs.allowance, float8[], boolean, boolean) is
'Locks the fewest stripes that have enough tokens of each limit that refuses jobs.
stripes: the locked ones, as they are now; got: their tokens in sum; lacks: the first limit of which
they have too few (null: none). If all stripes together have too few, it locks none, or with p_part
all that it can.
p_wait: waits up to 100 ms for each stripe that another session has locked.';

create or replace function ojs._lacking(p_of ojs.allowance, p_got float8[], p_want float8[]) returns int
language plpgsql immutable
as $$
begin
    for k in 1 .. 5 loop
        if p_of.hard[k] and p_want[k] > 0 and p_got[k] + 1e-6 < p_want[k] then
            return k;
        end if;
    end loop;
    return null;
end;
$$;
comment on function ojs._lacking(ojs.allowance, float8[], float8[]) is
'Returns the first limit that refuses jobs, because there are fewer tokens than the jobs need; null:
no limit does.';

create or replace function ojs._await_stripes(p_of ojs.allowance, p_stripes int[]) returns void
language plpgsql set lock_timeout = '100ms'
as $$
begin
    perform from ojs.stripe s where s.tenant_id = p_of.tenant_id and s.queue = p_of.queue and s.n = any (p_stripes) order by s.n for update;
exception when lock_not_available or deadlock_detected then
    null;
end;
$$;
comment on function ojs._await_stripes(ojs.allowance, int[]) is
'Waits until no other session has these stripes locked, 100 ms for each at most.';

create or replace function ojs._leaving(p_tenant text, p_queue text) returns float8
language sql stable
as $$
    select sum(p.jobs) / 60.0 from ojs.pace p
    where p.kind = case when p_tenant = '' then 'queue' else 'tenant' end
        and p.name = case when p_tenant = '' then p_queue else p_tenant end and p.at > ojs.now() - interval '1 minute'
$$;
comment on function ojs._leaving(text, text) is
'Returns how many jobs of a tenant, or of a queue (p_tenant empty), were handed out per second in
the last minute.';

create or replace function ojs._drop_stripes() returns void
language sql
as $$
    delete from ojs.stripe s using (
        select o.tenant_id, o.queue, o.n from ojs.stripe o
        where not exists (select from ojs.allowance a where a.tenant_id = o.tenant_id and a.queue = o.queue) for update skip locked
    ) o where s.tenant_id = o.tenant_id and s.queue = o.queue and s.n = o.n
$$;
comment on function ojs._drop_stripes() is
'Removes the stripes of limits that are gone. Reads all stripes, so it is not called when a limit is
removed. The caller has locked the row of ojs.tally_mark.';
