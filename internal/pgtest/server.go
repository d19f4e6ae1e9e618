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

// server is the one PostgreSQL of this test process. Packages are tested in processes of
// their own and share a server only if OJS_TEST_DATABASE_URL names one: starting one takes
// less than a second, and what is not shared cannot leak or be pulled away.
type server struct {
	address  *url.URL // of the maintenance database, as superuser
	admin    *pgxpool.Pool
	template string
	strategy string

	stop func(kept bool) error
	// revive tells how to reach a kept database after the process has ended.
	revive string
	kept   atomic.Bool
}

var (
	current   *server
	startOnce sync.Once
	startErr  error
)

// shared starts the server at the first call.
func shared() (*server, error) {
	startOnce.Do(func() { current, startErr = startServer() })
	return current, startErr
}

// Main runs the tests of a package and stops the server that they used, if it was started here. Where all passed it fails if a
// goroutine is left: a test stops what it starts. The body of TestMain is os.Exit(pgtest.Main(m)); without it the server ends with
// the process.
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

// containerWatcher holds a connection to the program that removes containers, as long as the process lives.
const containerWatcher = "github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"

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
		// Neither a server nor binaries: a container, or where there is no engine, a download.
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

// keep is what the log of a failed test says about its database.
func (s *server) keep(address string) string {
	s.kept.Store(true)
	return "the database of this failed test is kept: " + address + s.revive
}

func existing() (*server, error) {
	raw := os.Getenv("OJS_TEST_DATABASE_URL")
	address, err := url.Parse(raw)
	if err != nil || (address.Scheme != "postgres" && address.Scheme != "postgresql") {
		return nil, errors.New("OJS_TEST_DATABASE_URL must be a postgres:// URL of a superuser")
	}
	// A server that syncs is slow to copy files, which takes two checkpoints.
	return &server{address: address, strategy: "wal_log", stop: func(bool) error { return nil }}, nil
}

func binDir() string { return os.Getenv("OJS_TEST_PG_BIN") }

func haveBinaries() bool {
	_, err := embedpg.Find(binDir())
	// A directory named by the user is used or complained about, never passed over.
	return err == nil || binDir() != ""
}

// fast gives up what a test's data does not need: to survive the machine.
var fast = map[string]string{
	"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
	"max_connections": "300", "shared_buffers": "128MB", "max_wal_size": "4GB", "checkpoint_timeout": "1h",
}

// memory is a file system in memory, and memoryNeeded what has to be free there: databases of failed tests are kept, at 12 MB each.
const (
	memory       = "/dev/shm"
	memoryNeeded = 8 << 30
)

// dataHome is where servers keep their data: in memory if there is room, unless TMPDIR names another place. A database is hundreds of
// files, and ext4 looks for the number of a new file among all those that were removed in the last seconds: with a database for each test
// it would do so for half of the time of all tests.
func dataHome() string {
	var room syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &room) != nil || uint64(room.Bavail)*uint64(room.Bsize) < memoryNeeded {
		return os.TempDir()
	}
	return memory
}

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

const (
	keepMark = "keep"
	keepFor  = 24 * time.Hour
	keepMost = 3
)

// sweep removes what killed test processes left, and all but the latest of what failed ones kept.
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
			// One that another process uses, or is just making, answers with an error.
			_ = embedpg.Remove(ctx, dir)
		}
	}
}

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
		// The first time it is ready, the image only prepares its volume.
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
