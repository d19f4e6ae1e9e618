//go:build linux

package soak

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const (
	clientEnv = "OJS_SOAK_CLIENT"
	mountsEnv = "OJS_SOAK_MOUNTS"
)

// TestMain runs the tests, or a client: producers and workers are processes of the same binary, so that
// they can be killed. As root it runs the binary once more in a mount namespace of its own, so that the
// file systems that tests fill up are gone when the process ends.
func TestMain(m *testing.M) {
	if raw := os.Getenv(clientEnv); raw != "" {
		os.Exit(clientMain(raw))
	}
	if raw := os.Getenv(adversaryEnv); raw != "" {
		os.Exit(adversaryMain(raw))
	}
	if os.Geteuid() == 0 && os.Getenv(mountsEnv) == "" {
		if code, err := withOwnMounts(); err == nil {
			os.Exit(code)
		}
	}
	os.Exit(pgtest.Main(m))
}

// withOwnMounts runs this program again in a mount namespace of its own, and returns its exit code. It
// fails if the program did not start.
func withOwnMounts() (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), mountsEnv+"=own")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	child, err := spawn(cmd, syscall.SIGKILL)
	if err != nil {
		return 0, fmt.Errorf("run in a mount namespace: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			_ = child.cmd.Process.Signal(s)
		}
	}()
	<-child.gone
	var exit *exec.ExitError
	if errors.As(child.err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, child.err
}
