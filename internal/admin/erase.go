package admin

import (
	"context"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Erased is what an erasure did, in one page or in many. Locked counts jobs that another session had
// locked; Next is the cursor of the call that goes on, nil if there are no more jobs.
type Erased struct {
	Jobs        int64   `json:"jobs"`
	Cancelled   int64   `json:"cancelled"`
	Active      int64   `json:"active"`
	DeadLetters int64   `json:"dead_letters"`
	Answers     int64   `json:"answers"`
	Locked      int64   `json:"locked"`
	Next        *string `json:"next_cursor"`
}

// Erase erases page by page, each in a transaction of its own, until all is done or a time has come.
// Jobs that were locked are tried again after the last page.
func Erase(ctx context.Context, q *sqlcgen.Queries, params sqlcgen.EraseParams, until time.Time) (done Erased, err error) {
	for {
		row, err := q.Erase(ctx, params)
		if err != nil {
			return done, err
		}
		done.Jobs += int64(row.Jobs)
		done.Cancelled += int64(row.Cancelled)
		done.Active += int64(row.Active)
		done.DeadLetters += int64(row.DeadLetters)
		done.Answers += int64(row.Answers)
		done.Locked += int64(row.Locked)
		params.Before, done.Next = nil, nil
		if row.Next != "" {
			params.Before = &row.Next
			done.Next = params.Before
		}
		over := time.Now().After(until)
		if over || done.Next == nil && done.Locked == 0 {
			return done, nil
		}
		if done.Next == nil {
			done.Locked = 0
			select {
			case <-ctx.Done():
				return done, ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}
