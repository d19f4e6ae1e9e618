package pgtest

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
)

// LaterRelease is the version of the release that Later returns.
const LaterRelease = "99.0.0"

// Later returns a release of the future, for tests of upgrades: the project's own migrations and code,
// and files that are added or replace one of them. A key of files is a path below db.
func Later(t testing.TB, files map[string]string) migrate.Source {
	t.Helper()
	all := fstest.MapFS{}
	for dir, from := range map[string]fs.FS{"migrations": db.Files(), "code": db.Code()} {
		err := fs.WalkDir(from, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			raw, err := fs.ReadFile(from, path)
			all[dir+"/"+path] = &fstest.MapFile{Data: raw}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		all[name] = &fstest.MapFile{Data: []byte(content)}
	}
	below := func(dir string) fs.FS {
		sub, err := fs.Sub(all, dir)
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	return migrate.Source{Migrations: below("migrations"), Code: below("code"), Release: LaterRelease, NeedsServer: db.NeedsServer}
}

// CodeFile returns the text of a file, by its path below db/code.
func CodeFile(t testing.TB, name string) string {
	t.Helper()
	text, err := fs.ReadFile(db.Code(), name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
