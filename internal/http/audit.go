package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) auditRoutes() []route {
	return scoped([]route{{
		Method: http.MethodGet, Path: v1 + "/admin/audit", Scope: scopeRead, Query: paged + "tenant tenant_id actor action cursor",
		Handler: s.listAudit,
	}})
}

// cursorPage describes a page of a list that goes on after a cursor. Its total may not be known.
type cursorPage struct {
	Limit   int     `json:"limit"`
	HasMore bool    `json:"has_more"`
	Next    *string `json:"next_cursor"`
	Total   *int64  `json:"total"`
	Page    int     `json:"page"`
	PerPage int     `json:"per_page"`
}

// listAudit answers with the changes in the audit trail, the latest first. With a tenant it answers
// with the changes that are about that tenant.
func (s *Server) listAudit(c echo.Context) error {
	limit, skip, err := paging(c)
	if err != nil {
		return err
	}
	params := sqlcgen.AuditTrailParams{MaxRows: int32(limit), Skip: int32(skip)}
	if params.Tenant, err = queryTenant(c); err != nil {
		return err
	}
	if err := queryAll(c, queryText, map[string]**string{"actor": &params.Actor, "action": &params.Action}); err != nil {
		return err
	}
	if params.Tenant != nil && !names.Tenant.MatchString(*params.Tenant) {
		return noTenantID("tenant")
	}
	if own := requestTenant(c); own != nil {
		if params.Tenant != nil && *params.Tenant != *own {
			return problems.NoSuch("tenant", *params.Tenant)
		}
		if params.Actor != nil {
			return problems.Refuse(problems.CodeUnsupported, "actor", "a tenant does not learn who else acts")
		}
	}
	if v := c.QueryParam("cursor"); v != "" {
		before, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return problems.Invalid("cursor", "must be the next_cursor of an earlier page")
		}
		params.Before = &before
	}
	rows, err := s.auditTrail(c, params)
	if err != nil {
		return err
	}
	page := cursorPage{Limit: limit, PerPage: limit, HasMore: len(rows) == limit, Page: skip/limit + 1}
	if page.HasMore {
		next := strconv.FormatInt(rows[limit-1].N, 10)
		page.Next = &next
	}
	return c.JSON(http.StatusOK, listed("audit", rows, page))
}

// auditTrail reads one page. A tenant does not learn which other actors made a change, or why. Its
// rows are numbered by themselves, so that it does not learn how often others make changes, either.
func (s *Server) auditTrail(c echo.Context, params sqlcgen.AuditTrailParams) ([]sqlcgen.OjsAuditTrail, error) {
	if requestTenant(c) == nil {
		return s.q.AuditTrail(s.queryContext(c), params)
	}
	own, err := s.q.OwnAuditTrail(s.queryContext(c), sqlcgen.OwnAuditTrailParams{
		Tenant: *requestTenant(c), Before: params.Before, Action: params.Action, MaxRows: params.MaxRows, Skip: params.Skip,
	})
	if err != nil {
		return nil, err
	}
	rows := make([]sqlcgen.OjsAuditTrail, len(own))
	for i := range own {
		o := &own[i]
		rows[i] = sqlcgen.OjsAuditTrail{
			N: o.N, At: o.At, TenantID: o.TenantID, Kind: o.Kind, Name: o.Name, Action: o.Action, Old: o.Old, New: o.New,
		}
		if o.Actor == actorOf(c) {
			rows[i].Actor, rows[i].Reason = o.Actor, o.Reason
		}
	}
	return rows, nil
}
