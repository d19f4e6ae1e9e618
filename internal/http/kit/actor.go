package kit

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// ReasonHeader says why a request changes something, where its body does not.
const ReasonHeader = "X-OJS-Reason"

// Because keeps why a request changes something; nil: its body does not say.
func Because(c echo.Context, reason *string) {
	if reason != nil {
		requestOf(c).reason = *reason
	}
}

// Reason is why a request changes something, for the audit trail; empty if it does not say.
func Reason(c echo.Context) string {
	if reason := requestOf(c).reason; reason != "" {
		return reason
	}
	if reason := c.Request().Header.Get(ReasonHeader); IsText(reason) {
		return reason
	}
	return ""
}

// Changing has the calls of a request that the audit trail is to tell of, each in a transaction of its own.
func (k *Kit) Changing(c echo.Context) *sqlcgen.Queries {
	return sqlcgen.New(k.DB.Within(k.Query).As(Actor(c), Reason(c)))
}
