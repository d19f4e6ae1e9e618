package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// binder reads a request's body into the struct that a handler passes to c.Bind, as strictly as Object reads. Read gets the body's
// object.
type binder struct {
	Read func(c echo.Context, optional bool) (*jsonbody.Object, error)
}

// Bind implements echo.Binder.
func (b binder) Bind(into any, c echo.Context) error {
	_, optional := into.(interface{ MayBeLeftOut() })
	o, err := b.Read(c, optional)
	if err != nil {
		return err
	}
	o.Into(into)
	return o.Err()
}

// withoutBody is a handler that needs no body. One that is sent is read all the same, since it may name a tenant, and may say why.
func withoutBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		var req struct {
			jsonbody.Optional
			_      struct{} `check:"near"`
			Reason *string  `json:"reason"`
		}
		if err := c.Bind(&req); err != nil {
			return err
		}
		giveReason(c, req.Reason)
		return next(c)
	}
}
