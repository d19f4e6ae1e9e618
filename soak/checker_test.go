package soak

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A campaign without violations means something only if the checker would have found them. So each
// kind of violation is made here once, and has to be found.
func TestTheCheckerSees(t *testing.T) {
	t.Parallel()
	s := newSample(t)
	if got := s.look(t, blemish{of: course{whole: s.fired.whole}}); len(got) > 0 {
		t.Fatalf("where nothing is wrong: %v", got)
	}
	for _, b := range slices.Concat(s.existence(), s.ends(), s.journals(), s.leases(), s.requests(), s.crons()) {
		t.Run(b.name, func(t *testing.T) {
			got := strings.Join(s.look(t, b), "\n")
			if !strings.Contains(got, b.want) || b.want == "" && got != "" {
				t.Errorf("found %q, want %q", got, b.want)
			}
		})
	}
}

// blemish is one change of a sample that is otherwise correct. The checker has to find it, or to let it
// pass.
type blemish struct {
	name, want string // want: what the checker says; empty: nothing
	// SQL that changes the database; $done and the like are ids of the sample.
	spoil   string
	ledger  []entry // nil: that of the sample
	drained bool
	of      course
}

// sample is a database with a job in each state, and the ledger of the client that brought them there.
type sample struct {
	d      *pgtest.DB
	since  time.Time
	ledger []entry

	done, dead, again, gone, running, left string // ids of jobs: completed, discarded, to be tried again, cancelled, active, available
	acked, hold                            entry  // how done was acknowledged, and running fetched

	fired, lost, absent course // cron jobs had time to fire; the network, and the database, were away
}

// sampleKey is the Idempotency-Key of one job of the sample.
const sampleKey = "k"

func newSample(t *testing.T) *sample {
	t.Helper()
	d := pgtest.New(t)
	s := &sample{d: d, since: pgtest.One[time.Time](t, d.Pool, "select ojs.now()")}
	s.fired = course{whole: s.since.Truncate(time.Second).Add(2 * time.Second)}
	s.lost = course{fault: explains{network: true}, broke: s.since}
	s.absent = course{fault: explains{database: true}, broke: s.since}
	pgtest.Exec(t, d.Pool, "create table public.orders (job uuid)")
	pgtest.Exec(t, d.Pool, "create table public.results (job uuid, lease uuid)")
	pgtest.Exec(t, d.Pool, "select ojs.configure_pool('default', '{}')")

	const failing = `select ojs.nack($1, '{"message": "no", "code": "%"}', $2)`
	s.done = s.enqueue(t)
	s.acked = s.end(t, s.done, ack, "select ojs.ack($1, $2)")
	s.dead = s.enqueue(t)
	s.end(t, s.dead, discard, strings.ReplaceAll(failing, "%", "DISCARD"))
	s.again = s.enqueue(t)
	s.end(t, s.again, fail, strings.ReplaceAll(failing, "%", "x"))
	s.gone = s.enqueue(t)
	s.write(entry{What: cancels, IDs: []string{s.gone}})
	pgtest.Exec(t, d.Pool, "select ojs.cancel($1)", s.gone)
	s.write(entry{What: cancelled, IDs: []string{s.gone}, Status: 200})
	s.running = s.enqueue(t)
	s.hold = s.fetch(t, s.running)
	s.left = s.enqueue(t)
	s.write(entry{What: enqueues, Key: sampleKey, Jobs: 1, Tenant: "acme"})
	once := newID()
	pgtest.Exec(t, d.Pool, `
		select ojs.enqueue('x', '[]', 'work', p_id => $1, p_tenant => 'acme', p_meta => $2)`, once, `{"once": "k"}`)
	s.write(entry{What: enqueued, Key: sampleKey, IDs: []string{once}, Tenant: "acme"})
	s.fire(t)
	pgtest.Exec(t, d.Pool, "select ojs.limit_concurrency(5, 'acme')")
	pgtest.Exec(t, d.Pool, "select ojs.tick()")
	return s
}

func (s *sample) write(e entry) {
	e.At, e.Client = time.Now(), "w"
	s.ledger = append(s.ledger, e)
}

func (s *sample) enqueue(t *testing.T) string {
	t.Helper()
	id := newID()
	s.write(entry{What: enqueues, IDs: []string{id}, Tenant: "acme"})
	pgtest.Exec(t, s.d.Pool, `
		select ojs.enqueue('x', '[]', 'work', p_id => $1, p_tenant => 'acme', p_retry => $2)`, id, retryPolicy)
	s.write(entry{What: enqueued, IDs: []string{id}, Tenant: "acme"})
	return id
}

