package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
	"go.uber.org/goleak"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
)

// server is the PostgreSQL that all tests of this process use. Each package is tested in a process of
// its own. Processes share a server only if OJS_TEST_DATABASE_URL names one: a start takes less than
// a second, and a server of one process cannot be stopped by another, nor fill up with its leftovers.
type server struct {
	address  *url.URL // of the maintenance database, as superuser
	admin    *pgxpool.Pool
	template string // name of the template database
	strategy string // of `create database`

	// stop ends the server if this process has started it. kept says that its data has to stay.
	stop func(kept bool) error
	// revive is a text that tells how to reach a kept database after the process has ended.
	revive string
	kept   atomic.Bool // a test has failed and keeps its database
}

var (
	current   *server
	startOnce sync.Once
	startErr  error
)

// shared returns the server of this process, and starts it at the first call.
func shared() (*server, error) {
	startOnce.Do(func() { current, startErr = startServer() })
	return current, startErr
}

// Main runs the tests of a package and stops the server that they used, if it was started here. It
// returns the exit code. If all tests passed, it fails if a goroutine is left: a test has to stop the
// goroutines that it starts. The body of TestMain is os.Exit(pgtest.Main(m)). Without it the server
// ends with the process, and goroutines are not checked.
func Main(m *testing.M) int {
	code := m.Run()
	if current != nil {
		if current.admin != nil {
			current.admin.Close()
		}
		if err := current.stop(current.kept.Load()); err != nil {
			fmt.Fprintln(os.Stderr, "stop the test's PostgreSQL:", err)
			return max(code, 1)
		}
	}
	if code != 0 {
		// A failed test keeps its database, and with it its connections.
		return code
	}
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(goleak.IgnoreAnyFunction(containerWatcher)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// containerWatcher is a goroutine of testcontainers that lasts as long as the process: it holds a
// connection to the program that removes containers.
const containerWatcher = "github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"

// startServer starts or finds a server, by OJS_TEST_BACKEND or what the machine has, with the
// template ready to be cloned.
func startServer() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	backend := os.Getenv("OJS_TEST_BACKEND")
	if backend == "" {
		switch {
		case os.Getenv("OJS_TEST_DATABASE_URL") != "":
			backend = "url"
		case haveBinaries():
			backend = "local"
		}
	}
	var s *server
	var err error
	switch backend {
	case "":
		// Neither a server nor binaries: try a container, and without Docker a download.
		if s, err = container(ctx); err != nil {
			var fetchErr error
			if s, fetchErr = local(ctx); fetchErr != nil {
				return nil, errors.Join(err, fetchErr)
			}
			err = nil
		}
	case "url":
		s, err = existing()
	case "local":
		s, err = local(ctx)
	case "container":
		s, err = container(ctx)
	default:
		return nil, fmt.Errorf("OJS_TEST_BACKEND is %q, want url, local or container", backend)
	}
	if err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, s.stop(false))
	}
	return s, nil
}

// connect opens the pool of the superuser and prepares the template.
func (s *server) connect(ctx context.Context) error {
	var err error
	if s.admin, err = newPool(s.address.String(), 4); err != nil {
		return err
	}
	if err := s.prepareTemplate(ctx); err != nil {
		return fmt.Errorf("prepare the template database: %w", err)
	}
	return nil
}

// keep returns a text for the log of a failed test that tells how to reach its database, and makes
// Main keep the server's data.
func (s *server) keep(address string) string {
	s.kept.Store(true)
	return "the database of this failed test is kept: " + address + s.revive
}

// existing returns the server at OJS_TEST_DATABASE_URL. The end of the process does not stop it.
func existing() (*server, error) {
	raw := os.Getenv("OJS_TEST_DATABASE_URL")
	address, err := url.Parse(raw)
	if err != nil || (address.Scheme != "postgres" && address.Scheme != "postgresql") {
		return nil, errors.New("OJS_TEST_DATABASE_URL must be a postgres:// URL of a superuser")
	}
	// file_copy takes two checkpoints, which are slow on a server that syncs.
	return &server{address: address, strategy: "wal_log", stop: func(bool) error { return nil }}, nil
}

// binDir returns the directory of PostgreSQL's programs that the user names, or "".
func binDir() string { return os.Getenv("OJS_TEST_PG_BIN") }

