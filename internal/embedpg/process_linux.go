package embedpg

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// startBound starts a command that the kernel interrupts when this program ends, even by SIGKILL. It
// calls onExit once, when the command has ended, from a goroutine that ends then.
//
// The kernel ties that signal to the thread which started the command, not to the process, and Go
// ends idle threads. So the goroutine keeps its thread until the command has ended; otherwise the
// command could be interrupted while this program runs.
func startBound(cmd *exec.Cmd, onExit func(error)) error {
	// A fast shutdown: sessions are cut off, and the data needs no recovery.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGINT
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			onExit(cmd.Wait())
		}
	}()
	return <-started
}

// servesCluster reports whether a process is the postmaster of a cluster. The system uses process ids
// again, so it compares the process's working directory, which for a postmaster is its cluster.
func servesCluster(pid int, cluster string) bool {
	cwd, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}
