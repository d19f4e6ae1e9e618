package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) poolRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/pools", Scope: scopeRead, Query: paged, Handler: s.listPools},
		{Method: http.MethodGet, Path: v1 + "/admin/pools/:name", Scope: scopeRead, Handler: s.getPool},
		{Method: http.MethodPut, Path: v1 + "/admin/pools/:name", Scope: scopeAdmin, Handler: s.putPool},
		{Method: http.MethodDelete, Path: v1 + "/admin/pools/:name", Scope: scopeAdmin, Query: "confirm", Handler: s.deletePool},
	})
}

// allPools is the name under which the settings for all FETCHes are stored.
const allPools = "*"

func (s *Server) listPools(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if err := forAllTenants(c, "pools cannot be listed"); err != nil {
		return err
	}
	ctx := s.queryContext(c)
	total, err := s.q.PoolCount(ctx)
	if err != nil {
		return err
	}
	pools, err := s.q.Pools(ctx, sqlcgen.PoolsParams{MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, listed("pools", pools, pagination(int(total), limit, offset, limit)))
}

// poolOfPath returns the name of the pool in the path. It fails if no pool can have that name, or
// if the request names a tenant.
func poolOfPath(c echo.Context, cannot string) (string, error) {
	name := c.Param("name")
	if name != allPools && !names.Pool.MatchString(name) {
		return "", problems.NoSuch("pool", name)
	}
	return name, forAllTenants(c, cannot)
}

func (s *Server) getPool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be shown")
	if err != nil {
		return err
	}
	return s.showPool(c, name)
}

// showPool answers with a pool, both under pool and at the top of the body.
func (s *Server) showPool(c echo.Context, name string) error {
	pools, err := s.q.Pools(s.queryContext(c), sqlcgen.PoolsParams{Name: &name, MaxRows: 1})
	if err != nil {
		return err
	}
	if len(pools) == 0 {
		return problems.NoSuch("pool", name)
	}
	return c.JSON(http.StatusOK, struct {
		sqlcgen.PoolsRow
		Pool sqlcgen.PoolsRow `json:"pool"`
	}{pools[0], pools[0]})
}

// poolRequest is the configuration of a pool, as the whole body or under pool.
type poolRequest struct {
	_    struct{}        `check:"any"`
	Pool json.RawMessage `json:"pool" check:"object"`

	config json.RawMessage
}

// Check takes the configuration from where it stands.
func (r *poolRequest) Check(o *jsonbody.Object) {
	r.config, _ = bareOrUnder(o, "pool", r.Pool)
}

func (s *Server) putPool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be configured")
	if err != nil {
		return err
	}
	var req poolRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = patiently(s, c, (*sqlcgen.Queries).ConfigurePool, sqlcgen.ConfigurePoolParams{Name: name, Config: req.config})
	if err != nil {
		return err
	}
	return s.showPool(c, name)
}

type deletePoolRequest struct {
	jsonbody.Optional
	Confirm bool `json:"confirm"`
}

func (s *Server) deletePool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be removed")
	if err != nil {
		return err
	}
	req := deletePoolRequest{Confirm: c.QueryParam("confirm") == "true"}
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = patiently(s, c, (*sqlcgen.Queries).DeletePool, sqlcgen.DeletePoolParams{Name: name, Confirm: req.Confirm})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"name": name, "deleted": true})
}
