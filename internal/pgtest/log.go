package pgtest

import (
	"bytes"
	"strings"
	"sync"
)

// Log collects the lines that loggers write to it. It may be read while they write; mu guards text.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// String returns everything that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Lines returns the lines that were written so far, or one empty line if there are none.
func (l *Log) Lines() []string { return strings.Split(strings.TrimSpace(l.String()), "\n") }
