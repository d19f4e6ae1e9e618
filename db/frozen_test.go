package db_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/db"
)

// Migrations that are in use never change: a database that has one would not get the change. What changes is a new file.
func TestMigrationsAreFrozen(t *testing.T) {
	t.Parallel()
	const list = "migrations/frozen"
	frozen := map[string]string{}
	for line := range strings.Lines(readFile(t, list)) {
		hash, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		frozen[name] = hash
	}
	names, err := fs.Glob(db.Files(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(db.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		switch now := hex.EncodeToString(sum[:]); frozen[name] {
		case now:
		case "":
			t.Errorf("%s is new: add it to db/%s: %s  %s", name, list, now, name)
		default:
			t.Errorf("%s is frozen and has changed: put the change into a new file", name)
		}
		delete(frozen, name)
	}
	for name := range frozen {
		t.Errorf("%s is frozen and is gone", name)
	}
	if !slices.IsSorted(names) || len(names) < 10 {
		t.Errorf("there are only %v", names)
	}
}