func (s *sample) fetch(t *testing.T, id string) entry {
	t.Helper()
	sent := time.Now()
	e := entry{What: fetched_, IDs: []string{id}, Sent: sent, Until: sent.Add(time.Minute)}
	var got string
	err := s.d.Pool.QueryRow(t.Context(), "select id, lease, attempt from ojs.fetch('{work}', 1, 'w', 60000)").
		Scan(&got, &e.Lease, &e.Attempt)
	if err != nil || got != id {
		t.Fatalf("fetch: %v, %s", err, got)
	}
	s.write(e)
	return e
}

// end fetches a job, ends the attempt with a statement, and returns the ledger entry of its answer.
func (s *sample) end(t *testing.T, id, how, sql string) entry {
	t.Helper()
	e := s.fetch(t, id)
	e.What, e.How, e.Status, e.Asked = finishes, how, 200, 1
	s.write(e)
	pgtest.Exec(t, s.d.Pool, sql, id, e.Lease)
	e.What = finished
	s.write(e)
	return e
}

// fire makes a cron job that has fired twice.
func (s *sample) fire(t *testing.T) {
	t.Helper()
	pgtest.Exec(t, s.d.Pool, `
		select ojs.put_cron('each', '* * * * * *', $1, p_queue => 'cron', p_tenant => 'acme', p_overlap_policy => 'allow',
			p_enabled => false)`, cronJob)
	for i := range 2 {
		id := newID()
		pgtest.Exec(t, s.d.Pool, "select ojs.enqueue($1, '[]', 'cron', p_id => $2, p_tenant => 'acme')", cronJob, id)
		pgtest.Exec(t, s.d.Pool, `
			insert into ojs.cron_run (tenant_id, name, due_at, job_id)
			values ('acme', 'each', date_trunc('second', $1::timestamptz) + $2 * interval '1 second', $3)`, s.since, 1+i, id)
	}
}

// look returns the violations that the checker finds after a blemish. It makes the blemish in a
// transaction that it rolls back.
func (s *sample) look(t *testing.T, b blemish) []string {
	t.Helper()
	ctx := t.Context()
	tx, err := s.d.Pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if b.spoil != "" {
		spoil := strings.NewReplacer("$done", "'"+s.done+"'", "$dead", "'"+s.dead+"'", "$again", "'"+s.again+"'",
			"$gone", "'"+s.gone+"'", "$running", "'"+s.running+"'", "$left", "'"+s.left+"'").Replace(b.spoil)
		tag, err := tx.Exec(ctx, spoil)
		if err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %v, %s", spoil, err, tag)
		}
	}
	ledger := b.ledger
	if ledger == nil {
		ledger = s.ledger
	}
	b.of.since, b.of.drained = s.since, b.drained
	f, err := check(ctx, tx, ledger, b.of)
	if err != nil {
		t.Fatal(err)
	}
	return f.violations
}

// add returns the ledger with more entries. An entry without a time gets the present.
func (s *sample) add(more ...entry) []entry {
	for i := range more {
		if more[i].At.IsZero() {
			more[i].At = time.Now()
		}
	}
	return append(s.ledger[:len(s.ledger):len(s.ledger)], more...)
}

// without returns the ledger without one kind of entry about a job.
func (s *sample) without(w what, id string) []entry {
	var rest []entry
	for _, e := range s.ledger {
		if e.What != w || !slices.Contains(e.IDs, id) {
			rest = append(rest, e)
		}
	}
	return rest
}

// about returns an entry about the running job.
func (s *sample) about(w what, status int) entry {
	return entry{What: w, IDs: []string{s.running}, Lease: s.hold.Lease, Attempt: 1, How: ack, Status: status, Asked: 1}
}

func with(e entry, change func(*entry)) entry {
	change(&e)
	return e
}

// late and before move an entry to a moment after the lease of the running job, and to the beginning of
// the round.
func (s *sample) late(e *entry)   { e.At = s.hold.Until.Add(time.Second) }
func (s *sample) before(e *entry) { e.At = s.since }

