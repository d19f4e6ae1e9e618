package soak

import (
	"slices"
	"sort"
	"strings"
	"time"
)

// hold is a lease of a worker, with the time at which the worker had asked for the job.
type hold struct {
	holding
	sent  time.Time
	sure  time.Time // until then only a request can have ended the lease
	queue string
	pool  string
}

// story holds all entries of the ledger about one job.
type story struct {
	tenant                       string
	intended, acknowledged, gone bool
	cancels                      time.Time // when a client first began to cancel it
	cancelled                    bool
	held                         []hold
	finishes                     []entry
	finished                     []entry
	dropped                      []entry
}

// holds reports whether the client of an entry certainly held the lease when it read the answer, so that
// what it asked for happened under that lease.
func (s *story) holds(e entry) bool {
	return (s.cancels.IsZero() || e.At.Before(s.cancels)) && slices.ContainsFunc(s.held,
		func(h hold) bool { return h.lease == e.Lease && e.At.Before(h.sure) })
}

// ends returns the number of ACKs and NACKs for a lease that were begun before a moment.
func (s *story) ends(lease string, before time.Time) int {
	n := 0
	for _, e := range s.finishes {
		if e.Lease == lease && e.At.Before(before) {
			n++
		}
	}
	return n
}

// answers checks that the fault of the round explains each request that failed.
func (f *findings) answers(ledger []entry, of course) {
	for _, e := range ledger {
		// The requests of the probe come after the fault is over.
		since := !of.broke.IsZero() && !e.At.Before(of.broke) && e.Client != prober
		switch {
		case e.What == hung:
			f.violation("%s waited in vain: %s", e.Client, e.Text)
		case strings.Contains(e.Text, `"busy":true`), strings.Contains(e.Text, "Other transactions of tenant"):
			// Other transactions held what was left of the limit for a moment (docs/produce/limits.md).
		case e.What == broke && !(since && of.fault.database):
			f.violation("%s lost its session, and nothing explains that: %s", e.Client, e.Text)
		case e.What == failed && e.Status == 0 && !(since && of.fault.network):
			f.violation("%s got no answer, and nothing explains that: %s", e.Client, e.Text)
		case e.What == failed && e.Status != 0 && !(since && of.fault.database):
			f.violation("%s was answered %d, and nothing explains that: %s", e.Client, e.Status, e.Text)
		}
	}
}

