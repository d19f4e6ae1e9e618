package kit

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// QueryText reads an optional parameter of the query; nil if it is absent or empty.
func QueryText(c echo.Context, name string) (*string, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	if !IsText(v) {
		return nil, Invalid(name, "must be text without NUL characters")
	}
	return &v, nil
}

// QueryAll reads several optional parameters of the query with read, such as QueryText. It reads them in the order
// of their names, so that of several bad ones the same is refused each time.
func QueryAll[T any](c echo.Context, read func(echo.Context, string) (*T, error), into map[string]**T) (err error) {
	for _, name := range slices.Sorted(maps.Keys(into)) {
		if *into[name], err = read(c, name); err != nil {
			return err
		}
	}
	return nil
}

// QueryTenant reads an optional tenant of the query, under either of its names.
func QueryTenant(c echo.Context) (*string, error) {
	tenant, err := QueryText(c, "tenant")
	if err != nil {
		return nil, err
	}
	id, err := QueryText(c, "tenant_id")
	if err != nil {
		return nil, err
	}
	return SameTenant("tenant", tenant, id)
}

// SameTenant is the tenant that a request names as tenant, as tenant_id, or twice. at: where tenant stands.
func SameTenant(at string, tenant, id *string) (*string, error) {
	if tenant != nil && id != nil && *tenant != *id {
		return nil, Invalid(at, "is another one than tenant_id")
	}
	return cmp.Or(tenant, id), nil
}

// QueryTime reads an optional time of the query: RFC 3339 with an offset.
func QueryTime(c echo.Context, name string) (*time.Time, error) {
	v, err := QueryText(c, name)
	if v == nil || err != nil {
		return nil, err
	}
	at, err := ParseTime(*v)
	if err != nil {
		return nil, Invalid(name, "%s", err)
	}
	return &at, nil
}

// PageJSON says which page of a list was shown, and how long the list is.
type PageJSON struct {
	Total   int  `json:"total"`
	Limit   int  `json:"limit"`
	Offset  int  `json:"offset"`
	HasMore bool `json:"has_more"`
	Page    int  `json:"page"`
	PerPage int  `json:"per_page"`
}

// Paging reads which page of a list is asked for: limit and offset, or the admin API's page and per_page.
func Paging(c echo.Context) (limit, offset int, err error) {
	if limit, err = QueryInteger(c, "limit", 50, 1, 1000); err != nil {
		return 0, 0, err
	}
	if limit, err = QueryInteger(c, "per_page", limit, 1, 1000); err != nil {
		return 0, 0, err
	}
	number, err := QueryInteger(c, "page", 1, 1, 1<<20)
	if err != nil {
		return 0, 0, err
	}
	first := (number - 1) * limit
	if offset, err = QueryInteger(c, "offset", first, 0, 1<<30); err != nil {
		return 0, 0, err
	}
	if offset != first && c.QueryParam("page") != "" {
		return 0, 0, Invalid("offset", "disagrees with page")
	}
	return limit, offset, nil
}

// PageOf asks for a page of a list whose rows say how many there are in all.
func PageOf[T any](limit, offset int, ask func(limit, offset int32) ([]T, error), total func(T) int64) (rows []T, all int, err error) {
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

// Pagination of a page that may hold fewer than limit, although there are more.
func Pagination(total, limit, offset, shown int) PageJSON {
	more := shown > 0 && offset+shown < total // what was counted a moment ago may have gone
	return PageJSON{Total: total, Limit: limit, Offset: offset, HasMore: more, Page: offset/limit + 1, PerPage: limit}
}

// QueryInteger reads a whole number between lowest and highest of the query.
func QueryInteger(c echo.Context, name string, missing, lowest, highest int) (int, error) {
	v := c.QueryParam(name)
	if v == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lowest || n > highest {
		return 0, Invalid(name, "must be an integer between %d and %d", lowest, highest)
	}
	return n, nil
}

// CommaList reads ?name=a,b, at most longest names; nil if it is absent.
func CommaList(c echo.Context, name string, longest int) ([]string, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	list := strings.Split(v, ",")
	if len(list) > longest || !IsText(v) {
		return nil, Invalid(name, "must hold at most %d names, separated by commas", longest)
	}
	return list, nil
}
