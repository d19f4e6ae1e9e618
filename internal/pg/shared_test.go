package pg_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Callers have three quarters of the connections at most, a tenant has a quarter, half of which may
// be reads, and what nobody in particular causes needs no turn.
func TestStatementsTakeTurns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	conns := int64(db.Pool().Config().MaxConns)
	turns, reading := db.Shares()
	const long = "select generate_series(1, 1000000)"
	var all sync.WaitGroup
	begin := func(caller string, reads bool, holds int64) (got chan pgx.Rows) {
		t.Helper()
		got = make(chan pgx.Rows, conns)
		before, held := turns.Waiting()+reading.Waiting(), turns.Held(caller)
		for range conns {
			all.Go(func() {
				rows, err := db.Shared().Query(pg.As(t.Context(), caller, reads), long)
				if err != nil {
					t.Error(err)
					return
				}
				got <- rows
			})
		}
		pgtest.Eventually(t, fmt.Sprintf("%q has %d more", caller, holds), func() bool {
			return turns.Held(caller) == held+holds && turns.Waiting()+reading.Waiting() == before+int(conns-holds)
		})
		return got
	}
	next := func(got chan pgx.Rows) { (<-got).Close() }
	acmeReads, acme, globex := begin("acme", true, conns/8), begin("acme", false, conns/8), begin("globex", false, conns/4)
	operator := begin(pg.NoTenant, false, conns/4)
	free, err := db.Shared().Query(t.Context(), long)
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	// What somebody gives up it gets back: tenants are at their bounds.
	left := turns.Waiting()
	for caller, from := range map[string]chan pgx.Rows{pg.NoTenant: operator, "globex": globex} {
		next(from)
		left--
		pgtest.Eventually(t, "the next is in", func() bool { return turns.Held(caller) == conns/4 && turns.Waiting() == left })
	}
	for range conns - 1 {
		next(operator)
		next(globex)
	}
	// A tenant's reads wait behind its other statements, too.
	for range conns {
		for _, from := range []chan pgx.Rows{acmeReads, acme} {
			all.Go(func() { next(from) })
		}
	}
	all.Wait()
	for _, gate := range []*fair.Gate{turns, reading} {
		if gate.Held("acme")+gate.Held("globex")+gate.Held(pg.NoTenant) != 0 || gate.Waiting() != 0 {
			t.Error("some are kept")
		}
	}
}

// However a statement is sent, and however it ends, its connection is given up, once.
func TestEveryStatementEndsItsTurn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	ctx := pg.As(t.Context(), "acme", true)
	turns, reading := db.Shares()
	shared, brief := db.Shared(), db.Brief()
	for range db.Pool().Config().MaxConns {
		for _, sql := range []string{"select 1", "select 1/0", "select 1 from", "select 1 where false"} {
			var n int
			_, _ = shared.Exec(ctx, sql)
			_ = shared.QueryRow(ctx, sql).Scan(&n)
			_, _ = brief.Exec(ctx, sql)
			_ = brief.QueryRow(ctx, sql).Scan(&n)
			for _, query := range []func() (pgx.Rows, error){
				func() (pgx.Rows, error) { return shared.Query(ctx, sql) }, func() (pgx.Rows, error) { return brief.Query(ctx, sql) },
			} {
				rows, err := query()
				if err != nil {
					continue
				}
				for rows.Next() { //nolint:revive // to the end
				}
				rows.Close()
				rows.Close()
			}
			if held := turns.Held("acme") + reading.Held("acme"); held != 0 {
				t.Fatalf("%d are kept after %q", held, sql)
			}
		}
	}
}
