package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// defaultTenant is the name of the tenant of jobs that named none, which is left out of meta. It can be reconfigured at run time; an
// answer may show the one before for half a minute.
type defaultTenant struct {
	read func(context.Context) (string, error)
	log  *slog.Logger

	known atomic.Pointer[string] // nil until it has been read

	mu       sync.Mutex // of who reads it
	failedAt time.Time
}

// refresh reads it again and again until ctx ends.
func (d *defaultTenant) refresh(ctx context.Context) {
	for {
		d.mu.Lock()
		read := d.ask()
		d.mu.Unlock()
		pause := 30 * time.Second
		if !read {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// name asks the database only where nothing has been read yet, and not within a second of a failure: each answer would wait for so long
// while the database is away. It is empty if it is not known.
func (d *defaultTenant) name() string {
	if known := d.known.Load(); known != nil {
		return *known
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known.Load() == nil && time.Since(d.failedAt) > time.Second {
		d.ask()
	}
	if known := d.known.Load(); known != nil {
		return *known
	}
	return ""
}

// ask reads the name, and reports whether it could; for one at a time.
func (d *defaultTenant) ask() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	name, err := d.read(ctx)
	if err != nil {
		d.log.Warn("the default tenant could not be read", "error", err)
		d.failedAt = time.Now()
		return false
	}
	d.known.Store(&name)
	return true
}
