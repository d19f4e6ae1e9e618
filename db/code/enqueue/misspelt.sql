-- Names that a job must not have. The specification keeps unknown attributes; if this system kept any
-- name, a job with schedule_at would run at once, and one with tenantId would belong to another
-- tenant.

create or replace function ojs._misspelt(p_options json, p_extra json) returns ojs.violation
language sql stable
as $$
    select coalesce(
        ojs._nearly(p_options, 'options.', '{queue, priority, retry, tags, max_attempts, timeout, timeout_ms, visibility_timeout_ms,
            scheduled_at, delay_until, expires_at, pending, metadata, meta, result_ttl, unique, rate_limit}',
            ojs._job_aliases()),
        ojs._nearly(p_extra, '', '{id, type, args, meta, queue, priority, retry, tags, options, max_attempts, timeout, timeout_ms,
            visibility_timeout_ms, scheduled_at, delay_until, expires_at, specversion, schema, unique, result_ttl, cost, rate_limit}',
            ojs._job_aliases()),
        ojs._foreign(p_extra))
$$;
comment on function ojs._misspelt(json, json) is
'Returns why a job is refused because of a name in its options or unknown attributes: it is nearly that
of a field, users of other systems write it for one, or no document of the Open Job Spec defines it.';

-- The keys are in the form of ojs._plain_name. The names are those of Sidekiq, Celery, BullMQ, pg-boss,
-- Oban, River and Hatchet, and a few that people guess.
create or replace function ojs._job_aliases() returns jsonb
language sql immutable
as $$
    select '{"tenant": "meta.tenant_id", "tenantid": "meta.tenant_id", "xtenantid": "meta.tenant_id", "ojstenant": "meta.tenant_id",
        "leasetoken": "lease", "leaseid": "lease", "idempotencykey": "idempotency_key of the request",
        "delay": "scheduled_at", "delayms": "scheduled_at", "delayseconds": "scheduled_at", "countdown": "scheduled_at",
        "performin": "scheduled_at", "schedulein": "scheduled_at", "wait": "scheduled_at",
        "runat": "scheduled_at", "performat": "scheduled_at", "processat": "scheduled_at", "enqueueat": "scheduled_at",
        "startafter": "scheduled_at", "startat": "scheduled_at", "notbefore": "scheduled_at", "eta": "scheduled_at",
        "waituntil": "scheduled_at", "at": "scheduled_at", "scheduledfor": "scheduled_at",
        "expires": "expires_at", "expiresin": "expires_at", "expirein": "expires_at", "ttl": "expires_at", "deadline": "expires_at",
        "timeoutseconds": "timeout", "timelimit": "timeout", "softtimelimit": "timeout", "executiontimeout": "timeout",
        "expireinseconds": "timeout",
        "attempts": "max_attempts", "maxtries": "max_attempts", "retries": "retry.max_attempts", "maxretries": "retry.max_attempts",
        "retrylimit": "retry.max_attempts", "backoff": "retry.backoff_strategy", "retrybackoff": "retry.backoff_strategy",
        "retrydelay": "retry.initial_interval", "retrypolicy": "retry",
        "queuename": "queue", "routingkey": "queue", "prio": "priority",
        "uniquekey": "unique", "uniquefor": "unique", "uniqueopts": "unique", "dedupekey": "unique", "dedupkey": "unique",
        "deduplicationid": "unique", "jobkey": "unique", "singletonkey": "unique", "singleton": "unique", "jobid": "id", "taskid": "id",
        "dependson": "depends_on", "labels": "tags", "headers": "meta", "kwargs": "args", "params": "args", "payload": "args",
        "arguments": "args", "data": "args", "task": "type", "taskname": "type", "jobname": "type", "jobtype": "type", "kind": "type",
        "jobclass": "type"}'::jsonb
$$;
comment on function ojs._job_aliases() is
'Returns names that users write for fields of a job, in the form of ojs._plain_name, each with our name.
A worker that gives a job back with the lease as lease_token would otherwise believe that the lease was
checked.';

create or replace function ojs._plain_name(p_name text) returns text
language sql immutable
as $$ select regexp_replace(lower(p_name collate "C"), '[-_. ]', '', 'g') $$;
comment on function ojs._plain_name(text) is
'Returns a name without case and separators, as names are compared: maxRetries and max_retries are the same.
Becomes part of the query that asks.';

