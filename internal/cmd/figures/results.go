package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// resultsFile holds the last output of each benchmark, one to a line, under the name that scripts/benchmarks gives it.
const resultsFile = "docs/benchmarks/results.json"

func readResults(file string) (map[string]json.RawMessage, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]json.RawMessage{}, nil
	}
	if err != nil {
		return nil, err
	}
	results := map[string]json.RawMessage{}
	if err := json.Unmarshal(content, &results); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return results, nil
}

func keep(file, name, from string) error {
	results, err := readResults(file)
	if err != nil {
		return err
	}
	if results[name], err = os.ReadFile(from); err != nil {
		return err
	}
	var out bytes.Buffer
	for i, name := range slices.Sorted(maps.Keys(results)) {
		separator := ",\n"
		if i == 0 {
			separator = "{\n"
		}
		fmt.Fprintf(&out, "%s%q: ", separator, name)
		if err := json.Compact(&out, results[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	out.WriteString("\n}\n")
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// tableFields are the figures that the table shows, in this order.
var tableFields = strings.Fields(`jobs_per_second baseline_jobs_per_second ratio insert_ratio json_ratio cpu_ratio insert_cpu_ratio
	json_cpu_ratio http_ceiling_ratio share_error_pp share_error_1s_pp max_lag_quanta response_share_error baseline_share_error_pp
	baseline_share_error_1s_pp baseline_max_lag_quanta max_lag small_max_lag within_bounds fetch_p50_ms fetch_p99_ms wal_bytes_per_job
	baseline_wal_bytes_per_job jobs_ratio tenants_ratio idle_tenants_ratio disk_gib throughput_ratio size_ratio bytes_per_retained_job
	last_over_first control baseline_last_over_first p50_ms p99_ms control_p99_ms p99_ratio p99_difference_ms idle_queries_per_second
	idle_cpu_percent`)

func printTable(out io.Writer, file string) error {
	results, err := readResults(file)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "| | figures |\n|---|---|")
	for _, name := range slices.Sorted(maps.Keys(results)) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(results[name], &fields); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var cells []string
		for _, field := range tableFields {
			// Some commands have a list or an object under the name.
			if value := string(fields[field]); value != "" && !strings.ContainsAny(value[:1], "[{n") {
				cells = append(cells, field+" "+value)
			}
		}
		fmt.Fprintf(out, "| `%s` | %s |\n", name, strings.Join(cells, ", "))
	}
	return nil
}

func drawBenchmarks(from, file string) error {
	results, err := readResults(from)
	if err != nil {
		return err
	}
	type rates struct {
		Ours     float64 `json:"jobs_per_second"`
		Baseline float64 `json:"baseline_jobs_per_second"`
	}
	groups := []struct{ title, name string }{
		{"over HTTP", "dispatch-http-"},
		{"in SQL", "dispatch-sql-"},
		{"in the server's process", "dispatch-combined-"},
	}
	const (
		width, height = 800, 440
		left, bars    = 250.0, 440.0
		bar, row, gap = 12.0, 34.0, 14.0
	)
	measured := map[string]rates{}
	most := 0.0
	for _, g := range groups {
		for _, jobs := range []string{"1", "10", "100"} {
			name := g.name + jobs
			var r rates
			if err := json.Unmarshal(results[name], &r); err != nil || r.Ours == 0 || r.Baseline == 0 {
				return fmt.Errorf("%s: has no %s", from, name)
			}
			measured[name] = r
			most = max(most, r.Ours, r.Baseline)
		}
	}
	s := newSVG(width, height, "Jobs fetched and acknowledged per second",
		"Jobs per second of ojs-pg and of a plain table with skip locked, at 1, 10 and 100 jobs in a FETCH.")
	s.label(24, 32, "start", 16, colourText, true, "Jobs fetched and acknowledged per second")
	s.label(24, 52, "start", 12, colourFaint, false,
		"16 workers that fetch 1, 10 or 100 jobs at a time; two processor cores for workers, server and PostgreSQL together")
	s.bar(24, 64, 12, 12, colourOurs, "ojs-pg: fair shares, leases, history")
	s.bar(290, 64, 12, 12, colourOther, "a plain table, FOR UPDATE SKIP LOCKED: no shares, no history")
	y := 94.0
	for _, g := range groups {
		for i, jobs := range []string{"1", "10", "100"} {
			if i == 0 {
				s.label(24, y+16, "start", 12, colourText, true, g.title)
			}
			r := measured[g.name+jobs]
			s.label(left-10, y+16, "end", 12, colourFaint, false, jobs)
			s.bar(left, y, bars*r.Ours/most, bar, colourOurs, thousands(r.Ours))
			s.bar(left, y+bar+1, bars*r.Baseline/most, bar, colourOther, thousands(r.Baseline))
			y += row
		}
		y += gap
	}
	s.line(left, 88, left, y-gap)
	return s.write(file)
}

// thousands writes a whole number with commas.
func thousands(n float64) string {
	digits := fmt.Sprintf("%.0f", n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
