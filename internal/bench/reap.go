//go:build unix

package bench

import "context"

// Reap measures whether taking back jobs whose lease has expired takes longer when more leases have not.
func Reap(ctx context.Context, env *Env, opts DueOptions) (*DueResult, error) {
	opts.Late = 0
	return due(ctx, env, "reap", leasedJobs, opts)
}