// existence returns blemishes about jobs that exist and should not, or the other way round.
func (s *sample) existence() []blemish {
	return []blemish{
		{name: "a job is lost", spoil: "delete from ojs.job where id = $left", want: "is lost"},
		{name: "a job came from nowhere", ledger: s.without(enqueues, s.left), want: "nobody enqueued it"},
		{name: "a job was not committed", ledger: s.add(entry{What: withdrew, IDs: []string{s.left}}), want: "did not commit"},
		{name: "another tenant's", spoil: "update ojs.job set tenant_id = 'beta' where id = $left", want: "belongs to beta"},
		{
			name: "half a batch", ledger: s.add(entry{What: enqueues, IDs: []string{s.left, newID()}, Tenant: "acme"}),
			want: "there are 1 of 2",
		},
		{name: "a batch of which nothing came", ledger: s.add(entry{What: enqueues, IDs: []string{newID(), newID()}, Tenant: "acme"})},
		{
			name: "a second job under a key", spoil: `update ojs.job set meta = '{"once": "k"}' where id = $left`,
			want: "of 1 jobs enqueued under key k there are 2",
		},
		{
			name: "half a batch under a key", ledger: s.add(entry{What: enqueues, Key: sampleKey, Jobs: 2, Tenant: "acme"}),
			want: "of 2 jobs enqueued under key k there are 1",
		},
		{
			name: "another job for a key", ledger: s.add(entry{What: enqueued, Key: sampleKey, IDs: []string{s.left}}),
			want: "was the answer to key k",
		},
		{name: "nothing under a key", ledger: s.add(entry{What: enqueues, Key: "l", Jobs: 2, Tenant: "acme"})},
	}
}

// ends returns blemishes about the ends of attempts and jobs.
func (s *sample) ends() []blemish {
	return []blemish{
		{name: "completed without an ack", ledger: s.without(finishes, s.done), want: "nobody acknowledged that"},
		{
			name: "an ack is forgotten", want: "was acknowledged, and the journal says",
			spoil: "update ojs.job set state = 'active' where id = $done",
		},
		{
			name:   "refused and done",
			ledger: s.add(entry{What: finished, IDs: s.acked.IDs, Lease: s.acked.Lease, Attempt: 1, How: ack, Status: 409, Asked: 1}),
			want:   "was refused, and the attempt is completed",
		},
		{name: "failed by nobody", ledger: s.without(finishes, s.again), want: "nobody said so"},
		{name: "discarded by no policy", ledger: s.without(finishes, s.dead), want: "by no policy"},
		{name: "cancelled by nobody", ledger: s.without(cancels, s.gone), want: "nobody asked for it"},
		{
			name: "a cancellation is lost", ledger: s.add(entry{What: cancelled, IDs: []string{s.done}, Status: 200}),
			want: "was acknowledged, and it is completed",
		},
		{
			name: "a retry too many", spoil: "update ojs.job set max_attempts = 1 where id = $again",
			want: "to be tried again after attempt 1 of 1",
		},
		{
			name: "life after the end",
			spoil: `
				insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
				select tenant_id, queue, 0, id, type, 2, 'active', 'retryable' from ojs.job where id = $done`,
			want: "after it had ended",
		},
		{
			name: "half a transaction of a producer", spoil: "insert into public.orders values (gen_random_uuid())",
			want: "producer's transaction",
		},
		{name: "half a transaction of a worker", spoil: "insert into public.results values ($running)", want: "what its worker wrote"},
		{
			name: "a dead letter too many",
			spoil: `
				insert into ojs.dead_letter (tenant_id, id, queue, type, error_type, error_code, at)
				values ('acme', $done, 'work', 'x', 'x', 'x', ojs.now())`,
			want: "a dead letter and its job disagree",
		},
		{
			name: "discarded too early",
			spoil: `
				insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
				select tenant_id, queue, 0, id, type, 0, 'available', 'discarded' from ojs.job where id = $left`,
			want: "was discarded as expired",
		},
		{
			name:  "handed out too late",
			spoil: "update ojs.job set expires_at = ojs.now() - interval '1 minute' where id = $running",
			want:  "and had expired at",
		},
		{
			name: "revived by nobody",
			spoil: `
				insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
				select tenant_id, queue, 0, id, type, 1, 'discarded', 'available' from ojs.job where id = $dead`,
			want: "was revived",
		},
	}
}

