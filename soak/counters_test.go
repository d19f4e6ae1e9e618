package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// slack is by how much later than a fault explains a cron job may fire. It is less than a clock sleeps
// when nothing wakes it, so that a lost wake-up is found.
const slack = 6 * time.Second

// crons checks that cron jobs fired as their policies say, up to the last time at which they were due.
func (f *findings) crons(ctx context.Context, tx pgx.Tx, of course) error {
	lasted := time.Duration(0)
	if of.fault.clock {
		lasted = of.whole.Sub(of.broke)
	}
	if of.whole.IsZero() {
		return nil
	}
	for _, q := range []struct {
		what, sql string
		args      []any
	}{
		{"a cron job did not fire any more", `
			select c.tenant_id || '/' || c.name || ' fired for ' || coalesce(max(r.due_at)::text, 'nothing')
				|| ' at last, and time went on until ' || $2::timestamptz
			from ojs.crons c
			left join ojs.cron_runs r on r.tenant_id = c.tenant_id and r.name = c.name and not r.manual and r.due_at >= $1
			group by c.tenant_id, c.name
			having max(r.due_at) >= date_trunc('second', $2::timestamptz) is not true`, []any{of.since, of.whole}},
		{"a cron job stands for more times than the fault explains", `
			select r.tenant_id || '/' || r.name || ' ' || r.due_at || ' stands for ' || r.missed
				|| ' more, and the fault lasted ' || $2::interval
			from ojs.cron_runs r
			where r.due_at >= $1 and r.missed * interval '1 second' > $2::interval + $3::interval`, []any{of.since, lasted, slack}},
		{"a cron job was skipped by no policy", `
			select r.tenant_id || '/' || r.name || ' ' || r.due_at || ': ' || coalesce(r.reason, 'no reason')
			from ojs.cron_runs r join ojs.crons c on c.tenant_id = r.tenant_id and c.name = r.name
			where r.due_at >= $1 and r.job_id is null
			  and not (r.reason = 'overlap_skip' and c.overlap_policy = 'skip' and r.blocker is not null)
			  and not (r.reason = 'waiting' and c.overlap_policy = 'enqueue')
			  and not (r.reason = 'misfire' and c.catch_up = 'skip')`, []any{of.since}},
	} {
		if err := f.none(ctx, tx, q.what, q.sql, q.args...); err != nil {
			return err
		}
	}
	return nil
}

// slots checks that limits of concurrency count the jobs that run. The ends of all attempts must have
// been counted before.
func (f *findings) slots(ctx context.Context, tx pgx.Tx) error {
	return f.none(ctx, tx, "a limit counts what does not run", `
		select r.tenant_id || '/' || r.queue || ' says ' || coalesce(u.active::text, 'nothing') || ', there are ' || n.active || ' active'
		from ojs.rule r
		left join lateral ojs._usage(r.tenant_id, r.queue) u on u.limit_xid = r.limit_xid
		cross join lateral (select count(*) as active from ojs.job j
			where j.state = 'active' and r.tenant_id in ('', j.tenant_id) and r.queue in ('', j.queue)) n
		where r.most is not null and u.active is distinct from n.active`)
}

// tokens checks that limits on enqueues count the jobs that exist. Jobs that are retried may exceed a
// limit until the next tick.
func (f *findings) tokens(ctx context.Context, tx pgx.Tx) error {
	return f.none(ctx, tx, "a limit on enqueueing is not what there is", `
		select format('%s %s %s: %s jobs, %s counted, %s tokens of %s', q.tenant_id, q.queue, q.resource, j.n, q.used + r.n, s.n, q.maximum)
		from ojs.quota q
		cross join lateral (
			select count(*) as n from ojs.job j where q.tenant_id in ('', j.tenant_id) and q.queue in ('', j.queue)
				and j.state::text = any (case q.resource when 'max_scheduled' then '{scheduled}' when 'max_queue_depth' then
					'{scheduled,available,pending}' else '{scheduled,available,pending,active,retryable}' end::text[])
		) j
		cross join lateral (
			select coalesce(sum(ojs._counting(q.resource, c)), 0) as n from ojs._recent() c
			where q.tenant_id in ('', c.tenant_id) and q.queue in ('', c.queue)
		) r
		cross join lateral (select coalesce(sum(s.tokens[q.nth]), 0) as n from ojs.stripe s
			where s.tenant_id = q.tenant_id and s.queue = q.queue) s
		where q.period is null and q.resource like 'max\_%' and q.nth is not null
			and (j.n <> q.used + r.n or s.n not between 0 and q.maximum)`)
}

