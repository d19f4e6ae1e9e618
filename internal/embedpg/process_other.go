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

// startBound starts a command, and calls onExit once, when the command has ended. This system cannot
// end it together with this program: if this program is killed, the command runs until the next start
// stops it.
func startBound(cmd *exec.Cmd, onExit func(error)) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { onExit(cmd.Wait()) }()
	return nil
}

// servesCluster reports whether a process is the postmaster of a cluster. The system uses process ids
// again, so the command line has to name a postgres and the cluster.
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
