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

// queryText reads an optional parameter of the query; nil if it is absent or empty.
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

// queryAll reads several optional parameters of the query with read, such as queryText. It reads
// them in the order of their names, so that the same one of several bad parameters is refused each
// time.
func queryAll[T any](c echo.Context, read func(echo.Context, string) (*T, error), into map[string]**T) (err error) {
	for _, name := range slices.Sorted(maps.Keys(into)) {
		if *into[name], err = read(c, name); err != nil {
			return err
		}
	}
	return nil
}

// queryTenant reads an optional tenant of the query, as tenant or as tenant_id. It fails if the two
// differ.
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

// queryTime reads an optional time of the query: RFC 3339 with an offset.
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

// pageJSON says which page of a list is shown, and how long the list is.
type pageJSON struct {
	Total   int  `json:"total"`
	Limit   int  `json:"limit"`
	Offset  int  `json:"offset"`
	HasMore bool `json:"has_more"`
	Page    int  `json:"page"`
	PerPage int  `json:"per_page"`
}

// paging reads which page of a list a request asks for: limit and offset, or the admin API's page
// and per_page. It fails if offset and page disagree.
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

// pageOf reads a page of a list with ask. Each row holds the length of the whole list, which total
// returns.
func pageOf[T any](limit, offset int, ask func(limit, offset int32) ([]T, error), total func(T) int64) (rows []T, all int, err error) {
	rows, err = ask(int32(limit), int32(offset))
	counted := rows
	if err == nil && len(rows) == 0 && offset > 0 {
		// A page beyond the end has no row to tell the length, so ask for the first row.
		counted, err = ask(1, 0)
	}
	if err == nil && len(counted) > 0 {
		all = int(total(counted[0]))
	}
	return rows, all, err
}

// pagination describes a page that shows so many rows. They may be fewer than limit although there
// are more.
func pagination(total, limit, offset, shown int) pageJSON {
	more := shown > 0 && offset+shown < total // rows that were counted may be gone when the page is read
	return pageJSON{Total: total, Limit: limit, Offset: offset, HasMore: more, Page: offset/limit + 1, PerPage: limit}
}

// writePagination writes the field pagination, which says which page of a list this is.
func writePagination(w *jsonbody.Writer, p pageJSON) {
	w.Key("pagination")
	shown, _ := json.Marshal(p) // it holds numbers and a boolean, so this cannot fail
	w.B = append(w.B, shown...)
}

// queryInteger reads a whole number between lowest and highest of the query, or missing if it is
// absent.
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

// commaList reads a parameter such as ?name=a,b, of at most longest names; nil if it is absent.
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

// partOf returns the body of an answer with a page of a list. rows has one row more than limit if
// there are more.
func partOf[T any](name string, rows []T, limit, offset int) map[string]any {
	more := len(rows) > limit
	return listed(name, rows[:min(len(rows), limit)], map[string]any{"limit": limit, "offset": offset, "has_more": more})
}

// listed returns the body of an answer with a page of a list. The rows stand under both names that
// clients read: items, and the list's own name.
func listed(name string, items, page any) map[string]any {
	return map[string]any{"items": items, name: items, "pagination": page}
}
