package pg

import (
	"time"

	"github.com/ojs-pg/ojs-pg/internal/fair"
)

// Impatient makes a listener that keeps its registrations in order without pause.
func (l *Listener) Impatient() {
	l.renewAfter, l.withdrawAfter = time.Millisecond, time.Millisecond
}

// Hasty makes a listener that soon tries another connection when one does not answer.
func (l *Listener) Hasty() { l.listenTimeout = 300 * time.Millisecond }

// Hasty makes a configuration with which Open soon gives up.
func (c Config) Hasty() Config {
	c.openTimeout = 300 * time.Millisecond
	return c
}

// Hasty makes a database whose CheckSchema soon gives up.
func (d *DB) Hasty() { d.checkTimeout = 300 * time.Millisecond }

// InLine is how many wait for their turn to try again.
func (d *DB) InLine() int { return d.retries.Waiting() }

// Decodable reports whether jobs with such columns are decoded by hand.
var Decodable = decodable

// JobTypes are the types that jobs are decoded from by hand; 0: any.
var JobTypes = jobTypes[:]

// Turns are those of statements of callers, and of those that only read.
func (d *DB) Turns() (all, reads *fair.Gate) { return d.turns.conns, d.turns.reads }
