package main

import (
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// patience is how long a step may take before a person is shown that something happens.
const patience = 2 * time.Second

// progress shows steps that take long: as a bar if stderr is a terminal, else as a line of the
// log for each step.
type progress struct {
	log      *slog.Logger
	terminal io.Writer // nil: there is none

	mu          sync.Mutex
	step        string
	done, total int64
	begun       *time.Timer
	visible     bool
	bar         *progressbar.ProgressBar
}

func newProgress(stderr io.Writer, log *slog.Logger) *progress {
	p := &progress{log: log}
	if file, ok := stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.terminal = file
	}
	return p
}

// report begins a step, or says how far it is; bytes or pieces alike. total 0: nobody knows.
func (p *progress) report(step string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if step != p.step {
		p.clear()
		p.step = step
		if step == "" {
			return
		}
		p.log.Debug(step)
		p.begun = time.AfterFunc(patience, func() { p.show(step) })
	}
	p.done, p.total = done, total
	p.draw()
}

// finish ends the last step.
func (p *progress) finish() { p.report("", 0, 0) }

func (p *progress) show(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step != step {
		return
	}
	if p.terminal == nil {
		p.log.Info(step + " takes a moment")
		return
	}
	p.visible = true
	p.draw()
}

func (p *progress) draw() {
	if !p.visible {
		return
	}
	length := p.total
	if length == 0 {
		length = -1
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(length,
			progressbar.OptionSetWriter(p.terminal),
			progressbar.OptionSetDescription(p.step),
			progressbar.OptionSetWidth(30),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionShowBytes(p.total > 1<<16),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetRenderBlankState(true),
			progressbar.OptionClearOnFinish())
	}
	// A bar that cannot be drawn is no reason to stop.
	if p.total > 0 {
		p.bar.ChangeMax64(p.total)
		_ = p.bar.Set64(min(p.done, p.total))
	}
}

func (p *progress) clear() {
	if p.begun != nil {
		p.begun.Stop()
	}
	if p.bar != nil {
		_ = p.bar.Finish() // Exit would leave its spinner turning
	}
	p.bar, p.visible = nil, false
}
