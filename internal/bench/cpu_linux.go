package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpu returns the processor time of this process and all of PostgreSQL. It is known only if PostgreSQL
// runs on this machine and was started here.
func (e *Env) cpu() (time.Duration, bool) {
	own, known := ownTime()
	if !known {
		return 0, false
	}
	postgres, known := e.postgresTime()
	return own + postgres, known
}

// ownTime returns the processor time of this process.
func ownTime() (time.Duration, bool) {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0, false
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano()), true
}

// stat holds the processor time that the kernel has counted for a process, and for its children that
// have ended.
type stat struct {
	parent      int
	self, ended time.Duration
}

// processTimes reads the times of a process, user and system mode together, from its file in /proc.
func processTimes(path string) (t stat, known bool) {
	raw, err := os.ReadFile(path)
	// The name of the program stands in brackets, and may itself hold brackets and spaces.
	end := bytes.LastIndexByte(raw, ')')
	if err != nil || end < 0 {
		return t, false
	}
	fields := bytes.Fields(raw[end+1:])
	if len(fields) < 15 {
		return t, false
	}
	if t.parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return t, false
	}
	for i, into := range [4]*time.Duration{&t.self, &t.self, &t.ended, &t.ended} {
		ticks, err := strconv.ParseInt(string(fields[11+i]), 10, 64)
		if err != nil {
			return t, false
		}
		const perSecond = 100 // what /proc counts in, on every architecture that Go knows
		*into += time.Duration(ticks) * time.Second / perSecond
	}
	return t, true
}

func statOf(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/stat" }

// processTime returns the processor time of another process, without its children, in nanoseconds:
// an idle server computes less in a slice than /proc, which counts hundredths of a second, could tell.
func processTime(pid int) (time.Duration, bool) {
	const scheduled = 2 // of the clocks of a process, the one that counts when it runs; see clock_getcpuclockid
	var at unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|scheduled), &at) != nil {
		return 0, false
	}
	return time.Duration(at.Nano()), true
}

// postgresTime returns the processor time of the postmaster and all its children, also of those that
// have ended.
func (e *Env) postgresTime() (time.Duration, bool) {
	if e.own == nil {
		return 0, false
	}
	root := e.own.PID()
	for range 10 {
		before, known := processTimes(statOf(root))
		if !known {
			return 0, false
		}
		total := before.self + before.ended
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			return 0, false
		}
		for _, path := range stats {
			// A process that cannot be read has ended meanwhile.
			if t, known := processTimes(path); known && t.parent == root {
				total += t.self
			}
		}
		// If a child ended during the reading, it may be counted twice or not at all: read again.
		if after, known := processTimes(statOf(root)); known && after.ended == before.ended {
			return total, true
		}
	}
	return 0, false
}