create or replace function ojs._foreign(p_extra json) returns ojs.violation
language plpgsql stable
as $$
declare
    -- The attributes that documents of the Open Job Spec define, beyond those that are columns.
    c_defined constant text[] := '{schema, version, unique, rate_limit, throttle, workflow, depends_on, result_ttl, cost, progress,
        checkpoint, last_checkpoint, context, parent_results, grace_period, total_timeout, enqueue_ttl, heartbeat_timeout}';
    v_name text := (
        select k from json_object_keys(p_extra) k where k <> all (c_defined) and k !~ '^(x|ext)[-_]' limit 1);
begin
    if v_name is null or (select s.unsupported = 'carry' from ojs.settings s) then
        return null;
    end if;
    return row('OJ400', v_name, format('%s is no attribute of a job; begin a name of your own with x_ or ext_, or write it into meta',
        v_name))::ojs.violation;
end;
$$;
comment on function ojs._foreign(json) is
'Returns why a job is refused that has an attribute which no document of the Open Job Spec defines and whose
name does not begin with x_ or ext_. Null: it has none, or ojs.configure says that such attributes are kept
(unsupported carry).';

create or replace function ojs._tenant_misspelt(p_meta jsonb) returns ojs.violation
language sql immutable
as $$
    select row('OJ400', 'meta.' || k, format('meta.%s is not known; meta.tenant_id is probably meant', k))::ojs.violation
    from jsonb_object_keys(p_meta) k
    where k <> 'tenant_id' and ojs._job_aliases() ->> ojs._plain_name(k) = 'meta.tenant_id' limit 1
$$;
comment on function ojs._tenant_misspelt(jsonb) is
'Returns why a job is refused whose meta names a tenant under another name than tenant_id, or null. The job
would belong to the default tenant.';

create or replace function ojs._retry_misspelt(p_retry jsonb) returns ojs.violation
language plpgsql immutable
as $$
declare
    c_known constant text[] := '{max_attempts, initial_interval, initial_interval_ms, max_interval, max_interval_ms, backoff_coefficient,
        backoff_strategy, jitter, non_retryable_errors, on_exhaustion, intervals}';
begin
    -- Nearly all policies have known names only.
    if p_retry - c_known = '{}' then
        return null;
    end if;
    return ojs._nearly(p_retry::json, 'retry.', c_known, '{"attempts": "max_attempts", "retries": "max_attempts",
        "maxretries": "max_attempts", "limit": "max_attempts", "backoff": "backoff_strategy", "strategy": "backoff_strategy",
        "multiplier": "backoff_coefficient", "factor": "backoff_coefficient", "delay": "initial_interval", "maxdelay": "max_interval"}');
end;
$$;
comment on function ojs._retry_misspelt(jsonb) is
'Returns why a retry policy is refused that has a name which is nearly that of a field, or null.';

create or replace function ojs._nearly(p_given json, p_path text, p_known text[], p_aliases jsonb) returns ojs.violation
language sql immutable
as $$
    select row('OJ400', p_path || n.name, format('%s is not known; %s is probably meant%s', p_path || n.name, n.meant,
        -- Who misspells a name knows the form of the value. Who has it from another system does not.
        case when not p_aliases ? ojs._plain_name(n.name) then '' when n.meant in ('scheduled_at', 'expires_at') then ', such as "+PT5M"'
            when n.meant = 'timeout' then ', in seconds' end))::ojs.violation
    from (
        select g.name, coalesce(nullif(p_aliases ->> ojs._plain_name(g.name), g.name),
            (select k from unnest(p_known) k where ojs._resembles(g.name, k) limit 1)) as meant
        from (select k as name from json_object_keys(p_given) k where k <> all (p_known) and k !~ '^(x|ext)[-_]' limit 200) g
    ) n
    where n.meant is not null limit 1
$$;
comment on function ojs._nearly(json, text, text[], jsonb) is
'Returns a violation for the first unknown name in an object that resembles a known one, or is in
p_aliases; null: there is none. Looks at 200 unknown names, without those that begin with x_ or
ext_.
p_path: the path of the object, for the message.';

