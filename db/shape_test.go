package db_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What a reader can hold: a file, a function, a line.
const (
	mostLines         = 300
	mostFunctionLines = 60
	mostColumns       = 140
	mostHeaderLines   = 3
)

var functionStart = regexp.MustCompile(`^create (?:or replace )?function ojs\.(\w+)\(`)

// Migrations are read more often than they are run.
func TestMigrationsAreInShape(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	callable := list[string](t, d.Pool, `
		select distinct p.proname::text from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proname not like '\_%'
		  and a.grantee::pg_catalog.regrole::text in ('ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant')`)
	for name, text := range migrations(t) {
		if found := shapeOf(text, callable); len(found) > 0 {
			t.Errorf("%s:\n  %s", name, strings.Join(found, "\n  "))
		}
	}
}

// migrations returns the text of each migration by the name of its file.
func migrations(t testing.TB) map[string]string {
	t.Helper()
	names, err := fs.Glob(db.Files(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, name := range names {
		text, err := fs.ReadFile(db.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

// Under another collation a new version of the system's library, or a standby on another system, would not find the keys any more; and
// every comparison would cost more.
func TestKeysCompareBytes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "tables whose keys compare in the database's collation", `
		select distinct c.relname::text collate "C" from pg_catalog.pg_index i
		join pg_catalog.pg_class c on c.oid = i.indrelid
		join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey::int2[])
		where `+ours+` and not c.relispartition and a.attcollation not in (0, 'pg_catalog."C"'::pg_catalog.regcollation) order by 1`)
}

// The page a newcomer reads first speaks of what is there.
func TestReadmeNamesWhatExists(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	text := readFile(t, "README.md")
	named := regexp.MustCompile(`ojs\.\w+`).FindAllString(text, -1)
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		exists := one[bool](t, d.Pool, `
			select pg_catalog.to_regclass($1) is not null or exists (
				select from pg_catalog.pg_proc p
				where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proname = pg_catalog.split_part($1, '.', 2))`, name)
		if !exists {
			t.Errorf("README.md names %s, which does not exist", name)
		}
	}
	for _, number := range regexp.MustCompile(`\b000\d\d\b`).FindAllString(text, -1) {
		if found, err := fs.Glob(db.Files(), number+"_*.sql"); err != nil || len(found) != 1 {
			t.Errorf("README.md names migration %s: there are %q", number, found)
		}
	}
}

// shapeOf says what is too long, and which of the callable functions have no header or no comment.
func shapeOf(text string, callable []string) (found []string) {
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(all) > mostLines {
		say("%d lines, more than %d", len(all), mostLines)
	}
	function, from := "", 0
	for i, line := range all {
		if n := utf8.RuneCountInString(line); n > mostColumns {
			say("line %d has %d columns, more than %d", i+1, n, mostColumns)
		}
		if m := functionStart.FindStringSubmatch(line); m != nil {
			function, from = m[1], i
			if slices.Contains(callable, function) {
				if header := headerLines(all[:i]); header < 1 || header > mostHeaderLines {
					say("%s has a header of %d lines, want 1 to %d that say what it does, locks and writes",
						function, header, mostHeaderLines)
				}
				if !strings.Contains(text, "comment on function ojs."+function+"(") {
					say("%s has no comment in this file", function)
				}
			}
		}
		if function != "" && strings.HasSuffix(line, "$$;") {
			if n := i - from + 1; n > mostFunctionLines {
				say("%s has %d lines, more than %d", function, n, mostFunctionLines)
			}
			function = ""
		}
	}
	return found
}

// headerLines counts the lines of the comment right above.
func headerLines(above []string) (n int) {
	for _, line := range slices.Backward(above) {
		switch {
		case strings.HasPrefix(line, "-- +goose"):
		case strings.HasPrefix(line, "--"):
			n++
		default:
			return n
		}
	}
	return n
}
