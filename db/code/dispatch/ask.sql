-- What a FETCH asks for, and what it gets.

comment on type ojs.ask is
'What a FETCH asks for: queues that are not paused; how many jobs in sum; for which tenant (null:
for all); whether the caller fetches without the lane; rows for requests that get nothing
(ojs._no_jobs); and of the other requests, in step, the number of the request, the first place in
the answer that is its, its worker, and its lease in milliseconds (0: the job''s own); bytes in
sum; how it goes over several queues; its pool and whether that has a max_concurrency; of which tenants
(null: of all), and of which not (null: of none), whether nobody else gets jobs of these
tenants; the pool''s min_dispatch_ratio and rotation_interval.';
comment on type ojs.decided is
'Jobs that the transaction has locked for its caller, in order: their ids, the places of their rows, how many seconds their tenants were
charged (null where they do not share by time), their bytes in sum, how many rows were passed over,
whether it stopped early, so that there may be more, and the queue that was served last, as it is
then.';

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
comment on function ojs._with(ojs.decided, ojs.decided) is 'What is decided, and more behind it.';
