package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

var timestamp = regexp.MustCompile(`(?m)^time=\S+ level=INFO msg="attempts failed within the last minute" `)

// told returns the lines of the log about failed attempts.
func told(log *pgtest.Log) string {
	return timestamp.ReplaceAllString(strings.TrimSpace(log.String()), "")
}

func failuresOf(log *pgtest.Log) *failures {
	return &failures{log: slog.New(slog.NewTextHandler(log, nil))}
}

// fails notes a failed attempt of a job of that type.
func (f *failures) fails(kind, tenant, state, message string) {
	worker := "w-" + tenant
	f.note([]Settlement{{Error: []byte("{}"), Message: message}}, []Settled{{Job: sqlcgen.OjsJob{
		Type: kind, TenantID: tenant, Queue: "mail", ID: "of-" + tenant, WorkerID: &worker, State: state,
	}}})
}

// The log has a line for each type of jobs, the type that fails most often first, with its last failure as
// an example.
func TestFailedAttemptsAreToldByType(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	f := failuresOf(log)
	f.fails("send_sms", "acme", "discarded", "first")
	for _, tenant := range []string{"acme", "globex", "acme"} {
		f.fails("send_email", tenant, "retryable", "lost\nat "+tenant)
	}
	f.fails("bill", "acme", "available", strings.Repeat("ä", failureMessage))
	// Neither an ACK nor a NACK that is refused is a failure.
	f.note([]Settlement{{Result: []byte("1")}, {Error: []byte("{}")}}, []Settled{{}, {Err: fmt.Errorf("not held")}})
	f.tell()
	const want = `type=send_email attempts=3 discarded=0 tenants=2 tenant=acme queue=mail job=of-acme worker=w-acme error="lost\nat acme"
type=bill attempts=1 discarded=0 tenants=1 tenant=acme queue=mail job=of-acme worker=w-acme error=%s...
type=send_sms attempts=1 discarded=1 tenants=1 tenant=acme queue=mail job=of-acme worker=w-acme error=first`
	if got := told(log); got != fmt.Sprintf(want, strings.Repeat("ä", failureMessage/2)) {
		t.Errorf("logged is\n%s", got)
	}
	before := len(log.Lines())
	f.tell()
	if lines := log.Lines(); len(lines) != before {
		t.Errorf("what was told is told again: %s", lines[before:])
	}
}

// The number of lines and of tenants is bounded; further types share one line.
func TestFailedAttemptsThatAreRememberedAreBounded(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	f := failuresOf(log)
	for i := range failureTypes + 50 {
		f.fails(fmt.Sprint("type", i), "acme", "retryable", "")
	}
	for i := range failureTenants + 50 {
		f.fails("type0", fmt.Sprint("tenant", i), "retryable", "")
	}
	if n := len(f.types); n != failureTypes+1 {
		t.Errorf("%d types are remembered", n)
	}
	f.tell()
	lines := strings.Split(told(log), "\n")
	if len(lines) != failureTypes+1 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []string{"type=type0 attempts=151 discarded=0 tenants=100 ", "type=_other attempts=50 discarded=0 tenants=1 "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %s", i, lines[i])
		}
	}
}

// Only the message is kept in memory, and not the request that it was a part of.
func TestMessagesAreClipped(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"":                                    "",
		strings.Repeat("x", failureMessage):   strings.Repeat("x", failureMessage),
		strings.Repeat("x", failureMessage+1): strings.Repeat("x", failureMessage) + "...",
		"x" + strings.Repeat("ä", failureMessage): "x" + strings.Repeat("ä", failureMessage/2-1) + "...",
	} {
		if got := clipped(given); got != want {
			t.Errorf("%s becomes %s", given, got)
		}
	}
}

func TestFailedAttemptsAreToldEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &pgtest.Log{}
		f := failuresOf(log)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.run(ctx)
		for minute := range 3 {
			for range 5 {
				f.fails("send_email", "acme", "retryable", "no route")
			}
			before := strings.Count(told(log), "attempts=5")
			time.Sleep(tellFailures)
			synctest.Wait()
			if n := strings.Count(told(log), "attempts=5"); before != minute || n != minute+1 {
				t.Errorf("in minute %d there are %d lines, and then %d", minute, before, n)
			}
		}
	})
}

// A NACK that the database has accepted is logged with its job. A server that stops logs what it has not
// logged yet.
func TestFailedAttemptsAreToldWhenTheServerStops(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	log := &pgtest.Log{}
	b.failures.log = slog.New(slog.NewTextHandler(log, nil))
	jobs := b.active(4)
	for i, whole := range []bool{false, true} {
		done := b.Settle(t.Context(), []Settlement{
			{ID: jobs[2*i].ID, Error: []byte(`{"message": "m", "retryable": false}`), Message: "no route"},
			{ID: jobs[2*i+1].ID},
			{ID: jobs[2*i].ID, Error: []byte(`{"message": "m"}`), Message: "too late"},
		}, whole)
		if done[0].Err != nil || done[1].Err != nil || done[2].Err == nil {
			t.Fatalf("settled: %+v", done)
		}
	}
	b.stop()
	want := "type=x attempts=2 discarded=2 tenants=1 tenant=a queue=default job=" + jobs[2].ID + ` worker=w error="no route"`
	if got := told(log); got != want {
		t.Errorf("logged is %s, want %s", got, want)
	}
}
