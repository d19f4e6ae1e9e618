package soak

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// row is a job as the database has it.
type row struct {
	ID, Tenant, State    string
	Type                 string
	Attempt, MaxAttempts int
	ScheduledAt          *time.Time
	ExpiresAt            *time.Time
	LeaseUntil           *time.Time
	Errors               []string // attempt and type of each
	Key                  string   // the Idempotency-Key under which it was enqueued, if any
}

// lost is whether an attempt ended without a word from its worker.
func (r row) lost(attempt int, causes ...string) bool {
	return slices.ContainsFunc(causes, func(c string) bool { return slices.Contains(r.Errors, strconv.Itoa(attempt)+" "+c) })
}

// Why the clock ends attempts.
var lossCauses = []string{"lease_expired", "visibility_timeout", "worker_death", "timeout"}

func (r row) ended() bool {
	return r.State == "completed" || r.State == "cancelled" || r.State == "discarded"
}

// move is a row of the release journal.
type move struct {
	ID       string
	Attempt  int
	From, To string
	At       time.Time
}

// cronJob is the type of jobs that come from cron.
const cronJob = "fault.cron"

// findings are what a check says: what must not be, and what was there.
type findings struct {
	violations []string
	jobs       int // acknowledged, or found although nobody knew
	states     map[string]int
	unknown    int // enqueues of which the client had no answer
	turnedUp   int // those of them that had happened
	withdrawn  int
	handouts   int
	again      int // jobs handed out more than once
	refused    int // answers 503
	unanswered int // requests without an answer
	replays    int // requests to retry dead letters
	revived    int // dead letters retried
	fired      int // jobs of cron jobs
	expired    int
}

func (f *findings) violation(format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}

// The state machine (ojs-core section 6), job by job and as the journal of sums spells it. Handing out is the lease journal.
var (
	releases = map[[2]string]bool{
		{"active", "completed"}: true, {"active", "retryable"}: true, {"active", "discarded"}: true, {"active", "available"}: true,
		{"active", "cancelled"}: true,
		// From the dead letter queue: another life, with attempts counted anew.
		{"discarded", "available"}: true,
		// Expired.
		{"scheduled", "discarded"}: true, {"available", "discarded"}: true, {"pending", "discarded"}: true,
		{"retryable", "discarded"}: true,
		{"scheduled", "cancelled"}: true, {"available", "cancelled"}: true, {"pending", "cancelled"}: true,
		{"retryable", "cancelled"}: true,
	}
	sums = []string{
		" scheduled", " available", " pending", "scheduled available", "retryable available", "pending available",
		"available available", "available active", "active completed",
	}
)

// explains is what a fault may bring about, and no other part of a round.
type explains struct {
	database bool // answers 503, and sessions of SQL that end
	network  bool // requests without an answer
	clock    bool // times at which nobody fires cron jobs
}

// course is what the checker is told of a round.
type course struct {
	since   time.Time // when it began, as all times
	drained bool      // everybody had time to finish what there was to do

	fault explains
	// When it happened, and when both servers were healthy again; cron jobs had time to fire for what was due until then.
	broke, whole time.Time
}

// check holds what the clients wrote down against what the database has of the jobs created since the round began, in the snapshot of tx.
func check(ctx context.Context, tx pgx.Tx, ledger []entry, of course) (*findings, error) {
	f := &findings{states: map[string]int{}}
	since := of.since
	rows, err := collect[row](ctx, tx, `
		select j.id::text, j.tenant_id, j.state::text, j.type, j.attempt, j.max_attempts, j.scheduled_at, j.expires_at,
			j.lease_expires_at, array(select (e ->> 'attempt') || ' ' || (e ->> 'type') from jsonb_array_elements(j.errors) e),
		coalesce(j.meta ->> 'once', '')
		from ojs.job j where j.created_at >= $1`, since)
	if err != nil {
		return nil, err
	}
	// Completions are journalled in sum: of a job that is completed its row tells when, and counters compares the sums.
	moves, err := collect[move](ctx, tx, `
		select m.id::text, m.attempt, m.from_state::text, m.to_state::text, m.at from (
			select r.job_id, r.attempt, r.from_state, r.to_state, r.at, r.xid, r.seq from ojs.release r
			union all
			select j.id, j.attempt, 'active', 'completed', j.finished_at, null, null from ojs.job j where j.state = 'completed'
		) m(id, attempt, from_state, to_state, at, xid, seq) where m.at >= $1 order by m.at, m.xid, m.seq`, since)
	if err != nil {
		return nil, err
	}
	handouts, err := collect[struct {
		ID string
		At []time.Time
	}](ctx, tx, `
		select i.id::text, array_agg(l.at) from ojs.lease l cross join lateral unnest(l.ids) i(id) where l.at >= $1
		group by i.id`, since)
	if err != nil {
		return nil, err
	}
	leases := map[string][]time.Time{}
	for _, h := range handouts {
		leases[h.ID] = h.At
		f.handouts += len(h.At)
	}
	f.answers(ledger, of)
	f.compare(ledger, rows, moves, leases, of.drained)
	if err := f.crons(ctx, tx, of); err != nil {
		return nil, err
	}
	return f, f.counters(ctx, tx, since)
}

