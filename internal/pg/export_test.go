package pg

import "time"

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
func (d *DB) InLine() (n int) {
	d.retries.mu.Lock()
	defer d.retries.mu.Unlock()
	for _, callers := range d.retries.waiting {
		n += len(callers)
	}
	return n
}

// Decodable reports whether jobs with such columns are decoded by hand.
var Decodable = decodable

// JobTypes are the types that jobs are decoded from by hand; 0: any.
var JobTypes = jobTypes[:]
