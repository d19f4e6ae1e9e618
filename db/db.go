// Package db holds the schema of ojs-pg, inside the binary: migrations, which make tables and are frozen, and code, which is functions,
// views, comments and grants.
//
// It knows nothing about connections: internal/migrate applies both and compares hashes. It exists because go:embed cannot look upward from
// internal/.
package db

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	// Release is the release that this schema belongs to.
	Release = "0.1.1"
	// NeedsServer is the oldest release whose servers may run with this schema. It grows when something goes that they call.
	NeedsServer = "0.1.0"
)

// CompareReleases is less than 0 if a release, such as 0.2.1, came before another one, and 0 if it is the same.
func CompareReleases(a, b string) int {
	numbers := func(release string) (of []int) {
		for part := range strings.SplitSeq(release, ".") {
			n, _ := strconv.Atoi(part)
			of = append(of, n)
		}
		return of
	}
	return slices.Compare(numbers(a), numbers(b))
}

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed code
var code embed.FS

// Hash identifies the tables: the hex SHA-256 over the names and contents of all migration files in the order of their names. A database
// remembers which migrations it was made with.
func Hash() string { return hash() }

var hash = sync.OnceValue(func() string { return HashOf(Files(), math.MaxInt64) })

// Version is the number of the last migration.
func Version() int64 { return version() }

var version = sync.OnceValue(func() (last int64) {
	for _, entry := range files(Files()) {
		last = number(entry)
	}
	return last
})

// Files are the migrations without their directory.
func Files() fs.FS { return sub(migrations, "migrations") }

// Code are the files of code without their directory: rooms with files, and at the top what is applied with every change.
func Code() fs.FS { return sub(code, "code") }

func sub(files embed.FS, dir string) fs.FS {
	below, err := fs.Sub(files, dir)
	if err != nil {
		panic(err)
	}
	return below
}

// HashOf is the hash of a database that stopped at a version: over the migrations whose number is not
// above it.
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

// CodeFile is one file of code.
type CodeFile struct {
	// Name is its path below db/code.
	Name, Text string
	// Hash is the hex SHA-256 of the text.
	Hash string
	// Always says that it is applied whenever another one is: grants and planner settings, which a function that is made anew loses.
	Always bool
}

const (
	// Gone is the name of the file that drops what vanished from the code.
	Gone = "gone.sql"
	// Access is the name of the file of grants and planner settings.
	Access = "access.sql"
)

// CodeFiles reads files of code in the order in which they are applied, which the file "order" states: one name a line, with comments
// behind a #.
func CodeFiles(code fs.FS) ([]CodeFile, error) {
	list, err := fs.ReadFile(code, "order")
	if err != nil {
		return nil, fmt.Errorf("read the order of the code: %w", err)
	}
	var files []CodeFile
	for line := range strings.Lines(string(list)) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		text, err := fs.ReadFile(code, name)
		if err != nil {
			return nil, fmt.Errorf("read the code: %w", err)
		}
		sum := sha256.Sum256(text)
		files = append(files, CodeFile{
			Name: name, Text: string(text), Hash: hex.EncodeToString(sum[:]), Always: path.Dir(name) == "." && name != Gone,
		})
	}
	return files, nil
}

// CodeHash identifies code: the hex SHA-256 over the names and hashes of its files, in their order.
func CodeHash(files []CodeFile) string {
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s\x00%s\x00", f.Name, f.Hash)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// OwnCodeHash is the hash of the code that was compiled in.
func OwnCodeHash() string { return ownCodeHash() }

var ownCodeHash = sync.OnceValue(func() string {
	files, err := CodeFiles(Code())
	if err != nil {
		panic(err)
	}
	return CodeHash(files)
})