func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// hold is a lease in a worker's hands, and when the worker had asked for it.
type hold struct {
	holding
	sent time.Time
	sure time.Time // until then nothing but somebody's word can have ended the lease
}

// story is all that clients wrote about one job.
type story struct {
	tenant                       string
	intended, acknowledged, gone bool
	cancels                      time.Time // when somebody first set about it
	cancelled                    bool
	held                         []hold
	finishes                     []entry
	finished                     []entry
	dropped                      []entry
}

// holds is whether the lease of an entry was certainly its client's when the answer in it was read, so that whatever it was an answer
// to happened under that lease.
func (s *story) holds(e entry) bool {
	return (s.cancels.IsZero() || e.At.Before(s.cancels)) && slices.ContainsFunc(s.held,
		func(h hold) bool { return h.lease == e.Lease && e.At.Before(h.sure) })
}

// ends counts the attempts to end a lease that began before an instant.
func (s *story) ends(lease string, before time.Time) int {
	n := 0
	for _, e := range s.finishes {
		if e.Lease == lease && e.At.Before(before) {
			n++
		}
	}
	return n
}

// answers judges requests that failed: whether the fault explains that.
func (f *findings) answers(ledger []entry, of course) {
	for _, e := range ledger {
		// The probe asks when all is over.
		since := !of.broke.IsZero() && !e.At.Before(of.broke) && e.Client != prober
		switch {
		case e.What == hung:
			f.violation("%s waited in vain: %s", e.Client, e.Text)
		case e.What == broke && !(since && of.fault.database):
			f.violation("%s lost its session, and nothing explains that: %s", e.Client, e.Text)
		case e.What == failed && e.Status == 0 && !(since && of.fault.network):
			f.violation("%s got no answer, and nothing explains that: %s", e.Client, e.Text)
		case e.What == failed && e.Status != 0 && !(since && of.fault.database):
			f.violation("%s was answered %d, and nothing explains that: %s", e.Client, e.Status, e.Text)
		}
	}
}

