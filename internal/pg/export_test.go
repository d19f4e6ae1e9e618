package pg

import (
	"time"

	"github.com/ojs-pg/ojs-pg/internal/fair"
)

// Hasty makes a configuration with which Open soon gives up.
func (c Config) Hasty() Config {
	c.openTimeout = 300 * time.Millisecond
	return c
}

// InLine is how many wait for their turn to try again.
func (d *DB) InLine() int { return d.retries.Waiting() }

// Turns are those of statements of callers, and of those that only read.
func (d *DB) Turns() (all, reads *fair.Gate) { return d.turns.conns, d.turns.reads }
