package pg

import "time"

// Impatient makes a listener that is woken by nothing but commits and reconnections, and that
// keeps its registrations in order without pause.
func (l *Listener) Impatient() {
	l.Fallback = 24 * time.Hour
	l.recheckAfter = nil
	l.refreshAfter, l.dropAfter, l.sweepEvery = 0, 0, time.Millisecond
}

// WithoutRechecks leaves the upkeep of registrations as it is.
func (l *Listener) WithoutRechecks() {
	l.Fallback = 24 * time.Hour
	l.recheckAfter = nil
}
