package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A role with four connections: one listens, and the pool has the rest. The server would like
// seventeen and one more to ask whether it is ready.
func TestAServerWithFewConnectionsServes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a := &api{t: t, db: d, pool: d.Pool, log: &pgtest.Log{}}
	log := slog.New(slog.NewTextHandler(a.log, nil))
	door, err := pg.Open(t.Context(), pg.Config{URL: d.LoginURL("lim", "connection limit 4 in role ojs_service"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	a.serve(door)
	pgtest.Eventually(t, "it listens", func() bool {
		return a.count("select count(*) from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake'") > 0
	})
	var all sync.WaitGroup
	for n := range 12 {
		all.Go(func() {
			for range 20 {
				r := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`)
				if r.status != 201 {
					t.Errorf("an enqueue answers %d: %s", r.status, r.body)
				}
				if n > 8 {
					a.do("GET", "/ready", "").want(200)
				} else {
					a.do("GET", "/ojs/v1/queues", "").want(200)
				}
			}
		})
	}
	all.Wait()
	if n := strings.Count(a.log.String(), "PostgreSQL refuses further connections"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// unready checks that the server says why it is not ready, in its answers and once in its log.
func (a *api) unready(reason string) {
	a.t.Helper()
	for range 3 {
		a.do("GET", "/ready", "").want(503).is(map[string]any{"status": "database unavailable", "reason": reason})
		a.do("GET", "/ojs/v1/health", "").want(503).is(map[string]any{"status": "degraded", "backend.error": reason})
	}
	a.do("GET", "/health", "").want(200)
	if n := strings.Count(a.log.String(), fmt.Sprintf("the server is not ready\" reason=%q", reason)); n != 1 {
		a.t.Errorf("the log says it %d times:\n%s", n, a.log)
	}
}

func TestABaseBackupThatIsAStandbyIsNotReady(t *testing.T) {
	t.Parallel()
	primary := pgtest.NewPrivate(t, nil)
	standby := primary.Standby()
	standby.Start()
	door, err := pg.Open(t.Context(), pg.Config{URL: standby.ServiceURL, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	a := &api{t: t, log: &pgtest.Log{}}
	if a.pool, err = pgxpool.New(context.Background(), standby.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.pool.Close)
	a.serve(door)
	pgtest.Eventually(t, "the log says it at the start", func() bool {
		return strings.Contains(a.log.String(), "not ready") && strings.Contains(a.log.String(), "standby")
	})
	a.unready(pg.UnableStandby.Error())
	if _, err := a.pool.Exec(t.Context(), "select pg_promote()"); err != nil {
		t.Fatal(err)
	}
	a.do("GET", "/ready", "").want(200).is(map[string]any{"status": "ready"})
	if n := strings.Count(a.log.String(), "the server is ready again"); n != 1 {
		t.Errorf("the log says %d times that it is over", n)
	}
}

func TestADatabaseThatRefusesWritesIsNotReady(t *testing.T) {
	t.Parallel()
	database := pgtest.NewPrivate(t, nil)
	door, err := pg.Open(t.Context(), pg.Config{URL: database.ServiceURL, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	a := &api{t: t, log: &pgtest.Log{}}
	a.serve(door)
	a.do("GET", "/ready", "").want(200)
	set := func(value string) {
		t.Helper()
		database.Exec("alter system set default_transaction_read_only = " + value)
		database.Exec("select pg_reload_conf()")
	}
	set("on")
	pgtest.Eventually(t, "it is read-only", func() bool { return a.do("GET", "/ready", "").status == 503 })
	a.unready(pg.UnableReadOnly.Error())
	database.Exec("alter system reset default_transaction_read_only")
	database.Exec("select pg_reload_conf()")
	pgtest.Eventually(t, "it accepts writes", func() bool { return a.do("GET", "/ready", "").status == 200 })

	// A full disk, as PostgreSQL tells of it.
	const full = "do $$ begin raise exception 'could not extend file' using errcode = '53100'; end $$"
	a.srv.db.Pool().Exec(t.Context(), full) //nolint:errcheck
	a.unready(pg.UnableDiskFull.Error())
}

// A right that the server's login lacks is no tenant's fault.
func TestARightThatTheServerLacksIsNoTenantsFault(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.pool, "revoke execute on all functions in schema ojs from ojs_service")
	r := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, "X-OJS-Tenant: acme").want(503)
	r.is(map[string]any{"error.code": "backend_unavailable", "error.retryable": true})
	if strings.Contains(string(r.body), "permission") {
		t.Errorf("the answer names what the server lacks: %s", r.body)
	}
	if !strings.Contains(a.log.String(), "42501") || !strings.Contains(a.log.String(), "level=ERROR") {
		t.Errorf("the log does not say it: %s", a.log)
	}
	problem := a.srv.problems.classify(&pgconn.PgError{Code: "42501", Message: "permission denied for table job"})
	if problem.Status != http.StatusServiceUnavailable || !errors.As(problem.Err, new(*pgconn.PgError)) {
		t.Errorf("%+v", problem)
	}
}

// Callers are not told why their token is refused, and operators are, once a minute for each reason.
func TestTheLogSaysWhyTokensAreRefused(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Tokens = tokens(t) })
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
	good := token(t, "acme", "read", nil)
	for reason, sent := range map[jwt.Reason]string{
		jwt.Expired:       token(t, "acme", "read", map[string]any{"exp": ago(5 * time.Minute)}),
		jwt.NotYetValid:   token(t, "acme", "read", map[string]any{"nbf": ago(-2 * time.Minute)}),
		jwt.WrongIssuer:   token(t, "acme", "read", map[string]any{"iss": "https://other.test"}),
		jwt.WrongAudience: token(t, "acme", "read", map[string]any{"aud": "other"}),
		jwt.BadClaims:     token(t, "acme", "read", map[string]any{"tenant_id": 1}),
		jwt.BadSignature:  good[:len(good)-4] + "AAAA",
		jwt.Malformed:     "Authorization: Bearer a." + strings.Repeat("b", 5000) + ".c",
	} {
		for range 3 {
			r := a.do("GET", "/ojs/v1/jobs", "", sent).want(401)
			if strings.Contains(string(r.body), string(reason)) {
				t.Errorf("the answer says why: %s", r.body)
			}
		}
		if n := strings.Count(a.log.String(), fmt.Sprintf("level=WARN msg=\"a token is refused\" reason=%q", reason)); n != 1 {
			t.Errorf("the log says %q %d times", reason, n)
		}
		if strings.Contains(a.log.String(), sent[len(sent)-20:]) {
			t.Errorf("the log has the token: %s", a.log)
		}
	}
	for _, said := range []string{`it ended \S+ ago by this server's clock`, `it begins in \S+ by`} {
		if !regexp.MustCompile(said).MatchString(a.log.String()) {
			t.Errorf("the log does not say %q: %s", said, a.log)
		}
	}

	// Those refused meanwhile are in the next line.
	var log pgtest.Log
	var refused refusedTokens
	_, err := a.srv.tokens.Verify(t.Context(), strings.TrimPrefix(token(t, "acme", "", map[string]any{"exp": 1}), "Authorization: Bearer "))
	for _, at := range []time.Duration{0, time.Second, 59 * time.Second, 61 * time.Second} {
		refused.note(slog.New(slog.NewTextHandler(&log, nil)), err, time.Unix(2_000_000_000, 0).Add(at))
	}
	if lines := log.Lines(); len(lines) != 2 || !strings.Contains(lines[0], "tokens=1 ") || !strings.Contains(lines[1], "tokens=3 ") {
		t.Errorf("the log is %q", lines)
	}
}
