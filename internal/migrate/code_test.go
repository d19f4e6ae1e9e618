package migrate_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// changedCode is a release to come in which files of code have more text at their end.
func changedCode(t *testing.T, more map[string]string) migrate.Source {
	t.Helper()
	files := map[string]string{}
	for name, text := range more {
		files["code/"+name] = pgtest.CodeFile(t, name) + "\n" + text
	}
	return pgtest.Later(t, files)
}

// appliedSince are the files of code that were applied after a time.
func appliedSince(t *testing.T, d *pgtest.DB, since time.Time) []string {
	t.Helper()
	return pgtest.List[string](t, d.Pool, "select file from ojs.code where applied_at > $1 order by file", since)
}

// Only files whose text has changed run, and after them grants and settings, which a function that
// is made anew has lost.
func TestMigrateAppliesWhatChanged(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := changedCode(t, map[string]string{
		"jobs/status.sql": "create or replace function ojs._more() returns int language sql as 'select 1';\n",
	})
	before := pgtest.One[time.Time](t, d.Pool, "select clock_timestamp()")
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if got := appliedSince(t, d, before); !slices.Equal(got, []string{"jobs/status.sql"}) {
		t.Errorf("applied are %v", got)
	}
	if got := pgtest.One[string](t, d.Pool, "select release || ' ' || needs_server from ojs.schema_release"); got !=
		pgtest.LaterRelease+" "+db.NeedsServer {
		t.Errorf("the release is %s", got)
	}
	if owner := pgtest.One[string](t, d.Pool, "select proowner::regrole::text from pg_proc where proname = '_more'"); owner != "ojs_owner" {
		t.Errorf("the function belongs to %s", owner)
	}
	settings := "select count(*)::int from pg_proc where proname = 'fetch' and 'jit=off' = any (proconfig)"
	if pgtest.One[int](t, d.Pool, settings) != 1 {
		t.Error("ojs.fetch has lost its settings")
	}
	later = changedCode(t, map[string]string{"dispatch/fetch.sql": "-- nothing new"})
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if pgtest.One[int](t, d.Pool, settings) != 1 {
		t.Error("ojs.fetch has lost its settings when it was made anew")
	}
	s, _ := status(t, d.URL)
	if s.Current || !slices.Contains(s.Code, "dispatch/fetch.sql") || slices.Contains(s.Code, "dispatch/lane.sql") {
		t.Errorf("to the release before, the status is %+v", s.Code)
	}
}

// What vanished is dropped, but nothing of a user's that depends on it: then nothing at all is
// changed, and the error names it.
func TestMigrateDropsNothingOfTheUsers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pgtest.Exec(t, d.Pool, "create view public.mine as select ojs._has_fetched() as fetched")
	later := changedCode(t, map[string]string{
		db.Gone:           "drop function if exists ojs._has_fetched();\n",
		"jobs/status.sql": "create or replace function ojs._more() returns int language sql as 'select 1';\n",
	})
	err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil)
	if err == nil || !strings.Contains(err.Error(), "view public.mine") || !strings.Contains(err.Error(), "Drop what depends on it") {
		t.Errorf("with a view of the user's in the way it says: %v", err)
	}
	if n := pgtest.One[int](t, d.Pool, "select count(*)::int from pg_proc where proname = '_more'"); n != 0 {
		t.Error("something was changed")
	}
	pgtest.Exec(t, d.Pool, "drop view public.mine")
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	// The file that makes it is still there, and all code was applied anew.
	if n := pgtest.One[int](t, d.Pool, "select count(*)::int from pg_proc where proname in ('_more', '_has_fetched')"); n != 2 {
		t.Errorf("%d functions are there, want 2", n)
	}
}

