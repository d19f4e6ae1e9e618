package soak

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A campaign that finds nothing says something only if it would have found it.
func TestTheCheckerSees(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ctx := t.Context()
	var since time.Time
	if err := d.Pool.QueryRow(ctx, "select ojs.now()").Scan(&since); err != nil {
		t.Fatal(err)
	}
	var ledger []entry
	write := func(e entry) {
		e.At, e.Client = time.Now(), "w"
		ledger = append(ledger, e)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := d.Pool.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("create table public.orders (job uuid)")
	exec("create table public.results (job uuid, lease uuid)")
	enqueue := func() string {
		id := newID()
		write(entry{What: enqueues, IDs: []string{id}, Tenant: "acme"})
		exec("select ojs.enqueue('x', '[]', 'work', p_id => $1, p_tenant => 'acme', p_retry => $2)", id, retryPolicy)
		write(entry{What: enqueued, IDs: []string{id}, Tenant: "acme"})
		return id
	}
	fetch := func(id string) entry {
		t.Helper()
		sent := time.Now()
		e := entry{What: fetched_, IDs: []string{id}, Sent: sent, Until: sent.Add(time.Minute)}
		var got string
		err := d.Pool.QueryRow(ctx, "select id, lease, attempt from ojs.fetch('{work}', 1, 'w', 60000)").Scan(&got, &e.Lease, &e.Attempt)
		if err != nil || got != id {
			t.Fatalf("fetch: %v, %s", err, got)
		}
		write(e)
		return e
	}
	end := func(id, how string, status int, sql string) {
		t.Helper()
		e := fetch(id)
		e.What, e.How, e.Status, e.Asked = finishes, how, status, 1
		write(e)
		exec(sql, id, e.Lease)
		e.What = finished
		write(e)
	}
	const failing = `select ojs.nack($1, '{"message": "no", "code": "%"}', $2)`
	done, again := enqueue(), ""
	end(done, ack, 200, "select ojs.ack($1, $2)")
	acked := ledger[len(ledger)-1]
	dead := enqueue()
	end(dead, discard, 200, strings.ReplaceAll(failing, "%", "DISCARD"))
	again = enqueue()
	end(again, fail, 200, strings.ReplaceAll(failing, "%", "x"))
	gone := enqueue()
	write(entry{What: cancels, IDs: []string{gone}})
	exec("select ojs.cancel($1)", gone)
	write(entry{What: cancelled, IDs: []string{gone}, Status: 200})
	running := enqueue()
	hold := fetch(running)
	left := enqueue()
	const key = "k"
	write(entry{What: enqueues, Key: key, Jobs: 1, Tenant: "acme"})
	once := newID()
	exec("select ojs.enqueue('x', '[]', 'work', p_id => $1, p_tenant => 'acme', p_meta => $2)", once, `{"once": "k"}`)
	write(entry{What: enqueued, Key: key, IDs: []string{once}, Tenant: "acme"})
	exec(`
		select ojs.put_cron('each', '* * * * * *', $1, p_queue => 'cron', p_tenant => 'acme', p_overlap_policy => 'allow',
			p_enabled => false)`, cronJob)
	for i := range 2 {
		id := newID()
		exec("select ojs.enqueue($1, '[]', 'cron', p_id => $2, p_tenant => 'acme')", cronJob, id)
		exec(`
			insert into ojs.cron_run (tenant_id, name, due_at, job_id)
			values ('acme', 'each', date_trunc('second', $1::timestamptz) + $2 * interval '1 second', $3)`, since, 1+i, id)
	}

	exec("select ojs.tick()")

	look := func(t *testing.T, ledger []entry, of course, spoil string) []string {
		t.Helper()
		tx, err := d.Pool.BeginTx(ctx, pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if spoil != "" {
			spoil = strings.NewReplacer("$done", "'"+done+"'", "$dead", "'"+dead+"'", "$again", "'"+again+"'", "$gone", "'"+gone+"'",
				"$running", "'"+running+"'", "$left", "'"+left+"'").Replace(spoil)
			tag, err := tx.Exec(ctx, spoil)
			if err != nil || tag.RowsAffected() == 0 {
				t.Fatalf("%s: %v, %s", spoil, err, tag)
			}
		}
		f, err := check(ctx, tx, ledger, of)
		if err != nil {
			t.Fatal(err)
		}
		return f.violations
	}
	if got := look(t, ledger, course{since: since, whole: since.Truncate(time.Second).Add(2 * time.Second)}, ""); len(got) > 0 {
		t.Fatalf("where nothing is wrong: %v", got)
	}
	add := func(more ...entry) []entry {
		for i := range more {
			if more[i].At.IsZero() {
				more[i].At = time.Now()
			}
		}
		return append(ledger[:len(ledger):len(ledger)], more...)
	}
	without := func(w what, id string) []entry {
		var rest []entry
		for _, e := range ledger {
			if e.What != w || !slices.Contains(e.IDs, id) {
				rest = append(rest, e)
			}
		}
		return rest
	}
	// What somebody says about the job that is running.
	about := func(w what, status int) entry {
		return entry{What: w, IDs: []string{running}, Lease: hold.Lease, Attempt: 1, How: ack, Status: status, Asked: 1}
	}
	with := func(e entry, change func(*entry)) entry { change(&e); return e }
	late := func(e *entry) { e.At = hold.Until.Add(time.Second) }
	before := func(e *entry) { e.At = since }
	var (
		fired  = course{whole: since.Truncate(time.Second).Add(2 * time.Second)}
		lost   = course{fault: explains{network: true}, broke: since}
		absent = course{fault: explains{database: true}, broke: since}
		no     = entry{What: failed, Client: "w"}
		busy   = entry{What: failed, Client: "w", Status: 503}
		ended  = entry{What: broke, Client: "w"}
	)
	for _, c := range []struct {
		name, want string // empty: nothing
		spoil      string
		ledger     []entry
		drained    bool
		of         course
	}{
		{name: "a job is lost", spoil: "delete from ojs.job where id = $left", want: "is lost"},
		{name: "a job came from nowhere", ledger: without(enqueues, left), want: "nobody enqueued it"},
		{name: "a job was not committed", ledger: add(entry{What: withdrew, IDs: []string{left}}), want: "did not commit"},
		{name: "another tenant's", spoil: "update ojs.job set tenant_id = 'beta' where id = $left", want: "belongs to beta"},
		{
			name: "completed twice", want: "ojs.shard_stats and the rows disagree",
			spoil: `insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs)
				select tenant_id, queue, 0, 'active', 'completed', 1 from ojs.job where id = $done`,
		},
		{name: "completed without an ack", ledger: without(finishes, done), want: "nobody acknowledged that"},
		{
			name: "an ack is forgotten", want: "was acknowledged, and the journal says",
			spoil: "update ojs.job set state = 'active' where id = $done",
		},
		{
			name: "a completion is not journalled", want: "ojs.shard_stats and the rows disagree",
			spoil: "update ojs.tally set completed = completed - 1 where completed > 0",
		},
		{
			name:   "refused and done",
			ledger: add(entry{What: finished, IDs: acked.IDs, Lease: acked.Lease, Attempt: 1, How: ack, Status: 409, Asked: 1}),
			want:   "was refused, and the attempt is completed",
		},
		{name: "failed by nobody", ledger: without(finishes, again), want: "nobody said so"},
		{name: "discarded by no policy", ledger: without(finishes, dead), want: "by no policy"},
		{name: "cancelled by nobody", ledger: without(cancels, gone), want: "nobody asked for it"},
		{
			name: "a cancellation is lost", ledger: add(entry{What: cancelled, IDs: []string{done}, Status: 200}),
			want: "was acknowledged, and it is completed",
		},
		{
			name: "a retry too many", spoil: "update ojs.job set max_attempts = 1 where id = $again",
			want: "to be tried again after attempt 1 of 1",
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
			name: "life after the end",
			spoil: `
				insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
				select tenant_id, queue, 0, id, type, 2, 'active', 'retryable' from ojs.job where id = $done`,
			want: "after it had ended",
		},
		{
			name:   "two hands",
			ledger: add(entry{What: fetched_, IDs: []string{running}, Lease: newID(), Attempt: 2, Until: time.Now().Add(time.Minute)}),
			want:   "in two hands",
		},
		{
			name: "one lease twice", ledger: add(entry{What: fetched_, IDs: []string{running}, Lease: hold.Lease, Attempt: 1}),
			want: "followed attempt 1 under lease",
		},
		{name: "a job is stuck", drained: true, want: "is stuck"},
		{
			name: "a counter is off", want: "ojs.shard_stats and the rows disagree",
			spoil: "insert into ojs.journal (tenant_id, queue, priority, to_state, jobs) values ('acme', 'work', 0, 'available', 1)",
		},
		{name: "a failure too many", spoil: "update ojs.tally set failed = failed + 1 where failed > 0", want: "disagree about failures"},
		{name: "a member is forgotten", spoil: "update ojs.level set tenants = tenants + 1", want: "does not count its tenants"},
		{name: "charged too much", spoil: "update ojs.tenant_fairness set charged = charged + 1", want: "was charged for another number"},
		{name: "a mark beyond", spoil: "update ojs.fold set snapshot = '900000000:900000000:'", want: "lies in the future"},
		{
			name: "a row in two versions", want: "is to be one is several",
			spoil: "insert into ojs.level select queue, priority, rev + 1, low, tenants, weight, moment, used_at from ojs.level",
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
		{
			name: "a held lease is refused", ledger: add(about(finishes, 0), about(finished, 409)),
			want: "although lease " + hold.Lease + " was held",
		},
		{name: "refused when the lease was over", ledger: add(about(finishes, 0), with(about(finished, 409), late))},
		{
			name:   "refused after a cancellation",
			ledger: add(entry{What: cancels, IDs: []string{running}}, about(finishes, 0), about(finished, 409)),
		},
		{
			name:   "refused before a cancellation",
			ledger: add(with(entry{What: cancels, IDs: []string{running}}, late), about(finishes, 0), about(finished, 409)),
			want:   "was refused at",
		},
		{
			name:   "refused at the second time of asking",
			ledger: add(about(finishes, 0), with(about(finished, 409), func(e *entry) { e.Asked = 2 })),
		},
		{
			name: "refused under a lease that was extended", want: "was refused at",
			ledger: add(with(about(extended, 0), func(e *entry) { e.Until = hold.Until.Add(time.Minute) }), about(finishes, 0),
				with(about(finished, 409), late)),
		},
		{
			name: "refused to somebody who held nothing",
			ledger: add(with(about(finishes, 0), func(e *entry) { e.Lease = newID() }),
				with(about(finished, 409), func(e *entry) { e.Lease = newID() })),
		},
		{name: "a heartbeat forgets a job", ledger: add(about(dropped, 0)), want: "a heartbeat of"},
		{name: "a heartbeat passes over what is being finished", ledger: add(about(finishes, 0), about(dropped, 0))},
		{
			name:   "a heartbeat passes over what is being cancelled",
			ledger: add(entry{What: cancels, IDs: []string{running}}, about(dropped, 0)),
		},
		{name: "a heartbeat comes too late", ledger: add(with(about(dropped, 0), late))},
		{name: "half a batch", ledger: add(entry{What: enqueues, IDs: []string{left, newID()}, Tenant: "acme"}), want: "there are 1 of 2"},
		{name: "a batch of which nothing came", ledger: add(entry{What: enqueues, IDs: []string{newID(), newID()}, Tenant: "acme"})},
		{
			name: "a second job under a key", spoil: `update ojs.job set meta = '{"once": "k"}' where id = $left`,
			want: "of 1 jobs enqueued under key k there are 2",
		},
		{
			name: "half a batch under a key", ledger: add(entry{What: enqueues, Key: key, Jobs: 2, Tenant: "acme"}),
			want: "of 2 jobs enqueued under key k there are 1",
		},
		{name: "another job for a key", ledger: add(entry{What: enqueued, Key: key, IDs: []string{left}}), want: "was the answer to key k"},
		{name: "nothing under a key", ledger: add(entry{What: enqueues, Key: "l", Jobs: 2, Tenant: "acme"})},
		{name: "no answer", ledger: add(no), want: "got no answer"},
		{name: "no answer when the database is away", ledger: add(no), of: absent, want: "got no answer"},
		{name: "no answer when the network is", ledger: add(no), of: lost},
		{
			name: "no answer before anything happened", ledger: add(with(no, before)),
			of: course{fault: lost.fault, broke: time.Now()}, want: "got no answer",
		},
		{name: "a 503", ledger: add(busy), want: "was answered 503"},
		{name: "a 503 when the network is away", ledger: add(busy), of: lost, want: "was answered 503"},
		{
			name: "a 503 when all is over", ledger: add(with(busy, func(e *entry) { e.Client = prober })), of: absent,
			want: "was answered 503",
		},
		{name: "a 503 when the database is", ledger: add(busy), of: absent},
		{name: "a session ends", ledger: add(ended), of: lost, want: "lost its session"},
		{name: "a session ends when the database does", ledger: add(ended), of: absent},
		{name: "a request hangs", ledger: add(with(no, func(e *entry) { e.What = hung })), of: lost, want: "waited in vain"},
		{
			name: "cron stops", spoil: "delete from ojs.cron_run where due_at = (select max(due_at) from ojs.cron_run)", of: fired,
			want: "did not fire any more",
		},
		{name: "cron never begins", spoil: "delete from ojs.cron_run", of: fired, want: "fired for nothing at last"},
		{
			name: "cron sleeps",
			spoil: `
				update ojs.cron_run set missed = 100, due_at = due_at + interval '100 s'
				where due_at = (select max(due_at) from ojs.cron_run)`,
			of: fired, want: "stands for 100 more",
		},
		{name: "cron skips", spoil: "update ojs.cron_run set job_id = null, reason = 'misfire'", of: fired, want: "skipped by no policy"},
		{name: "a client's complaint", ledger: add(entry{What: wrong, Text: "500"}), want: "saw: 500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := c.ledger
			if with == nil {
				with = ledger
			}
			c.of.since, c.of.drained = since, c.drained
			got := strings.Join(look(t, with, c.of, c.spoil), "\n")
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
