// Package db holds the schema of ojs-pg as goose migrations, inside the binary.
//
// It knows nothing about connections: internal/pg applies the migrations and compares
// hashes. It exists because go:embed cannot look upward from internal/.
package db

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"sync"
)

// Migrations holds the goose files as "migrations/*.sql".
//
//go:embed migrations/*.sql
var Migrations embed.FS

// Hash identifies the schema: the hex SHA-256 over the names and contents of all migration
// files in the order of their names. A database remembers the hash it was made with, because
// before 0.1.0 migrations are edited in place and their numbers alone prove nothing.
func Hash() string { return hash() }

var hash = sync.OnceValue(func() string { return HashUpTo(math.MaxInt64) })

// HashUpTo is the hash of a database that stopped at a version: over the files whose number
// is not above it.
func HashUpTo(version int64) string {
	// ReadDir sorts by name and cannot fail on files that were compiled in.
	entries, err := fs.ReadDir(Migrations, "migrations")
	if err != nil {
		panic(err)
	}
	sum := sha256.New()
	for _, entry := range entries {
		number, _, _ := strings.Cut(entry.Name(), "_")
		if n, err := strconv.ParseInt(number, 10, 64); err != nil || n > version {
			continue
		}
		body, err := fs.ReadFile(Migrations, "migrations/"+entry.Name())
		if err != nil {
			panic(err)
		}
		// The length keeps the boundary between two files unambiguous.
		fmt.Fprintf(sum, "%s\x00%d\x00", entry.Name(), len(body))
		sum.Write(body)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
