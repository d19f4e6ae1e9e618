//go:build unix

package embedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// DefaultRepository is Maven Central, where the project zonky publishes relocatable builds.
const DefaultRepository = "https://repo1.maven.org/maven2"

// The releases to download. Other minor versions of the same majors work as well; these
// are the ones the fetching library was made for.
var downloads = map[int]embeddedpostgres.PostgresVersion{
	15: embeddedpostgres.V15,
	16: embeddedpostgres.V16,
	17: embeddedpostgres.V17,
	18: embeddedpostgres.V18,
}

// FetchOptions say what to download and where to keep it; the zero value is usable.
type FetchOptions struct {
	// Major version; 0 takes the newest.
	Major int
	// Repository in Maven's layout; empty means DefaultRepository.
	Repository string
	// CacheDir empty means "ojs-pg" in the user's cache directory, for root in /var/cache:
	// the binaries have to be executable for the user that PostgreSQL runs as.
	CacheDir string
	Progress Progress
}

// Fetch downloads and unpacks a PostgreSQL, or returns the one it unpacked before.
func Fetch(ctx context.Context, opts FetchOptions) (Binaries, error) {
	if opts.Progress == nil {
		opts.Progress = func(string, int64, int64) {}
	}
	version, ok := downloads[cmp.Or(opts.Major, newestMajor)]
	if !ok {
		return Binaries{}, fmt.Errorf("PostgreSQL %d cannot be downloaded, only %d to %d", opts.Major, oldestMajor, newestMajor)
	}
	cache, err := cacheDir(opts.CacheDir)
	if err != nil {
		return Binaries{}, err
	}
	target := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if b, err := inspect(filepath.Join(target, "bin")); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("create the cache directory: %w", err)
	}
	// Everything happens in a directory of its own, renamed at the end: what has the final
	// name is complete, whoever else downloads at the same time.
	work, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return Binaries{}, fmt.Errorf("create a directory for the download: %w", err)
	}
	defer os.RemoveAll(work)
	repository := strings.TrimRight(cmp.Or(opts.Repository, DefaultRepository), "/")
	if err := unpack(ctx, version, repository, work, opts.Progress); err != nil {
		return Binaries{}, fmt.Errorf("PostgreSQL %s from %s: %w", version, repository, err)
	}
	unpacked := filepath.Join(work, "unpacked")
	if err := readableByAll(unpacked); err != nil {
		return Binaries{}, fmt.Errorf("make the downloaded files readable: %w", err)
	}
	if _, err := inspect(filepath.Join(unpacked, "bin")); err != nil {
		return Binaries{}, fmt.Errorf("the downloaded PostgreSQL does not run on this machine: %w", err)
	}
	if err := os.Rename(unpacked, target); err != nil && !errors.Is(err, fs.ErrExist) {
		return Binaries{}, fmt.Errorf("keep the downloaded PostgreSQL: %w", err)
	}
	return inspect(filepath.Join(target, "bin"))
}

// unpack drives the library, which knows the repository's names per system and the archive's
// layout. It has no call that stops there: after unpacking, its Start goes on to run
// PostgreSQL. The data directory it is given has a version and nothing else, so that this last
// step fails at once, on every system and for every user, and touches nothing.
func unpack(ctx context.Context, version embeddedpostgres.PostgresVersion, repository, work string, progress Progress) error {
	relay, err := newRelay(ctx, repository, func(done, total int64) {
		progress(fmt.Sprintf("downloading PostgreSQL %s", version), done, total)
	})
	if err != nil {
		return err
	}
	defer relay.close()

	data := filepath.Join(work, "data")
	major, _, _ := strings.Cut(string(version), ".")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("prepare the download: %w", err)
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return fmt.Errorf("prepare the download: %w", err)
	}
	port, err := freePort("", false)
	if err != nil {
		return err
	}
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		BinaryRepositoryURL(relay.url).
		CachePath(filepath.Join(work, "archive")).
		RuntimePath(filepath.Join(work, "run")).
		BinariesPath(filepath.Join(work, "unpacked")).
		DataPath(data).
		Logger(io.Discard))
	err = library.Start()
	removeOpenTemp("embedded_postgres_log") // the library's log, which it leaves
	runtime.KeepAlive(library)              // and which it holds open until then
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case relay.failure() != nil:
		return relay.failure()
	case err == nil:
		return errors.Join(errors.New("a server started from an empty directory"), library.Stop())
	case !strings.HasPrefix(err.Error(), "could not start postgres"):
		return err
	case !relay.verified.Load():
		// The library takes an archive without a checksum; we run what is in it.
		return errors.New("the repository has no SHA-256 checksum for the archive")
	}
	return nil
}

// relay stands between the library and the repository, because the library's requests can
// neither be cancelled nor watched.
type relay struct {
	url      string
	verified atomic.Bool // the repository gave a checksum, which the library compares
	failed   atomic.Pointer[error]
	server   *http.Server
}

func newRelay(ctx context.Context, repository string, progress func(done, total int64)) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("prepare the download: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 30 * time.Second
	client := &http.Client{Transport: transport}

	r := &relay{url: "http://" + listener.Addr().String()}
	handle := func(w http.ResponseWriter, req *http.Request) error {
		upstream, err := http.NewRequestWithContext(ctx, http.MethodGet, repository+req.URL.EscapedPath(), nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(upstream)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		checksum := strings.HasSuffix(req.URL.Path, ".sha256")
		if answer.StatusCode != http.StatusOK {
			if !checksum {
				return fmt.Errorf("%s answers %s", upstream.URL, answer.Status)
			}
			w.WriteHeader(answer.StatusCode)
			return nil
		}
		if checksum {
			// Some repositories end the line, and some add the file's name.
			raw, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
			if err != nil {
				return err
			}
			if fields := strings.Fields(string(raw)); len(fields) > 0 {
				r.verified.Store(true)
				_, err = io.WriteString(w, strings.ToLower(fields[0]))
			}
			return err
		}
		if answer.ContentLength >= 0 {
			w.Header().Set("Content-Length", fmt.Sprint(answer.ContentLength))
		}
		counted := &countingReader{Reader: answer.Body, report: func(done int64) { progress(done, max(answer.ContentLength, 0)) }}
		_, err = io.Copy(w, counted)
		return err
	}
	r.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if err := handle(w, req); err != nil {
				r.failed.CompareAndSwap(nil, &err)
				panic(http.ErrAbortHandler) // a cut connection, so that half a file is not taken for a whole one
			}
		}),
	}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

func (r *relay) failure() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (r *relay) close() { _ = r.server.Close() }

type countingReader struct {
	io.Reader
	done   int64
	report func(done int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	c.report(c.done)
	return n, err
}

func cacheDir(dir string) (string, error) {
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

// readableByAll undoes a strict umask.
func readableByAll(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
