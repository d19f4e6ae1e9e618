//go:build linux

package soak

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a child process that ends with this one.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // how it ended; readable after gone is closed
}

// spawn starts a command to which the kernel sends a signal when this process ends, for any reason. The
// kernel ties that to the thread which started the command, so the starting goroutine keeps its thread.
func spawn(cmd *exec.Cmd, atOurDeath syscall.Signal) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = atOurDeath
	p := &process{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.gone)
		}
	}()
	return p, <-started
}

func (p *process) alive() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// end sends a signal, and kills the process if it has not ended after patience. It returns true if the
// process was not killed.
func (p *process) end(s syscall.Signal, patience time.Duration) bool {
	p.signal(s)
	select {
	case <-p.gone:
		return true
	case <-time.After(patience):
	}
	p.signal(syscall.SIGKILL)
	<-p.gone
	return false
}

// kept is a command that runs again whenever it has ended, as under a supervisor of services. keep
// starts it with the command that a function returns, until stop is called or the function returns nil.
type kept struct {
	mu      sync.Mutex
	current *process
	stopped bool
	done    chan struct{}
}

func keep(t *testing.T, pause time.Duration, command func() *exec.Cmd) *kept {
	t.Helper()
	k := &kept{done: make(chan struct{})}
	start := func() (*process, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.stopped {
			return nil, nil
		}
		cmd := command()
		if cmd == nil {
			return nil, nil
		}
		p, err := spawn(cmd, syscall.SIGKILL)
		k.current = p
		return p, err
	}
	first, err := start()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(k.done)
		for p := first; p != nil; {
			<-p.gone
			time.Sleep(pause)
			var err error
			if p, err = start(); err != nil {
				t.Errorf("start again: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() { k.stop(syscall.SIGKILL, 0) })
	return k
}

func (k *kept) kill() { k.signal(syscall.SIGKILL) }

// stop ends the command and does not start it again.
func (k *kept) stop(s syscall.Signal, patience time.Duration) (byItself bool) {
	k.mu.Lock()
	k.stopped = true
	p := k.current
	k.mu.Unlock()
	byItself = p.end(s, patience)
	<-k.done
	return byItself
}

func (k *kept) signal(s os.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current.signal(s)
}
