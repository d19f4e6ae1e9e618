-- The types of a FETCH: its request (ojs.ask) and its result (ojs.decided).

comment on type ojs.ask is
'What a FETCH asks for.
queues: those that are not paused; count: how many jobs in sum.
tenant: for which tenant (null: for all); no_lane: whether the caller fetches without the lane.
others: rows for requests that get no jobs (ojs._no_jobs).
requests, starts, workers, lease_ms, in step: of each other request its number, the first place in
the answer that is its, its worker, and its lease in milliseconds (0: the job''s own).
max_bytes: of the jobs in sum; strategy, weights: how to choose among several queues.
pool, pool_limited: the pool, and whether it has a max_concurrency.
tenants, except_tenants: only these tenants (null: all), and not these (null: no exception);
exclusive: no other pool gets jobs of these tenants.
min_ratio, rotation: min_dispatch_ratio and rotation_interval of the pool.';
comment on type ojs.decided is
'Jobs that the transaction has locked for its caller.
ids, places, charged, in step and in the order of the answer: the jobs, where their rows are (ctid),
and how many seconds their tenants were charged (null where tenants do not share by time).
bytes: size in sum; passed: how many rows of other jobs were passed over.
cut: the call stopped early, and there may be more jobs.
state: the queue that was served last, as it is afterwards.';

create or replace function ojs._with(p_done ojs.decided, p_more ojs.decided) returns ojs.decided
language plpgsql immutable
as $$
begin
    p_done.ids := p_done.ids || p_more.ids;
    p_done.places := p_done.places || p_more.places;
    p_done.charged := p_done.charged || p_more.charged;
    p_done.bytes := p_done.bytes + p_more.bytes;
    p_done.passed := p_done.passed + p_more.passed;
    p_done.cut := p_done.cut or p_more.cut is true;
    return p_done;
end;
$$;
comment on function ojs._with(ojs.decided, ojs.decided) is
'Returns p_done with the jobs of p_more appended, and the sums of both.';