// haveBinaries reports whether a server can be started from local binaries.
func haveBinaries() bool {
	_, err := embedpg.Find(binDir())
	// If the user names a directory it counts as present: a wrong name is an error and not a reason to
	// try a container.
	return err == nil || binDir() != ""
}

// fast are settings of PostgreSQL that save time. A test's data need not survive a crash of the
// machine.
var fast = map[string]string{
	"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
	"max_connections": "300", "shared_buffers": "128MB", "max_wal_size": "4GB", "checkpoint_timeout": "1h",
}

// memory is a file system in memory. It is used if memoryNeeded bytes are free there: databases of
// failed tests are kept, at 12 MB each.
const (
	memory       = "/dev/shm"
	memoryNeeded = 8 << 30
)

// dataHome returns the directory for the data of servers: TMPDIR if it is set, else memory if enough
// is free there, else the usual temporary directory. Memory is faster because a database is hundreds
// of files, and ext4 searches for the number of a new file among all those that were removed in the
// last seconds. With a database for each test, that search would take half of the time of all tests.
func dataHome() string {
	var room syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &room) != nil || uint64(room.Bavail)*uint64(room.Bsize) < memoryNeeded {
		return os.TempDir()
	}
	return memory
}

// local starts a server from local binaries, or downloads them. Its data is removed with it, unless
// a test has failed.
func local(ctx context.Context) (*server, error) {
	prefix := "ojs-pgtest-" + strconv.Itoa(os.Getuid()) + "-"
	home := dataHome()
	sweep(ctx, filepath.Join(home, prefix+"*"))
	dir, err := os.MkdirTemp(home, prefix)
	if err != nil {
		return nil, err
	}
	pg, err := embedpg.Start(ctx, embedpg.Options{DataDir: dir, BinDir: binDir(), Settings: fast, Throwaway: true})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	address, err := url.Parse(pg.URL("postgres"))
	if err != nil {
		return nil, errors.Join(err, pg.Stop())
	}
	return &server{
		address:  address,
		strategy: "file_copy",
		revive: fmt.Sprintf("\nits server ends with this process; later, as the owner of the files: %s/postgres -D %s/pgdata -p %d -k ''",
			pg.Binaries.Dir, dir, pg.Port),
		stop: func(kept bool) error {
			if err := pg.Stop(); err != nil {
				return err
			}
			if kept {
				return os.WriteFile(filepath.Join(dir, keepMark), nil, 0o600)
			}
			return os.RemoveAll(dir)
		},
	}, nil
}

// Data directories with a file keepMark are kept for keepFor, the latest keepMost of them.
const (
	keepMark = "keep"
	keepFor  = 24 * time.Hour
	keepMost = 3
)

// sweep removes the data directories of test processes that were killed, and those that processes with
// failed tests kept, but for the latest keepMost of them.
func sweep(ctx context.Context, pattern string) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	kept := map[string]time.Time{}
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, keepMark)); err == nil && time.Since(info.ModTime()) < keepFor {
			kept[dir] = info.ModTime()
		}
	}
	latest := slices.SortedFunc(maps.Keys(kept), func(a, b string) int { return kept[b].Compare(kept[a]) })
	latest = latest[:min(len(latest), keepMost)]
	for _, dir := range dirs {
		if !slices.Contains(latest, dir) {
			// A directory that another process uses, or is just making, is refused with an error.
			_ = embedpg.Remove(ctx, dir)
		}
	}
}

// container starts a server in a container.
func container(ctx context.Context) (*server, error) {
	const password = "ojs"
	args := []string{"postgres"}
	for name, value := range fast {
		args = append(args, "-c", name+"="+value)
	}
	c, err := testcontainers.Run(ctx, "postgres:15-bookworm",
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": password}),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithCmd(args...),
		// The image starts PostgreSQL twice; the first start only prepares its volume.
		testcontainers.WithWaitStrategyAndDeadline(2*time.Minute,
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp")),
	)
	stop := func(bool) error { return testcontainers.TerminateContainer(c) }
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a container with PostgreSQL: %w", err), stop(false))
	}
	endpoint, err := c.PortEndpoint(ctx, "5432/tcp", "")
	if err != nil {
		return nil, errors.Join(err, stop(false))
	}
	return &server{
		address:  &url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password), Host: endpoint, Path: "/postgres"},
		strategy: "file_copy",
		revive:   "\nits container ends with this process; to look at it later, test on a server of your own (OJS_TEST_DATABASE_URL)",
		stop:     stop,
	}, nil
}
