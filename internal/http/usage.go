package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// usageRoutes are the routes of the usage ledger. A tenant reads its own rows, under either prefix.
func (s *Server) usageRoutes() []route {
	return scoped(underPrefixes([]string{v1 + "/usage", v1 + "/admin/usage"}, []route{
		{
			Method: http.MethodGet, Scope: scopeRead, Query: "limit since until cursor format", OfTenant: true,
			Handler: s.listUsage,
		},
		{Method: http.MethodGet, Path: "/latest", Scope: scopeRead, OfTenant: true, Handler: s.latestUsage},
		{Method: http.MethodGet, Path: "/verify", Scope: scopeRead, OfTenant: true, Handler: s.verifyUsage},
	}))
}

// contentTypeCSV is the media type of a list as CSV (RFC 4180).
const contentTypeCSV = "text/csv; charset=utf-8; header=present"

// listUsage answers with rows of the usage ledger, the oldest first: a page as JSON, or all rows of
// the period as CSV.
func (s *Server) listUsage(c echo.Context) error {
	limit, err := queryInteger(c, "limit", 50, 1, 1000)
	if err != nil {
		return err
	}
	of := admin.Usage{Tenant: requestTenant(c)}
	if err := queryAll(c, queryTime, map[string]**time.Time{"since": &of.Since, "until": &of.Until}); err != nil {
		return err
	}
	if err := readUsageCursor(c, &of); err != nil {
		return err
	}
	switch format := c.QueryParam("format"); {
	case format == "csv", format == "" && strings.HasPrefix(c.Request().Header.Get(echo.HeaderAccept), "text/csv"):
		return s.writeUsageCSV(c, &of)
	case format != "" && format != "json":
		return problems.Invalid("format", "must be json or csv")
	}
	rows, err := of.Read(s.queryContext(c), s.q, limit+1)
	if err != nil {
		return err
	}
	page := cursorPage{Limit: limit, PerPage: limit, HasMore: len(rows) > limit, Page: 1}
	if page.HasMore {
		rows = rows[:limit]
		last := rows[limit-1]
		next := strconv.FormatInt(last.Hour.Unix(), 10) + "." + last.TenantID
		page.Next = &next
	}
	return c.JSON(http.StatusOK, listed("usage", rows, page))
}

// readUsageCursor reads the cursor of an earlier page: the hour of its last row, in seconds since
// 1970, and the tenant.
func readUsageCursor(c echo.Context, of *admin.Usage) error {
	cursor := c.QueryParam("cursor")
	if cursor == "" {
		return nil
	}
	seconds, tenant, _ := strings.Cut(cursor, ".")
	hour, err := strconv.ParseInt(seconds, 10, 40)
	if err != nil || !names.Tenant.MatchString(tenant) {
		return problems.Invalid("cursor", "must be the next_cursor of an earlier page")
	}
	of.AfterHour, of.AfterTenant = time.Unix(hour, 0).UTC(), tenant
	return nil
}

// partsOf writes an answer in parts. Its errors tell a lost client from other faults.
type partsOf struct{ echo.Context }

// Write implements io.Writer.
func (p partsOf) Write(part []byte) (int, error) { return len(part), writePart(p.Context, part) }

// writeUsageCSV answers with all rows as CSV. If a page cannot be read, the answer is cut off, so
// that no client takes a part of the period for all of it.
func (s *Server) writeUsageCSV(c echo.Context, of *admin.Usage) error {
	c.Response().Header().Set(echo.HeaderContentType, contentTypeCSV)
	return of.WriteCSV(partsOf{c}, func(most int) ([]sqlcgen.OjsUsageBatches, error) {
		// Each statement has the time of a whole request: the rows of a year are many pages.
		ctx, cancel := context.WithTimeout(c.Request().Context(), s.limits.Query)
		defer cancel()
		return of.Read(ctx, s.q, most)
	})
}

// latestUsage answers with the latest row of a tenant, or of the ledger.
func (s *Server) latestUsage(c echo.Context) error {
	tenant := requestTenant(c)
	rows, err := s.q.LatestUsageBatch(s.queryContext(c), tenant)
	switch {
	case err != nil:
		return err
	case len(rows) == 0 && tenant != nil:
		return problems.NoSuch("usage", *tenant)
	case len(rows) == 0:
		return problems.NoSuch("usage", "of any tenant")
	}
	return c.JSON(http.StatusOK, rows[0])
}

// verifyUsage answers with the first fault of each chain of the usage ledger.
func (s *Server) verifyUsage(c echo.Context) error {
	faults, err := s.q.VerifyUsage(s.queryContext(c), requestTenant(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"valid": len(faults) == 0, "faults": faults})
}
