package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// row is a job in the database.
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

// lost reports whether the clock ended an attempt, for one of the causes.
func (r row) lost(attempt int, causes ...string) bool {
	return slices.ContainsFunc(causes, func(c string) bool { return slices.Contains(r.Errors, strconv.Itoa(attempt)+" "+c) })
}

// lossCauses are the types of errors with which the clock ends attempts.
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

// findings is the result of a check: violations, and numbers of what was checked.
type findings struct {
	violations []string
	jobs       int // jobs whose enqueue was acknowledged, or that were found without an answer
	states     map[string]int
	unknown    int // enqueues without an answer
	turnedUp   int // enqueues without an answer whose jobs are stored
	withdrawn  int
	handouts   int
	again      int // jobs handed out more than once
	refused    int // answers 503
	unanswered int // requests without an answer
	replays    int // requests to retry dead letters
	revived    int // dead letters retried
	fired      int // jobs of cron jobs
	expired    int
	limits     int // set or removed
	full       int // times at which as many jobs ran, for certain, as a limit allowed
	fullPools  int // of these, times at which the limit was the concurrency of a pool
	pauses     int
}

func (f *findings) violation(format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}

// The state machine (ojs-core section 6): transitions in the journal of single jobs, and in the journal
// of sums. The lease journal holds the attempts that were handed out.
var (
	releases = map[[2]string]bool{
		{"active", "completed"}: true, {"active", "retryable"}: true, {"active", "discarded"}: true, {"active", "available"}: true,
		{"active", "cancelled"}: true,
		// A retried dead letter. Its attempts are counted from the beginning again.
		{"discarded", "available"}: true,
		// The job has expired.
		{"scheduled", "discarded"}: true, {"available", "discarded"}: true, {"pending", "discarded"}: true,
		{"retryable", "discarded"}: true,
		{"scheduled", "cancelled"}: true, {"available", "cancelled"}: true, {"pending", "cancelled"}: true,
		{"retryable", "cancelled"}: true,
	}
	sums = []string{
		" scheduled", " available", " pending", "scheduled available", "retryable available", "pending available",
		"available available", "available active", "active active", "active completed",
	}
)

// explains holds the failures that a fault may cause. In a round without such a fault they are
// violations.
type explains struct {
	database bool // answers with status 503, and SQL sessions that end
	network  bool // requests without an answer
	clock    bool // times without cron jobs being fired
}

// course holds what the checker has to know about a round.
type course struct {
	since   time.Time // when the round began, by the clock of the machine
	drained bool      // workers have had time to finish all jobs

	fault explains
	// broke is when the fault happened, and whole when both servers were healthy again. Cron jobs that
	// were due by then have had time to fire.
	broke, whole time.Time
}

// check compares the ledger of the clients with the jobs that were created since the round began, all
// in the snapshot of tx.
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
	// Completions are journalled as sums only. The row of a completed job tells when it was completed, and
	// counters compares the sums.
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
	if of.drained {
		if err := f.slots(ctx, tx); err != nil {
			return nil, err
		}
	}
	if err := f.tokens(ctx, tx); err != nil {
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
