//go:build unix && !linux

package embedpg

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// startBound starts a command; onExit is called once, when it is gone. This system has no
// way to bind its life to ours: after a SIGKILL it stays until the next start finds it.
func startBound(cmd *exec.Cmd, onExit func(error)) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { onExit(cmd.Wait()) }()
	return nil
}

// servesCluster says whether a process is the postmaster of a cluster. Process ids are used
// again, so its command line has to name a postgres and the cluster.
func servesCluster(pid int, cluster string) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	out, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	command := string(out)
	return strings.Contains(filepath.Base(strings.Fields(command + " -")[0]), "postgres") && strings.Contains(command, cluster)
}

// removeOpenTemp does nothing: here a process cannot list what it has open, and an empty file
// in the temporary directory is better than removing somebody else's.
func removeOpenTemp(string) {}
