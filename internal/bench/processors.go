//go:build unix

package bench

import (
	"fmt"
	"math"
	"time"
)

// CPU holds the processor time per job in microseconds: the median of the slices.
type CPU struct {
	// PostgreSQL is the time of all of its processes, also of those that have ended.
	PostgreSQL float64 `json:"postgresql"`
	// Server is the time of the Go server; null if the side has none.
	Server *float64 `json:"server"`
	// Client is the time of the process of workers and producers; null if the server is in the same
	// process, because the two cannot be told apart.
	Client *float64 `json:"client"`
}

// String returns the times as text, for tables.
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

// Processors holds the processor times of ojs-pg and of the baseline. All are null if they are not
// known: with a PostgreSQL that was not started here, and on systems other than Linux.
type Processors struct {
	CPU            *CPU      `json:"cpu_us_per_job"`
	BaselineCPU    *CPU      `json:"baseline_cpu_us_per_job"`
	CPURatio       *float64  `json:"cpu_ratio"` // of PostgreSQL, ojs-pg to the baseline
	CPUInterval    *Interval `json:"cpu_interval"`
	SliceCPURatios []float64 `json:"slice_cpu_ratios"`
}

// effort is processor time in microseconds. NaN: it is not known.
type effort struct{ postgresql, server, client float64 }

// effort returns the processor times up to now. If the server is in this process, all the time of this
// process counts as the server's: its callers are goroutines of the process. server is nil for a side
// that has none.
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

// since returns the processor time since another moment, divided by a number of jobs.
func (e effort) since(before effort, jobs int64) effort {
	n := float64(jobs)
	return effort{(e.postgresql - before.postgresql) / n, (e.server - before.server) / n, (e.client - before.client) / n}
}

// postgresqlOf returns the processor times of PostgreSQL.
func postgresqlOf(efforts []effort) []float64 {
	all := make([]float64, len(efforts))
	for i, e := range efforts {
		all[i] = e.postgresql
	}
	return all
}

// cpuOf returns the medians of slices, or nil if the times are not known.
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

// processorsOf compares slices that were measured in the same rounds.
func processorsOf(ours, base []effort) Processors {
	p := Processors{CPU: cpuOf(ours), BaselineCPU: cpuOf(base)}
	if p.CPU == nil || p.BaselineCPU == nil {
		return p
	}
	all, ratio, interval := ratios(postgresqlOf(ours), postgresqlOf(base))
	p.SliceCPURatios, p.CPURatio, p.CPUInterval = all, &ratio, &interval
	return p
}
