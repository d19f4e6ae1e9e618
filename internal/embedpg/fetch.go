//go:build unix

package embedpg

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// DefaultRepository is Maven Central, where the project zonky publishes builds of PostgreSQL that run
// from any directory.
const DefaultRepository = "https://repo1.maven.org/maven2"

// downloads maps a major version to the release of zonky that is downloaded.
var downloads = map[int]string{15: "15.13.0", 16: "16.9.0", 17: "17.5.0", 18: "18.3.0"}

// FetchOptions holds what to download and where to keep it; the zero value is usable.
type FetchOptions struct {
	// Major version; 0 takes the newest.
	Major int
	// Repository in Maven's layout; empty means DefaultRepository.
	Repository string
	// CacheDir empty means "ojs-pg" in the user's cache directory, for root in /var/cache:
	// the binaries have to be executable for the user that PostgreSQL runs as.
	CacheDir string
	Progress Progress

	stallTimeout time.Duration // how long the repository may send nothing; 0 means 30 s
}

// Fetch downloads and unpacks a PostgreSQL, or returns the one that it has unpacked before. It fails if
// the archive has no checksum or another one, or if the programs do not run on this machine.
func Fetch(ctx context.Context, opts FetchOptions) (Binaries, error) {
	version, ok := downloads[cmp.Or(opts.Major, newestMajor)]
	if !ok {
		return Binaries{}, fmt.Errorf("PostgreSQL %d cannot be downloaded, only %d to %d", opts.Major, oldestMajor, newestMajor)
	}
	repository := strings.TrimRight(cmp.Or(opts.Repository, DefaultRepository), "/")
	return Install(opts.CacheDir, version, func(work, target string) error {
		archive := filepath.Join(work, "postgres.jar")
		err := opts.download(ctx, archiveURL(repository, version), archive, version)
		if err == nil {
			err = unpackJar(ctx, archive, target)
		}
		if err != nil {
			return fmt.Errorf("PostgreSQL %s from %s: %w", version, repository, err)
		}
		return nil
	})
}

// Install returns the binaries of a version from the cache. If the cache has none, it calls fill, which
// makes the directory target and puts them there, as target/bin/postgres and so on; work is a directory
// for temporary files, target a directory in it. cacheDir is as in FetchOptions.
func Install(cacheDir, version string, fill func(work, target string) error) (Binaries, error) {
	cache, err := resolveCacheDir(cacheDir)
	if err != nil {
		return Binaries{}, err
	}
	final := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if b, err := inspect(filepath.Join(final, "bin")); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("create the cache directory: %w", err)
	}
	// The directory gets its final name by a rename, so that under this name it is complete even if two
	// programs download at once.
	work, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return Binaries{}, fmt.Errorf("create a directory for the download: %w", err)
	}
	defer os.RemoveAll(work)
	target := filepath.Join(work, "unpacked")
	if err := fill(work, target); err != nil {
		return Binaries{}, err
	}
	if err := readableByAll(target); err != nil {
		return Binaries{}, fmt.Errorf("make the downloaded files readable: %w", err)
	}
	if _, err := inspect(filepath.Join(target, "bin")); err != nil {
		return Binaries{}, fmt.Errorf("the downloaded PostgreSQL does not run on this machine: %w", err)
	}
	if err := os.Rename(target, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return Binaries{}, fmt.Errorf("keep the downloaded PostgreSQL: %w", err)
	}
	return inspect(filepath.Join(final, "bin"))
}

// archiveURL returns the address of zonky's archive for this operating system and processor.
func archiveURL(repository, version string) string {
	system := runtime.GOARCH
	switch system {
	case "arm64":
		system = "arm64v8"
	case "arm":
		system = "arm32v7"
	case "386":
		system = "i386"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		system += "-alpine" // built for musl
	}
	name := "embedded-postgres-binaries-" + runtime.GOOS + "-" + system
	return fmt.Sprintf("%[1]s/io/zonky/test/postgres/%[2]s/%[3]s/%[2]s-%[3]s.jar", repository, name, version)
}

// download writes the archive to a file and compares it with the checksum that the repository
// publishes for it. It refuses an archive without a checksum, because the programs in it are run.
func (o FetchOptions) download(ctx context.Context, url, file, version string) error {
	var published strings.Builder
	if err := o.get(ctx, url+".sha256", &published, func(int64, int64) {}); err != nil {
		return fmt.Errorf("get the SHA-256 checksum of the archive: %w", err)
	}
	// Some repositories end the line, and some add the file's name.
	want, _, _ := strings.Cut(strings.TrimSpace(published.String()), " ")
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	sum := sha256.New()
	err = o.get(ctx, url, io.MultiWriter(out, sum), func(done, total int64) {
		if o.Progress != nil {
			o.Progress("downloading PostgreSQL "+version, done, total)
		}
	})
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); !strings.EqualFold(got, want) {
		return fmt.Errorf("the SHA-256 checksums do not match: the archive has %s, the repository says %q", got, want)
	}
	return nil
}

// get copies the answer to a GET request to a writer. It gives up when nothing arrives for the stall
// timeout: a body has no time limit of its own, since a download may take long. progress gets total 0
// if the server does not tell the size.
func (o FetchOptions) get(ctx context.Context, url string, to io.Writer, progress func(done, total int64)) error {
	limit := cmp.Or(o.stallTimeout, 30*time.Second)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%s sends nothing for %s", url, limit)) })
	defer stalled.Stop()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	var done int64
	buffer := make([]byte, 64<<10)
	for {
		n, err := response.Body.Read(buffer)
		stalled.Reset(limit)
		if _, err := to.Write(buffer[:n]); err != nil {
			return err
		}
		done += int64(n)
		progress(done, max(response.ContentLength, 0))
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

// resolveCacheDir returns the absolute path of the cache, by FetchOptions.CacheDir.
func resolveCacheDir(dir string) (string, error) {
	if dir == "" && os.Geteuid() == 0 {
		return "/var/cache/ojs-pg", nil
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache directory: %w (name one with OJS_CACHE_DIR)", err)
		}
		return filepath.Join(user, "ojs-pg"), nil
	}
	return filepath.Abs(dir)
}
