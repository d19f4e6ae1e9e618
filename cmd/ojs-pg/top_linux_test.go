package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// q and Ctrl-C end top at a terminal, and leave the terminal as it was.
func TestTopEndsByAKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, key := range []string{"q", "\x03"} {
		ours, theirs := terminal(t)
		before, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		top := exec.Command(binary, "top", "--interval", "100ms")
		top.Env = environment("DATABASE_URL=" + db.OperatorURL())
		top.Stdin, top.Stdout, top.Stderr = theirs, theirs, theirs
		if err := top.Start(); err != nil {
			t.Fatal(err)
		}
		var screen strings.Builder
		for seen := make([]byte, 4096); strings.Count(screen.String(), "ojs-pg top") < 2; {
			n, err := ours.Read(seen)
			if err != nil {
				t.Fatal(err)
			}
			screen.Write(seen[:n])
		}
		if _, err := ours.WriteString("x" + key); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = ours.WriteTo(&screen) }()
		if err := top.Wait(); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		after, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
		if err != nil || after.Lflag != before.Lflag || after.Oflag != before.Oflag {
			t.Errorf("%q: the terminal was %v, and is %v, %v", key, before, after, err)
		}
	}
}

// terminal opens a pseudo-terminal: what is written to ours is typed, and what a program shows is read from it.
func terminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	return ours, theirs
}
