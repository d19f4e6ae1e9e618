//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// oldJobs is the number of jobs in each partition but the newest.
const oldJobs = 2000

// cut divides ojs.job into a number of partitions. It returns an instant within each but the newest,
// which will hold all later jobs. Cuts are a second apart, the least distance that is possible.
func (d *database) cut(ctx context.Context, partitions int) ([]time.Time, error) {
	if d.env.own == nil {
		return nil, errors.New("a cut of the job table cannot be taken back, so partitions need a PostgreSQL that is started here")
	}
	var first time.Time
	if err := d.control.QueryRow(ctx, "select date_trunc('second', clock_timestamp()) + interval '2 seconds'").Scan(&first); err != nil {
		return nil, fmt.Errorf("ask for the time: %w", err)
	}
	var within []time.Time
	for i := range partitions - 1 {
		at := first.Add(time.Duration(i) * time.Second)
		within = append(within, at.Add(-time.Second/2))
		for answer := ""; !strings.HasPrefix(answer, "done"); {
			if answer != "" && !strings.HasPrefix(answer, "again") {
				return nil, fmt.Errorf("cut a partition: %s", answer)
			}
			if err := d.control.QueryRow(ctx, "select ojs.cut_partition($1)", at).Scan(&answer); err != nil {
				return nil, fmt.Errorf("cut a partition: %w", err)
			}
		}
	}
	for passed := false; !passed; {
		d.env.progress("waiting until the newest partition is the present one", 0, 0)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		last := first.Add(time.Duration(partitions-2) * time.Second)
		if err := d.control.QueryRow(ctx, "select clock_timestamp() > $1", last).Scan(&passed); err != nil {
			return nil, fmt.Errorf("ask for the time: %w", err)
		}
	}
	return within, nil
}

// age gives ojs.job older partitions, with jobs that are dispatched and acknowledged before anything is
// measured, as on the baseline. Less than a response for each worker is left of them, and is dispatched
// first later.
func (r *dispatching) age(ctx context.Context) error {
	within, err := r.d.cut(ctx, r.opts.Partitions)
	if err != nil {
		return err
	}
	jobs := make([]int64, len(r.people.names))
	arrived := make([]int64, len(jobs))
	for i, at := range within {
		r.env.progress("loading jobs of the past", int64(i), int64(len(within)))
		for tenant, share := range r.people.shares {
			jobs[tenant] = int64(share*oldJobs) + 1
			arrived[tenant] += jobs[tenant]
			for _, s := range []*side{r.ours, r.base} {
				s.backlog[min(tenant, len(s.backlog)-1)] += jobs[tenant]
			}
		}
		if err := r.ours.loader.loadAt(ctx, r.people.names, jobs, at); err != nil {
			return err
		}
		if err := r.base.loader.load(ctx, r.people.names, jobs, nil); err != nil {
			return err
		}
	}
	for _, s := range []*side{r.ours, r.base} {
		s.stretches = append(s.stretches, stretch{arrived: slices.Clone(arrived)})
		for dry := false; !dry; {
			got, err := r.slice(ctx, s, 10*time.Second)
			if err != nil {
				return err
			}
			dry = got.dry
			if !dry {
				s.stretches = append(s.stretches, stretch{arrived: make([]int64, len(jobs))})
			}
		}
	}
	return nil
}
