package httpapi

import (
	"crypto/sha256"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

const (
	idempotencyHeader = "Idempotency-Key"
	idempotencyField  = "idempotency_key"
	replayedHeader    = "Idempotency-Replayed"
)

// idempotency is the idempotency key of an enqueue, which makes the request safe to repeat. Keys
// and their answers are stored in the database, not here.
type idempotency struct {
	dispatch.Key
	field string // header or field of the body in which the client sent the key
}

// idempotencyKey reads the key from the header or from the field idempotency_key at the top of the
// body; nil if there is neither. The header wins. It fails if the key is empty, too long or no text.
// The fingerprint is a hash of the path, the tenant and the body: two requests with one key are the
// same request only if these are equal, byte for byte.
func idempotencyKey(c echo.Context, req *jsonbody.Object) (*idempotency, error) {
	h := c.Request().Header
	var key string
	values, field := h.Values(idempotencyHeader), idempotencyHeader
	switch {
	case len(values) > 1:
		return nil, problems.Invalid(idempotencyHeader, "must be sent once")
	case len(values) == 1:
		key = values[0]
	case req.Raw(idempotencyField) != nil:
		field = idempotencyField
		text := req.Text(idempotencyField)
		if err := req.Err(); err != nil || text == nil {
			return nil, err
		}
		key = *text
	default:
		return nil, nil //nolint:nilnil // no key is usual
	}
	if n := utf8.RuneCountInString(key); n < 1 || n > 256 || !jsonbody.IsText(key) {
		return nil, problems.Invalid(field, "must have between 1 and 256 characters")
	}
	scope := requestTenant(c)
	sum := sha256.New()
	sum.Write([]byte(c.Path()))
	if scope != nil {
		sum.Write([]byte("\x00" + *scope))
	}
	sum.Write([]byte{0})
	sum.Write(req.Source)
	return &idempotency{dispatch.Key{Name: key, Fingerprint: sum.Sum(nil)}, field}, nil
}
