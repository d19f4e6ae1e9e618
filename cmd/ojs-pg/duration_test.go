package main

import (
	"strings"
	"testing"
	"time"
)

func TestReadDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "PT30M": 30 * time.Minute, "1d": 24 * time.Hour, "P1D": 24 * time.Hour, "2w": 14 * 24 * time.Hour,
		"1h30m": 90 * time.Minute, "0": 0, "-1h": -time.Hour,
	} {
		if got, err := readDuration(text); err != nil || got != want {
			t.Errorf("%s is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "2", "30minutes", "P", "P1M", "1.5d", "soon"} {
		if got, err := readDuration(text); err == nil || !strings.Contains(err.Error(), "such as 30s, 12h, 7d or PT30M") {
			t.Errorf("%s is %v (%v)", text, got, err)
		}
	}
}

// Options take both forms of a duration, and an error shows them.
func TestDurationsOfOptions(t *testing.T) {
	t.Parallel()
	o := startOperating(t)
	for _, lasts := range []string{"1d", "PT30M", "720h"} {
		o.key(0, "create", "--scope", "admin", "--lasts", lasts)
	}
	if said := o.key(2, "create", "--scope", "admin", "--lasts", "30minutes"); !strings.Contains(said, "such as 30s") {
		t.Error(said)
	}
	for _, age := range []string{"720h", "30d", "P30D", "2026-01-01T00:00:00Z"} {
		o.admin(0, "dead-letters", "--older-than", age)
		o.admin(0, "events", "--since", age)
	}
	for _, args := range [][]string{{"dead-letters", "--older-than", "+P30D"}, {"events", "--since", "yesterday"}} {
		if said := o.admin(2, args...); !strings.Contains(said, "such as") || !strings.Contains(said, "30") {
			t.Error(said)
		}
	}
}
