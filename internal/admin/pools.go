package admin

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) poolRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/pools", Scope: kit.Read, Query: kit.Paged, Handler: a.listPools},
		{Method: http.MethodGet, Path: v1 + "/admin/pools/:name", Scope: kit.Read, Handler: a.getPool},
		{Method: http.MethodPut, Path: v1 + "/admin/pools/:name", Scope: kit.Admin, Handler: a.putPool},
		{Method: http.MethodDelete, Path: v1 + "/admin/pools/:name", Scope: kit.Admin, Query: "confirm", Handler: a.deletePool},
	})
}

// allPools is the name under which the settings for all FETCHes stand.
const allPools = "*"

func (a *Admin) listPools(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	if err := kit.ForAllTenants(c, "pools cannot be listed"); err != nil {
		return err
	}
	ctx := a.Context(c)
	total, err := a.SQL.PoolCount(ctx)
	if err != nil {
		return err
	}
	pools, err := a.SQL.Pools(ctx, sqlcgen.PoolsParams{MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, listed("pools", pools, kit.Pagination(int(total), limit, offset, limit)))
}

// poolOfPath is the name of the pool that a path names.
func poolOfPath(c echo.Context, cannot string) (string, error) {
	name := c.Param("name")
	if name != allPools && !names.Pool.MatchString(name) {
		return "", kit.NoSuch("pool", name)
	}
	return name, kit.ForAllTenants(c, cannot)
}

func (a *Admin) getPool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be shown")
	if err != nil {
		return err
	}
	return a.showPool(c, name)
}

// showPool answers with a pool, under pool and beside it.
func (a *Admin) showPool(c echo.Context, name string) error {
	pools, err := a.SQL.Pools(a.Context(c), sqlcgen.PoolsParams{Name: &name, MaxRows: 1})
	if err != nil {
		return err
	}
	if len(pools) == 0 {
		return kit.NoSuch("pool", name)
	}
	return c.JSON(http.StatusOK, struct {
		sqlcgen.PoolsRow
		Pool sqlcgen.PoolsRow `json:"pool"`
	}{pools[0], pools[0]})
}

// poolRequest is a pool, bare or under pool.
type poolRequest struct {
	_    struct{}        `check:"any"`
	Pool json.RawMessage `json:"pool" check:"object"`

	config json.RawMessage
}

// Check finds the pool.
func (r *poolRequest) Check(o *kit.Object) {
	r.config, _ = bareOrUnder(o, "pool", r.Pool)
}

func (a *Admin) putPool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be configured")
	if err != nil {
		return err
	}
	var req poolRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigurePool, sqlcgen.ConfigurePoolParams{Name: name, Config: req.config})
	if err != nil {
		return err
	}
	return a.showPool(c, name)
}

type deletePoolRequest struct {
	kit.Optional
	Confirm bool `json:"confirm"`
}

func (a *Admin) deletePool(c echo.Context) error {
	name, err := poolOfPath(c, "a pool cannot be removed")
	if err != nil {
		return err
	}
	req := deletePoolRequest{Confirm: c.QueryParam("confirm") == "true"}
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = kit.Patiently(a.Kit, c, (*sqlcgen.Queries).DeletePool, sqlcgen.DeletePoolParams{Name: name, Confirm: req.Confirm})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"name": name, "deleted": true})
}
