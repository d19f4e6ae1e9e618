package db_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// header matches a comment and the function right below it.
var header = regexp.MustCompile(`(?m)^--(?: [^+].*)?\ncreate (?:or replace )?function ojs\.(\w+)\(`)

// Above a function that users call stands what it does, locks and writes, and below it its comment.
func TestCallableFunctionsAreExplained(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	explained := map[string]bool{}
	for _, text := range codeFiles(t) {
		for _, m := range header.FindAllStringSubmatch(text, -1) {
			explained[m[1]] = strings.Contains(text, "comment on function ojs."+m[1]+"(")
		}
	}
	for _, name := range list[string](t, d.Pool, `
		select distinct p.proname::text from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proname not like '\_%'
		  and a.grantee::pg_catalog.regrole::text in ('ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant')`) {
		if !explained[name] {
			t.Errorf("ojs.%s lacks a comment above it, or its `comment on` in the same file", name)
		}
	}
}

// codeFiles returns the text of each file of code by its name.
func codeFiles(t testing.TB) map[string]string {
	t.Helper()
	files, err := db.CodeFiles(db.Code())
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, f := range files {
		texts[f.Name] = f.Text
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
				where p.pronamespace = 'ojs'::pg_catalog.regnamespace
					and (p.proname = pg_catalog.split_part($1, '.', 2)
						or pg_catalog.strpos(p.prosrc, 'current_setting(''' || $1) > 0))`, name)
		if !exists {
			t.Errorf("README.md names %s, which does not exist", name)
		}
	}
}
