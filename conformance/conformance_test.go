package conformance

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/conformance/internal/engine"
)

// declared are the public folders of which every case passes. A folder is added when all its cases do.
var declared = []string{
	"ext-admin-api", "ext-backpressure", "ext-dead-letter", "ext-fair-scheduling", "ext-graceful-shutdown", "ext-multi-tenancy",
	"ext-observability", "level-0-core", "level-1-reliable", "level-2-scheduled",
}

// caseTimeout ends a case that hangs. The longest public case sleeps for a bit more than two minutes.
const caseTimeout = 4 * time.Minute

// impossible are public cases that contradict themselves. They are played all the same: the named
// expectations must fail, and all others must hold.
var impossible = map[string]struct {
	reason string
	at     []string
}{
	"L1-RTR-014": {
		reason: "it expects three error types in the job's history, but the failures that its own steps report " +
			"carry no type, only a code and a message",
		at: []string{"$.job.errors[0].type", "$.job.errors[1].type", "$.job.errors[2].type"},
	},
}

// refused returns the assertions for a job that breaks a rule of the envelope. The public cases accept
// any status from 400 to 422, so a server without the route (404) would pass them.
func refused(field string) map[string]string {
	return map[string]string{"*": fmt.Sprintf(`{
		"status_in": [400, 422],
		"body": {
			"$.error.code": {"$in": ["invalid_request", "invalid_payload", "schema_validation", "validation_error"]},
			"$.error.message": "string:contains:%s",
			"$.error.retryable": false
		}
	}`, field)}
}

// spelledOut holds assertions for what some public cases say only in prose. The keys are folder/name,
// because ids are not unique, and then the id of a step; "*" stands for all steps.
var spelledOut = map[string]map[string]string{
	"level-0-core/invalid-missing-type":          refused("type"),
	"level-0-core/invalid-type-format":           refused("type"),
	"level-0-core/invalid-missing-args":          refused("args"),
	"level-0-core/invalid-args-not-array":        refused("args"),
	"level-0-core/invalid-id-format":             refused("id"),
	"level-0-core/invalid-queue-format":          refused("queue"),
	"level-0-core/invalid-priority-out-of-range": refused("priority"),
	"ext-fair-scheduling/fair-scheduling-round-robin": {
		"step-3": `{"body": {"$.jobs": "array:length:4", "$.jobs[0].queue": "fs-rr-a", "$.jobs[1].queue": "fs-rr-b",
			"$.jobs[2].queue": "fs-rr-a", "$.jobs[3].queue": "fs-rr-b"}}`,
	},
	"ext-fair-scheduling/fair-scheduling-weighted-pool": {
		"step-1": `{"body": {"$.pool.weights.high-priority": 70, "$.pool.weights.low-priority": 30}}`,
	},
	"ext-multi-tenancy/multi-tenancy-tenant-queue-stats": {
		"step-3": `{"body": {"$.queue.available": 1}}`,
	},
	"ext-multi-tenancy/multi-tenancy-tenant-fetch-isolation": {
		"step-3": `{"body": {"$.jobs": "array:length:1"}}`,
	},
	"ext-graceful-shutdown/graceful-shutdown-health-degraded": {
		"step-2": `{"status": 503}`,
	},
	"ext-graceful-shutdown/graceful-shutdown-no-new-jobs": {
		"step-3": `{"body": {"$.jobs": "array:length:0"}}`,
	},
	"ext-rate-limiting/rate-limit-concurrency": {
		"step-3": `{"body": {"$.jobs": "array:length:1"}}`,
	},
	"ext-rate-limiting/rate-limit-different-keys-independent": {
		"step-3": `{"body": {"$.jobs": "array:length:2"}}`,
	},
	"ext-backpressure/backpressure-warning-headers": {
		"step-3": `{"headers": {"X-OJS-Queue-Pressure": "string:pattern(^(0\\.[5-9]|1))"}}`,
	},
}

func TestOwn(t *testing.T) {
	cases := load(t, "testdata/own")
	play(t, "own", cases)
}

func TestPublic(t *testing.T) {
	root, folder := os.Getenv("OJS_CONFORMANCE_SUITES"), os.Getenv("FOLDER")
	if root == "" {
		if folder != "" {
			t.Fatalf("FOLDER=%s names a public suite, but OJS_CONFORMANCE_SUITES does not say where they are", folder)
		}
		fmt.Println("the public conformance suites did not run: OJS_CONFORMANCE_SUITES is not set")
		return
	}
	byFolder := map[string][]engine.Case{}
	for _, c := range load(t, root) {
		byFolder[c.Folder] = append(byFolder[c.Folder], c)
	}
	checkSpelledOut(t, byFolder)
	folders := declared
	if folder != "" {
		folders = []string{folder}
	}
	for _, name := range folders {
		if len(byFolder[name]) == 0 {
			t.Errorf("no cases in folder %q of %s", name, root)
			continue
		}
		t.Run(name, func(t *testing.T) { play(t, name, byFolder[name]) })
	}
}

func load(t *testing.T, root string) []engine.Case {
	t.Helper()
	cases, err := engine.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("no cases below %s", root)
	}
	for i, c := range cases {
		for step, more := range spelledOut[c.Folder+"/"+c.Name] {
			if err := cases[i].Expect(step, []byte(more)); err != nil {
				t.Fatalf("%s/%s: %v", c.Folder, c.Name, err)
			}
		}
	}
	return cases
}

// checkSpelledOut fails if assertions of spelledOut name a case that does not exist: it was renamed, and
// they would otherwise be skipped.
func checkSpelledOut(t *testing.T, byFolder map[string][]engine.Case) {
	t.Helper()
	for key := range spelledOut {
		folder, name, _ := strings.Cut(key, "/")
		if !slices.ContainsFunc(byFolder[folder], func(c engine.Case) bool { return c.Name == name }) {
			t.Errorf("assertions are spelled out for %s, which is not there", key)
		}
	}
}

// longSleep is the sleep from which on a case gets a server of its own and runs in parallel. One after the
// other such cases would take minutes.
const longSleep = 30 * time.Second

// play runs the cases of one folder, each on a server that was just reset, and prints how many passed.
func play(t *testing.T, folder string, cases []engine.Case) {
	target := server(t)
	var passed atomic.Int64
	// Cases that run in parallel end after this function has returned.
	t.Cleanup(func() { fmt.Printf("%s %d/%d\n", folder, passed.Load(), len(cases)) })
	for _, c := range cases {
		t.Run(c.ID+" "+c.Name, func(t *testing.T) {
			target := target
			if c.Sleeps() >= longSleep && os.Getenv(givenServer) == "" {
				t.Parallel()
				target = server(t)
			}
			if playOne(t, target, c) {
				passed.Add(1)
			}
		})
	}
}

func playOne(t *testing.T, target engine.Target, c engine.Case) (passed bool) {
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	if err := target.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	failures := c.Run(ctx, target)
	if odd, ok := impossible[c.ID]; ok {
		var at []string
		for _, f := range failures {
			at = append(at, f.At)
		}
		if !slices.Equal(at, odd.at) {
			t.Errorf("impossible at %v, but it failed at %v", odd.at, failures)
			return false
		}
		fmt.Printf("%s cannot be passed: %s\n", c.ID, odd.reason)
		return false
	}
	for _, f := range failures {
		t.Error(f)
	}
	return len(failures) == 0
}
