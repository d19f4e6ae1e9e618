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

// cpu is the time that this process and all of PostgreSQL have computed, where that can be known: on the machine at hand.
func (e *Env) cpu() (time.Duration, bool) {
	own, known := ownTime()
	if !known {
		return 0, false
	}
	postgres, known := e.postgresTime()
	return own + postgres, known
}

// ownTime is what this process has computed.
func ownTime() (time.Duration, bool) {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0, false
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano()), true
}

// stat is what the kernel has counted for one process: what it computed itself, and what those of its children did that have ended.
type stat struct {
	parent      int
	self, ended time.Duration
}

// processTimes reads them, in user and in system mode together.
func processTimes(path string) (t stat, known bool) {
	raw, err := os.ReadFile(path)
	// The name of the program stands in brackets and may hold anything.
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

// processTime is what another process has computed, without its children, by the nanosecond: a clock that rests computes less in a
// slice than /proc could tell.
func processTime(pid int) (time.Duration, bool) {
	const scheduled = 2 // of the clocks of a process, the one that counts when it runs; see clock_getcpuclockid
	var at unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|scheduled), &at) != nil {
		return 0, false
	}
	return time.Duration(at.Nano()), true
}

// postgresTime is what the postmaster and all of its children have computed, those that have ended included.
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
			// A process that cannot be read is gone meanwhile.
			if t, known := processTimes(path); known && t.parent == root {
				total += t.self
			}
		}
		// A child that ended while the others were read would be counted twice, or not at all.
		if after, known := processTimes(statOf(root)); known && after.ended == before.ended {
			return total, true
		}
	}
	return 0, false
}
