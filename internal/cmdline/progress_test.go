package cmdline

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressShowsWhatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal, log bytes.Buffer
		p := &Progress{log: slog.New(slog.NewTextHandler(&log, nil)), terminal: &terminal}
		p.Report("quick", 0, 10)
		p.Report("quick too", 0, 0)
		time.Sleep(showAfter - time.Millisecond)
		p.Finish()
		if terminal.Len() > 0 {
			t.Errorf("a quick step is shown: %q", terminal.String())
		}

		p.Report("slow", 5, 10)
		time.Sleep(2 * showAfter)
		p.Report("slow", 6, 10)
		time.Sleep(showAfter)
		p.Report("slow", 7, 10)
		if got := terminal.String(); !strings.Contains(got, "slow") || !strings.Contains(got, "70%") {
			t.Errorf("the terminal shows %q", got)
		}
		p.Finish()
		if log.Len() > 0 {
			t.Errorf("beside the bar there is a log: %s", &log)
		}

		terminal.Reset()
		p.Report("unknown end", 0, 0)
		time.Sleep(2 * showAfter)
		p.Finish()
		time.Sleep(showAfter)
		shown := terminal.Len()
		time.Sleep(showAfter)
		if got := terminal.String(); !strings.Contains(got, "unknown end") || len(got) > shown {
			t.Errorf("the terminal shows %q", got)
		}

		p.terminal = nil
		p.Report("without a terminal", 0, 0)
		time.Sleep(2 * showAfter)
		p.Finish()
		if got := log.String(); strings.Count(got, "without a terminal") != 1 {
			t.Errorf("the log says %q", got)
		}
	})
}
