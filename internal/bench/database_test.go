//go:build unix

package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// childFlag is the argument with which benchmarks start this test binary as a child.
const childFlag = "bench-child"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childFlag {
		if err := RunChild(context.Background(), os.Args[2], os.Stdin, os.Stdout, slog.New(slog.DiscardHandler)); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

// open opens the server at url, or starts a PostgreSQL if url is "".
func open(t *testing.T, url string, stock bool) *Env {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env, err := Open(t.Context(), Options{
		DatabaseURL: url, BinDir: os.Getenv("OJS_TEST_PG_BIN"), Stock: stock, Self: []string{program, childFlag},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

var brief = Load{Workers: 2, Batch: 5, ArgsBytes: 20, Slices: 1, Seconds: 0.2}

// A database that holds jobs, tenants or queues is refused, and none of them is deleted.
func TestADatabaseInUseIsRefused(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]string{
		"jobs":    `select ojs.enqueue('somebody.else')`,
		"tenants": `select ojs.configure_tenant('acme', 3)`,
		"queues":  `select ojs.configure_queue('default')`,
		"rules":   `select ojs.pause('default')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			if _, err := database.Pool.Exec(t.Context(), use); err != nil {
				t.Fatal(err)
			}
			env := open(t, database.URL, false)
			_, err := Dispatch(t.Context(), env, DispatchOptions{Load: brief, Path: "combined", Tenants: 3, Baseline: Unfair})
			if err == nil || !strings.Contains(err.Error(), "holds jobs or configuration") {
				t.Errorf("it answered %v", err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			var left int
			err = database.Pool.QueryRow(t.Context(), `
				select (select count(*) from ojs.job) + (select count(*) from ojs.tenant) + (select count(*) from ojs.queue)
					+ (select count(*) from ojs.rule)`).Scan(&left)
			if err != nil || left != 1 {
				t.Errorf("%d rows are left, %v; want the one that was there", left, err)
			}
		})
	}
}

// For every path the sequence in the journal agrees with the responses. Afterwards the database is as it
// was before, also if the run before was killed.
func TestEveryPathIsFollowedAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"combined", "sql", "http"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			// As a killed run leaves it.
			left := baselineSchema + `; select ojs.enqueue('bench.job', p_queue => 'bench')`
			if _, err := database.Pool.Exec(t.Context(), left); err != nil {
				t.Fatal(err)
			}
			env := open(t, database.URL, false)
			r, err := Dispatch(t.Context(), env, DispatchOptions{Load: brief, Path: path, Tenants: 3, Baseline: Unfair})
			if err != nil {
				t.Fatal(err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			if r.BaselineMaxLagQuanta != nil {
				t.Errorf("the unfair baseline has a lag of %v", *r.BaselineMaxLagQuanta)
			}
			if r.Dispatches == 0 || r.MaxLagQuanta <= 0 || r.MaxLagQuanta > 2 || r.ShortResponses != 0 {
				t.Errorf("%d dispatches, lag %v, %d short responses", r.Dispatches, r.MaxLagQuanta, r.ShortResponses)
			}
			var remains bool
			err = database.Pool.QueryRow(t.Context(), `
				select exists (select from ojs.job) or exists (select from ojs.lease) or exists (select from ojs.tenant)
					or to_regnamespace('ojs_bench') is not null`).Scan(&remains)
			if err != nil || remains {
				t.Errorf("something is left behind: %t, %v", remains, err)
			}
		})
	}
}

// A schema ojs_bench without the mark is refused and not changed.
func TestASchemaOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := database.Pool.Exec(t.Context(), `create schema ojs_bench`); err != nil {
		t.Fatal(err)
	}
	env := open(t, database.URL, false)
	if _, err := Wakeup(t.Context(), env, WakeupOptions{}); err == nil || !strings.Contains(err.Error(), "did not make") {
		t.Errorf("it answered %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}

// All flags for worse conditions may be given together, and the processor times are known then.
func TestStockSettingsHogsPartitionsAndProducers(t *testing.T) {
	t.Parallel()
	var r *DispatchResult
	var env *Env
	load := brief
	load.Seconds = 0.5
	// On a loaded machine PostgreSQL or a producer may use too little processor time to measure in a short
	// slice. A worker that does not get the lane in time fetches without it, and lags then may exceed two
	// jobs.
	var withoutLane int
	measurable := func() bool {
		return withoutLane == 0 && *r.Live.PerSecond > 0 && *r.Live.BaselinePerSecond > 0 &&
			(r.CPU == nil || r.CPU.PostgreSQL > 0 && r.BaselineCPU.PostgreSQL > 0)
	}
	for try := 0; try == 0 || try < 4 && !measurable(); try++ {
		// A database of its own: the baseline can be made once only.
		own := open(t, "", true)
		defer func() {
			if err := own.Close(); err != nil {
				t.Error(err)
			}
		}()
		env = own
		var err error
		r, err = Dispatch(t.Context(), env, DispatchOptions{
			Load: load, Path: "sql", Tenants: 3, Partitions: 3, Producers: 1, Hogs: 1,
			Limits: true, Baseline: Fair,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = env.databases[0].control.QueryRow(t.Context(),
			"select count(*) from ojs.journal where from_state = 'available' and to_state = 'active' and owed > 0").Scan(&withoutLane)
		if err != nil {
			t.Fatal(err)
		}
	}
	if r.Partitions != 3 || r.Live.PerSecond == nil || *r.Live.PerSecond <= 0 || *r.Live.BaselinePerSecond <= 0 {
		t.Errorf("jobs in %d partitions, live %+v", r.Partitions, r.Live)
	}
	if r.MaxLagQuanta <= 0 || r.MaxLagQuanta > 2 && withoutLane == 0 {
		t.Errorf("lag %v", r.MaxLagQuanta)
	}
	if r.BaselineMaxLagQuanta == nil || *r.BaselineMaxLagQuanta <= 0 || r.BaselineShareErrorPP == nil {
		t.Errorf("of the fair baseline %+v", r.BaselineFairness)
	}
	if runtime.GOOS == "linux" && (r.CPU == nil || r.CPU.PostgreSQL <= 0 || r.CPU.Server == nil || *r.CPU.Client <= 0 ||
		r.BaselineCPU.Server != nil || *r.CPURatio <= 0) {
		t.Errorf("processors %+v", r.Processors)
	}
	var set int
	err := env.databases[0].control.QueryRow(t.Context(), `
		select count(*) from pg_settings
		where name in ('shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'max_connections') and source = 'command line'`).Scan(&set)
	if err != nil || set != 0 {
		t.Errorf("%d settings are not stock, %v", set, err)
	}
}

// The fair baseline takes jobs of each tenant by its weight, oldest first, and skips locked jobs.
func TestTheFairBaseline(t *testing.T) {
	t.Parallel()
	env := open(t, pgtest.New(t).URL, false)
	defer func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context()
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		t.Fatal(err)
	}
	people := newPopulation(3, false)
	if err := d.setBaseline(ctx, Fair, people, Load{Workers: 2, Batch: 8}); err != nil {
		t.Fatal(err)
	}
	loader, err := d.loader(ctx, "ojs_bench.job", 20)
	if err != nil {
		t.Fatal(err)
	}
	defer loader.close()
	if err := loader.load(ctx, people.names, []int64{30, 30, 30}, nil); err != nil {
		t.Fatal(err)
	}
	want := func(what string, conn *pgx.Conn, want ...string) {
		t.Helper()
		rows, err := conn.Query(ctx, "with jobs as ("+d.baseline.fetch()+") select tenant_id, seq from jobs", queue, 8, "w")
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var tenant string
			var seq int64
			err := row.Scan(&tenant, &seq)
			return fmt.Sprintf("%s:%d", tenant, (seq+2)/3), err
		})
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s, a worker gets %q, want %q (%v)", what, got, want, err)
		}
	}
	other, err := d.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want("first", other, "t0:1", "t0:2", "t0:3", "t0:4", "t0:5", "t1:1", "t1:2", "t1:3")
	want("beside another worker", d.control, "t0:10", "t0:6", "t0:7", "t0:8", "t0:9", "t1:4", "t1:5", "t2:1")
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	want("after that has rolled back", d.control, "t0:1", "t0:2", "t0:3", "t0:4", "t0:5", "t1:1", "t1:2", "t1:3")
}

// Light measures each job that it sends once.
func TestLightLoad(t *testing.T) {
	t.Parallel()
	env := open(t, pgtest.New(t).URL, false)
	r, err := Light(t.Context(), env, LightOptions{Rate: 200, Workers: 2, Seconds: 0.2, ArgsBytes: 20})
	if err != nil {
		t.Fatal(err)
	}
	if r.Jobs != 40 || r.P50ms <= 0 || r.P99ms < r.P50ms || r.WALBytesPerJob <= 0 {
		t.Errorf("%+v", r)
	}
	var open, done int
	err = env.databases[0].control.QueryRow(t.Context(),
		"select count(*) filter (where state <> 'completed'), count(*) from ojs.job").Scan(&open, &done)
	if err != nil || open != 0 || done != 44 {
		t.Errorf("%d jobs, of which %d have not ended, %v", done, open, err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}

// A hog computes until it is stopped, or until the program that started it ends.
func TestHogsEnd(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := &Env{self: []string{program, childFlag}}
	stop, err := env.hogs(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	stop()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := env.child(ctx, "hog")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.hear(); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		pgtest.Eventually(t, "it has computed for 100 ms", func() bool {
			computed, known := processTime(c.cmd.Process.Pid)
			if !known {
				t.Fatal("its processor time is not to be had")
			}
			return computed > 100*time.Millisecond
		})
	}
	cancel()
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A scenario judges as many jobs as were dispatched, and the same seed gives the same arrivals.
func TestChurnIsJudged(t *testing.T) {
	t.Parallel()
	var arrivals [2][]int64
	for i := range arrivals {
		env := open(t, pgtest.New(t).URL, false)
		r, err := Churn(t.Context(), env, ChurnOptions{Dispatches: 30, ArgsBytes: 20, Seed: 11})
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range r.Scenarios {
			if s.Dispatches != 30 || s.MaxLag <= 0 || s.SmallMaxLag <= 0 ||
				s.Within != (s.MaxLag <= s.Bound && s.SmallMaxLag <= s.SmallBound) {
				t.Errorf("%+v", s)
			}
			arrivals[i] = append(arrivals[i], s.Arrivals)
		}
	}
	if !slices.Equal(arrivals[0], arrivals[1]) {
		t.Errorf("jobs arrived: %v, and with the same seed %v", arrivals[0], arrivals[1])
	}
}
