package pg_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Of one tenant's calls that meet a lock, however many, none goes before another tenant's that
// waits and has nothing in hand.
func TestTenantsThatMeetLocksTakeTurns(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	var id string
	if err := d.Pool.QueryRow(t.Context(), "select id from ojs.enqueue('x')").Scan(&id); err != nil {
		t.Fatal(err)
	}
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing was done
	if _, err := tx.Exec(t.Context(), "select ojs.cancel($1)", id); err != nil {
		t.Fatal(err)
	}
	var (
		all   sync.WaitGroup
		tried = make(chan string)   // the tenants that try again
		on    = make(chan struct{}) // lets one go on
	)
	call := func(ctx context.Context, tenant *string) {
		all.Go(func() {
			first := true
			err := db.WithLockRetry(ctx, tenant, time.Hour, func(ctx context.Context, brief pg.Brief) error {
				if first {
					first = false
					_, err := brief.Exec(ctx, "select ojs.cancel($1)", id)
					if !pg.Locked(err) {
						t.Errorf("%v is not a lock", err)
					}
					return err
				}
				name := "none"
				if tenant != nil {
					name = *tenant
				}
				tried <- name
				<-on
				return nil
			})
			if err != nil && (ctx.Err() == nil || !pg.Locked(err)) {
				t.Error(err)
			}
		})
	}
	inLine := func(n int) {
		t.Helper()
		pgtest.Eventually(t, fmt.Sprint("in line are ", n), func() bool { return db.Retrying() == n })
	}
	big, small := "big", "small"
	const crowd = 60
	for range crowd {
		call(t.Context(), &big)
	}
	inLine(crowd - 4)
	call(t.Context(), &small)
	inLine(crowd - 4 + 1)
	call(t.Context(), nil)
	inLine(crowd - 4 + 2)
	// A caller who leaves takes no other's turn along.
	gone, leave := context.WithCancel(t.Context())
	other := "other"
	for _, tenant := range []*string{&big, &other} {
		call(gone, tenant)
	}
	inLine(crowd - 4 + 4)
	leave()
	inLine(crowd - 4 + 2)
	var order []string
	for range 4 {
		order = append(order, <-tried)
	}
	for len(order) < crowd+2 {
		on <- struct{}{}
		order = append(order, <-tried)
	}
	close(on)
	all.Wait()
	want := []string{"big", "big", "big", "big", "small", "none", "big"}
	if !slices.Equal(order[:len(want)], want) {
		t.Errorf("tried again in the order %v", order)
	}
	inLine(0)
}

// A statement that PostgreSQL breaks off for its lock_timeout without knowing so any more met a
// lock.
func TestABriefStatementThatIsCancelledMetALock(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	ended := make(chan error)
	go func() {
		_, err := db.Brief().Exec(t.Context(), "select pg_sleep(3600)")
		ended <- err
	}()
	d.Eventually("the statement is cancelled", `
		select bool_or(pg_cancel_backend(a.pid)) from pg_stat_activity a
		where a.datname = current_database() and a.query like 'select pg_sleep%' and a.state = 'active'`)
	if err := pgtest.Receive(t, "its end", ended); !pg.Locked(err) {
		t.Errorf("it ended with %v", err)
	}
}