// none adds a violation for every row that a query finds.
func (f *findings) none(ctx context.Context, tx pgx.Tx, what, sql string, args ...any) error {
	found, err := collect[struct{ S string }](ctx, tx, sql, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, s := range found {
		f.violation("%s: %s", what, s.S)
	}
	return nil
}

// counters compares all counters with the rows that they count, in the snapshot of tx.
func (f *findings) counters(ctx context.Context, tx pgx.Tx, since time.Time) error {
	// To compile these queries takes longer than to run them.
	if _, err := tx.Exec(ctx, "set local jit = off"); err != nil {
		return err
	}
	for _, q := range []struct {
		what, sql string
		args      []any
	}{
		{"the journal knows a move that the state machine does not", `
			select distinct coalesce(w.from_state::text, 'nothing') || ' to ' || w.to_state from ojs.journal w
			where w.at >= $1 and not (coalesce(w.from_state::text, '') || ' ' || w.to_state = any ($2))`, []any{since, sums}},
		{"ojs.shard_stats and the rows disagree", `
			select coalesce(s.tenant_id, r.tenant_id) || '/' || coalesce(s.queue, r.queue) || ' says '
				|| coalesce(s.n::text, 'nothing') || ', there are ' || coalesce(r.n::text, 'none')
			from (
				select s.tenant_id, s.queue, array[s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed,
					s.cancelled, s.discarded, s.total_jobs] as n
				from ojs.shard_stats s
			) s
			full join (
				select j.tenant_id, j.queue, array[
					count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'available'),
					count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'active'),
					count(*) filter (where j.state = 'retryable'), count(*) filter (where j.state = 'completed'),
					count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'),
					count(*)] as n
				from ojs.job j group by j.tenant_id, j.queue
			) r on r.tenant_id = s.tenant_id and r.queue = s.queue
			where s.n is distinct from r.n`, nil},
		{"ojs.pool_stats and the rows disagree", `
			select s.name || ' says ' || s.active_jobs || ', there are ' || n.active
			from ojs.pool_stats s join ojs.pool p on p.name = s.name
			cross join lateral (select count(*) as active from ojs.job j where j.pool = p.id and j.state = 'active') n
			where s.active_jobs <> n.active`, nil},
		{"ojs.shard_stats and the journal disagree about failures", `
			select s.tenant_id || '/' || s.queue || ' says ' || s.failed || ', there are ' || coalesce(r.n, 0) from ojs.shard_stats s
			left join (select r.tenant_id, r.queue, count(*) as n from ojs.release r
				where r.from_state = 'active' and r.to_state in ('retryable', 'discarded') group by r.tenant_id, r.queue) r
				on r.tenant_id = s.tenant_id and r.queue = s.queue
			where s.failed <> coalesce(r.n, 0)`, nil},
		{"a job and what was written in its producer's transaction are not there together", `
			select coalesce(j.id, o.job)::text from (select j.id from ojs.job j where j.type = 'fault.sql') j
			full join public.orders o on o.job = j.id
			where j.id is null or o.job is null`, nil},
		{"a job was not completed once together with what its worker wrote", `
			select r.job || ' is ' || coalesce(max(j.state::text), 'gone') || ', results: ' || count(*) from public.results r
			left join ojs.job j on j.id = r.job
			group by r.job having count(*) > 1 or max(j.state::text) is distinct from 'completed'`, nil},
		{"a cron job and its history disagree", `
			select coalesce(j.id, r.job_id) || ': ' || count(r.job_id) || ' firings'
			from (select j.id from ojs.job j where j.type = $1 and j.created_at >= $2) j
			full join (select r.job_id from ojs.cron_runs r where r.job_id is not null and r.at >= $2) r on r.job_id = j.id
			group by coalesce(j.id, r.job_id) having count(j.id) <> 1 or count(r.job_id) <> 1`, []any{cronJob, since}},
		{"a cron job did not fire once for each time it was due", `
			select r.tenant_id || '/' || r.name || ' ' || r.before || ', then ' || r.due_at || ' after ' || r.missed || ' missed'
			from (select r.*, lag(r.due_at) over (partition by r.tenant_id, r.name order by r.due_at) as before
				from ojs.cron_runs r where not r.manual and r.due_at >= $1) r
			where r.due_at - r.before <> (1 + r.missed) * interval '1 second'`, []any{since}},
		{"a dead letter and its job disagree", `
			select coalesce(j.id, d.id) || ' is ' || coalesce(j.state::text, 'gone')
				|| case when d.id is null then ', and no dead letter' else ', and a dead letter' end
			from (
				select j.* from ojs.job j
				-- What expired is no dead letter.
				join (
					select distinct on (r.job_id, r.tenant_id) r.* from ojs.release r where r.at >= $1
					order by r.job_id, r.tenant_id, r.at desc
				) r on r.job_id = j.id and r.tenant_id = j.tenant_id
				where j.state = 'discarded' and r.from_state = 'active' and ojs._to_dead_letters(j.retry, j.errors -> -1)
			) j full join (select * from ojs.dead_letter d where d.at >= $1) d on d.id = j.id and d.tenant_id = j.tenant_id
			where j.id is null or d.id is null`, []any{since}},
		{"a level does not count its tenants", `
			select coalesce(l.queue, f.queue) || '/' || coalesce(l.priority, f.priority) || ' says ' || coalesce(l.ready, 0) || ' and '
				|| coalesce(l.at_limit, 0) || ' at their limit, there are ' || coalesce(f.ready, 0) || ' and ' || coalesce(f.at_limit, 0)
			from (select s.queue, l.* from ojs.dispatch_state s cross join lateral unnest(s.levels) l) l
			full join (
				select f.queue, f.priority, count(*) filter (where f.ready) as ready, count(*) filter (where f.at_limit) as at_limit
				from ojs.tenant_fairness f group by f.queue, f.priority
			) f on f.queue = l.queue and f.priority = l.priority
			where coalesce(l.ready, 0) <> coalesce(f.ready, 0) or coalesce(l.at_limit, 0) <> coalesce(f.at_limit, 0)`, nil},
		{"a row that is to be one is several", `
			select x.what || ' ' || x.key from (
				select 'tenant_fairness' as what, f.queue || '/' || f.priority || '/' || f.tenant_id as key from ojs.tenant_fairness f
				union all select 'dispatch_state', s.queue from ojs.dispatch_state s
				union all select 'fold', '' from ojs.fold f
				union all select 'tally', t.tenant_id || '/' || t.queue || '/' || t.priority from ojs.tally t
				union all select 'tally_mark', '' from ojs.tally_mark
				union all select 'clock_mark', '' from ojs.clock_mark
			) x group by x.what, x.key having count(*) > 1`, nil},
		{"a mark lies in the future", `
			select m.what || ' ' || m.snapshot
			from (
				select 'fold' as what, f.snapshot from ojs.fold f
				union all select 'tally_mark', t.snapshot from ojs.tally_mark t
			) m
			where pg_snapshot_xmax(m.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
			union all
			select 'clock_mark ' || c.seen from ojs.clock_mark c
			where pg_snapshot_xmax(c.seen) > pg_snapshot_xmax(pg_current_snapshot())`, nil},
		{"what counts against a limit is not what runs", `
			with ends as materialized (
				-- Not taken in yet: a later decision will.
				select e.* from ojs._folded() f cross join lateral ojs._ends(f.snapshot, null) e
			), fresh as materialized (
				select u.* from ojs._unfolded() u where u.to_state = 'active'
			)
			select r.tenant_id || '/' || r.queue || ' says ' || coalesce(u.active::text, 'nothing') || ', there are '
				|| n.active || ' active, ' || n.ended || ' ended since, ' || n.owed || ' to be charged for'
			from ojs.rule r
			left join lateral ojs._usage(r.tenant_id, r.queue) u on u.limit_xid = r.limit_xid
			cross join lateral (
				select
					(select count(*) from ojs.job j where j.state = 'active' and r.tenant_id in ('', j.tenant_id)
						and r.queue in ('', j.queue)) as active,
					(select coalesce(sum(e.jobs), 0) from ends e
						where r.tenant_id in ('', e.tenant_id) and r.queue in ('', e.queue)) as ended,
					-- Handed out without the lane.
					(select coalesce(sum(f.owed), 0) from fresh f where f.from_state = 'available'
						and r.tenant_id in ('', f.tenant_id) and r.queue in ('', f.queue)) as owed
			) n
			where r.most is not null and u.active is distinct from n.active + n.ended - n.owed
				-- The next decision counts for a rule that has changed.
				and not exists (select from fresh f where f.from_state = 'active' and f.price is null
					and f.tenant_id = r.tenant_id and f.queue = r.queue)`, nil},
		{"a tenant was charged for another number of jobs than it was given", `
			select coalesce(f.tenant_id, l.tenant_id) || '/' || coalesce(f.queue, l.queue) || ': charged ' || coalesce(f.n, 0)
				|| ', given ' || coalesce(l.n, 0)
			from (
				select f.tenant_id, f.queue, sum(f.charged) as n from ojs.tenant_fairness f group by f.tenant_id, f.queue
			) f
			full join (
				select m.tenant_id, m.queue, sum(m.jobs) - coalesce(sum(m.owed) filter (
					where not pg_visible_in_snapshot(m.xid, (select x.snapshot from ojs.fold x))), 0) as n
				from ojs._movement m where m.from_state = 'available' and m.to_state = 'active' group by m.tenant_id, m.queue
			) l on l.tenant_id = f.tenant_id and l.queue = f.queue
			where coalesce(f.n, 0) <> coalesce(l.n, 0)`, nil},
	} {
		if err := f.none(ctx, tx, q.what, q.sql, q.args...); err != nil {
			return err
		}
	}
	return nil
}
