package dispatch

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A slow decision is logged, but no second one in the same minute.
func TestSlowDecisionsAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := &Dispatcher{log: slog.New(slog.NewTextHandler(&log, nil))}
	parts := []*part{{g: &group{queues: []string{"mail"}}}}
	d.tellSlow(parts, toldDecision-1)
	d.tellSlow(nil, toldDecision)
	if log.Len() > 0 {
		t.Errorf("logged is %s", &log)
	}
	d.tellSlow(parts, toldDecision)
	d.tellSlow(parts, time.Hour)
	if n := strings.Count(log.String(), "queues=[mail]"); n != 1 {
		t.Errorf("logged %d times: %s", n, &log)
	}
}
