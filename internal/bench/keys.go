//go:build unix

package bench

import (
	"context"
	"fmt"
)

// Authentication holds the cost of API keys: ratios of the same server and producers with a key for each
// tenant to those without keys.
type Authentication struct {
	KeyRatio       *float64  `json:"auth_ratio,omitempty"` // jobs per second
	KeyCPU         *CPU      `json:"auth_cpu_us_per_job,omitempty"`
	KeyCPURatio    *float64  `json:"auth_cpu_ratio,omitempty"` // of the server's process
	KeyCPUInterval *Interval `json:"auth_cpu_interval,omitempty"`
	SliceKeyRatios []float64 `json:"slice_auth_cpu_ratios,omitempty"`
}

// authenticationOf compares slices that were measured in the same rounds.
func authenticationOf(keyed, open *way) (a Authentication) {
	_, rate, _ := ratios(keyed.rates, open.rates)
	a.KeyRatio, a.KeyCPU = &rate, cpuOf(keyed.efforts)
	if a.KeyCPU != nil {
		all, ratio, interval := ratios(serverOf(keyed.efforts), serverOf(open.efforts))
		a.SliceKeyRatios, a.KeyCPURatio, a.KeyCPUInterval = all, &ratio, &interval
	}
	return a
}

// serverOf returns the processor times of the server.
func serverOf(efforts []effort) []float64 {
	all := make([]float64, len(efforts))
	for i, e := range efforts {
		all[i] = e.server
	}
	return all
}

// giveKeys makes the tenants' API keys. It makes them again after a reset, which removes them.
func (r *enqueuing) giveKeys(ctx context.Context) error {
	for _, tenant := range r.tenants {
		var secret string
		err := r.d.control.QueryRow(ctx, "select secret from ojs.create_api_key($1, '{produce}')", tenant).Scan(&secret)
		if err != nil {
			return fmt.Errorf("make an API key: %w", err)
		}
		r.keys[tenant] = secret
	}
	return nil
}
