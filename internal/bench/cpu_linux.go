package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// cpu is the time that this process and all of PostgreSQL have computed, where that can be known: on the machine at hand.
func (e *Env) cpu() (time.Duration, bool) {
	var own syscall.Rusage
	if e.own == nil || syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0, false
	}
	total := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	root := e.own.PID()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, false
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		// The name of the program stands in brackets and may hold anything.
		end := bytes.LastIndexByte(raw, ')')
		if err != nil || end < 0 {
			continue
		}
		fields := bytes.Fields(raw[end+1:])
		if len(fields) < 15 {
			continue
		}
		parent, err := strconv.Atoi(string(fields[1]))
		if err != nil || pid != root && parent != root {
			continue
		}
		columns := fields[11:13]
		if pid == root {
			columns = fields[11:15] // with the sessions that have ended
		}
		for _, field := range columns {
			ticks, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return 0, false
			}
			const perSecond = 100 // what /proc counts in, on every architecture that Go knows
			total += time.Duration(ticks) * time.Second / perSecond
		}
	}
	return total, true
}

// session is the time that one session has computed, by the nanosecond.
func (e *Env) session(pid uint32) (time.Duration, bool) {
	if e.own == nil {
		return 0, false
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/schedstat")
	if err != nil {
		return 0, false
	}
	first, _, _ := bytes.Cut(raw, []byte(" "))
	ns, err := strconv.ParseInt(string(first), 10, 64)
	return time.Duration(ns), err == nil
}
