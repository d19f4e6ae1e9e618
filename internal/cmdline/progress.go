package cmdline

import (
	"cmp"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// showAfter is how long a step may take before it is shown.
const showAfter = 2 * time.Second

// Progress shows the steps that take longer than showAfter, as a bar if stderr is a terminal,
// otherwise as a line of the log. Its methods may be called by several goroutines.
type Progress struct {
	log      *slog.Logger
	terminal io.Writer // nil if stderr is no terminal

	mu          sync.Mutex
	step        string // the step that runs; empty: none
	done, total int64
	timer       *time.Timer              // shows the step once it has taken showAfter
	bar         *progressbar.ProgressBar // nil until the step is shown
}

// NewProgress returns a Progress that shows steps on stderr, or in the log if stderr is not a
// terminal.
func NewProgress(stderr io.Writer, log *slog.Logger) *Progress {
	p := &Progress{log: log}
	if file, ok := stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.terminal = file
	}
	return p
}

// Report begins a step, or says how far the step is, in bytes or in pieces. total is 0 if the end
// is not known.
func (p *Progress) Report(step string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if step != p.step {
		p.end()
		p.step = step
		p.log.Debug(step)
		p.timer = time.AfterFunc(showAfter, func() { p.show(step) })
	}
	p.done, p.total = done, total
	p.draw()
}

// Finish ends the last step.
func (p *Progress) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// end removes the bar of the step, if it is shown. The caller holds mu.
func (p *Progress) end() {
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.bar != nil {
		_ = p.bar.Finish() // a bar without an end has a spinner, which this stops
	}
	p.step, p.timer, p.bar = "", nil, nil
}

// show shows the step, unless it has ended: the timer may fire while Report or Finish ends it.
func (p *Progress) show(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.step != step:
	case p.terminal == nil:
		p.log.Info(step + " takes a moment")
	default:
		p.bar = progressbar.NewOptions64(cmp.Or(p.total, -1), progressbar.OptionSetWriter(p.terminal),
			progressbar.OptionSetDescription(step), progressbar.OptionSetWidth(30), progressbar.OptionSetPredictTime(false),
			progressbar.OptionShowBytes(p.total > 1<<16), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetRenderBlankState(true), progressbar.OptionClearOnFinish())
		p.draw()
	}
}

// draw brings the bar up to date. It ignores errors, because work goes on without a bar. The caller
// holds mu.
func (p *Progress) draw() {
	if p.bar != nil && p.total > 0 {
		p.bar.ChangeMax64(p.total)
		_ = p.bar.Set64(min(p.done, p.total))
	}
}
