package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// errorsPage is the page that explains every code below a heading of its own. The specification has
// pages for few of them.
const errorsPage = "https://github.com/ojs-pg/ojs-pg/blob/main/docs/reference/http/errors.md"

// docsURL returns the address of the heading of a code.
func docsURL(code string) string { return errorsPage + "#" + strings.ToLower(code) }

// problemWriter gives errors the statuses that ojs.problem has for their codes, and answers
// requests with them. byCode is filled by newProblems and only read after that.
type problemWriter struct {
	db     *pg.DB
	log    *slog.Logger
	byCode map[string]pg.Problem

	refused refusals
	tenant  TenantHeaders
	near    func(method, path string) string // the route that was probably meant, or ""
}

// newProblems makes a problemWriter with the rows of ojs.problem that db has loaded.
func newProblems(db *pg.DB, log *slog.Logger, background *background) *problemWriter {
	p := &problemWriter{
		db: db, log: log, byCode: map[string]pg.Problem{}, tenant: KnownTenantHeaders,
		refused: refusals{db: db, log: log, background: background},
	}
	for _, state := range slices.Sorted(maps.Keys(db.Problems())) {
		// Several SQLSTATEs share a code. The code's own row is the first whose SQLSTATE begins
		// with OJ.
		row := db.Problems()[state]
		if len(row.SQLState) < 5 {
			row.Hint = "" // a class of SQLSTATEs has a hint that says nothing about one error
		}
		if known, taken := p.byCode[row.Code]; !taken || row.SQLState[:2] == "OJ" && known.SQLState[:2] != "OJ" {
			p.byCode[row.Code] = row
		}
	}
	return p
}

// write answers a request with an error. It is echo's error handler. If the answer has begun
// already, it is cut off.
func (p *problemWriter) write(err error, c echo.Context) {
	r := c.Request()
	log := p.log.With("request_id", requestID(c), "method", r.Method, "path", r.URL.Path).With(p.about(c)...)
	switch {
	case c.Response().Committed && errors.Is(err, errLost):
		log.Debug("the response broke off", "error", err)
		return
	case c.Response().Committed:
		log.Error("the response broke off", "error", err)
		// If the response ended normally, half an answer would look like a whole one.
		panic(http.ErrAbortHandler)
	}
	left := r.Context().Err() != nil && errors.Is(err, context.Canceled)
	if left {
		// The client has probably gone. But without a status the answer would be an empty 200.
		err = &pg.Error{Code: problems.CodeAway, Message: "the request ended before there was an answer", Err: err}
	}
	problem := p.explain(c, err)
	level := slog.LevelDebug
	switch {
	case problem.Status < 500 || left || problem.Status == http.StatusNotImplemented || problem.Status == http.StatusInsufficientStorage:
	case problem.Status == http.StatusServiceUnavailable && problem.Err == nil:
		level = slog.LevelWarn // nothing failed: the server had no capacity left
	default:
		level = slog.LevelError
	}
	log.Log(r.Context(), level, "request refused", "status", problem.Status, "code", problem.Code, "error", err)

	body, err := json.Marshal(map[string]any{"error": problemBody(problem, requestID(c))})
	if err != nil {
		log.Error("an error could not be written", "error", err)
		body = []byte(`{"error":{"code":"internal_error","message":"internal error","retryable":false}}`)
	}
	h := c.Response().Header()
	limitHeaders(h, problem)
	p.refused.count(problem)
	if problem.Status == http.StatusRequestEntityTooLarge || problem.Status == http.StatusRequestHeaderFieldsTooLarge {
		h.Set("Connection", "close")
	}
	if err := writeBlob(c, problem.Status, body); err != nil {
		log.Debug("the response could not be written", "error", err)
	}
}

