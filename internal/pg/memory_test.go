package pg

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Whatever runs out, an operator is told which sessions hold it, or where that is written.
func TestShortagesLeadToTheirHolders(t *testing.T) {
	t.Parallel()
	const holders = "process 7: 9000 locks"
	for _, c := range []struct {
		row  sqlcgen.SharedMemoryRow
		want Shortage
	}{
		{sqlcgen.SharedMemoryRow{NotifyQueue: 0.5, Locks: 80, LockTable: 100, Holders: holders}, Shortage{}},
		{sqlcgen.SharedMemoryRow{NotifyQueue: 0.62, Locks: 80, LockTable: 100, Holders: holders}, Shortage{
			"PostgreSQL's NOTIFY queue is 62 % full.", "ojs-pg doctor and PostgreSQL's log name the process",
		}},
		{sqlcgen.SharedMemoryRow{NotifyQueue: 1, Locks: 9000, LockTable: 6400, Holders: holders}, Shortage{
			"PostgreSQL's lock table is nearly full: 9000 locks, and it is made for 6400.", holders,
		}},
	} {
		if got := shortageOf(&c.row); got != c.want {
			t.Errorf("%+v is %+v, want %+v", c.row, got, c.want)
		}
	}
}
