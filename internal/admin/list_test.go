package admin

import (
	"strings"
	"testing"
	"time"
)

func TestLists(t *testing.T) {
	t.Parallel()
	type row struct {
		Name  string     `json:"name"`
		N     int64      `json:"n"`
		Wait  int64      `json:"wait_ms"`
		Share float64    `json:"share"`
		At    time.Time  `json:"at"`
		Until *time.Time `json:"until"`
		Why   *string    `json:"why"`
	}
	now := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	until := now.Add(90 * time.Second)
	columns := []Column{
		{Field: "name", Cut: 10},
		{Field: "n"},
		{Field: "wait_ms", Head: "oldest"},
		{Field: "share", Percent: true},
		{Field: "at", Head: "age"},
		{Field: "until"},
		{Field: "why", Spare: true},
	}
	list := func(want string, rows ...row) {
		t.Helper()
		var out strings.Builder
		if err := List(&out, rows, now, columns...); err != nil || out.String() != want {
			t.Errorf("the list is (%v)\n%s, want\n%s", err, &out, want)
		}
	}
	list(`name      n  oldest  share    age     until  why
acme  1234k  20m34s  75.0%  8m14s  in 1m30s  deploy of billing
w1        0       -   0.0%      -         -
`, row{"acme", 1_234_567, 1_234_567, 0.75, now.Add(-494 * time.Second), &until, new("deploy of billing")}, row{Name: "w1"})
	// Long names give way, but not below their least width; a spare column without space is left out.
	list(`name                                           n  oldest  share    age     until
nnnnnnnnnnnnnnnnnnn...nnnnnnnnnnnnnnnnnn1  1234k  20m34s  75.0%  8m14s  in 1m30s
`, row{strings.Repeat("n", 200) + "1", 1_234_567, 1_234_567, 0.75, now.Add(-494 * time.Second), &until, new(strings.Repeat("why ", 50))})
}

func TestClip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"short":                  "short",
		"exactly-12ch":           "exactly-12ch",
		"production-emails-eu":   "produ...s-eu",
		"the queue is paused":    "the queue...",
		"mail,sms,push,webhooks": "mail,sms,...",
		"über-lange-wörter-hier": "über-...hier",
	} {
		if got := Clip(text, 12); got != want {
			t.Errorf("%q is cut to %q, want %q", text, got, want)
		}
	}
}