// limitHeaders sets the headers of a refusal by a limit: when the client may try again, and how
// much of the limit is used.
func limitHeaders(h http.Header, problem *pg.Error) {
	if problem.Status != http.StatusTooManyRequests && problem.Status != http.StatusInsufficientStorage {
		return
	}
	set := func(header string, value *float64) {
		if value != nil {
			h.Set(header, strconv.FormatFloat(*value, 'f', -1, 64))
		}
	}
	l := problem.Limit()
	set("Retry-After", l.RetryAfter)
	set("X-OJS-Queue-Depth", l.Depth)
	set("X-OJS-Queue-Bound", l.Bound)
	if l.Current != nil && l.Maximum != nil {
		h.Set("OJS-Quota", fmt.Sprintf("%s,used=%.0f,limit=%.0f", l.Name, *l.Current, *l.Maximum))
		if l.Name == "max_enqueue_rate" {
			h.Set("X-RateLimit-Limit", fmt.Sprintf("%.0f", *l.Maximum))
			h.Set("X-RateLimit-Remaining", fmt.Sprintf("%.0f", max(0, *l.Maximum-*l.Current)))
			if l.RetryAfter != nil { // a Unix timestamp (ojs-http-binding section 14)
				at := time.Now().Add(time.Duration(*l.RetryAfter * float64(time.Second)))
				h.Set("X-RateLimit-Reset", strconv.FormatInt(at.Unix(), 10))
			}
		}
	}
	if l.Depth != nil && l.Bound != nil && *l.Bound > 0 {
		h.Set("X-OJS-Queue-Pressure", usedUp(*l.Depth, *l.Bound))
	}
}

// explain returns an error as the client gets it: with its code and status, its field named as the
// client wrote it, and without what a tenant must not learn.
func (p *problemWriter) explain(c echo.Context, err error) *pg.Error {
	problem := p.classify(err)
	if routing, is := errors.AsType[*echo.HTTPError](err); is {
		p.sayRoute(c, routing.Code, problem)
	}
	if _, told := problem.Details["depth"]; told && isTenants(c) {
		// How many jobs other tenants have in the queue.
		problem.Details = maps.Clone(problem.Details)
		problem.Details["depth"] = problem.Details["bound"]
	}
	p.spell(c, problem)
	return problem
}

// spell puts what the client wrote into an error that names a parameter of a SQL function.
func (p *problemWriter) spell(c echo.Context, problem *pg.Error) {
	p.tenant.rename(problem)
	path := ""
	if r, begun := c.Get(requestKey).(*request); begun && r.spelling != nil && problem.SQLState != "" {
		path = r.spelling(problem)
	}
	if path == "" && problem.Field == "tenant" && problem.Details["meant"] == nil {
		if _, header, err := p.tenant.read(c.Request().Header); err == nil {
			path = header
		}
	}
	said := amongJobs.ReplaceAllString(problem.Message, "")
	among := said != problem.Message
	if among && problem.Index == nil {
		problem.Message = said
	}
	switch {
	case path == "":
		return
	case problem.Fault != "":
		problem.Message = path + " " + problem.Fault
	case !among || problem.Index != nil:
		problem.Message = path + ": " + said
	}
	problem.Field = path
}

// amongJobs matches the start of a message about one of several jobs. The only job of a request
// gets it, too, if it was sent to SQL together with jobs of other clients.
var amongJobs = regexp.MustCompile(`^jobs\[\d+\]: `)

// about returns attributes for the log: the caller of a request, and the tenant, queue or job that
// its headers and its path name. It does not read the body.
func (p *problemWriter) about(c echo.Context) (attrs []any) {
	tenant, _, err := p.tenant.read(c.Request().Header)
	if who := principalOf(c); who != nil {
		attrs = append(attrs, "actor", who.Name)
		tenant = cmp.Or(who.Tenant, tenant)
	}
	if err == nil && tenant != nil {
		attrs = append(attrs, "tenant", *tenant)
	}
	for _, of := range [...]struct{ route, parameter, as string }{
		{"/tenants/:id", "id", "tenant"}, {"/queues/:name", "name", "queue"}, {"/jobs/:id", "id", "job"}, {"/dead-letter/:id", "id", "job"},
	} {
		if strings.Contains(c.Path(), of.route) {
			attrs = append(attrs, of.as, c.Param(of.parameter))
		}
	}
	return attrs
}

