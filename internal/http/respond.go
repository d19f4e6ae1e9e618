package httpapi

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
	specVersion     = "1.0"
	versionHeader   = "OJS-Version"
	requestIDHeader = "X-Request-Id"
)

// goSDKVersion is the OJS-Version that the official Go SDK sends. Some shapes differ for it.
const goSDKVersion = "1.0.0-rc.1"

// errLost means that the client's connection broke. The answer itself was right.
var errLost = errors.New("the connection to the client is lost")

// writePart writes a part of an answer whose header has been sent.
func writePart(c echo.Context, part []byte) error {
	if _, err := c.Response().Write(part); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// flush sends what is buffered and returns the socket's error, which a buffered write would hide.
func flush(c echo.Context) error {
	// echo's own writer would not tell it.
	if err := http.NewResponseController(c.Response().Writer).Flush(); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// writeBlob writes a response and a newline, so that a terminal's prompt stands on its own line. It
// returns an error if the response did not leave.
func writeBlob(c echo.Context, status int, body ...[]byte) error {
	res := c.Response()
	size := 1
	for _, part := range body {
		size += len(part)
	}
	res.Header().Set("Content-Length", strconv.Itoa(size))
	later := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
	if later && res.Header().Get("Retry-After") == "" {
		retryLater(c)
	}
	res.WriteHeader(status)
	for _, part := range append(body, []byte("\n")) {
		if err := writePart(c, part); err != nil {
			return err
		}
	}
	return flush(c)
}

// retryLater tells the client to come back after a second.
func retryLater(c echo.Context) { c.Response().Header().Set("Retry-After", "1") }

// serializer writes responses made of structs for c.JSON, without HTML escapes, as writeBlob does.
type serializer struct{}

// Serialize implements echo.JSONSerializer.
func (serializer) Serialize(c echo.Context, v any, _ string) error {
	return encode(c, c.Response().Status, v)
}

// Deserialize implements echo.JSONSerializer. Requests are read by a Binder.
func (serializer) Deserialize(echo.Context, any) error { return errors.ErrUnsupported }

// encode writes a struct as the response, without HTML escapes.
func encode(c echo.Context, status int, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	return writeBlob(c, status, bytes.TrimRight(buf.Bytes(), "\n"))
}

// usedUp is the part of a bound that is used up, 0.00 to 1.00, as X-OJS-Queue-Pressure has it (ojs-backpressure section 7.3).
func usedUp(depth, bound float64) string { return fmt.Sprintf("%.2f", min(1, depth/bound)) }