// compare checks every story against the rows and the journals.
func (f *findings) compare(ledger []entry, rows []row, moves []move, leases map[string][]time.Time, drained bool) {
	told := f.read(ledger)
	found, made := f.find(rows, told)
	f.together(ledger, found, made)
	past := map[string][]move{}
	for _, m := range moves {
		past[m.ID] = append(past[m.ID], m)
	}
	for id, s := range told.stories {
		r, there := found[id]
		f.exists(id, s, there)
		if !there {
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
		if drained && s.stuck(r) {
			f.violation("job %s is stuck: state %s, attempt %d, tenant %s", id, r.State, r.Attempt, r.Tenant)
		}
	}
	f.obeyed(ledger, told)
}

// account holds the content of all ledgers of a round, by job and by Idempotency-Key.
type account struct {
	stories map[string]*story
	keys    map[string]entry
}

func (a *account) of(id string) *story {
	if a.stories[id] == nil {
		a.stories[id] = &story{}
	}
	return a.stories[id]
}

// read sorts the entries by their jobs, and counts the entries that are about no job.
func (f *findings) read(ledger []entry) *account {
	told := &account{stories: map[string]*story{}, keys: map[string]entry{}}
	for _, e := range ledger {
		switch e.What {
		case enqueues:
			if e.Key != "" {
				told.keys[e.Key] = e
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
			told.of(id).add(e)
		}
	}
	// A worker holds a job until the lease may have ended, or until it began to finish it.
	for _, e := range ledger {
		if e.What == extended || e.What == finishes {
			for _, id := range e.IDs {
				told.stories[id].hold(e)
			}
		}
	}
	return told
}

// add adds an entry about the job.
func (s *story) add(e entry) {
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
		s.held = append(s.held, hold{
			holding: holding{lease: e.Lease, attempt: e.Attempt, from: e.At, until: e.Until}, sent: e.Sent, sure: e.Until,
			queue: e.Queue, pool: e.Pool,
		})
	case finishes:
		s.finishes = append(s.finishes, e)
	case finished:
		s.finished = append(s.finished, e)
	case dropped:
		s.dropped = append(s.dropped, e)
	}
}

// hold moves the end of the lease that an entry extends or begins to finish.
func (s *story) hold(e entry) {
	for i := range s.held {
		h := &s.held[i]
		if h.lease != e.Lease {
			continue
		}
		if e.What == finishes {
			h.until, h.acked = minTime(h.until, e.At), true
			continue
		}
		if slices.ContainsFunc(s.held, func(o hold) bool { return o.from.After(h.from) && o.from.Before(e.At) }) {
			// A heartbeat names a worker and a job, and no lease. A late answer may be about an earlier lease.
			continue
		}
		h.sure = later(h.sure, e.Until)
		if !h.acked {
			h.until = later(h.until, e.Until)
		}
	}
}

// find returns the rows by id, and the number of jobs for each key. The ledgers do not know jobs of
// cron jobs; the history of cron jobs does.
func (f *findings) find(rows []row, told *account) (found map[string]row, made map[string]int) {
	found, made = map[string]row{}, map[string]int{}
	for _, r := range rows {
		if _, twice := found[r.ID]; twice {
			f.violation("job %s is there twice", r.ID)
		}
		found[r.ID] = r
		if r.Type == cronJob {
			f.fired++
			s := told.of(r.ID)
			s.intended, s.acknowledged, s.tenant = true, true, r.Tenant
		}
		if e, known := told.keys[r.Key]; known {
			s := told.of(r.ID)
			s.intended, s.tenant = true, e.Tenant
			made[r.Key]++
		}
		if s := told.stories[r.ID]; s == nil || !s.intended {
			f.violation("job %s is there, and nobody enqueued it", r.ID)
		}
	}
	return found, made
}

// together checks that of jobs enqueued together all exist or none.
func (f *findings) together(ledger []entry, found map[string]row, made map[string]int) {
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
}

// exists checks that a job exists if its enqueue was acknowledged, and does not if it was rolled back.
func (f *findings) exists(id string, s *story, there bool) {
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
	if !there && len(s.held) > 0 {
		f.violation("job %s was handed out and is not there", id)
	}
}

// stuck reports whether the job has not ended although it should have, after workers have drained the
// queues.
func (s *story) stuck(r row) bool {
	// A worker may not know that it has the job, because the answer was lost. Or it had no registration that
	// could end, because it was silent before its FETCH and after it. In both cases the job comes back at
	// the end of the lease only.
	lost := r.State == "active" && r.LeaseUntil != nil && time.Until(*r.LeaseUntil) > time.Minute &&
		!slices.ContainsFunc(s.held, func(h hold) bool { return h.attempt == r.Attempt && h.until.After(h.sent) })
	// A pending job of a cron job waits for the job before it, and needs no activation.
	return !lost && !r.ended() && (r.State != "pending" || r.Type == cronJob) &&
		(r.State != "scheduled" || time.Until(*r.ScheduledAt) < 10*time.Minute)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// machine checks a job's row against its journals: it has made only legal transitions.
func (f *findings) machine(r row, moves []move, handouts []time.Time) {
	var out, withoutError int // attempts that ended, and attempts that ended without a failure
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
		// A decision may take some time after it has read the clock.
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
	// Attempts that were given back unread do not count and leave no error. If the job was retried as a dead
	// letter, it is not known whether that was before or after.
	back := out - withoutError - len(r.Errors)
	if back < 0 || r.Attempt > latest || r.Attempt < latest-back || reborn.IsZero() && r.Attempt != latest-back {
		f.violation("job %s is at attempt %d after %d hand-outs, %d of them given back (%d errors)", r.ID, r.Attempt, latest, back,
			len(r.Errors))
	}
}

// claims checks a job's row against the answers that clients got.
func (f *findings) claims(r row, s *story, moves []move) {
	f.answered(r, s, moves)
	for _, e := range s.dropped {
		if s.holds(e) && s.ends(e.Lease, e.At) == 0 {
			f.violation("a heartbeat of %v was answered at %v without job %s, attempt %d, although lease %s was held", e.Sent, e.At,
				r.ID, e.Attempt, e.Lease)
		}
	}
	for _, m := range moves {
		f.wanted(r, s, m)
	}
	if s.cancelled && r.State != "cancelled" {
		f.violation("the cancellation of job %s was acknowledged, and it is %s", r.ID, r.State)
	}
	f.hands(r, s, slices.ContainsFunc(moves, func(m move) bool { return m.From == "discarded" }))
}

// answered checks that the answers to ACKs and NACKs tell what happened to the attempt.
func (f *findings) answered(r row, s *story, moves []move) {
	for _, e := range s.finished {
		var states []string
		for _, m := range moves {
			if m.From == "active" && m.Attempt == e.Attempt {
				states = append(states, m.To)
			}
		}
		switch e.Status {
		case 200:
			want := map[string][]string{
				ack: {"completed"}, fail: {"retryable", "discarded"}, requeue: {"available"}, discard: {"discarded"},
			}[e.How]
			if !slices.ContainsFunc(states, func(to string) bool { return slices.Contains(want, to) }) {
				f.violation("%s of job %s, attempt %d, was acknowledged, and the journal says %v", e.How, r.ID, e.Attempt, states)
			}
		case 409:
			// The ACK was sent once, so no other request can have completed this attempt. The exception is a dead
			// letter that was retried: attempts count from 1 again, and the client of another attempt with this
			// number may have completed it.
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
}

// wanted checks that a client asked for a move, or that a policy explains it.
func (f *findings) wanted(r row, s *story, m move) {
	asked := func(how string) bool {
		return slices.ContainsFunc(s.finishes, func(e entry) bool { return e.Attempt == m.Attempt && e.How == how })
	}
	switch m.To {
	case "completed":
		if !asked(ack) {
			f.violation("job %s was completed in attempt %d, and nobody acknowledged that", r.ID, m.Attempt)
		}
	case "retryable":
		if !asked(fail) && !r.lost(m.Attempt, "timeout") {
			f.violation("job %s failed in attempt %d, and nobody said so", r.ID, m.Attempt)
		}
	case "discarded":
		if m.From != "active" {
			if r.ExpiresAt == nil || m.At.Before(*r.ExpiresAt) {
				f.violation("job %s was discarded as expired, and expires at %v", r.ID, r.ExpiresAt)
			}
			f.expired++
		} else if !asked(discard) && (m.Attempt < r.MaxAttempts || !asked(fail) && !r.lost(m.Attempt, lossCauses...)) {
			f.violation("job %s was discarded in attempt %d of %d by no policy", r.ID, m.Attempt, r.MaxAttempts)
		}
	case "cancelled":
		if s.cancels.IsZero() {
			f.violation("job %s was cancelled, and nobody asked for it", r.ID)
		}
	}
}

// hands checks that no two workers held the job at once. lives says that it was retried as a dead letter,
// after which attempts count from 1 again.
func (f *findings) hands(r row, s *story, lives bool) {
	sort.Slice(s.held, func(i, j int) bool { return s.held[i].from.Before(s.held[j].from) })
	for i, h := range s.held {
		for _, before := range s.held[:i] {
			// A worker may read an answer after the lease in it is over; it held nothing then.
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
