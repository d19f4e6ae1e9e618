package db_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// used is what a client counts for itself.
type used struct{ Enqueued, Attempts, Completed, Failed, FailedAttempts, WorkerMs int64 }

// ledger reads the usage ledger, by tenant and hour.
func ledger(t *testing.T, q querier) map[string]used {
	t.Helper()
	rows, err := q.Query(t.Context(), `select tenant_id || ' ' || to_char(hour at time zone 'UTC', 'DD HH24:MI'),
		enqueued, attempts, completed, failed, failed_attempts, worker_ms from ojs.usage_batches`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]used{}
	var key string
	var u used
	if _, err = pgx.ForEachRow(rows, []any{&key, &u.Enqueued, &u.Attempts, &u.Completed, &u.Failed, &u.FailedAttempts, &u.WorkerMs},
		func() error { all[key] = u; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// faults returns what ojs.verify_usage finds.
func faults(t *testing.T, q querier) string {
	t.Helper()
	return strings.Join(lines(t, q, "select f.tenant_id || ' ' || f.n || ' ' || f.fault from ojs.verify_usage() f"), ", ")
}

// PostgreSQL is killed five times within 48 hours, each time while it closes an hour. Two clocks tick at the same time. The ledger has the
// same numbers for each hour as the clients.
func TestUsageLedgerSurvivesKills(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"fsync": "off"})
	p.Exec(`create sequence public.test_clock; grant select on public.test_clock to public;
		create or replace function ojs.now() returns timestamptz language sql volatile set search_path = pg_catalog, pg_temp
		as $$ select 'epoch'::timestamptz + last_value * interval '1 microsecond' from public.test_clock $$`)
	var now time.Time
	at := func(next time.Time) {
		now = next
		p.Exec(fmt.Sprintf("select setval('public.test_clock', %d)", now.UnixMicro()))
	}
	var service *pgxpool.Pool
	begin := func() {
		var err error
		if service, err = pgxpool.New(t.Context(), p.ServiceURL); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	defer func() { service.Close() }()
	// Several servers tick at once; one of them does the work.
	tick := func() {
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := service.Exec(t.Context(), "select ojs.tick()"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tenants := []string{"busy", "steady", "rare", "odd"}
	want := map[string]used{}
	// work enqueues some jobs of a tenant, and runs them for some seconds. It ends the attempts in one of three ways.
	work := func(tenant string) {
		t.Helper()
		key := tenant + " " + now.Format("02 15") + ":00"
		u := want[key]
		jobs := 1 + random.IntN(6)
		for range jobs {
			exec(t, service, `select ojs.enqueue('a', p_queue => $1, p_tenant => $1, p_retry => '{"max_attempts": 1}')`, tenant)
		}
		ids := list[string](t, service, "select id::text from ojs.fetch(array[$1], 100)", tenant)
		ran := time.Duration(1+random.IntN(300)) * time.Second / 4
		at(now.Add(ran))
		failed := random.IntN(len(ids) + 1)
		for _, id := range ids[:failed] {
			exec(t, service, `select ojs.nack($1, '{"message": "m"}')`, id)
		}
		switch rest := ids[failed:]; random.IntN(3) {
		case 0:
			for _, id := range rest {
				exec(t, service, "select ojs.ack($1)", id)
			}
		case 1:
			exec(t, service, "select ojs.ack_many($1::uuid[])", rest)
		case 2:
			if len(rest) > 0 {
				exec(t, service, "select ojs.settle((select json_agg(json_build_object('id', i)) from unnest($1::text[]) i))", rest)
			}
		}
		u.Enqueued, u.Attempts = u.Enqueued+int64(jobs), u.Attempts+int64(len(ids))
		u.Completed, u.Failed = u.Completed+int64(len(ids)-failed), u.Failed+int64(failed)
		u.FailedAttempts, u.WorkerMs = u.FailedAttempts+int64(failed), u.WorkerMs+ran.Milliseconds()*int64(len(ids))
		want[key] = u
	}

	const hours = 48
	kills := random.Perm(hours - 1)[:5]
	killed := 0
	for h := range hours {
		hour := noon.Add(time.Duration(h) * time.Hour)
		at(hour.Add(time.Second))
		if slices.Contains(kills, h-1) {
			killed++
			// The first session has closed the hours and not committed. In two of the cases another one commits at this moment.
			conn, err := pgx.Connect(t.Context(), p.ServiceURL)
			if err != nil {
				t.Fatal(err)
			}
			if killed%2 == 1 {
				exec(t, conn, "begin")
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = conn.Exec(context.WithoutCancel(t.Context()), "select ojs.tick()")
				time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
			}()
			if killed%2 == 1 {
				<-ended
				if n := one[int](t, conn, "select count(*) from ojs.usage_batches"); n == 0 {
					t.Error("the session that is killed has closed no hour")
				}
			} else {
				time.Sleep(time.Duration(5+random.IntN(20)) * time.Millisecond)
			}
			p.Kill()
			<-ended
			service.Close()
			p.Start()
			begin()
			at(hour.Add(2 * time.Second))
		}
		tick()
		for i, tenant := range tenants {
			if i == 0 || random.IntN(i+1) == 0 {
				at(hour.Add(time.Duration(5+10*i) * time.Minute))
				work(tenant)
			}
		}
		at(hour.Add(50 * time.Minute))
		tick()
	}
	at(noon.Add(hours*time.Hour + time.Minute))
	tick()

	got := ledger(t, service)
	for key, u := range want {
		if got[key] != u {
			t.Errorf("%s: the ledger has %+v, the clients counted %+v", key, got[key], u)
		}
		delete(got, key)
	}
	for key, u := range got {
		t.Errorf("%s: nothing was done, and the ledger has %+v", key, u)
	}
	if got := lines(t, service, "select tenant_id from ojs.usage_batches group by tenant_id having count(*) <> max(n)"); len(got) > 0 {
		t.Errorf("there are gaps in the chains of %v", got)
	}
	if got := faults(t, service); got != "" {
		t.Errorf("the ledger has faults: %s", got)
	}
	t.Logf("%d rows, %d kills", one[int](t, service, "select count(*) from ojs.usage_batches"), killed)
}

// hoursOf enqueues a job in each of some hours, and closes them.
func hoursOf(t *testing.T, d *pgtest.DB, tenant string, from, to int) {
	t.Helper()
	service := d.Service()
	for h := from; h < to; h++ {
		d.SetNow(noon.Add(time.Duration(h) * time.Hour))
		exec(t, service, "select ojs.tick()")
		exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => $1)", tenant)
		exec(t, service, "select ojs.tick()")
	}
	d.SetNow(noon.Add(time.Duration(to) * time.Hour))
	exec(t, service, "select ojs.tick()")
}

// A change by a role that may write into the tables is found.
func TestVerifyUsageFindsWhatWasChanged(t *testing.T) {
	t.Parallel()
	const hashed = "update ojs.usage_batch b set hash = ojs._usage_hash(b)"
	for name, c := range map[string]struct{ change, want string }{
		"nothing":      {"", ""},
		"a number":     {"update ojs.usage_batch set enqueued = 2 where n = 3", "acme 3 changed"},
		"all numbers":  {"update ojs.usage_batch set worker_ms = 0, enqueued = 7", "acme 1 changed, globex 1 changed"},
		"with hash":    {"update ojs.usage_batch set enqueued = 2 where n = 3;" + hashed, "acme 4 not chained"},
		"the last one": {"update ojs.usage_batch set enqueued = 2 where n = 5;" + hashed, "acme 5 not chained"},
		"a row gone":   {"delete from ojs.usage_batch where n = 2 and tenant_id = 'acme'", "acme 3 missing before"},
		"the first":    {"delete from ojs.usage_batch where n = 1 and tenant_id = 'acme'", "acme 2 missing before"},
		"the last":     {"delete from ojs.usage_batch where n = 5", "acme 5 missing"},
		"all":          {"delete from ojs.usage_batch where tenant_id = 'acme'", "acme 5 missing"},
		"one more": {`insert into ojs.usage_batch select tenant_id, 6, hour - interval '1 year', closed_at, 1, 1, 1, 1, 1, 1, 1,
				1, 1, hash, ''
			from ojs.usage_batch where n = 5; update ojs.usage_batch b set hash = ojs._usage_hash(b)`, "acme 6 added"},
		"of nobody": {`insert into ojs.usage_batch select 'x', 1, hour, closed_at, 1, 1, 1, 1, 1, 1, 1, 1, 1, hash, ''
			from ojs.usage_batch where n = 5`, "x 1 added"},
		"in between": {
			`update ojs.usage_batch set n = n + 1 where n = 5; update ojs.usage_batch set n = n + 1 where n = 4;
			insert into ojs.usage_batch select tenant_id, 4, hour - interval '1 year', closed_at, 1, 1, 1, 1, 1, 1, 1, 1, 1, hash, ''
			from ojs.usage_batch where n = 3 and tenant_id = 'acme'; ` + hashed,
			"acme 5 not chained",
		},
		"an hour twice": {
			`alter table ojs.usage_batch drop constraint one_row_per_hour;
			update ojs.usage_batch b set hour = (select hour from ojs.usage_batch where n = 4) where n = 5;
			update ojs.usage_batch b set hash = ojs._usage_hash(b) where n = 5;
			update ojs.usage_mark m set hash = (select hash from ojs.usage_batch where n = 5) where tenant_id = 'acme'`,
			"acme 5 hour twice",
		},
		"pruned": {"select ojs.prune_usage('2031-05-04 14:30+00')", ""},
		"pruned and the first gone": {
			"select ojs.prune_usage('2031-05-04 14:30+00'); delete from ojs.usage_batch where n = 4", "acme 5 missing before",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			hoursOf(t, d, "globex", 0, 1)
			hoursOf(t, d, "acme", 1, 6)
			for change := range strings.SplitSeq(c.change, ";") {
				exec(t, d.Pool, change)
			}
			if got := faults(t, d.Operator()); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// A reader without this database can verify a chain by the documented text.
func TestUsageHashCanBeVerifiedElsewhere(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	hoursOf(t, d, "acme", 0, 2)
	exec(t, d.Pool, "alter database "+d.Name+" set timezone = 'Asia/Kathmandu'")
	exec(t, d.Pool, "alter database "+d.Name+" set datestyle = 'German'")
	conn := connect(t, d.OperatorURL())
	first := sha256.Sum256([]byte(`{"tenant_id":"acme","n":1,"hour":"2031-05-04T12:00:00Z","closed_at":"2031-05-04T13:00:00.000000Z",` +
		`"enqueued":1,"attempts":0,"completed":0,"failed":0,"failed_attempts":0,"worker_ms":0,"stored_bytes":null,` +
		`"refused_429":0,"refused_507":0,"previous":null}`))
	if got := one[string](t, conn, "select previous from ojs.usage_batches where n = 2"); got != hex.EncodeToString(first[:]) {
		t.Errorf("the second row follows %s, not %x", got, first)
	}
	if got := faults(t, conn); got != "" {
		t.Error(got)
	}
}

// What a transaction did that commits after the hour is closed counts in the hour that rolls it up. Nothing is lost, and the closed row
// stays as it is.
func TestUsageOfALateCommit(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	late := connect(t, d.ServiceURL)
	d.SetNow(noon.Add(59 * time.Minute))
	exec(t, late, "begin")
	exec(t, late, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
	exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
	exec(t, service, "select ojs.tick()")
	d.SetNow(noon.Add(61 * time.Minute))
	exec(t, service, "select ojs.tick()")
	exec(t, late, "commit")
	exec(t, service, "select ojs.tick()")
	d.SetNow(noon.Add(121 * time.Minute))
	exec(t, service, "select ojs.tick()")
	want := map[string]used{"acme 04 12:00": {Enqueued: 1}, "acme 04 13:00": {Enqueued: 1}}
	if got := ledger(t, service); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the ledger has %v, want %v", got, want)
	}
}

// An idle hour has no row, also if the clock stood still for hours, and an idle system writes nothing.
func TestUsageOfIdleTenants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	hoursOf(t, d, "acme", 0, 1)
	mark := one[string](t, d.Pool, "select usage_at::text || usage_rev from ojs.tally_mark")
	for h := range 5 {
		d.SetNow(noon.Add(time.Duration(2+h) * time.Hour))
		exec(t, service, "select ojs.tick()")
	}
	if got := one[string](t, d.Pool, "select usage_at::text || usage_rev from ojs.tally_mark"); got != mark {
		t.Errorf("an idle system has looked: %s after %s", got, mark)
	}
	hoursOf(t, d, "globex", 9, 10)
	want := map[string]used{"acme 04 12:00": {Enqueued: 1}, "globex 04 21:00": {Enqueued: 1}}
	if got := ledger(t, service); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the ledger has %v, want %v", got, want)
	}
}

// The wall clock is set back by an hour and a half, and ahead by a year for a moment. No hour has two rows, no number is lost.
func TestUsageWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	jobs := 0
	job := func(at time.Duration) {
		t.Helper()
		d.SetNow(noon.Add(at))
		exec(t, service, "select ojs.tick()")
		exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
		exec(t, service, "select ojs.tick()")
		jobs++
	}
	for _, at := range []time.Duration{10, 50, 70, 130, 150, 60, 90, 125, 190, 365 * 24 * 60, 200, 250, 310} {
		job(at * time.Minute)
	}
	for _, hour := range []time.Duration{7, 8} {
		d.SetNow(noon.Add(hour * time.Hour))
		exec(t, service, "select ojs.tick()")
	}
	if got := one[int](t, service, "select sum(enqueued) from ojs.usage_batches"); got != jobs {
		t.Errorf("the ledger has %d jobs, want %d: %v", got, jobs, ledger(t, service))
	}
	if got := faults(t, service); got != "" {
		t.Error(got)
	}
}

// Refusals count in the hour that has ended when they are closed, also if nothing else happened in it, and each once.
func TestUsageOfRefusals(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	note := func(tenant, resource string, n int) {
		t.Helper()
		exec(t, service, "select ojs.note_refusals(array[$1], array[''], array[$2], array[$3::int])", tenant, resource, n)
	}
	d.SetNow(noon.Add(30 * time.Minute))
	note("acme", "max_queue_depth", 3)
	note("acme", "max_enqueue_rate", 4)
	note("acme", "max_stored_bytes", 5)
	note("", "max_depth", 9)
	late := connect(t, d.ServiceURL)
	exec(t, late, "begin")
	exec(t, late, "select ojs.note_refusals('{acme}', '{q}', '{max_depth}', '{10}')")
	d.SetNow(noon.Add(60 * time.Minute))
	exec(t, service, "select ojs.tick()")
	exec(t, late, "commit")
	for _, minute := range []time.Duration{61, 120, 121, 180} {
		d.SetNow(noon.Add(minute * time.Minute))
		exec(t, service, "select ojs.tick()")
	}
	got := lines(t, service, `select to_char(hour at time zone 'UTC', 'HH24') || ' ' || refused_429 || ' ' || refused_507
		from ojs.usage_batches order by n`)
	if want := []string{"12 7 5", "13 10 0"}; !slices.Equal(got, want) {
		t.Errorf("the ledger has %q, want %q", got, want)
	}
	if n := one[int](t, d.Pool, "select count(*) from ojs.refused where requests > counted"); n != 0 {
		t.Errorf("%d refusals wait", n)
	}
}

// The bytes of a tenant with a limit on them are those that count against it.
func TestUsageOfStoredBytes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	exec(t, d.Operator(), `select ojs.configure_limits('acme', '{"max_stored_bytes": 1000000}')`)
	exec(t, d.Operator(), "select ojs.upkeep()")
	hoursOf(t, d, "acme", 0, 1)
	bytes := one[int64](t, d.Operator(), "select current from ojs.limits where tenant_id = 'acme'")
	if got := one[int64](t, d.Operator(), "select stored_bytes from ojs.usage_batches"); got != bytes || got < 500 {
		t.Errorf("the ledger has %d bytes, want %d", got, bytes)
	}
}

// A tenant's login reads and verifies its own rows; nobody may write, and operators alone prune.
func TestUsageIsATenantsOwn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	hoursOf(t, d, "globex", 0, 3)
	hoursOf(t, d, "acme", 3, 5)
	acme := d.As("acme")
	if got := lines(t, acme, "select distinct tenant_id from ojs.usage_batches"); !slices.Equal(got, []string{"acme"}) {
		t.Errorf("acme reads the rows of %v", got)
	}
	exec(t, d.Pool, "update ojs.usage_batch set enqueued = 3 where n = 2")
	if got := faults(t, acme); got != "acme 2 changed" {
		t.Errorf("acme finds %q", got)
	}
	for who, q := range map[string]querier{"acme": acme, "the service": d.Service(), "an operator": d.Operator()} {
		for _, sql := range []string{
			"update ojs.usage_batch set enqueued = 9", "delete from ojs.usage_batch", "insert into ojs.usage_mark (tenant_id) values ('x')",
			"truncate ojs.usage_batch", "update ojs.usage_batches set enqueued = 9", "update ojs.usage_mark set n = 9",
		} {
			_, err := q.Exec(t.Context(), sql)
			if err == nil || !strings.Contains(err.Error(), "denied") && !strings.Contains(err.Error(), "cannot") {
				t.Errorf("%s may %s: %v", who, sql, err)
			}
		}
		if _, err := q.Exec(t.Context(), "select ojs.prune_usage('2031-05-04 14:30+00')"); (err == nil) != (who == "an operator") {
			t.Errorf("%s prunes: %v", who, err)
		}
	}
	for _, sql := range []string{"select ojs.verify_usage('globex')", "select * from ojs.usage_batch"} {
		if _, err := acme.Exec(t.Context(), sql); err == nil {
			t.Errorf("acme may %s", sql)
		}
	}
	if got := one[int](t, d.Operator(), "select count(*) from ojs.usage_batches where tenant_id = 'globex'"); got != 1 {
		t.Errorf("%d rows of globex are left, want its last one", got)
	}
}

// A logical copy counts its jobs anew. What was closed stays closed, and what was not closed is closed once.
func TestUsageAfterARecount(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	hoursOf(t, d, "acme", 0, 2)
	exec(t, d.Service(), "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
	exec(t, d.Service(), "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'globex')")
	exec(t, d.Service(), "select ojs.tick()")
	exec(t, d.Pool, "delete from ojs.job where tenant_id = 'acme' and id = (select min(id::text)::uuid from ojs.job)")
	exec(t, d.Pool, "select ojs._recount()")
	hoursOf(t, d, "acme", 3, 4)
	want := map[string]used{
		"acme 04 12:00": {Enqueued: 1}, "acme 04 13:00": {Enqueued: 1}, "acme 04 14:00": {Enqueued: 1}, "globex 04 14:00": {Enqueued: 1},
		"acme 04 15:00": {Enqueued: 1},
	}
	if got := ledger(t, d.Service()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the ledger has %v, want %v", got, want)
	}
}