// problemBody returns the OJS error object. The details also stand directly under error, because
// the specifications name some of them there.
func problemBody(p *pg.Error, requestID string) map[string]any {
	details := map[string]any{}
	maps.Copy(details, p.Details)
	if p.Index != nil {
		details["index"] = *p.Index
	}
	body := maps.Clone(details)
	if p.Field != "" {
		details["field"] = p.Field
	}
	body["code"] = p.Code
	body["message"] = p.Message
	body["retryable"] = p.Retryable
	body["request_id"] = requestID
	body["docs_url"] = docsURL(p.Code)
	body["details"] = details
	if p.Hint != "" {
		body["hint"] = p.Hint
	}
	if _, taken := p.Details["type"]; !taken {
		body["type"] = p.Code
	}
	return body
}

// classify returns an error with its code and status. Errors of SQL have them from ojs.problem by
// SQLSTATE, errors of this program from the same table by code. Any other error becomes a 500 that
// does not tell the client what failed.
func (p *problemWriter) classify(err error) *pg.Error {
	var known *pg.Error
	var routing *echo.HTTPError
	switch {
	case errors.As(err, &known):
	case errors.As(err, &routing):
		known = routingProblem(routing)
	default:
		if !errors.As(p.db.Err(err), &known) {
			known = &pg.Error{Code: "internal_error", Status: http.StatusInternalServerError, Err: err}
		}
	}
	out := *known
	if out.SQLState == sqlstate.InsufficientPrivilege {
		// All sessions are the server's own, so the server's login lacks a right, and no caller.
		out = pg.Error{
			SQLState: out.SQLState, Code: problems.CodeAway, Status: http.StatusServiceUnavailable, Retryable: true, Err: known,
			Message: "The server may not do this in its database.", Hint: "Tell the operator; the server's log has the reason.",
		}
	}
	if out.Status == 0 {
		if row, ok := p.byCode[out.Code]; ok {
			out.Status, out.Retryable = row.Status, row.Retryable
			if out.Hint == "" {
				out.Hint = row.Hint
			}
		} else {
			out.Status = http.StatusInternalServerError
		}
	}
	if out.Status == http.StatusInternalServerError {
		out.Message, out.Hint = "internal error; the server's log has it under the request id", ""
		out.Field, out.Fault, out.Index, out.Details = "", "", nil, nil
	}
	return &out
}

// sayRoute tells a client that has missed a route which one was probably meant, or which methods the
// route has.
func (p *problemWriter) sayRoute(c echo.Context, status int, problem *pg.Error) {
	switch status {
	case http.StatusNotFound:
		if p.near == nil {
			return
		}
		if meant := p.near(c.Request().Method, c.Request().URL.Path); meant != "" {
			problem.Message += "; " + meant + " is probably meant"
			problem.Details = map[string]any{"meant": meant}
		}
	case http.StatusMethodNotAllowed:
		if allowed := allowedMethods(c.Response().Header().Get(echo.HeaderAllow)); allowed != "" {
			problem.Message += "; use " + allowed
		}
	}
}

// allowedMethods returns the methods of an Allow header as a sentence has them. It leaves out OPTIONS,
// which the router adds, and HEAD, which stands beside every GET.
func allowedMethods(header string) string {
	methods := slices.DeleteFunc(strings.Split(strings.ReplaceAll(header, " ", ""), ","), func(m string) bool {
		return m == "" || m == http.MethodOptions || m == http.MethodHead
	})
	slices.Sort(methods)
	return strings.Join(methods, " or ")
}

// routingProblem translates an error of echo's router or of net/http.
func routingProblem(err *echo.HTTPError) *pg.Error {
	switch err.Code {
	case http.StatusNotFound:
		return &pg.Error{
			Code: problems.CodeNotFound, Message: "there is no such route",
			Hint: "GET /ojs/manifest names the routes' base and what this server can do.",
		}
	case http.StatusMethodNotAllowed:
		return &pg.Error{
			Code: problems.CodeInvalidRequest, Status: http.StatusMethodNotAllowed, Message: "the route does not have this method",
			Hint: "The Allow header lists the methods it has.",
		}
	}
	return &pg.Error{Code: problems.CodeInvalidRequest, Status: err.Code, Message: fmt.Sprint(err.Message)}
}

// requestID returns the id by which the response and the log name a request.
func requestID(c echo.Context) string {
	return c.Response().Header().Get(requestIDHeader)
}
