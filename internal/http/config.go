package httpapi

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Limits bound what a request may cost. A zero field takes its default.
type Limits struct {
	Body      int64 // bytes of a request body; default 1 MiB
	BatchBody int64 // bytes of a batch enqueue's body; default 16 MiB
	BatchJobs int   // jobs in one batch; default 1000
	List      int64 // bytes of jobs, results or cron jobs in one answer that lists them; default 16 MiB
	Bodies    int64 // bytes of all request bodies above 64 KiB under way; default 128 MiB
	Answers   int64 // bytes of jobs, above 64 KiB each, in all answers to FETCHes and lists under way; default 128 MiB
	Depth     int   // levels of JSON, the body itself being the first; default 100
	Headers   int   // bytes of all request headers; default 32 KiB

	TenantRequests int // requests of one tenant in flight; default 16
	TenantPolls    int // requests of one tenant that wait for jobs or results; default 256
	Polls          int // requests of all callers that wait for jobs or results, some 24 KB each; default 10,000

	Wait     time.Duration // longest wait of a FETCH; default 60 s
	TurnWait time.Duration // longest that a request waits while too many of its tenant are in flight; default 1 s
	RoomWait time.Duration // longest that a large body waits for free memory (room.go); default 15 s

	Query time.Duration // longest a call into the database may take; default 15 s
	Read  time.Duration // to receive a request; default 30 s
	Write time.Duration // to send a response, beyond Wait; default 30 s
	Idle  time.Duration // between two requests of a connection; default 120 s
	Drain time.Duration // for requests under way when the server stops; default 20 s

	DrainDelay time.Duration // from the first 503 of GET /ready until the listener is closed; default none
}

// Config is what a Server needs. DB, Dispatcher and Logger are required.
type Config struct {
	DB         *pg.DB
	Dispatcher *dispatch.Dispatcher // not run by the Server
	Logger     *slog.Logger
	Limits     Limits
	Version    string                 // of this program, for the manifest; default "dev"
	Metrics    []prometheus.Collector // of components that the Server does not know

	MetricTenants int32 // number of tenants with series of their own; default MetricTenants

	TenantHeaders TenantHeaders // headers that name the tenant; nil: KnownTenantHeaders

	APIKeys bool          // whether API keys are accepted
	Tokens  *jwt.Verifier // verifies JWTs; nil: they are not accepted. Without keys and JWTs no credential is asked for

	// AllowReset adds the route POST /ojs/v1/admin/reset, which calls Reset. It is for conformance
	// runs: a server in production has neither.
	AllowReset bool
	Reset      func(context.Context) error
}

// What callers may have under way, unless Limits say otherwise.
const (
	TenantRequests = 16
	TenantPolls    = 256
	Polls          = 10_000 // of all callers together
)

// withDefaults returns l with defaults in place of zero fields.
func (l Limits) withDefaults() Limits {
	return Limits{
		Body:           cmp.Or(l.Body, 1<<20),
		BatchBody:      cmp.Or(l.BatchBody, 16<<20),
		BatchJobs:      cmp.Or(l.BatchJobs, 1000),
		List:           cmp.Or(l.List, 16<<20),
		Bodies:         cmp.Or(l.Bodies, 128<<20),
		Answers:        cmp.Or(l.Answers, 128<<20),
		Depth:          cmp.Or(l.Depth, 100),
		Headers:        cmp.Or(l.Headers, 32<<10),
		TenantRequests: cmp.Or(l.TenantRequests, TenantRequests),
		TenantPolls:    cmp.Or(l.TenantPolls, TenantPolls),
		Polls:          cmp.Or(l.Polls, Polls),
		Wait:           cmp.Or(l.Wait, 60*time.Second),
		TurnWait:       cmp.Or(l.TurnWait, time.Second),
		RoomWait:       cmp.Or(l.RoomWait, 15*time.Second),
		Query:          cmp.Or(l.Query, 15*time.Second),
		Read:           cmp.Or(l.Read, 30*time.Second),
		Write:          cmp.Or(l.Write, 30*time.Second),
		Idle:           cmp.Or(l.Idle, 120*time.Second),
		Drain:          cmp.Or(l.Drain, 20*time.Second),
		DrainDelay:     l.DrainDelay,
	}
}
