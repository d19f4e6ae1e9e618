package sched

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The log tells at once of the first attempt that the clock ends, and of the attempts that follow in
// one line for each minute.
func TestAttemptsThatTheClockEndsAreLoggedInSum(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	c := &clock{Scheduler: &Scheduler{log: slog.New(slog.NewTextHandler(log, nil))}}
	at := time.Now()
	for second := range 150 {
		c.noteReaped(second/30%2, at.Add(time.Duration(second)*time.Second)) // one a second from 30 to 59, and from 90 to 119
	}
	c.sayReaped(at.Add(150 * time.Second))
	c.sayReaped(at.Add(150 * time.Second))
	if got, want := counts(log.String()), "1 30 29"; got != want {
		t.Errorf("attempts %s, want %s: %s", got, want, log)
	}
}

// counts returns the numbers of attempts in the lines of a log, in order.
func counts(log string) string {
	var numbers []string
	for line := range strings.Lines(log) {
		if _, n, ok := strings.Cut(line, " attempts="); ok {
			numbers = append(numbers, strings.TrimSpace(n))
		}
	}
	return strings.Join(numbers, " ")
}

// A clock that stops logs the attempts that it has ended and not logged yet.
func TestAClockThatStopsLogsWhatItHasEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &pgtest.Log{}
	s := New(db.Open(), nil, slog.New(slog.NewTextHandler(log, nil)), 5*time.Millisecond)
	t.Run("while it runs", func(t *testing.T) {
		inBackground(t, s.Run)
		for _, queue := range []string{"first", "second"} {
			pgtest.Exec(t, db.Pool, "select ojs.enqueue('abandoned', p_queue => $1)", queue)
			due(t, db, "select ojs.fetch(array[$1], p_visibility_timeout_ms => 1000)", queue)
			db.Eventually("the attempt is ended", "select state = 'available' and attempt = 1 from ojs.job where queue = $1", queue)
		}
		// If the clock stopped during a tick, it would not know what that tick has done. A job of the next
		// tick shows that this one has returned.
		due(t, db, enqueueDue, "third")
		db.Eventually("the clock ticks again", "select state = 'available' from ojs.job where queue = 'third'")
	})
	if got := counts(log.String()); got != "1 1" {
		t.Errorf("attempts %s, want 1 and 1: %s", got, log)
	}
}
