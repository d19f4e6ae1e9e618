package dispatch

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (b *env) active(n int) []sqlcgen.OjsJob {
	b.t.Helper()
	b.exec("select ojs.enqueue('x', '[1, 2]', p_tenant => 'a') from generate_series(1, $1)", n)
	return b.want(b.later(b.t.Context(), Fetch{Queues: []string{"default"}, Count: n, WorkerID: "w"}), n)
}

func TestSettlementsShareAStatementAndEachHasItsOwnResult(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Spacing: time.Hour})
	jobs := b.active(30)
	end := b.session("lock table ojs.release, ojs.journal in share mode")
	before := b.Statements()
	results := make([][]Settled, len(jobs))
	var all sync.WaitGroup
	for i := range jobs {
		all.Go(func() {
			s := []Settlement{{ID: jobs[i].ID, Lease: jobs[i].Lease, Result: []byte(`{ "n":1.0 }`)}}
			switch i % 3 {
			case 1:
				s[0] = Settlement{ID: jobs[i].ID, Error: []byte(`{"message": "m", "retryable": false}`)}
			case 2:
				s[0].Lease = jobs[i-1].Lease
				s = append(s, Settlement{ID: "019539a4-0000-7000-8000-000000000000"})
			}
			results[i] = b.Settle(t.Context(), s, true)
		})
		// The first ACK and the first NACK go alone.
		if i < 2 {
			b.db.BlockedSessions(i + 1)
		}
	}
	by := b.settlers[true]
	pgtest.Eventually(b.t, "the others are in line", func() bool { return by.acks.Waiting() == 29 && by.settles.Waiting() == 9 })
	end("rollback")
	all.Wait()
	for i, r := range results {
		switch i % 3 {
		case 0:
			if j := r[0].Job; r[0].Err != nil || j.ID != jobs[i].ID || j.State != "completed" ||
				string(j.Result) != `{ "n":1.0 }` || string(j.Args) != "[1, 2]" {
				t.Errorf("ack %d: %+v", i, r[0])
			}
		case 1:
			if j := r[0].Job; r[0].Err != nil || j.ID != jobs[i].ID || j.State != "discarded" ||
				!strings.Contains(string(j.Errors), `"m"`) {
				t.Errorf("nack %d: %+v", i, r[0])
			}
		case 2:
			if len(r) != 2 || problem(r[0].Err) != "conflict" || problem(r[1].Err) != "not_found" {
				t.Errorf("settlement %d: %+v", i, r)
			}
			var known *pg.Error
			if errors.As(r[0].Err, &known) && known.Field != "lease" {
				t.Errorf("settlement %d: %+v", i, known)
			}
		}
	}
	if sent := b.Statements() - before; sent > 6 {
		t.Errorf("%d statements", sent)
	}
}

// One caller that asks for the whole job does not cause all jobs of a statement to be read.
func TestOnlyJobsThatAreWantedAreRead(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Spacing: time.Hour})
	jobs := b.active(16)
	end := b.session("lock table ojs.release, ojs.journal in share mode")
	wanted := func(i int) bool { return i/2%2 > 0 }
	results := make([]Settled, len(jobs))
	var all sync.WaitGroup
	for i := range jobs {
		all.Go(func() {
			s := Settlement{ID: jobs[i].ID}
			if i%2 > 0 {
				s.Error = []byte(`{"message": "m"}`)
			}
			results[i] = b.Settle(t.Context(), []Settlement{s}, wanted(i))[0]
		})
		// The first of each kind goes alone.
		if i < 4 {
			b.db.BlockedSessions(i + 1)
		}
	}
	pgtest.Eventually(b.t, "the others are in line", func() bool {
		for _, by := range b.settlers {
			if by.acks.Waiting() != 3 || by.settles.Waiting() != 3 {
				return false
			}
		}
		return true
	})
	end("rollback")
	all.Wait()
	for i, r := range results {
		if r.Err != nil || r.Job.ID != jobs[i].ID || (r.Job.Args != nil) != wanted(i) {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

func TestALockedJobDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Statements: 1})
	jobs := b.active(3)
	end := b.session("select from ojs.job where id = $1 for update", jobs[0].ID)
	locked := make(chan []Settled, 1)
	go func() {
		locked <- b.Settle(t.Context(), []Settlement{{ID: jobs[0].ID, Lease: jobs[0].Lease}, {ID: jobs[1].ID}}, true)
	}()
	pgtest.Eventually(b.t, "what is not locked is settled", func() bool {
		return b.count("select count(*) from ojs.job where state = 'completed'") == 1
	})
	if r := b.Settle(t.Context(), []Settlement{{ID: jobs[2].ID}}, true); r[0].Err != nil {
		t.Fatalf("%+v", r)
	}
	select {
	case r := <-locked:
		t.Fatalf("answered while the job was locked: %+v", r)
	default:
	}
	end("commit")
	for i, r := range <-locked {
		if r.Err != nil || r.Job.State != "completed" || r.Job.ID != jobs[i].ID {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

func TestAJobThatStaysLockedIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	jobs := b.active(1)
	end := b.session("select from ojs.job where id = $1 for update", jobs[0].ID)
	b.opts.Query = time.Second
	r := b.Settle(t.Context(), []Settlement{{ID: jobs[0].ID}}, true)
	var known *pg.Error
	if !errors.As(r[0].Err, &known) || known.Code != "backend_unavailable" || !known.Retryable {
		t.Errorf("%+v", r)
	}
	end("commit")
}

// --- enqueue ---
