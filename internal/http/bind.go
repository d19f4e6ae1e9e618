package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// binder reads the body of a request into the struct that a handler passes to c.Bind, as strictly
// as jsonbody.Object reads. Read returns the body as an object; optional says that it may be
// absent, and parts which parts of it are judged by themselves.
type binder struct {
	Read func(c echo.Context, optional bool, parts jsonbody.Parts) (*jsonbody.Object, error)
}

// Bind implements echo.Binder. It fails with the first fault of the body.
func (b binder) Bind(into any, c echo.Context) error {
	_, optional := into.(interface{ MayBeLeftOut() })
	var parts jsonbody.Parts
	if p, ok := into.(interface{ Parts() jsonbody.Parts }); ok {
		parts = p.Parts()
	}
	o, err := b.Read(c, optional, parts)
	if err != nil {
		return err
	}
	o.Into(into)
	if o.Err() == nil && o.Raw("reason") != nil {
		giveReason(c, o.Text("reason"))
	}
	return o.Err()
}

// withoutBody wraps a handler that needs no body. A body that is sent is read all the same: a
// tenant in it must not be ignored, and it may give the reason of a change.
func withoutBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		var req struct {
			jsonbody.Optional
			Reason *string `json:"reason"`
		}
		if err := c.Bind(&req); err != nil {
			return err
		}
		return next(c)
	}
}
