package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The chart of the benchmarks shows the results that are stored beside it.
func TestTheChartShowsTheResults(t *testing.T) {
	t.Parallel()
	drawn := filepath.Join(t.TempDir(), "benchmarks.svg")
	if err := drawBenchmarks("../../../"+resultsFile, drawn); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(drawn)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../../docs/images/benchmarks.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/images/benchmarks.svg shows other results: make pictures, or go run ./internal/cmd/figures benchmarks")
	}
}

// A result replaces the one of its name and leaves the others as they are.
func TestKeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	results, output := filepath.Join(dir, "results.json"), filepath.Join(dir, "output.json")
	for _, step := range []struct{ name, json, want string }{
		{"b", "{\n  \"ratio\": 1.10\n}\n", "{\n\"b\": {\"ratio\":1.10}\n}\n"},
		{"a", `{"ratio": 2}`, "{\n\"a\": {\"ratio\":2},\n\"b\": {\"ratio\":1.10}\n}\n"},
		{"b", `{"ratio": 3}`, "{\n\"a\": {\"ratio\":2},\n\"b\": {\"ratio\":3}\n}\n"},
	} {
		if err := os.WriteFile(output, []byte(step.json), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := keep(results, step.name, output); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(results)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != step.want {
			t.Errorf("after %s there is %q, want %q", step.name, got, step.want)
		}
	}
}
