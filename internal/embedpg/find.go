//go:build unix

package embedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BinEnv names the environment variable with the directory of the server's programs.
const BinEnv = "OJS_PG_BIN"

// The schema needs oldestMajor or later. newestMajor is the newest version that is tested; Find
// prefers versions up to it.
const (
	oldestMajor = 15
	newestMajor = 18
)

// Binaries are the programs of one PostgreSQL installation.
type Binaries struct {
	// Dir holds postgres and initdb, symbolic links resolved.
	Dir string
	// Version as the server says it ("15.18").
	Version string
	// Major is its first number.
	Major int
}

// Find returns the usable installations of this machine, the preferred one first. If binDir or
// OJS_PG_BIN names a directory, it looks only there, and the error says what is wrong with it.
// Otherwise the installation in PATH comes first, then the usual directories, tested versions before
// newer ones and higher before lower ones. It fails if there is none.
func Find(binDir string) ([]Binaries, error) {
	if dir := explicitBinDir(binDir); dir != "" {
		b, err := inspect(dir)
		if err != nil {
			return nil, err
		}
		return []Binaries{b}, nil
	}

	var found []Binaries
	add := func(b Binaries) {
		if !slices.ContainsFunc(found, func(known Binaries) bool { return known.Dir == b.Dir }) {
			found = append(found, b)
		}
	}
	for _, name := range []string{"postgres", "initdb"} {
		if path, err := exec.LookPath(name); err == nil {
			// Links are followed: initdb looks for its files next to its real path.
			if real, err := filepath.EvalSymlinks(path); err == nil {
				if b, err := inspect(filepath.Dir(real)); err == nil {
					add(b)
				}
			}
		}
	}
	var usual []Binaries
	for _, pattern := range usualPlaces() {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("look for PostgreSQL in %s: %w", pattern, err)
		}
		for _, dir := range dirs {
			if b, err := inspect(dir); err == nil {
				usual = append(usual, b)
			}
		}
	}
	slices.SortStableFunc(usual, func(a, b Binaries) int {
		rank := func(b Binaries) int {
			if b.Major > newestMajor {
				return -b.Major
			}
			return b.Major
		}
		return cmp.Compare(rank(b), rank(a))
	})
	for _, b := range usual {
		add(b)
	}
	if len(found) == 0 {
		return nil, errors.New("no PostgreSQL was found on this machine")
	}
	return found, nil
}

// explicitBinDir returns the directory that the caller or the environment names, or "".
func explicitBinDir(binDir string) string { return cmp.Or(binDir, os.Getenv(BinEnv)) }

// usualPlaces returns patterns of the directories into which packages install the server's programs.
func usualPlaces() []string {
	places := []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // the project's own RPMs
		"/usr/libexec/postgresql*",  // Alpine
		"/usr/local/pgsql/bin",      // built from source
		"/usr/local/opt/postgresql*/bin",
	}
	if runtime.GOOS == "darwin" {
		places = append(places,
			"/opt/homebrew/opt/postgresql*/bin",
			"/Applications/Postgres.app/Contents/Versions/*/bin")
	}
	return places
}

// inspect returns the installation in a directory. It runs postgres to ask for the version, because the
// name of the directory may be wrong. It fails if programs are missing or the version is too old.
func inspect(dir string) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, fmt.Errorf("resolve %s: %w", dir, err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return Binaries{}, fmt.Errorf("%s is not a directory of PostgreSQL's server programs: %w", dir, err)
		}
	}
	if real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
		dir = filepath.Dir(real)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s/postgres for its version: %w", dir, err)
	}
	b := Binaries{Dir: dir}
	b.Version, b.Major, err = parseVersion(string(out))
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s/postgres for its version: %w", dir, err)
	}
	if b.Major < oldestMajor {
		return Binaries{}, fmt.Errorf("%s holds PostgreSQL %s; %d or later is needed", dir, b.Version, oldestMajor)
	}
	return b, nil
}

// parseVersion reads the answer to postgres --version, such as "postgres (PostgreSQL) 15.18 (Debian
// ...)" or "... 19devel".
func parseVersion(line string) (version string, major int, err error) {
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return "", 0, fmt.Errorf("unexpected answer %q", line)
	}
	version = fields[2]
	digits := version
	if end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = version[:end]
	}
	major, err = strconv.Atoi(digits)
	if err != nil {
		return "", 0, fmt.Errorf("unexpected answer %q", line)
	}
	return version, major, nil
}
