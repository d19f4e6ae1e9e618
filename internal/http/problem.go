package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

const docsURL = "https://openjobspec.org/spec/v1/errors#"

// problem writes an error as a response. Nothing else does.
func (s *Server) problem(err error, c echo.Context) {
	r := c.Request()
	log := s.log.With("request_id", requestID(c), "method", r.Method, "path", r.URL.Path)
	if c.Response().Committed {
		log.Debug("the response broke off", "error", err)
		return
	}
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		log.Debug("the client left", "error", err)
		return
	}
	problem := s.classify(err)
	nameHeader(problem, r.Header)
	level := slog.LevelDebug
	if problem.Status >= 500 {
		level = slog.LevelError
	}
	log.Log(r.Context(), level, "request refused", "status", problem.Status, "code", problem.Code, "error", err)

	body, err := json.Marshal(map[string]any{"error": problemBody(problem, requestID(c))})
	if err != nil {
		log.Error("an error could not be written", "error", err)
		body = []byte(`{"error":{"code":"internal_error","message":"internal error","retryable":false}}`)
	}
	h := c.Response().Header()
	if problem.Status == http.StatusRequestEntityTooLarge || problem.Status == http.StatusRequestHeaderFieldsTooLarge {
		h.Set("Connection", "close")
	}
	if err := blob(c, problem.Status, body); err != nil {
		log.Debug("the response could not be written", "error", err)
	}
}

// nameHeader: SQL calls the tenant by its parameter, the client by its header.
func nameHeader(problem *pg.Error, h http.Header) {
	if _, header, err := tenant(h); err == nil && header != "" && problem.Details["field"] == "tenant" {
		problem.Details["field"] = header
		problem.Message = header + strings.TrimPrefix(problem.Message, "tenant")
	}
}

// problemBody has the fields of the OJS error object, and beside them the details that the
// specifications name directly under error.
func problemBody(p *pg.Error, requestID string) map[string]any {
	body := map[string]any{}
	for k, v := range p.Details {
		body[k] = v
	}
	delete(body, "field")
	body["code"] = p.Code
	body["message"] = p.Message
	body["retryable"] = p.Retryable
	body["request_id"] = requestID
	body["docs_url"] = docsURL + p.Code
	body["details"] = p.Details
	if p.Details == nil {
		body["details"] = map[string]any{}
	}
	if p.Hint != "" {
		body["hint"] = p.Hint
	}
	if _, taken := p.Details["type"]; !taken {
		body["type"] = p.Code
	}
	return body
}

// classify gives every error its code and status: SQL's from ojs.problem by SQLSTATE, those made
// here from the same table by code.
func (s *Server) classify(err error) *pg.Error {
	var known *pg.Error
	var routing *echo.HTTPError
	switch {
	case errors.As(err, &known):
	case errors.As(err, &routing):
		known = routingProblem(routing)
	default:
		if !errors.As(s.db.Err(err), &known) {
			known = &pg.Error{Code: "internal_error", Status: http.StatusInternalServerError, Err: err}
		}
	}
	out := *known
	if out.Status == 0 {
		if row, ok := s.problems[out.Code]; ok {
			out.Status, out.Retryable = row.Status, row.Retryable
			if out.Hint == "" {
				out.Hint = row.Hint
			}
		} else {
			out.Status = http.StatusInternalServerError
		}
	}
	if out.Status == http.StatusInternalServerError {
		out.Message, out.Hint, out.Details = "internal error; the server's log has it under the request id", "", nil
	}
	return &out
}

// routingProblem translates what echo's router and net/http answer by themselves.
func routingProblem(err *echo.HTTPError) *pg.Error {
	switch err.Code {
	case http.StatusNotFound:
		return &pg.Error{
			Code: codeNotFound, Message: "there is no such route",
			Hint: "GET /ojs/manifest names the routes' base and what this server can do.",
		}
	case http.StatusMethodNotAllowed:
		return &pg.Error{
			Code: codeInvalidRequest, Status: http.StatusMethodNotAllowed, Message: "the route does not have this method",
			Hint: "The Allow header lists the methods it has.",
		}
	}
	return &pg.Error{Code: codeInvalidRequest, Status: err.Code, Message: fmt.Sprint(err.Message)}
}

func requestID(c echo.Context) string {
	return c.Response().Header().Get(requestIDHeader)
}

// blob writes a response and learns whether it left: Flush returns the socket's error, which a
// buffered write hides.
func blob(c echo.Context, status int, body ...[]byte) error {
	res := c.Response()
	size := 0
	for _, part := range body {
		size += len(part)
	}
	res.Header().Set("Content-Length", strconv.Itoa(size))
	if status == http.StatusServiceUnavailable {
		retryLater(c)
	}
	res.WriteHeader(status)
	for _, part := range body {
		if _, err := res.Write(part); err != nil {
			return err
		}
	}
	return http.NewResponseController(res).Flush()
}

func retryLater(c echo.Context) { c.Response().Header().Set("Retry-After", "1") }

// encode writes a response made of structs, without HTML escapes.
func encode(c echo.Context, status int, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	return blob(c, status, bytes.TrimRight(buf.Bytes(), "\n"))
}
