package httpapi

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Every route answers through PgBouncer as it does without, and jobs go their way: enqueued alone, under an id of the client's, in batches;
// handed out to
// workers that wait; acknowledged, failed and given back.
func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	door, err := pg.Open(t.Context(), pg.Config{URL: pgtest.Bouncer(t, db.ServiceURL), ListenURL: db.ServiceURL, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	a := &api{t: t, db: db, pool: db.Pool, log: &pgtest.Log{}}
	a.serve(door)
	without := start(t)
	for range 2 {
		direct := without.every()
		for name, r := range a.every() {
			if r.status != direct[name].status {
				t.Errorf("%s answers %d, and %d without PgBouncer: %s", name, r.status, direct[name].status, r.body)
			}
		}
	}

	const producers, each, workers = 8, 30, 8
	jobs := 0
	var producing, working sync.WaitGroup
	for p := range producers {
		jobs += each + each/10
		producing.Go(func() {
			for n := range each {
				body := `{"type":"a","args":[],"options":{"queue":"bouncer"}}`
				if n%3 == 0 {
					body = fmt.Sprintf(`{"id":%q,"type":"a","args":[],"options":{"queue":"bouncer"}}`, uuid.Must(uuid.NewV7()))
				}
				a.push(body, fmt.Sprintf("X-OJS-Tenant: t%d", p))
				if n%10 == 0 {
					a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+`{"type":"a","args":[],"options":{"queue":"bouncer"}}`+`]}`).want(201)
				}
			}
		})
	}
	var mu sync.Mutex
	done := 0
	for w := range workers {
		working.Go(func() {
			for {
				r := a.do(
					"POST", "/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["bouncer"],"worker_id":"w%d"}`, w), "Prefer: wait=2",
				).want(200)
				mu.Lock()
				all := done == jobs
				mu.Unlock()
				id := r.text("jobs.0.id")
				if id == "" && all {
					return
				} else if id == "" {
					continue
				}
				settle := fmt.Sprintf(`{"job_id":%q,"lease":%q}`, id, r.text("jobs.0.lease"))
				if a.do("POST", "/ojs/v1/workers/ack", settle).want(200); r.get("jobs.0.attempt") == nil {
					t.Errorf("no attempt in %s", r.body)
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
		})
	}
	producing.Wait()
	working.Wait()
	if got := a.count("select sum(jobs) from ojs.journal where queue = 'bouncer' and to_state = 'completed'"); got != jobs || done != jobs {
		t.Errorf("%d jobs, %d completed, %d acknowledged", jobs, got, done)
	}
}
