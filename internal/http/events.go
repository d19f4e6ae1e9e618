package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) eventRoutes() []route {
	return scoped([]route{
		{
			Method: http.MethodGet, Path: v1 + "/events", Scope: scopeRead, Queues: queuesInQuery,
			Query: paged + "types type queues since after", OfTenant: true, Handler: s.listEvents,
		},
	})
}

type eventJSON struct {
	Specversion string          `json:"specversion"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Time        jsonbody.Stamp  `json:"time"`
	Subject     string          `json:"subject"`
	TenantID    string          `json:"tenant_id"`
	Data        json.RawMessage `json:"data"`
}

const (
	maxEvents      = 1000 // most events that SQL returns at once
	maxEventFilter = 100  // most types, or queues, in a query
)

// listEvents answers with the latest events, newest first.
func (s *Server) listEvents(c echo.Context) error {
	// Rows of jobs do not say in which order they changed, so a page after an event could leave
	// some out. If the parameter were ignored, a client that pages would read the first page for
	// ever.
	if c.QueryParams().Has("after") {
		return problems.Refuse(problems.CodeUnsupported, "after",
			"events are told newest first; paging forward from one of them is not supported")
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if offset > 0 {
		return problems.Refuse(problems.CodeUnsupported, "page",
			"there is one page of events, the latest; since and limit say how long it is")
	}
	since, err := queryTime(c, "since")
	if err != nil {
		return err
	}
	types, err := commaList(c, "types", maxEventFilter)
	if err != nil {
		return err
	}
	if kind := c.QueryParam("type"); types == nil && kind != "" { // as the admin UI asks
		types = []string{kind}
	}
	queues, err := commaList(c, "queues", maxEventFilter)
	if err != nil {
		return err
	}
	// One event more than asked for tells whether there are more. SQL refuses more than maxEvents:
	// with that many, a full answer counts as a sign that there may be more.
	most := min(limit+1, maxEvents)
	rows, err := s.q.Events(s.queryContext(c), sqlcgen.EventsParams{
		Types: types, Queues: queues, MaxRows: int32(most), Tenant: requestTenant(c),
	})
	if err != nil {
		return err
	}
	more := len(rows) == most
	rows = rows[:min(len(rows), limit)]
	if since != nil {
		kept := slices.IndexFunc(rows, func(r sqlcgen.EventsRow) bool { return r.At.Before(*since) })
		if kept >= 0 {
			rows, more = rows[:kept], false
		}
	}
	events := make([]eventJSON, len(rows))
	for i, r := range rows {
		events[i] = eventJSON{
			Specversion: specVersion, ID: r.ID, Type: r.Type, Source: "ojs://ojs-pg/queues/" + r.Queue, Time: jsonbody.Stamp(r.At),
			Subject: r.Subject, TenantID: r.TenantID, Data: r.Data,
		}
	}
	return c.JSON(http.StatusOK, map[string]any{
		"events": events, "items": events, "pagination": map[string]any{"limit": limit, "has_more": more},
	})
}
