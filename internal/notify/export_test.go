package notify

import "time"

// Impatient makes a listener that keeps its registrations in order without pause.
func (l *Listener) Impatient() {
	l.renewAfter, l.withdrawAfter = time.Millisecond, time.Millisecond
}

// Hasty makes a listener that soon tries another connection when one does not answer.
func (l *Listener) Hasty() { l.listenTimeout = 300 * time.Millisecond }
