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
	"slices"
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

// Version is the number of the last migration.
func Version() int64 { return version() }

var version = sync.OnceValue(func() (last int64) {
	for _, entry := range files(Files()) {
		last = number(entry)
	}
	return last
})

// Files are the migrations without their directory.
func Files() fs.FS {
	sub, err := fs.Sub(Migrations, "migrations")
	if err != nil {
		panic(err)
	}
	return sub
}

// HashUpTo is the hash of a database that stopped at a version: over the files whose number
// is not above it.
func HashUpTo(version int64) string { return HashOf(Files(), version) }

// HashOf is HashUpTo for other migrations.
func HashOf(migrations fs.FS, version int64) string {
	sum := sha256.New()
	for _, entry := range files(migrations) {
		if number(entry) > version {
			continue
		}
		body, err := fs.ReadFile(migrations, entry.Name())
		if err != nil {
			panic(err)
		}
		// The length keeps the boundary between two files unambiguous.
		fmt.Fprintf(sum, "%s\x00%d\x00", entry.Name(), len(body))
		sum.Write(body)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// files are sorted by name. Reading files that were compiled in cannot fail.
func files(migrations fs.FS) []fs.DirEntry {
	entries, err := fs.ReadDir(migrations, ".")
	if err != nil {
		panic(err)
	}
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return number(e) < 0 })
}

// number is -1 for what is no migration.
func number(entry fs.DirEntry) int64 {
	prefix, _, _ := strings.Cut(entry.Name(), "_")
	n, err := strconv.ParseInt(prefix, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
