package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// onTerminal runs the program with a terminal as its output, and returns what it wrote there.
func onTerminal(t *testing.T, env []string, args ...string) string {
	t.Helper()
	// Blocking, as a terminal's reader is: otherwise Go would poll the end that has no process yet.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fd), "ptmx")
	defer ours.Close()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := exec.Command(binary, args...)
	p.Env = environment(append([]string{"TERM=xterm"}, env...)...) // of a name the last counts
	p.Stdout, p.Stderr = theirs, theirs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	// When no process has the other end open any more, reading fails.
	written, err := io.ReadAll(ours)
	if err != nil && !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	_ = p.Wait() // the status of what is tried here is not 0
	return string(written)
}

func TestColours(t *testing.T) {
	t.Parallel()
	const escape = "\x1b["
	away := "DATABASE_URL=postgres://user@127.0.0.1:1/x"
	for _, args := range []string{"fly", "doctor"} {
		if shown := onTerminal(t, []string{away}, args); !strings.Contains(shown, escape+"31m") || !strings.Contains(shown, escape+"0m") {
			t.Errorf("%s is not coloured on a terminal: %q", args, shown)
		}
		for _, none := range []string{"NO_COLOR=1", "TERM=dumb"} {
			if shown := onTerminal(t, []string{away, none}, args); strings.Contains(shown, escape) {
				t.Errorf("%s is coloured in spite of %s: %q", args, none, shown)
			}
		}
		if _, shown := finish(t, []string{away}, args); strings.Contains(shown, escape) {
			t.Errorf("%s is coloured where there is no terminal: %q", args, shown)
		}
	}
}

// A terminal would break a long finding within words.
func TestDoctorBreaksLinesBetweenWords(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	url := d.LoginURL("application", "in role ojs_producer, ojs_worker")
	shown := onTerminal(t, []string{"DATABASE_URL=" + url, "NO_COLOR=1"}, "doctor")
	for line := range strings.Lines(shown) {
		if columns := len(strings.TrimRight(line, "\r\n")); columns > 80 {
			t.Errorf("a line has %d columns: %s", columns, line)
		}
	}
	if words := strings.Join(strings.Fields(shown), " "); !strings.Contains(words, "member of ojs_operator or ojs_service.") {
		t.Errorf("words are broken:\n%s", shown)
	}
}
