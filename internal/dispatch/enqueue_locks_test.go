package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestABadJobAmongMany(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Spacing: time.Hour})
	b.exec("select ojs.configure_tenant('low', null, null, -1), ojs.configure_tenant('clamped', null, null, -2, 'clamp')")
	end := b.session("lock table ojs.journal in share mode")
	before := b.Statements()
	ids := make([]string, 40)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			job, tenant := fmt.Sprintf(`{"type": "t%d", "args": [%d.00]}`, i, i), fmt.Sprint("tenant", i%4)
			switch i {
			case 7:
				job = `{"type": "no good", "args": []}`
			case 8:
				job = `{"type": "t", "args": {}}`
			case 9:
				tenant = "no good"
			case 10:
				job = `{}`
			case 11:
				tenant = "low"
			case 12:
				tenant = "clamped"
			}
			j, err := b.Enqueue(t.Context(), newJob(job, &tenant))
			switch {
			case i >= 7 && i <= 10:
				if problem(err) != "invalid_request" {
					t.Errorf("job %d: %v", i, err)
				}
			case i == 11:
				if problem(err) != "validation_error" {
					t.Errorf("job %d: %v", i, err)
				}
			case i == 12 && j.Priority != -2:
				t.Errorf("job %d has priority %d", i, j.Priority)
			case err != nil || j.TenantID != tenant || j.Type != fmt.Sprint("t", i) || string(j.Args) != fmt.Sprintf("[%d.00]", i):
				t.Errorf("job %d: %+v %v", i, j, err)
			}
			ids[i] = j.ID
		})
		if i == 0 {
			b.db.BlockedSessions(1)
		}
	}
	pgtest.Eventually(b.t, "the others are in line", func() bool { return b.enqueues.Waiting() == len(ids)-1 })
	end("rollback")
	all.Wait()
	if sent := b.Statements() - before; sent != 2 {
		t.Errorf("%d statements", sent)
	}
	if n := b.count("select count(*) from ojs.job where id::text = any ($1)", ids); n != 35 {
		t.Errorf("%d jobs", n)
	}
}

func TestAnIDThatAnotherTransactionIsAddingDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Statements: 1, Isolated: 2})
	const taken, free = "019539a4-0000-7000-8000-000000000001", "019539a4-0000-7000-8000-000000000002"
	for how, want := range map[string]string{"commit": "duplicate", "rollback": "<nil>"} {
		queue := "q-" + how
		end := b.session("select ojs.enqueue('x', p_id => $1, p_tenant => $2)", taken, "acme-"+how)
		acme, globex := "acme-"+how, "globex-"+how
		stuck := make(chan error, 1)
		go func() {
			_, err := b.Enqueue(t.Context(), newJob(`{"id": "`+taken+`", "type": "x", "args": [], "queue": "`+queue+`"}`, &acme))
			stuck <- err
		}()
		b.db.BlockedSessions(1)
		for _, job := range []struct {
			tenant *string
			flat   string
		}{
			{&acme, `{"type": "x", "args": [{"id": 1}]}`},
			{&globex, `{"type": "x", "args": []}`},
			{nil, `{"type": "x", "args": []}`},
			{&globex, `{"type": "x", "args": [], "id": "` + taken + `"}`},
			{&acme, `{"type": "x", "args": [], "id": "` + free + `"}`},
		} {
			if _, err := b.Enqueue(t.Context(), newJob(job.flat, job.tenant)); err != nil {
				t.Fatalf("%s: %v", job.flat, err)
			}
		}
		select {
		case err := <-stuck:
			t.Fatalf("answered before the other transaction ended: %v", err)
		default:
		}
		end(how)
		if err := <-stuck; problem(err) != want {
			t.Errorf("after %s: %v, want %s", how, err, want)
		}
	}
}

// Tenants that send many ids which other transactions are adding cost few statements, and do not delay
// other tenants.
func TestManyLockedIDsDelayNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	const each = 100
	tenants := []string{"a", "b", "c", "d"}
	turn := make(chan int64, 1) // the statements that were sent before the one of e
	enqueue := b.send.enqueue
	b.send.enqueue = func(ctx context.Context, db sqlcgen.DBTX, items []*NewJob, tenant *string, each bool, made madeJob) error {
		if *items[0].Tenant == "e" {
			select {
			case turn <- b.Statements():
			default: // the job met a lock
			}
		}
		return enqueue(ctx, db, items, tenant, each, made)
	}
	id := func(i int) string { return fmt.Sprintf("019539a4-0000-7000-8000-%012d", i) }
	end := b.session(`select ojs.enqueue('x', p_id => format('019539a4-0000-7000-8000-%s', lpad(i::text, 12, '0'))::uuid, p_tenant => t)
		from unnest($1::text[]) t, generate_series(1, $2) i`, tenants, each)
	send := func(tenant string, i int) error {
		_, err := b.Enqueue(t.Context(), newJob(`{"id": "`+id(i)+`", "type": "x", "args": []}`, &tenant))
		return err
	}
	before := b.Statements()
	var all sync.WaitGroup
	var early atomic.Int64 // answers before the locks are gone
	for _, tenant := range tenants {
		for i := range each + 1 {
			all.Go(func() {
				err := send(tenant, i) // 0 is an id that no other transaction adds
				early.Add(1)
				if want := map[bool]string{true: "<nil>", false: "duplicate"}[i == 0]; problem(err) != want {
					t.Errorf("%s %d: %v, want %s", tenant, i, err, want)
				}
			})
		}
	}
	pgtest.Eventually(b.t, "they are at it", func() bool { return b.Statements()-before > 20 })
	sent := b.Statements()
	if err := send("e", 1); err != nil {
		t.Error(err)
	}
	if sent = <-turn - sent; sent > 50 {
		t.Errorf("%d statements before it was another's turn", sent)
	}
	pgtest.Eventually(b.t, "what is not locked is added", func() bool {
		return b.count("select count(*) from ojs.job where id::text = $1", id(0)) == len(tenants)
	})
	pgtest.Eventually(b.t, "that is told", func() bool { return early.Load() >= 4 })
	if n := early.Load(); n != 4 {
		t.Errorf("%d answers while the ids were locked", n)
	}
	end("commit")
	all.Wait()
}

func TestALockedIDIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Query: time.Second})
	const taken = "019539a4-0000-7000-8000-000000000001"
	end := b.session("select ojs.enqueue('x', p_id => $1)", taken)
	job := newJob(`{"id": "`+taken+`", "type": "x", "args": []}`, nil)
	one := func() error { _, err := b.Enqueue(t.Context(), job); return err }
	many := func() error {
		_, err := b.EnqueueMany(t.Context(), []*NewJob{job}, nil)
		return err
	}
	for _, enqueue := range []func() error{one, many} {
		var known *pg.Error
		if err := b.Dispatcher.db.Err(enqueue()); !errors.As(err, &known) || known.Code != "backend_unavailable" || !known.Retryable {
			t.Errorf("%v", err)
		}
	}

	// When the caller leaves, the enqueue is not tried again.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	before := b.Statements()
	go func() {
		defer close(gone)
		_, _ = b.Enqueue(ctx, job)
		_, _ = b.EnqueueMany(ctx, []*NewJob{job}, nil)
	}()
	pgtest.Eventually(b.t, "it was tried", func() bool { return b.Statements() > before })
	cancel()
	<-gone
	b.idling()
	end("rollback")
	if n := b.count("select count(*) from ojs.job"); n != 0 {
		t.Errorf("%d jobs", n)
	}
}
