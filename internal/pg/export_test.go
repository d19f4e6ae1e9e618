package pg

import "time"

// Impatient makes a listener that keeps its registrations in order without pause.
func (l *Listener) Impatient() {
	l.renewAfter, l.dropAfter = time.Millisecond, time.Millisecond
}

// MigrateFrom is Migrate with other migrations.
var MigrateFrom = migrate
