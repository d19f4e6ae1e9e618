package embedpg

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// startBound starts a command that the kernel interrupts when this program ends, even by
// SIGKILL. onExit is called once, when the command is gone.
//
// The kernel ties that signal to the thread which started the command, not to the process,
// and Go ends idle threads; so the starting goroutine keeps its thread until the end.
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

// servesCluster says whether a process is the postmaster of a cluster: process ids are
// used again, but a postmaster's working directory is its cluster.
func servesCluster(pid int, cluster string) bool {
	cwd, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}

// removeOpenTemp removes those temporary files with a prefix that this process has open: other
// processes may have theirs under the same prefix.
func removeOpenTemp(prefix string) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return
	}
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && strings.HasPrefix(path, filepath.Join(os.TempDir(), prefix)) {
			_ = os.Remove(path)
		}
	}
}