// A run that is interrupted has done nothing, and the next one goes on.
func TestMigrateIsInterrupted(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := changedCode(t, map[string]string{"enqueue/plain_insert.sql": "-- the view of jobs anew"})
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from ojs.jobs"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- migrate.RunFrom(ctx, later, d.URL, migrate.Up, nil) }()
	pgtest.Eventually(t, "it waits for the view", func() bool {
		return pgtest.One[int](t, d.Pool, "select count(*)::int from pg_locks where relation = 'ojs.jobs'::regclass and not granted") > 0
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("it ended well")
	}
	if got := pgtest.One[string](t, d.Pool, "select release from ojs.schema_release"); got != db.Release {
		t.Errorf("the release is %s", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.One[string](t, d.Pool, "select release from ojs.schema_release"); got != pgtest.LaterRelease {
		t.Errorf("afterwards the release is %s", got)
	}
}

// A server says which half of an upgrade is missing.
func TestServersKnowTheirReleases(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	opened := d.Open()
	const set = "update ojs.schema_release set "
	for name, c := range map[string]struct{ sql, says string }{
		"a later release":                  {set + "release = '99.0.0', code_hash = 'x'", ""},
		"one that needs later servers":     {set + "release = '99.0.0', needs_server = '98.0.0'", "Start a later one"},
		"an earlier release":               {set + "release = '0.0.9'", "ojs-pg migrate up"},
		"the release in another build":     {set + "code_hash = 'x'", "ojs-pg migrate up"},
		"tables without functions":         {"delete from ojs.schema_release", "ojs-pg migrate up"},
		"numbers are compared as numbers":  {set + "release = '0.10.0', needs_server = '0.0.9', code_hash = 'x'", ""},
		"the release as it was applied":    {"select 1", ""},
		"the latest migrations are absent": {"delete from ojs.schema_hash where version > 10", "ojs-pg migrate up"},
	} {
		t.Run(name, func(t *testing.T) {
			was := pgtest.One[string](t, d.Pool, "select to_jsonb(r)::text from ojs.schema_release r")
			hashes := pgtest.One[string](t, d.Pool, "select jsonb_agg(h)::text from ojs.schema_hash h")
			pgtest.Exec(t, d.Pool, c.sql)
			err := migrate.CheckSchema(t.Context(), opened.Pool())
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, migrate.ErrRelease) ||
				!strings.Contains(err.Error(), c.says)) {
				t.Errorf("a server says %v, want %q", err, c.says)
			}
			pgtest.Exec(t, d.Pool, "delete from ojs.schema_release")
			pgtest.Exec(t, d.Pool, "insert into ojs.schema_release select * from jsonb_populate_record(null::ojs.schema_release, $1)", was)
			pgtest.Exec(t, d.Pool, "delete from ojs.schema_hash")
			pgtest.Exec(t, d.Pool, "insert into ojs.schema_hash select * from jsonb_populate_recordset(null::ojs.schema_hash, $1)", hashes)
		})
	}
}

// An SQLSTATE of a later release has the status that ojs.problem gives it by now, or that of its
// class.
func TestErrorsOfALaterRelease(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	opened := d.Open()
	raise := func(state string) *pg.Error {
		t.Helper()
		var known *pg.Error
		_, err := opened.Pool().Exec(t.Context(), "do $$ begin raise exception 'later' using errcode = '"+state+"'; end $$")
		if !errors.As(opened.Err(err), &known) {
			t.Fatalf("it says %v", err)
		}
		return known
	}
	pgtest.Exec(t, d.Pool, `insert into ojs.problem (sqlstate, code, http_status, retryable, title, hint)
		values ('OJ4ZZ', 'later', 418, true, 'Later.', 'Wait.')`)
	if e := raise("OJ4ZZ"); e.Status != 418 || e.Code != "later" || e.Message != "later" {
		t.Errorf("a later one is %+v", e)
	}
	if e := raise("OJ4ZY"); e.Status != 400 || e.Code != "invalid_request" || e.Message != "later" {
		t.Errorf("one that no release has is %+v", e)
	}
}

// note is a migration of a release to come. The view ojs._handed, which is select j.* from ojs.job
// j, has the column when it is made anew.
const (
	note = `-- +goose Up
set local role ojs_owner;
alter table ojs.job add column note text;
reset role;
`
	handedHasNote = "select exists (select from pg_attribute a where a.attrelid = 'ojs._handed'::regclass and a.attname = 'note')"
)

// A view of all columns of a table has those that a migration added, though its file has not
// changed.
func TestAMigrationHasAllCodeApplied(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := pgtest.Later(t, map[string]string{"migrations/90001_note.sql": note})
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, d.Pool, handedHasNote) {
		t.Error("ojs._handed, which is select j.* from ojs.job j, has not the new column")
	}
}

