package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// defaultTenant caches the name of the tenant of jobs that named none, which is left out of meta.
// Operators can change it at run time; an answer may show the old name for up to 30 seconds.
type defaultTenant struct {
	read func(context.Context) (string, error)
	log  *slog.Logger

	known atomic.Pointer[string] // nil until it has been read

	mu       sync.Mutex // held while the name is read; protects failedAt
	failedAt time.Time
}

// refresh reads the name until ctx ends: every 30 seconds, and a second after a failure.
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

// name returns the name, or "" if it is not known. It asks the database only if nothing has been
// read yet, and not within a second of a failure: otherwise each answer would wait for a second
// while the database is away.
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

// ask reads the name, and reports whether it could. mu is held.
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