// journals returns blemishes about rows and journals that disagree.
func (s *sample) journals() []blemish {
	return []blemish{
		{
			name: "completed twice", want: "ojs.shard_stats and the rows disagree",
			spoil: `insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs)
				select tenant_id, queue, 0, 'active', 'completed', 1 from ojs.job where id = $done`,
		},
		{
			name: "a pool runs more than it knows of", want: "default says 0, there are 1",
			spoil: "update ojs.pool_tally set active = active - 1",
		},
		{
			name: "a completion is not journalled", want: "ojs.shard_stats and the rows disagree",
			spoil: "update ojs.tally set completed = completed - 1 where completed > 0",
		},
		{name: "an attempt that did not happen", spoil: "update ojs.job set attempt = 2 where id = $running", want: "is at attempt 2"},
		{
			name: "a hand-out without a trace", spoil: "update ojs.job set state = 'available' where id = $running",
			want: "was handed out 1 times",
		},
		{
			name: "an impossible move", want: "from scheduled to retryable",
			spoil: "update ojs.release set from_state = 'scheduled' where job_id = $again",
		},
		{
			name: "an impossible beginning", want: "nothing to completed",
			spoil: "update ojs.journal set to_state = 'completed' where ctid = (select min(ctid) from ojs.journal)",
		},
		{
			name: "a counter is off", want: "ojs.shard_stats and the rows disagree",
			spoil: "insert into ojs.journal (tenant_id, queue, priority, to_state, jobs) values ('acme', 'work', 0, 'available', 1)",
		},
		{name: "a failure too many", spoil: "update ojs.tally set failed = failed + 1 where failed > 0", want: "disagree about failures"},
		{
			name: "a member is forgotten", want: "does not count its tenants",
			spoil: `update ojs.dispatch_state set levels = array(
				select row(l.priority, l.low, l.joined, l.ready + 1, l.at_limit, l.idle_at)::ojs.level from unnest(levels) l)`,
		},
		{name: "charged too much", spoil: "update ojs.tenant_fairness set charged = charged + 1", want: "was charged for another number"},
		{name: "a slot is lost", spoil: "update ojs.usage set active = active + 1", want: "acme/ says 2, there are 1 active"},
		{
			name: "a slot is lost for good", spoil: "update ojs.usage set active = active + 1", drained: true,
			want: "a limit counts what does not run",
		},
		{name: "a slot too many", spoil: "update ojs.usage set active = active - 1", want: "what counts against a limit is not what runs"},
		{name: "a limit that counts nothing", spoil: "delete from ojs.usage", want: "acme/ says nothing"},
		{name: "a mark beyond", spoil: "update ojs.fold set snapshot = '900000000:900000000:'", want: "lies in the future"},
		{
			name: "a row in two versions", want: "is to be one is several",
			spoil: "insert into ojs.dispatch_state select queue, rev + 1, unit, own_order, levels, idle_at from ojs.dispatch_state",
		},
	}
}

// leases returns blemishes about a job that two workers hold at once.
func (s *sample) leases() []blemish {
	one := &change{ID: newID(), scope: scope{Tenant: "acme"}, Kind: limit, Most: 1}
	return []blemish{
		{
			name:   "two hands",
			ledger: s.add(entry{What: fetched_, IDs: []string{s.running}, Lease: newID(), Attempt: 2, Until: time.Now().Add(time.Minute)}),
			want:   "in two hands",
		},
		{
			name: "one lease twice", ledger: s.add(entry{What: fetched_, IDs: []string{s.running}, Lease: s.hold.Lease, Attempt: 1}),
			want: "followed attempt 1 under lease",
		},
		{name: "a job is stuck", drained: true, want: "is stuck"},
		{
			name: "more run than a limit allows", want: "2 jobs ran, 1 are allowed",
			ledger: s.add(entry{What: rules, At: s.since, Change: one}, entry{What: ruled, At: s.since, Change: one}, entry{
				What: fetched_, IDs: []string{s.left}, Lease: newID(), Attempt: 1, Sent: time.Now(), Until: s.hold.Until,
			}),
		},
		{
			name: "a held lease is refused", ledger: s.add(s.about(finishes, 0), s.about(finished, 409)),
			want: "although lease " + s.hold.Lease + " was held",
		},
		{name: "refused when the lease was over", ledger: s.add(s.about(finishes, 0), with(s.about(finished, 409), s.late))},
		{
			name:   "refused after a cancellation",
			ledger: s.add(entry{What: cancels, IDs: []string{s.running}}, s.about(finishes, 0), s.about(finished, 409)),
		},
		{
			name:   "refused before a cancellation",
			ledger: s.add(with(entry{What: cancels, IDs: []string{s.running}}, s.late), s.about(finishes, 0), s.about(finished, 409)),
			want:   "was refused at",
		},
		{
			name:   "refused at the second time of asking",
			ledger: s.add(s.about(finishes, 0), with(s.about(finished, 409), func(e *entry) { e.Asked = 2 })),
		},
		{
			name: "refused under a lease that was extended", want: "was refused at",
			ledger: s.add(with(s.about(extended, 0), func(e *entry) { e.Until = s.hold.Until.Add(time.Minute) }), s.about(finishes, 0),
				with(s.about(finished, 409), s.late)),
		},
		{
			name: "refused to somebody who held nothing",
			ledger: s.add(with(s.about(finishes, 0), func(e *entry) { e.Lease = newID() }),
				with(s.about(finished, 409), func(e *entry) { e.Lease = newID() })),
		},
		{name: "a heartbeat forgets a job", ledger: s.add(s.about(dropped, 0)), want: "a heartbeat of"},
		{name: "a heartbeat passes over what is being finished", ledger: s.add(s.about(finishes, 0), s.about(dropped, 0))},
		{
			name:   "a heartbeat passes over what is being cancelled",
			ledger: s.add(entry{What: cancels, IDs: []string{s.running}}, s.about(dropped, 0)),
		},
		{name: "a heartbeat comes too late", ledger: s.add(with(s.about(dropped, 0), s.late))},
	}
}

