//go:build unix

package bench

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T, url string) *Env {
	t.Helper()
	env, err := Open(t.Context(), Options{DatabaseURL: url, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

var brief = Load{Workers: 2, Batch: 5, ArgsBytes: 20, Slices: 1, Seconds: 0.2}

// Jobs, tenants and queues of somebody else are neither measured with nor deleted.
func TestADatabaseInUseIsRefused(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]string{
		"jobs":    `select ojs.enqueue('somebody.else')`,
		"tenants": `select ojs.configure_tenant('acme', 3)`,
		"queues":  `select ojs.pause_queue('default')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			if _, err := database.Pool.Exec(t.Context(), use); err != nil {
				t.Fatal(err)
			}
			env := open(t, database.URL)
			if _, err := Dispatch(t.Context(), env, DispatchOptions{Load: brief, Path: "combined", Tenants: 3}); err == nil || !strings.Contains(err.Error(), "holds jobs or configuration") {
				t.Errorf("it answered %v", err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			var left int
			err := database.Pool.QueryRow(t.Context(), `select (select count(*) from ojs.job) + (select count(*) from ojs.tenant) + (select count(*) from ojs.queue)`).Scan(&left)
			if err != nil || left != 1 {
				t.Errorf("%d rows are left, %v; want the one that was there", left, err)
			}
		})
	}
}

// Every way to the jobs gives a sequence that agrees with the responses, and the database is left as it was, also when the run before was killed.
func TestEveryPathIsFollowedAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"combined", "sql", "http"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			// As a killed run leaves it.
			if _, err := database.Pool.Exec(t.Context(), baselineSchema+`; select ojs.enqueue('bench.job', p_queue => 'bench')`); err != nil {
				t.Fatal(err)
			}
			env := open(t, database.URL)
			r, err := Dispatch(t.Context(), env, DispatchOptions{Load: brief, Path: path, Client: "usual", Tenants: 3})
			if err != nil {
				t.Fatal(err)
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
			if r.Dispatches == 0 || r.MaxLagQuanta <= 0 || r.MaxLagQuanta > 2 || r.ShortResponses != 0 {
				t.Errorf("%d dispatches, lag %v, %d short responses", r.Dispatches, r.MaxLagQuanta, r.ShortResponses)
			}
			var left bool
			err = database.Pool.QueryRow(t.Context(), `
				select exists (select from ojs.job) or exists (select from ojs.lease) or exists (select from ojs.tenant) or to_regnamespace('ojs_bench') is not null`).Scan(&left)
			if err != nil || left {
				t.Errorf("something is left behind: %t, %v", left, err)
			}
		})
	}
}

// A schema of the same name that somebody else made is not touched.
func TestASchemaOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := database.Pool.Exec(t.Context(), `create schema ojs_bench`); err != nil {
		t.Fatal(err)
	}
	env := open(t, database.URL)
	if _, err := Wakeup(t.Context(), env, WakeupOptions{}); err == nil || !strings.Contains(err.Error(), "did not make") {
		t.Errorf("it answered %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}
