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

// The headers that every response has, and the version of OJS that this server speaks.
const (
	specVersion     = "1.0"
	versionHeader   = "OJS-Version"
	requestIDHeader = "X-Request-Id"
)

// goSDKVersion is the version that the official Go SDK sends. By it handlers recognize the Go SDK
// where clients want different shapes.
const goSDKVersion = "1.0.0-rc.1"

// errLost says that the connection to the client is lost. That is no fault of the answer that it
// cuts off.
var errLost = errors.New("the connection to the client is lost")

// writePart writes a part of an answer whose header has been written. It fails with errLost.
func writePart(c echo.Context, part []byte) error {
	if _, err := c.Response().Write(part); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// flush sends what is buffered, and fails with errLost if that does not succeed. Without it the
// buffer would hide an error of the socket.
func flush(c echo.Context) error {
	// The Flush of echo's own writer returns no error.
	if err := http.NewResponseController(c.Response().Writer).Flush(); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// writeBlob writes a whole answer and flushes it. It adds a newline, so that the prompt of a
// terminal begins on a line of its own, and Retry-After to 503 and 429. It fails with errLost.
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

// serializer writes the answers of c.JSON, without HTML escapes and by writeBlob.
type serializer struct{}

// Serialize implements echo.JSONSerializer.
func (serializer) Serialize(c echo.Context, v any, _ string) error {
	return encode(c, c.Response().Status, v)
}

// Deserialize implements echo.JSONSerializer. It always fails, because binder reads requests.
func (serializer) Deserialize(echo.Context, any) error { return errors.ErrUnsupported }

// encode writes an answer that is made of structs, without HTML escapes.
func encode(c echo.Context, status int, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	return writeBlob(c, status, bytes.TrimRight(buf.Bytes(), "\n"))
}

// usedUp returns the used part of a bound, from 0.00 to 1.00, as X-OJS-Queue-Pressure shows it
// (ojs-backpressure section 7.3).
func usedUp(depth, bound float64) string { return fmt.Sprintf("%.2f", min(1, depth/bound)) }
