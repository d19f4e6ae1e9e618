// Package kit is what HTTP's handlers are made with: JSON that is read strictly and written as it came (strict, object, values,
// writer), answers (respond), errors as problems (codes, problem), the tenant's header and pages of lists. It knows echo and
// the shapes of OJS, but no route: those stand beside the handlers, in internal/http and internal/admin.
package kit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"
)

// What every response carries, and the version that requests may name.
const (
	ContentType     = "application/openjobspec+json"
	SpecVersion     = "1.0"
	VersionHeader   = "OJS-Version"
	RequestIDHeader = "X-Request-Id"
)

// GoSDKVersion is what the official Go SDK sends, and how it is told apart where the clients want different shapes.
const GoSDKVersion = "1.0.0-rc.1"

// errLost is that of a client's connection. Nothing is wrong with an answer that it cuts off.
var errLost = errors.New("the connection to the client is lost")

// Send writes a part of an answer, whose header has been written.
func Send(c echo.Context, part []byte) error {
	if _, err := c.Response().Write(part); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// Flush learns whether an answer has left: a buffered write hides the socket's error.
func Flush(c echo.Context) error {
	// echo's own writer would not tell it.
	if err := http.NewResponseController(c.Response().Writer).Flush(); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// Blob writes a response and a newline, without which a terminal's prompt stands behind it, and learns whether it left.
func Blob(c echo.Context, status int, body ...[]byte) error {
	res := c.Response()
	size := 1
	for _, part := range body {
		size += len(part)
	}
	res.Header().Set("Content-Length", strconv.Itoa(size))
	later := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
	if later && res.Header().Get("Retry-After") == "" {
		RetryLater(c)
	}
	res.WriteHeader(status)
	for _, part := range append(body, []byte("\n")) {
		if err := Send(c, part); err != nil {
			return err
		}
	}
	return Flush(c)
}

// RetryLater tells the client to come back after a second.
func RetryLater(c echo.Context) { c.Response().Header().Set("Retry-After", "1") }

// Serializer writes responses made of structs, for c.JSON: without HTML escapes, and as Blob does.
type Serializer struct{}

// Serialize implements echo.JSONSerializer.
func (Serializer) Serialize(c echo.Context, v any, _ string) error {
	return encode(c, c.Response().Status, v)
}

// Deserialize implements echo.JSONSerializer. Requests are read by a Binder.
func (Serializer) Deserialize(echo.Context, any) error { return errors.ErrUnsupported }

// encode writes a response made of structs, without HTML escapes.
func encode(c echo.Context, status int, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	return Blob(c, status, bytes.TrimRight(buf.Bytes(), "\n"))
}
