package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// lack is a feature of the specification that this server does not have, with the paths that belong
// to it.
type lack struct {
	feature string // as the manifest calls it, where it does
	status  int    // 0: that of the code, 422. 501: no level of this server is to have it
	paths   []string
}

// lacking gives these paths an answer of their own: a client that gets 404 would look for a mistake
// in its request.
var lacking = []lack{
	{"workflows", 0, []string{"/workflows", "/workflows/*"}},
	{"rate_limiting", 0, []string{"/rate-limits", "/rate-limits/*"}},
	{"progress", 0, []string{"/jobs/:id/progress", "/jobs/:id/progress/*", "/workers/progress"}},
	// The clients for JavaScript and Python put the prefix before it once more.
	{"checkpoints", 0, []string{"/jobs/:id/checkpoint", "/jobs/:id/checkpoints", "/checkpoints/*", v1 + "/checkpoints/*"}},
	{"event streams", 0, []string{"/events/stream", "/jobs/:id/events", "/queues/:name/events"}},
	{"unique_jobs", 0, []string{"/unique-jobs", "/unique-jobs/*"}},
	{"bulk operations outside of /admin", 0, []string{"/jobs/bulk/*"}},
	{"histories of jobs", 0, []string{"/jobs/:id/retries", "/events/:id/history", "/admin/jobs/:id/trace"}},
	{"purges of queues", 0, []string{"/queues/:name/purge", "/admin/queues/:name/purge"}},
	{"histories of statistics", 0, []string{"/admin/stats/history", "/admin/stats/stream", "/queues/:name/priority-stats"}},
	{"maintenance mode", 0, []string{"/admin/maintenance", "/admin/system/maintenance", "/admin/config"}},
	{"middleware", 0, []string{"/middleware", "/middleware/*"}},
	{"webhooks", 0, []string{"/webhooks", "/webhooks/*"}},
	{"schema_validation", http.StatusNotImplemented, []string{"/schemas", "/schemas/*", "/admin/schemas", "/admin/schemas/*"}},
	{"WebSocket", http.StatusNotImplemented, []string{"/ws", "/realtime", "/realtime/*"}},
	{"agents", http.StatusNotImplemented, []string{"/agents", "/agents/*"}},
	{"attestation", http.StatusNotImplemented, []string{"/attest", "/attest/*", "/jobs/:id/receipt"}},
}

func (l lack) refuse(c echo.Context) error {
	jsonbody.Drain(c.Request())
	return &pg.Error{
		Code: problems.CodeUnsupported, Status: l.status, Message: "this server does not have " + l.feature,
		Hint:    "GET /ojs/manifest says under capabilities what this server can do.",
		Details: map[string]any{"feature": l.feature},
	}
}
