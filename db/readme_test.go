package db_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// The SQL that people are told to type works, page by page, on a database of its own.
func TestSQLInTheDocsWorks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("../docs/*/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(append(pages, deeper...), "../README.md", "../docs/security.md", "../docs/delivery.md", "../docs/tiers.md", "../docs/walk.md")
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := sqlBlock.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			continue
		}
		d := pgtest.New(t)
		conn, err := pgx.Connect(t.Context(), d.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "set search_path = public"); err != nil { // as in a psql of one's own
			t.Fatal(err)
		}
		for _, block := range found {
			blocks++
			// The simple protocol, as psql: several statements at once, transactions among them.
			if _, err := conn.PgConn().Exec(t.Context(), string(block[1])).ReadAll(); err != nil {
				t.Errorf("%s: %v\n%s", page, err, block[1])
			}
		}
		conn.Close(t.Context())
	}
	if blocks < 2 {
		t.Errorf("only %d blocks of SQL were found", blocks)
	}
}

var fileName = regexp.MustCompile("`((?:[a-z_]+/)?(?:\\d{5}_)?[a-z_]+\\.sql)`")

// db/README.md names each migration and each file of code, and none that is not there.
func TestReadmeNamesEveryFile(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, m := range fileName.FindAllStringSubmatch(readFile(t, "README.md"), -1) {
		named[m[1]] = true
	}
	for _, dir := range []string{"code", "migrations"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, path)
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".sql" {
				return err
			}
			if !named[name] {
				t.Errorf("db/README.md does not name %s", name)
			}
			delete(named, name)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(named, "schema.sql")
	if len(named) > 0 {
		t.Errorf("db/README.md names files that do not exist: %q", slices.Sorted(maps.Keys(named)))
	}
}

// A file that the order forgets would never be applied.
func TestEveryFileOfCodeHasItsPlace(t *testing.T) {
	t.Parallel()
	applied := codeFiles(t)
	err := filepath.WalkDir("code", func(path string, entry fs.DirEntry, err error) error {
		if name, _ := filepath.Rel("code", path); err == nil && filepath.Ext(name) == ".sql" && applied[name] == "" {
			t.Errorf("db/code/order does not name %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
