package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// lack is a feature of the specification that this server does not have, with the paths under which
// clients ask for it.
type lack struct {
	feature string // the manifest's name for it, if it has one
	status  int    // 0: 422, which is the status of the code. 501: the feature is not planned
	paths   []string
}

// lacking lists the features whose paths are answered by refuse. With a plain 404, clients would
// look for a mistake of their own.
var lacking = []lack{
	{"workflows", 0, []string{"/workflows", "/workflows/*"}},
	{"rate_limiting", 0, []string{"/rate-limits", "/rate-limits/*"}},
	{"progress", 0, []string{"/jobs/:id/progress", "/jobs/:id/progress/*", "/workers/progress"}},
	// The clients for JavaScript and Python send the prefix /ojs/v1 twice.
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

// refuse answers that this server does not have the feature.
func (l lack) refuse(c echo.Context) error {
	jsonbody.Drain(c.Request())
	return &pg.Error{
		Code: problems.CodeUnsupported, Status: l.status, Message: "this server does not have " + l.feature,
		Hint:    "GET /ojs/manifest says under capabilities what this server can do.",
		Details: map[string]any{"feature": l.feature},
	}
}
