package httpapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// queryText returns an optional query parameter, or nil if it is absent or empty.
func queryText(c echo.Context, name string) (*string, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	if !jsonbody.IsText(v) {
		return nil, problems.Invalid(name, "must be text without NUL characters")
	}
	return &v, nil
}

// queryAll reads several optional parameters of the query with read, such as QueryText. It reads them in the order
// of their names, so that of several bad ones the same is refused each time.
func queryAll[T any](c echo.Context, read func(echo.Context, string) (*T, error), into map[string]**T) (err error) {
	for _, name := range slices.Sorted(maps.Keys(into)) {
		if *into[name], err = read(c, name); err != nil {
			return err
		}
	}
	return nil
}

// queryTenant returns the tenant that the query names as tenant or tenant_id, or nil.
func queryTenant(c echo.Context) (*string, error) {
	tenant, err := queryText(c, "tenant")
	if err != nil {
		return nil, err
	}
	id, err := queryText(c, "tenant_id")
	if err != nil {
		return nil, err
	}
	return jsonbody.SameTenant("tenant", tenant, id)
}

// queryTime returns an optional time of the query: RFC 3339 with an offset.
func queryTime(c echo.Context, name string) (*time.Time, error) {
	v, err := queryText(c, name)
	if v == nil || err != nil {
		return nil, err
	}
	at, err := jsonbody.ParseTime(*v)
	if err != nil {
		return nil, problems.Invalid(name, "%s", err)
	}
	return &at, nil
}

// pageJSON tells the client which page of a list it got and how long the list is.
type pageJSON struct {
	Total   int  `json:"total"`
	Limit   int  `json:"limit"`
	Offset  int  `json:"offset"`
	HasMore bool `json:"has_more"`
	Page    int  `json:"page"`
	PerPage int  `json:"per_page"`
}

// paging returns the limit and offset that the query asks for, as limit and offset or as page and
// per_page.
func paging(c echo.Context) (limit, offset int, err error) {
	if limit, err = queryInteger(c, "limit", 50, 1, 1000); err != nil {
		return 0, 0, err
	}
	if limit, err = queryInteger(c, "per_page", limit, 1, 1000); err != nil {
		return 0, 0, err
	}
	number, err := queryInteger(c, "page", 1, 1, 1<<20)
	if err != nil {
		return 0, 0, err
	}
	first := (number - 1) * limit
	if offset, err = queryInteger(c, "offset", first, 0, 1<<30); err != nil {
		return 0, 0, err
	}
	if offset != first && c.QueryParam("page") != "" {
		return 0, 0, problems.Invalid("offset", "disagrees with page")
	}
	return limit, offset, nil
}

// pageOf asks for one page of a list whose rows carry the number of all rows, and returns both. An
// offset behind the end costs a second question, for the number alone.
func pageOf[T any](limit, offset int, ask func(limit, offset int32) ([]T, error), total func(T) int64) (rows []T, all int, err error) {
	rows, err = ask(int32(limit), int32(offset))
	counted := rows
	if err == nil && len(rows) == 0 && offset > 0 {
		// Beyond the end no row says it.
		counted, err = ask(1, 0)
	}
	if err == nil && len(counted) > 0 {
		all = int(total(counted[0]))
	}
	return rows, all, err
}

// pagination describes a page with shown rows. A page may hold fewer than limit although more
// follow.
func pagination(total, limit, offset, shown int) pageJSON {
	more := shown > 0 && offset+shown < total // what was counted a moment ago may have gone
	return pageJSON{Total: total, Limit: limit, Offset: offset, HasMore: more, Page: offset/limit + 1, PerPage: limit}
}

// writePagination writes which page of a list this is.
func writePagination(w *jsonbody.Writer, p pageJSON) {
	w.Key("pagination")
	shown, _ := json.Marshal(p) // numbers and a boolean
	w.B = append(w.B, shown...)
}

// queryInteger returns an integer of the query between lowest and highest; missing if it is absent.
func queryInteger(c echo.Context, name string, missing, lowest, highest int) (int, error) {
	v := c.QueryParam(name)
	if v == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lowest || n > highest {
		return 0, problems.Invalid(name, "must be an integer between %d and %d", lowest, highest)
	}
	return n, nil
}

// commaList returns the names in ?name=a,b, at most longest of them, or nil if the parameter is
// absent.
func commaList(c echo.Context, name string, longest int) ([]string, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	list := strings.Split(v, ",")
	if len(list) > longest || !jsonbody.IsText(v) {
		return nil, problems.Invalid(name, "must hold at most %d names, separated by commas", longest)
	}
	return list, nil
}

// partOf returns the answer for one page of a list. rows holds one row more than limit if there are
// more pages.
func partOf[T any](name string, rows []T, limit, offset int) map[string]any {
	more := len(rows) > limit
	return listed(name, rows[:min(len(rows), limit)], map[string]any{"limit": limit, "offset": offset, "has_more": more})
}

// listed returns the answer for a page of a list. Clients read the list as items or by its own
// name, so it stands under both.
func listed(name string, items, page any) map[string]any {
	return map[string]any{"items": items, name: items, "pagination": page}
}
