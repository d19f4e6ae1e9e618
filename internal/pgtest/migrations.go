package pgtest

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/ojs-pg/ojs-pg/db"
)

// Migrations are the project's with more behind them: file names and their contents.
func Migrations(t testing.TB, more map[string]string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	entries, err := fs.ReadDir(db.Files(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		raw, err := fs.ReadFile(db.Files(), entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = &fstest.MapFile{Data: raw}
	}
	for name, content := range more {
		files[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return files
}
