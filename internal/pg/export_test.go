package pg

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/fair"
)

// Hasty makes a configuration with which Open soon gives up.
func (c Config) Hasty() Config {
	c.openTimeout = 300 * time.Millisecond
	return c
}

// Retrying returns how many statements wait until they may be tried again.
func (d *DB) Retrying() int { return d.retries.Waiting() }

// Shares returns the gates of statements of callers, and of those that only read.
func (d *DB) Shares() (all, reads *fair.Gate) { return d.shares.conns, d.shares.reads }

// Unwrapped returns the pool without its wrapper.
func (d *DB) Unwrapped() *pgxpool.Pool { return d.pool.pool }