create or replace function ojs._error_misspelt(p_error jsonb) returns ojs.violation
language plpgsql immutable
as $$
declare
    -- detail: errors in the form of RFC 9457 have it.
    c_known constant text[] := '{message, code, type, retryable, details, detail, backtrace}';
begin
    if p_error - c_known = '{}' then
        return null;
    end if;
    return ojs._nearly(p_error::json, 'error.', c_known, '{}');
end;
$$;
comment on function ojs._error_misspelt(jsonb) is
'Returns why the error of a nack is refused that has a name which is nearly that of a field, or
null. If retriable were kept as an unknown field, the job would run again.';

create or replace function ojs._meant(p_name text, p_known text[]) returns text
language sql immutable
as $$ select k from unnest(p_known) with ordinality u(k, n) where ojs._resembles(p_name, k) order by n limit 1 $$;
comment on function ojs._meant(text, text[]) is
'Returns the known name that an unknown one was probably meant for; null: there is none.';

create or replace function ojs._meant_field(p_name text) returns text
language sql immutable
as $$
    select coalesce(ojs._meant(p_name, array(select jsonb_object_keys(ojs._new_job_fields()))),
        replace(coalesce(ojs._job_aliases() ->> ojs._plain_name(p_name), case p_name when 'delay_until' then p_name end),
            'delay_until', 'scheduled_at'))
$$;
comment on function ojs._meant_field(text) is
'Returns the field of a job in JSON that a name was probably meant for, by resemblance or by
ojs._job_aliases; null: there is none.';

create or replace function ojs._misnamed(p_name text, p_known text[], p_path text default '') returns void
language plpgsql
as $$
declare
    v_name  text := left(p_name, 100);
    v_meant text := ojs._meant(v_name, p_known);
begin
    if v_meant is not null then
        perform ojs._raise('OJ400', format('%s is not known; %s is probably meant', p_path || v_name, v_meant),
            jsonb_build_object('field', p_path || v_name, 'meant', v_meant));
    end if;
end;
$$;
comment on function ojs._misnamed(text, text[], text) is
'Raises which known name an unknown one was probably meant for; does nothing if it resembles none.
p_path: the path before the name.';

create or replace function ojs._not_a_setting(p_name text, p_known text[], p_hint text) returns void
language plpgsql
as $$
declare
    v_name text := left(p_name, 100);
begin
    perform ojs._misnamed(v_name, p_known);
    perform ojs._raise('OJ408', format('%s is not supported', v_name), jsonb_build_object('field', v_name), p_hint);
end;
$$;
comment on function ojs._not_a_setting(text, text[], text) is
'Raises that a setting does not exist, and which known one was probably meant. p_hint: for a name
that resembles none.';

-- The same rule as in internal/names, which is for requests that only servers read.
create or replace function ojs._resembles(p_name text, p_known text) returns boolean
language plpgsql immutable
as $$
declare
    v_name  text := ojs._plain_name(p_name);
    v_known text := replace(p_known, '_', '');
    v_least int := least(length(v_name), length(v_known));
    v_left  int := 0;
    v_right int := 0;
    v_x     text;
    v_y     text;
begin
    if v_name = v_known then
        return true;
    elsif v_least < 3 or abs(length(v_name) - length(v_known)) > 2 then
        return false;
    end if;
    while v_left < v_least and substr(v_name, v_left + 1, 1) = substr(v_known, v_left + 1, 1) loop
        v_left := v_left + 1;
    end loop;
    while v_right < v_least - v_left and left(right(v_name, v_right + 1), 1) = left(right(v_known, v_right + 1), 1) loop
        v_right := v_right + 1;
    end loop;
    v_x := substr(v_name, v_left + 1, length(v_name) - v_left - v_right);
    v_y := substr(v_known, v_left + 1, length(v_known) - v_left - v_right);
    return length(v_x) + length(v_y) = 1
        or length(v_x) = 1 and length(v_y) = 1 and v_least >= 6
        or length(v_x) = 2 and v_x = reverse(v_y) and v_least >= 4
        or v_least >= 9 and greatest(length(v_x), length(v_y)) <= 2;
end;
$$;
comment on function ojs._resembles(text, text) is
'Returns whether one name was probably meant for the other: they are equal but for case and
underscores, or differ by one slip.
A slip is one character too many, one missing, or two exchanged; in names of 6 characters or more
also one replaced; in names of 9 or more up to two replaced, next to each other.';
