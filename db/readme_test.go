package db_test

import (
	"os"
	"path/filepath"
	"regexp"
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
	pages = append(pages, "../README.md", "../docs/security.md", "../docs/delivery.md", "../docs/tiers.md", "../docs/walk.md")
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
