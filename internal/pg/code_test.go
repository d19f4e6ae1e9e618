package pg_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// changedCode is a release to come in which files of code have more text at their end.
func changedCode(t *testing.T, more map[string]string) pg.Source {
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

// Only files whose text has changed run, and after them grants and settings, which a function that is made anew has lost.
func TestMigrateAppliesWhatChanged(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := changedCode(t, map[string]string{
		"jobs/status.sql": "create or replace function ojs._more() returns int language sql as 'select 1';\n",
	})
	before := pgtest.One[time.Time](t, d.Pool, "select clock_timestamp()")
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
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
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
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

// What vanished is dropped, but nothing of a user's that depends on it: then nothing at all is changed, and the error names it.
func TestMigrateDropsNothingOfTheUsers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pgtest.Exec(t, d.Pool, "create view public.mine as select ojs._has_fetched() as fetched")
	later := changedCode(t, map[string]string{
		db.Gone:           "drop function if exists ojs._has_fetched();\n",
		"jobs/status.sql": "create or replace function ojs._more() returns int language sql as 'select 1';\n",
	})
	err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil)
	if err == nil || !strings.Contains(err.Error(), "view public.mine") || !strings.Contains(err.Error(), "Drop what depends on it") {
		t.Errorf("with a view of the user's in the way it says: %v", err)
	}
	if n := pgtest.One[int](t, d.Pool, "select count(*)::int from pg_proc where proname = '_more'"); n != 0 {
		t.Error("something was changed")
	}
	pgtest.Exec(t, d.Pool, "drop view public.mine")
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
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
	go func() { done <- pg.MigrateFrom(ctx, later, d.URL, pg.Up, nil) }()
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
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
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
			err := opened.CheckSchema(t.Context())
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, pg.ErrRelease) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("a server says %v, want %q", err, c.says)
			}
			pgtest.Exec(t, d.Pool, "delete from ojs.schema_release")
			pgtest.Exec(t, d.Pool, "insert into ojs.schema_release select * from jsonb_populate_record(null::ojs.schema_release, $1)", was)
			pgtest.Exec(t, d.Pool, "delete from ojs.schema_hash")
			pgtest.Exec(t, d.Pool, "insert into ojs.schema_hash select * from jsonb_populate_recordset(null::ojs.schema_hash, $1)", hashes)
		})
	}
}

// An SQLSTATE of a later release has the status that ojs.problem gives it by now, or that of its class.
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

// A view of all columns of a table has those that a migration added, though its file has not changed.
func TestAMigrationHasAllCodeApplied(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	later := pgtest.Later(t, map[string]string{"migrations/90001_note.sql": `-- +goose Up
set local role ojs_owner;
alter table ojs.job add column note text;
reset role;
`})
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, d.Pool, `
		select exists (select from pg_attribute a where a.attrelid = 'ojs._handed'::regclass and a.attname = 'note')`) {
		t.Error("ojs._handed, which is select j.* from ojs.job j, has not the new column")
	}
}