// A release may differ from the one before in nothing but what servers do, or in the order of its
// files.
func TestAReleaseWithTheSameCodeIsNoted(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := pgtest.Later(t, nil)
	if err := migrate.RunFrom(t.Context(), later, d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.One[string](t, d.Pool, "select release from ojs.schema_release"); got != later.Release {
		t.Errorf("the release is %s, want %s", got, later.Release)
	}
	pgtest.Exec(t, d.Pool, "update ojs.schema_release set release = '0.0.9'")
	if s, err := migrate.Status(t.Context(), d.URL); err != nil || s.Current {
		t.Errorf("an older release with the same code is current: %+v, %v", s.Current, err)
	}
	if err := migrate.CheckSchema(t.Context(), d.Open().Pool()); !errors.Is(err, migrate.ErrRelease) {
		t.Errorf("a server says %v", err)
	}
	if err := migrate.Run(t.Context(), d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if err := migrate.CheckSchema(t.Context(), d.Open().Pool()); err != nil {
		t.Errorf("after the upgrade a server says %v", err)
	}
}

const more = "\ncreate or replace function ojs._more() returns int language sql as 'select 1';\n"

// What a release without a migration adds and takes away is remembered for restores to come.
func TestPrivilegesAreRememberedWithTheCode(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	with := pgtest.Later(t, map[string]string{"code/jobs/status.sql": pgtest.CodeFile(t, "jobs/status.sql") + more})
	with.Release = "98.0.0"
	gone := pgtest.CodeFile(t, "gone.sql") + "drop function if exists ojs._more();\n"
	without := pgtest.Later(t, map[string]string{"code/gone.sql": gone})
	for _, release := range []migrate.Source{with, without} {
		if err := migrate.RunFrom(t.Context(), release, d.URL, migrate.Up, nil); err != nil {
			t.Fatal(err)
		}
		const differs = `
			select count(*) from (select p.key from ojs._privileges() p where not p.passing) h
			full join (select k.key from ojs.schema_hash s cross join unnest(s.privileges) k) k using (key)
			where h is null or k is null`
		if n := pgtest.One[int](t, d.Pool, differs); n != 0 {
			t.Errorf("after the upgrade to %s, %d owners, grants and policies are not remembered as they are", release.Release, n)
		}
		if what := pgtest.One[*string](t, d.Pool, "select ojs._unfit()"); what != nil {
			t.Errorf("after the upgrade to %s no server may start: %s", release.Release, *what)
		}
	}
}

// An upgrade that ended between its migrations and its functions: the next one ends it, whatever
// clocks say, and the program of the release before says which one has to.
func TestAnUpgradeThatEndedBeforeItsCode(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pgtest.Exec(t, d.Pool, "update ojs.schema_release set applied_at = clock_timestamp() + interval '1 hour'")
	files := map[string]string{"migrations/90001_note.sql": note}
	broken := maps.Clone(files)
	broken["code/jobs/status.sql"] = "select 1 / 0;"
	if err := migrate.RunFrom(t.Context(), pgtest.Later(t, broken), d.URL, migrate.Up, nil); err == nil {
		t.Fatal("the code was applied")
	}
	err := migrate.Run(t.Context(), d.URL, migrate.Up, nil)
	if !errors.Is(err, migrate.ErrSchema) || !strings.Contains(err.Error(), "Migrate with the later one") {
		t.Errorf("the release before says %v", err)
	}
	if err := migrate.CheckSchema(t.Context(), d.Open().Pool()); err != nil {
		t.Errorf("a server of the release before says %v", err)
	}
	if err := migrate.RunFrom(t.Context(), pgtest.Later(t, files), d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, d.Pool, handedHasNote) {
		t.Error("the view ojs._handed was not made anew")
	}
}

// Files that take long without a lock in their way are applied at the first try.
func TestSlowCodeIsNotTakenForLockedOut(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	slow := map[string]string{}
	for _, name := range []string{"jobs/status.sql", "jobs/list_jobs.sql"} {
		slow[name] = "select pg_catalog.pg_sleep(0.5), nextval('public.tries');\n"
	}
	pgtest.Exec(t, d.Pool, "create sequence public.tries; grant usage on sequence public.tries to public")
	if err := migrate.RunFrom(t.Context(), changedCode(t, slow), d.URL, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, d.Pool, "select last_value from public.tries"); n != 2 {
		t.Errorf("two files ran %d times", n)
	}
}

// gone.sql runs again at later upgrades, and finds nothing to drop in a database that has them.
func TestWhatIsGoneIsNotDroppedTwice(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const objects = `
		select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'ojs'::regnamespace union all
		select c.oid::regclass::text from pg_class c where c.relnamespace = 'ojs'::regnamespace order by 1`
	before := pgtest.List[string](t, d.Pool, objects)
	pgtest.Exec(t, d.Pool, pgtest.CodeFile(t, "gone.sql"))
	after := pgtest.List[string](t, d.Pool, objects)
	for _, object := range before {
		if !slices.Contains(after, object) {
			t.Errorf("gone.sql drops %s, which is there", object)
		}
	}
}
