package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// uuidAt is the lowest UUIDv7 of an instant: ids made before it sort below.
func uuidAt(at time.Time) string {
	var id uuid.UUID
	ms := at.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	id[6], id[8] = 0x70, 0x80
	return id.String()
}

// Retention by drop: the table of jobs is cut at an instant into a partition of the past and one of the future without a byte
// being rewritten, work goes on in both, and the past goes away in one drop once nothing in it is unfinished.
func TestPartitionsAreCutWithoutARewriteAndDropped(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := database.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	number := func(sql string) (n int64) {
		t.Helper()
		if err := database.Pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}
	enqueueFor(t, service, "default", "acme", 200)
	before := number(`select pg_relation_filenode('ojs.job_all')::bigint`)
	size := number(`select pg_relation_size('ojs.job_all')`)

	// The constraint is validated beside running work; with it in place the attach itself reads nothing.
	cut := uuidAt(time.Now().Add(time.Second))
	exec(`alter table ojs.job_all add constraint job_before_cut check (id < '` + cut + `') not valid`)
	exec(`alter table ojs.job_all validate constraint job_before_cut`)
	exec(`begin; lock table ojs.job; alter table ojs.job detach partition ojs.job_all;
		alter table ojs.job attach partition ojs.job_all for values from (minvalue) to ('` + cut + `');
		create table ojs.job_next partition of ojs.job for values from ('` + cut + `') to (maxvalue);
		alter table ojs.job_next owner to ojs_owner; commit`)
	if after := number(`select pg_relation_filenode('ojs.job_all')::bigint`); after != before || number(`select pg_relation_size('ojs.job_all')`) != size {
		t.Fatalf("the partition was rewritten: file %d, was %d", after, before)
	}

	// Jobs of both sides of the cut are one queue.
	for i := range 50 {
		id := uuidAt(time.Now().Add(time.Hour + time.Duration(i)*time.Millisecond))
		if _, err := service.Exec(t.Context(), `select ojs.enqueue('fair.job', p_id => $1, p_tenant => 'acme')`, id); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(`select count(*) from ojs.job_next`); n != 50 {
		t.Fatalf("%d jobs in the new partition, want 50", n)
	}
	var last int64
	for total := 0; total < 250; {
		d, err := fetchJobs(t.Context(), service, "default", 60)
		if err != nil || len(d.jobs) == 0 {
			t.Fatalf("after %d jobs: %d, %v", total, len(d.jobs), err)
		}
		for _, j := range d.jobs {
			if j.seq <= last {
				t.Fatalf("job %d came after job %d", j.seq, last)
			}
			last = j.seq
			if _, err := service.Exec(t.Context(), `select ojs.ack($1)`, j.id); err != nil {
				t.Fatal(err)
			}
		}
		total += len(d.jobs)
	}

	if n := number(`select count(*) from ojs.job_all where state not in ('completed', 'cancelled', 'discarded')`); n != 0 {
		t.Fatalf("%d unfinished jobs in the old partition", n)
	}
	exec(`drop table ojs.job_all`)
	if n := number(`select count(*) from ojs.job`); n != 50 {
		t.Errorf("%d jobs after the drop, want the 50 of the new partition", n)
	}
}