func (f *findings) compare(ledger []entry, rows []row, moves []move, leases map[string][]time.Time, drained bool) {
	stories := map[string]*story{}
	of := func(id string) *story {
		if stories[id] == nil {
			stories[id] = &story{}
		}
		return stories[id]
	}
	keys := map[string]entry{}
	for _, e := range ledger {
		switch e.What {
		case enqueues:
			if e.Key != "" {
				keys[e.Key] = e
			}
		case replays:
			f.replays++
		case wrong:
			f.violation("%s saw: %s", e.Client, e.Text)
		case failed:
			if e.Status == 0 {
				f.unanswered++
			} else {
				f.refused++
			}
		}
		for _, id := range e.IDs {
			s := of(id)
			switch e.What {
			case enqueues:
				s.intended, s.tenant = true, e.Tenant
			case enqueued:
				s.acknowledged = true
			case withdrew:
				s.gone = true
			case cancels:
				if s.cancels.IsZero() || e.At.Before(s.cancels) {
					s.cancels = e.At
				}
			case cancelled:
				s.cancelled = s.cancelled || e.Status == 200
			case fetched_:
				s.held = append(s.held, hold{holding{lease: e.Lease, attempt: e.Attempt, from: e.At, until: e.Until}, e.Sent, e.Until})
			case finishes:
				s.finishes = append(s.finishes, e)
			case finished:
				s.finished = append(s.finished, e)
			case dropped:
				s.dropped = append(s.dropped, e)
			}
		}
	}
	// A worker has hold of a job until the lease can have run out, or until it began to finish it.
	for _, e := range ledger {
		if e.What != extended && e.What != finishes {
			continue
		}
		for _, id := range e.IDs {
			for i := range stories[id].held {
				h := &stories[id].held[i]
				if h.lease == e.Lease && e.What == extended {
					h.sure = later(h.sure, e.Until)
				}
				switch {
				case h.lease != e.Lease:
				case e.What == extended && !h.acked:
					h.until = later(h.until, e.Until)
				case e.What == finishes:
					h.until, h.acked = minTime(h.until, e.At), true
				}
			}
		}
	}
	found, made := map[string]row{}, map[string]int{}
	for _, r := range rows {
		if _, twice := found[r.ID]; twice {
			f.violation("job %s is there twice", r.ID)
		}
		found[r.ID] = r
		if r.Type == cronJob {
			// Nobody's ledger knows of it; the history of the cron job does.
			f.fired++
			of(r.ID).intended, of(r.ID).acknowledged, of(r.ID).tenant = true, true, r.Tenant
		}
		if e, known := keys[r.Key]; known {
			of(r.ID).intended, of(r.ID).tenant = true, e.Tenant
			made[r.Key]++
		}
		if s := stories[r.ID]; s == nil || !s.intended {
			f.violation("job %s is there, and nobody enqueued it", r.ID)
		}
	}
	for _, e := range ledger {
		switch {
		case e.What == enqueues && e.Key != "":
			if n := made[e.Key]; n > 0 && n != e.Jobs {
				f.violation("of %d jobs enqueued under key %s there are %d", e.Jobs, e.Key, n)
			}
		case e.What == enqueues:
			n := 0
			for _, id := range e.IDs {
				if _, there := found[id]; there {
					n++
				}
			}
			if n > 0 && n != len(e.IDs) {
				f.violation("of jobs enqueued together there are %d of %d: %v", n, len(e.IDs), e.IDs)
			}
		case e.What == enqueued && e.Key != "":
			for _, id := range e.IDs {
				if r, there := found[id]; there && r.Key != e.Key {
					f.violation("job %s was the answer to key %s and was enqueued under %q", id, e.Key, r.Key)
				}
			}
		}
	}
	past := map[string][]move{}
	for _, m := range moves {
		past[m.ID] = append(past[m.ID], m)
	}
	for id, s := range stories {
		r, there := found[id]
		switch {
		case s.gone:
			f.withdrawn++
			if there {
				f.violation("job %s is there although its transaction did not commit", id)
			}
		case s.acknowledged && !there:
			f.violation("job %s is lost: its enqueue was acknowledged and it is not there", id)
		case !s.intended && len(s.held) > 0:
			f.violation("job %s was handed out and nobody enqueued it", id)
		case !s.acknowledged:
			f.unknown++
			if there {
				f.turnedUp++
			}
		}
		if !there {
			if len(s.held) > 0 {
				f.violation("job %s was handed out and is not there", id)
			}
			continue
		}
		f.jobs++
		f.states[r.State]++
		if r.Tenant != s.tenant {
			f.violation("job %s of tenant %s belongs to %s", id, s.tenant, r.Tenant)
		}
		if len(leases[id]) > 1 {
			f.again++
		}
		f.machine(r, past[id], leases[id])
		f.claims(r, s, past[id])
		// A worker that lives, to which the answer got lost, does not know of the job; one that had been silent for too long when it
		// asked had no registration that could end again, if it sent no heartbeat since. Both have until the end of the lease.
		lost := r.State == "active" && r.LeaseUntil != nil && time.Until(*r.LeaseUntil) > time.Minute &&
			!slices.ContainsFunc(s.held, func(h hold) bool { return h.attempt == r.Attempt && h.until.After(h.sent) })
		// A pending job of cron waits for the one before it, and not for somebody to activate it.
		if drained && !lost && !r.ended() && (r.State != "pending" || r.Type == cronJob) &&
			(r.State != "scheduled" || time.Until(*r.ScheduledAt) < 10*time.Minute) {
			f.violation("job %s is stuck: state %s, attempt %d, tenant %s", id, r.State, r.Attempt, r.Tenant)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// machine holds a job's row against its journals.
func (f *findings) machine(r row, moves []move, handouts []time.Time) {
	var out, withoutError int // attempts that ended, and those of them that were no failure
	final := ""
	var reborn time.Time
	attempts := map[int]int{}
	for _, m := range moves {
		if !releases[[2]string{m.From, m.To}] {
			f.violation("job %s went from %s to %s", r.ID, m.From, m.To)
		}
		if m.From == "discarded" {
			if final != "discarded" || f.replays == 0 {
				f.violation("job %s was revived, %q before and %d times asked for", r.ID, final, f.replays)
			}
			f.revived++
			final, reborn, attempts = "", m.At, map[int]int{}
			continue
		}
		if final != "" {
			f.violation("job %s went from %s to %s after it had ended as %s", r.ID, m.From, m.To, final)
		}
		if m.From == "active" {
			out++
			if m.To == "completed" || m.To == "cancelled" {
				withoutError++
			}
			if m.To != "available" {
				if attempts[m.Attempt]++; attempts[m.Attempt] > 1 {
					f.violation("attempt %d of job %s ended %d times", m.Attempt, r.ID, attempts[m.Attempt])
				}
			}
		}
		if m.To == "completed" || m.To == "cancelled" || m.To == "discarded" {
			final = m.To
		}
		if m.To == "retryable" && m.Attempt >= r.MaxAttempts {
			f.violation("job %s is to be tried again after attempt %d of %d", r.ID, m.Attempt, r.MaxAttempts)
		}
	}
	if r.ended() != (final != "") || r.ended() && final != r.State {
		f.violation("job %s is %s, and the journal says %q", r.ID, r.State, final)
	}
	running, latest := 0, 0
	if r.State == "active" {
		running = 1
	}
	for _, at := range handouts {
		// A decision may take its time.
		if r.ExpiresAt != nil && at.After(r.ExpiresAt.Add(time.Second)) {
			f.violation("job %s was handed out at %v, and had expired at %v", r.ID, at, r.ExpiresAt)
		}
		if at.After(reborn) {
			latest++
		}
	}
	if len(handouts) != out+running {
		f.violation("job %s was handed out %d times, %d attempts ended, and it is %s", r.ID, len(handouts), out, r.State)
	}
	// What was given back unread burns no attempt and leaves no error. Of a job of several lives nobody knows in which of them that was.
	back := out - withoutError - len(r.Errors)
	if back < 0 || r.Attempt > latest || r.Attempt < latest-back || reborn.IsZero() && r.Attempt != latest-back {
		f.violation("job %s is at attempt %d after %d hand-outs, %d of them given back (%d errors)", r.ID, r.Attempt, latest, back,
			len(r.Errors))
	}
}

// claims holds a job's row against what clients were told.
func (f *findings) claims(r row, s *story, moves []move) {
	to := func(attempt int) []string {
		var states []string
		for _, m := range moves {
			if m.From == "active" && m.Attempt == attempt {
				states = append(states, m.To)
			}
		}
		return states
	}
	for _, e := range s.finished {
		states := to(e.Attempt)
		switch e.Status {
		case 200:
			want := map[string][]string{
				ack: {"completed"}, fail: {"retryable", "discarded"}, requeue: {"available"}, discard: {"discarded"},
			}[e.How]
			if !slices.ContainsFunc(states, func(to string) bool { return slices.Contains(want, to) }) {
				f.violation("%s of job %s, attempt %d, was acknowledged, and the journal says %v", e.How, r.ID, e.Attempt, states)
			}
		case 409:
			// Asked once only, nobody but the one who asks can have completed this attempt; unless a dead letter came back to life,
			// which begins to count anew, and whoever had the other attempt of this number completed it.
			other := slices.ContainsFunc(s.finishes,
				func(o entry) bool { return o.Attempt == e.Attempt && o.Lease != e.Lease && o.How == ack })
			if e.Asked == 1 && !other && slices.Contains(states, "completed") {
				f.violation("ack of job %s, attempt %d, was refused, and the attempt is completed", r.ID, e.Attempt)
			}
			if e.Asked == 1 && s.holds(e) && s.ends(e.Lease, e.At) <= 1 {
				f.violation("%s of job %s, attempt %d, was refused at %v although lease %s was held", e.How, r.ID, e.Attempt, e.At, e.Lease)
			}
		}
	}
	for _, e := range s.dropped {
		if s.holds(e) && s.ends(e.Lease, e.At) == 0 {
			f.violation("a heartbeat of %v was answered at %v without job %s, attempt %d, although lease %s was held", e.Sent, e.At,
				r.ID, e.Attempt, e.Lease)
		}
	}
	wanted := func(attempt int, how ...string) bool {
		return slices.ContainsFunc(s.finishes, func(e entry) bool { return e.Attempt == attempt && slices.Contains(how, e.How) })
	}
	for _, m := range moves {
		switch m.To {
		case "completed":
			if !wanted(m.Attempt, ack) {
				f.violation("job %s was completed in attempt %d, and nobody acknowledged that", r.ID, m.Attempt)
			}
		case "retryable":
			if !wanted(m.Attempt, fail) && !r.lost(m.Attempt, "timeout") {
				f.violation("job %s failed in attempt %d, and nobody said so", r.ID, m.Attempt)
			}
		case "discarded":
			if m.From != "active" {
				if r.ExpiresAt == nil || m.At.Before(*r.ExpiresAt) {
					f.violation("job %s was discarded as expired, and expires at %v", r.ID, r.ExpiresAt)
				}
				f.expired++
			} else if !wanted(m.Attempt, discard) && (m.Attempt < r.MaxAttempts ||
				!wanted(m.Attempt, fail) && !r.lost(m.Attempt, lossCauses...)) {
				f.violation("job %s was discarded in attempt %d of %d by no policy", r.ID, m.Attempt, r.MaxAttempts)
			}
		case "cancelled":
			if s.cancels.IsZero() {
				f.violation("job %s was cancelled, and nobody asked for it", r.ID)
			}
		}
	}
	if s.cancelled && r.State != "cancelled" {
		f.violation("the cancellation of job %s was acknowledged, and it is %s", r.ID, r.State)
	}
	lives := slices.ContainsFunc(moves, func(m move) bool { return m.From == "discarded" })
	sort.Slice(s.held, func(i, j int) bool { return s.held[i].from.Before(s.held[j].from) })
	for i, h := range s.held {
		for _, before := range s.held[:i] {
			// An answer may be read when the lease in it is over.
			if h.from.Before(before.until) && h.from.Before(h.until) {
				f.violation("job %s was in two hands: under lease %s until %v, under lease %s from %v", r.ID, before.lease,
					before.until, h.lease, h.from)
			}
			if h.lease == before.lease ||
				!lives && (h.attempt == before.attempt || h.attempt < before.attempt && h.sent.After(before.from)) {
				f.violation("job %s: attempt %d under lease %s followed attempt %d under lease %s", r.ID, h.attempt, h.lease,
					before.attempt, before.lease)
			}
		}
	}
}

// slack is how much later than a fault explains a cron job may fire: less than the clock sleeps when nothing wakes it.
const slack = 6 * time.Second

// crons asks whether cron jobs fired as their policies say, to the last time they were due.
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

// none takes every row that a query finds for a violation.
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

// counters holds what is counted against what there is, all in the snapshot of tx.
func (f *findings) counters(ctx context.Context, tx pgx.Tx, since time.Time) error {
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
			select l.queue || '/' || l.priority || ' says ' || l.tenants || ' of weight ' || l.weight
				|| ', there are ' || coalesce(f.n, 0) || ' of weight ' || coalesce(f.weight, 0)
			from ojs.level l
			left join (
				select f.queue, f.priority, count(*) as n, sum(f.weight) as weight, sum(f.weight * f.vtime) as moment
				from ojs.tenant_fairness f where f.ready group by f.queue, f.priority
			) f on f.queue = l.queue and f.priority = l.priority
			where l.tenants <> coalesce(f.n, 0) or l.weight <> coalesce(f.weight, 0) or l.moment <> coalesce(f.moment, 0)`, nil},
		{"a row that is to be one is several", `
			select x.what || ' ' || x.key from (
				select 'tenant_fairness' as what, f.queue || '/' || f.priority || '/' || f.tenant_id as key from ojs.tenant_fairness f
				union all select 'level', l.queue || '/' || l.priority from ojs.level l
				union all select 'backlog', b.queue from ojs.backlog b
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
		{"a tenant was charged for another number of jobs than it was given", `
			select coalesce(f.tenant_id, l.tenant_id) || '/' || coalesce(f.queue, l.queue) || ': charged ' || coalesce(f.n, 0)
				|| ', given ' || coalesce(l.n, 0)
			from (
				select u.tenant_id, u.queue, sum(u.jobs) as n from (
					select f.tenant_id, f.queue, f.charged as jobs from ojs.tenant_fairness f
					-- Decided ahead and not handed out yet.
					union all select t.tenant_id, t.queue, -1 from ojs.turn t
				) u group by u.tenant_id, u.queue
			) f
			full join (
				select m.tenant_id, m.queue, sum(m.jobs) - coalesce(sum(m.owed) filter (
					where not pg_visible_in_snapshot(m.xid, (select x.snapshot from ojs.fold x))), 0) as n
				from ojs._movement m where m.to_state = 'active' group by m.tenant_id, m.queue
			) l on l.tenant_id = f.tenant_id and l.queue = f.queue
			where coalesce(f.n, 0) <> coalesce(l.n, 0)`, nil},
	} {
		if err := f.none(ctx, tx, q.what, q.sql, q.args...); err != nil {
			return err
		}
	}
	return nil
}
