//go:build unix

package bench

import (
	"fmt"
	"math"
	"time"
)

// CPU is the time of processors per job, in microseconds: the median of the slices.
type CPU struct {
	// PostgreSQL is that of all of its processes, those that have ended included.
	PostgreSQL float64 `json:"postgresql"`
	// Server is that of the Go server, where one takes part.
	Server *float64 `json:"server"`
	// Client is that of the process that workers and producers are in; null where the server is in the same one, and the two cannot be
	// told apart.
	Client *float64 `json:"client"`
}

// String is for people.
func (c CPU) String() string {
	text := fmt.Sprintf("PostgreSQL %v", c.PostgreSQL)
	if c.Server != nil {
		text += fmt.Sprintf(", server %v", *c.Server)
	}
	if c.Client != nil {
		text += fmt.Sprintf(", client %v", *c.Client)
	}
	return text
}

// Processors is what ours and the baseline need of the processors. All of it is null where nobody knows: with a PostgreSQL that was not
// started here, and on other systems than Linux.
type Processors struct {
	CPU            *CPU      `json:"cpu_us_per_job"`
	BaselineCPU    *CPU      `json:"baseline_cpu_us_per_job"`
	CPURatio       *float64  `json:"cpu_ratio"` // of PostgreSQL's, ours to the baseline's
	CPUInterval    *Interval `json:"cpu_interval"`
	SliceCPURatios []float64 `json:"slice_cpu_ratios"`
}

// effort is time of processors in microseconds. NaN is what nobody knows.
type effort struct{ postgresql, server, client float64 }

// effort is what was computed up to now. Where the server is in this process, all that this process does counts as the server's: the
// callers are goroutines of it. server is nil for a side that has none.
func (e *Env) effort(server *server) effort {
	us := func(d time.Duration, known bool) float64 {
		if !known {
			return math.NaN()
		}
		return d.Seconds() * 1e6
	}
	now := effort{us(e.postgresTime()), math.NaN(), us(ownTime())}
	switch {
	case server == nil:
	case server.engine != nil:
		now.server, now.client = now.client, math.NaN()
	default:
		now.server = us(processTime(server.child.cmd.Process.Pid))
	}
	return now
}

// since is what was computed from another moment on, for each of so many jobs.
func (e effort) since(before effort, jobs int64) effort {
	n := float64(jobs)
	return effort{(e.postgresql - before.postgresql) / n, (e.server - before.server) / n, (e.client - before.client) / n}
}

// postgresqlOf is the first part of each.
func postgresqlOf(efforts []effort) []float64 {
	all := make([]float64, len(efforts))
	for i, e := range efforts {
		all[i] = e.postgresql
	}
	return all
}

// cpuOf is the median of slices, nil if nobody knows.
func cpuOf(efforts []effort) *CPU {
	part := func(of func(effort) float64) *float64 {
		all := make([]float64, len(efforts))
		for i, e := range efforts {
			all[i] = of(e)
		}
		if m := median(all); !math.IsNaN(m) && !math.IsInf(m, 0) {
			m = round(m, 2)
			return &m
		}
		return nil
	}
	postgresql := part(func(e effort) float64 { return e.postgresql })
	if postgresql == nil {
		return nil
	}
	return &CPU{*postgresql, part(func(e effort) float64 { return e.server }), part(func(e effort) float64 { return e.client })}
}

// processorsOf compares slices that were measured side by side.
func processorsOf(ours, base []effort) Processors {
	p := Processors{CPU: cpuOf(ours), BaselineCPU: cpuOf(base)}
	if p.CPU == nil || p.BaselineCPU == nil {
		return p
	}
	all, ratio, interval := ratios(postgresqlOf(ours), postgresqlOf(base))
	p.SliceCPURatios, p.CPURatio, p.CPUInterval = all, &ratio, &interval
	return p
}
