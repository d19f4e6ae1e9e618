package db_test

import (
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Each job is given back as ojs.release gives it back; what is not held under its lease any more, or locked, is passed over.
func TestReleaseManyPassesOverWhatIsLost(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	pgtest.Exec(t, service, `
		select ojs.enqueue('a', p_queue => 'q', p_tenant => t, p_expires_at => ojs.now() + interval '1 day')
		from unnest(array['acme', 'globex']) t, generate_series(1, 3)`)
	type held struct{ ids, leases []string }
	var h held
	err := service.QueryRow(t.Context(), `
		select array_agg(id::text order by id), array_agg(lease::text order by id) from ojs.fetch('{q}', 6, 'w')`).
		Scan(&h.ids, &h.leases)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, service, "select ojs.ack($1, $2)", h.ids[0], h.leases[0])
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // done already when the test passes
	pgtest.Exec(t, tx, "select ojs.heartbeat('w', array[$1::uuid], p_visibility_timeout_ms => 600000)", h.ids[1])

	release := func(ids, leases []string) []string {
		t.Helper()
		return pgtest.List[string](t, service, "select ojs.release_many($1, $2)::text", ids, leases)
	}
	// Two have each other's lease, and one is named twice.
	leases := slices.Clone(h.leases)
	leases[2], leases[3] = leases[3], leases[2]
	locked := release(append(slices.Clone(h.ids), h.ids[5]), append(leases, leases[5]))
	if !slices.Equal(locked, h.ids[1:2]) {
		t.Errorf("locked: %v, want %v", locked, h.ids[1:2])
	}
	const summary = `select string_agg(format('%s %s %s', state, attempt, lease is null), ', ' order by id) from ojs.job`
	want := "completed 1 t, active 1 f, active 1 f, active 1 f, available 0 t, available 0 t"
	if got := pgtest.One[string](t, d.Pool, summary); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if locked = release(h.ids, h.leases); len(locked) > 0 {
		t.Errorf("locked: %v", locked)
	}
	want = "completed 1 t, available 0 t, available 0 t, available 0 t, available 0 t, available 0 t"
	if got := pgtest.One[string](t, d.Pool, summary); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if n := pgtest.One[int](t, d.Pool, "select count(*) from ojs.release where to_state = 'available' and attempt = 1 and fenced"); n != 5 {
		t.Errorf("%d are in the journal", n)
	}
	if n := pgtest.One[int](t, d.Pool, "select coalesce(sum(cardinality(ids)), 0) from ojs.timer where kind = 'expiry'"); n < 5 {
		t.Errorf("%d are reminded of their expiry", n)
	}
	if n := pgtest.One[int](t, service, "select count(*) from ojs.fetch('{q}', 10)"); n != 5 {
		t.Errorf("%d are handed out again", n)
	}
}

func TestReleaseManyRefusesWhatIsNotInStep(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const id = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
	for _, arguments := range [][2]any{
		{nil, []string{}}, {[]string{id}, nil}, {[]string{id}, []string{}}, {make([]string, 0), []string{id}},
	} {
		refused(t, d.Service(), "OJ400", "select ojs.release_many($1, $2)", arguments[0], arguments[1])
	}
	many := slices.Repeat([]string{id}, 10001)
	refused(t, d.Service(), "OJ400", "select ojs.release_many($1, $2)", many, many)
	if n := pgtest.One[int](t, d.Service(), "select count(*) from ojs.release_many('{}', '{}')"); n != 0 {
		t.Errorf("%d", n)
	}
}
