package pg

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
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

// JobFields are where JobColumns go when pgx scans a row.
func JobFields(j *sqlcgen.OjsJob) []any {
	fields := make([]any, len(jobColumns))
	for i, c := range jobColumns {
		fields[i] = c.field(j)
	}
	return fields
}

// JobTypes are the columns of a job, each with the OID of its type; 0: the type of its state.
func JobTypes() (types []string) {
	for _, c := range jobColumns {
		types = append(types, fmt.Sprint(c.name, " ", c.oid))
	}
	return types
}

// ByHand reports whether a column of a job is decoded by hand.
func ByHand(field pgconn.FieldDescription) bool {
	return jobColumns[JobColumn(field.Name)].decodable(field)
}

// Turns are those of statements of callers, and of those that only read.
func (d *DB) Turns() (all, reads *fair.Gate) { return d.turns.conns, d.turns.reads }