// requests returns blemishes about requests that failed, with and without a fault that explains it.
func (s *sample) requests() []blemish {
	no := entry{What: failed, Client: "w"}
	busy := entry{What: failed, Client: "w", Status: 503}
	ended := entry{What: broke, Client: "w"}
	return []blemish{
		{name: "no answer", ledger: s.add(no), want: "got no answer"},
		{name: "no answer when the database is away", ledger: s.add(no), of: s.absent, want: "got no answer"},
		{name: "no answer when the network is", ledger: s.add(no), of: s.lost},
		{
			name: "no answer before anything happened", ledger: s.add(with(no, s.before)),
			of: course{fault: s.lost.fault, broke: time.Now()}, want: "got no answer",
		},
		{name: "a 503", ledger: s.add(busy), want: "was answered 503"},
		{name: "a 503 that says why", ledger: s.add(with(busy, func(e *entry) { e.Text = `{"error":{"busy":true}}` }))},
		{name: "a 503 when the network is away", ledger: s.add(busy), of: s.lost, want: "was answered 503"},
		{
			name: "a 503 when all is over", ledger: s.add(with(busy, func(e *entry) { e.Client = prober })), of: s.absent,
			want: "was answered 503",
		},
		{name: "a 503 when the database is", ledger: s.add(busy), of: s.absent},
		{
			name:   "a producer in SQL is told to come again",
			ledger: s.add(with(ended, func(e *entry) { e.Text = "Other transactions of tenant 'acme' are using what is left" })),
		},
		{name: "a session ends", ledger: s.add(ended), of: s.lost, want: "lost its session"},
		{name: "a session ends when the database does", ledger: s.add(ended), of: s.absent},
		{name: "a request hangs", ledger: s.add(with(no, func(e *entry) { e.What = hung })), of: s.lost, want: "waited in vain"},
		{name: "a client's complaint", ledger: s.add(entry{What: wrong, Text: "500"}), want: "saw: 500"},
	}
}

// crons returns blemishes about cron jobs, which fire every second.
func (s *sample) crons() []blemish {
	return []blemish{
		{
			name: "cron stops", spoil: "delete from ojs.cron_run where due_at = (select max(due_at) from ojs.cron_run)", of: s.fired,
			want: "did not fire any more",
		},
		{name: "cron never begins", spoil: "delete from ojs.cron_run", of: s.fired, want: "fired for nothing at last"},
		{
			name: "cron sleeps",
			spoil: `
				update ojs.cron_run set missed = 100, due_at = due_at + interval '100 s'
				where due_at = (select max(due_at) from ojs.cron_run)`,
			of: s.fired, want: "stands for 100 more",
		},
		{name: "cron skips", spoil: "update ojs.cron_run set job_id = null, reason = 'misfire'", of: s.fired, want: "skipped by no policy"},
	}
}
