package pg

import "time"

// Impatient makes a listener that keeps its registrations in order without pause.
func (l *Listener) Impatient() {
	l.renewAfter, l.withdrawAfter = time.Millisecond, time.Millisecond
}

// InLine is how many wait for their turn to try again.
func (d *DB) InLine() (n int) {
	d.retries.mu.Lock()
	defer d.retries.mu.Unlock()
	for _, line := range d.retries.lines {
		n += len(line)
	}
	return n
}
