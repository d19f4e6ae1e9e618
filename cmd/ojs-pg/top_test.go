package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestAdminExplains(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	id := pgtest.One[string](t, o.pool, "select id::text from ojs.job where tenant_id = 'globex' and queue = 'mail'")
	got := o.admin(0, "explain", id)
	for _, want := range []string{
		"Job " + id + " of tenant globex, in queue mail", " is available and has waited for ",
		"  - Before it, because it is their turn: 1 job of other tenants.\n",
		"  - No worker seems to ask for queue mail", "Jobs of queue mail that are handed out before it: 1.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	var row map[string]any
	if err := json.Unmarshal([]byte(o.admin(0, "--json", "explain", id)), &row); err != nil || row["certainty"] != "exact" {
		t.Errorf("%v: %v", row, err)
	}
	if got := o.admin(1, "--tenant", "acme", "explain", id); !strings.Contains(got, id+" not found") {
		t.Error(got)
	}
	o.admin(2, "explain", "nothing")
	o.lines(o.admin(0, "--tenant", "globex", "preview-weight", "9"), "tenant weight_now weight_then share_now share_then",
		"globex 1 9 25.0% 75.0%", "acme 3 3 75.0% 25.0%")
	o.admin(2, "preview-weight", "9")
	o.admin(2, "--tenant", "globex", "preview-weight", "much")
	o.admin(1, "--tenant", "globex", "preview-weight", "0")
}

// Into a file it is printed once.
func TestTop(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	o.sql("select ojs.fetch('{mail}', 1, p_tenant => 'acme')")
	o.sql("select ojs.pause('dead')")
	top := func(status int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if got := run(append([]string{"ojs-pg", "top", "--database-url", o.url}, args...), &stdout, &stderr); got != status {
			t.Fatalf("top %v ends with %d:\n%s%s", args, got, &stdout, &stderr)
		}
		return stdout.String() + stderr.String()
	}
	text := top(0)
	o.lines(text, "QUEUE WAITING ACTIVE LAST MIN OF ALL OLDEST", "mail 2 1 1 100.0%", "dead (paused) 1 0 0 0.0%",
		"TENANT WEIGHT WAITING ACTIVE OLDEST SHARE IDEAL", "globex 1 2 0", "acme 3 1 1")
	o.lines(strings.ReplaceAll(text, "0.", ""), "acme 3 1 1 ")
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "100.0%    75.0%\n") {
		t.Errorf("printed is %q", text)
	}
	if strings.Contains(top(0, "--rows", "1", "--once"), "dead") {
		t.Error("more than one row is printed")
	}
	top(2, "--rows", "0")
	top(2, "--interval", "1ms")
	top(2, "acme")

	// On a screen it overwrites what was there, line by line.
	var screen strings.Builder
	if err := showTop(t.Context(), sqlcgen.New(o.pool), &screen, 5, true); err != nil {
		t.Fatal(err)
	}
	got := screen.String()
	if !strings.HasPrefix(got, cursorHome) || !strings.HasSuffix(got, clearScreen) ||
		strings.Count(got, "\n") != strings.Count(got, clearLine) {
		t.Errorf("on a screen it writes %q", got)
	}
}

func TestTopFitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 200)
	for _, n := range []int64{0, 9_999_999, 10_000_000, 999_999_999, 12_345_678_901, math.MaxInt64 / 1_000_000} {
		text := topText(time.Now(),
			[]sqlcgen.TopQueuesRow{{
				Name: long, Backlog: n, Active: n, Dispatched1m: n, Ratio1m: 1, OldestWaitSeconds: float64(n), Paused: true,
			}},
			[]sqlcgen.TopTenantsRow{{ID: long, Weight: 0.000001234, Backlog: n, Active: n, Share1m: 1, IdealShare: 1}},
			map[string]float64{long: 86_400 * 9999})
		for line := range strings.Lines(text) {
			if len(line) > 81 && n < 1e10 {
				t.Errorf("%d columns: %s", len(line)-1, line)
			}
		}
		if n < 1e10 && len(admin.Count(n)) > 7 {
			t.Errorf("%d is %s", n, admin.Count(n))
		}
	}
	for seconds, want := range map[float64]string{0: "-", 0.25: "0.2s", 59.94: "59.9s", 61: "1m01s", 3_700: "1h01m", 90_000: "1d01h"} {
		if got := admin.Age(seconds); got != want {
			t.Errorf("%v s are %s, want %s", seconds, got, want)
		}
	}
}

// It goes on until it is told to stop, which is no failure, and ends when the database does.
func TestTopWatches(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	if err := watch(ctx, time.Millisecond, func() error {
		if looks++; looks == 3 {
			cancel()
			return ctx.Err()
		}
		return nil
	}); err != nil || looks != 3 {
		t.Errorf("after %d looks it ends with %v", looks, err)
	}
	broken := errors.New("away")
	if err := watch(t.Context(), time.Hour, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("it ends with %v", err)
	}
}
