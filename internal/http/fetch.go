package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) fetchRoutes() []route {
	return scoped([]route{
		{Method: http.MethodPost, Path: v1 + "/workers/fetch", Scope: scopeWork, Queues: queuesInBody, Handler: s.fetch},
	})
}

const maxFetchQueues = 100

type fetchRequest struct {
	Queues              []string        `json:"queues" check:"required,name"`
	WorkerID            string          `json:"worker_id" check:"name"`
	Count               int32           `json:"count" check:"1..1000"`
	VisibilityTimeoutMs int32           `json:"visibility_timeout_ms" check:"1.."`
	Strategy            string          `json:"strategy" check:"name"`
	Weights             json.RawMessage `json:"weights" check:"object"`
	Pool                string          `json:"pool" check:"name"`
	WaitMs              *int32          `json:"wait_ms" check:"0.."`
}

// Check refuses too few or too many queues, and removes repeated ones. SQL checks strategy and
// weights.
func (r *fetchRequest) Check(o *jsonbody.Object) {
	if o.Err() == nil && (len(r.Queues) < 1 || len(r.Queues) > maxFetchQueues) {
		o.Fail(problems.Invalid("queues", "must hold between 1 and %d names", maxFetchQueues))
	}
	seen := make(map[string]bool, len(r.Queues))
	r.Queues = slices.DeleteFunc(r.Queues, func(queue string) bool {
		again := seen[queue]
		seen[queue] = true
		return again
	})
}

func (s *Server) fetch(c echo.Context) error {
	req := fetchRequest{Count: 1}
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := forQueues(c, "queues", req.Queues...); err != nil {
		return err
	}
	wait, err := s.allowWait(c, req.WaitMs)
	if err != nil {
		return err
	}
	jobs, err := s.dispatch.Fetch(c.Request().Context(), dispatch.Fetch{
		Queues: req.Queues, Count: int(req.Count), WorkerID: req.WorkerID, VisibilityTimeoutMs: int(req.VisibilityTimeoutMs),
		Tenant: requestTenant(c), Wait: wait, Strategy: req.Strategy, Weights: string(req.Weights), Pool: req.Pool,
	})
	if err != nil {
		return err
	}
	// If the client has hung up meanwhile, or the handler panics, the jobs go back to their queues
	// now, and not when their leases end.
	handed := false
	defer func() {
		if !handed {
			s.dispatch.GiveBack(jobs)
		}
	}()
	// The credential may have expired while the request waited.
	if err := s.identifyAgain(c); err != nil {
		return err
	}
	give, err := s.carry(c, sizeOf(jobs))
	if err != nil {
		return err
	}
	defer give()
	if err = c.Request().Context().Err(); err == nil {
		err = s.handOver(c, jobs)
	}
	if err != nil {
		return fmt.Errorf("hand over %d jobs: %w", len(jobs), err)
	}
	handed = true
	return nil
}

// handOver writes the jobs of a FETCH. It writes a large answer in pieces, because the jobs are in
// memory already, and the whole answer would take as much again.
func (s *Server) handOver(c echo.Context, jobs []sqlcgen.OjsJob) error {
	const bit = 1 << 20
	// Use the writer itself in the callback: after the handler has returned, c may belong to
	// another request.
	rc := http.NewResponseController(c.Response().Writer)
	defer context.AfterFunc(s.handing, func() { _ = rc.SetWriteDeadline(time.Now()) })()
	out, w := s.wire(), jsonbody.Writer{}
	w.Open()
	w.Key("jobs")
	if sizeOf(jobs) <= bit {
		w.B = out.appendJobs(w.B, jobs, leaseOf)
		w.Close()
		return writeBlob(c, http.StatusOK, w.B)
	}
	c.Response().WriteHeader(http.StatusOK)
	w.B = append(w.B, '[')
	for i := range jobs {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		w.B = out.appendJob(w.B, &jobs[i], leaseOf(&jobs[i])...)
		if len(w.B) < bit {
			continue
		}
		if err := writePart(c, w.B); err != nil {
			return err
		}
		w.B = w.B[:0]
	}
	w.B = append(w.B, ']')
	w.Close()
	if err := writePart(c, append(w.B, '\n')); err != nil {
		return err
	}
	return flush(c)
}

// leaseOf returns the attributes that only FETCH adds to a job: its lease, and when that ends.
func leaseOf(j *sqlcgen.OjsJob) []jsonbody.Attr {
	var more []jsonbody.Attr
	if j.Lease != nil {
		more = append(more, jsonbody.Attr{Name: "lease", Raw: jsonbody.AppendString(nil, *j.Lease)})
	}
	if j.LeaseExpiresAt != nil {
		more = append(more, jsonbody.Attr{Name: "lease_expires_at", Raw: jsonbody.AppendTime(nil, *j.LeaseExpiresAt)})
	}
	return more
}

// wait returns how long the client will wait for a job: wait_ms in the body, or else the preference
// wait of RFC 7240. It is at most Limits.Wait. If the preference is used, the answer says how long
// the server waits.
func (s *Server) wait(c echo.Context, bodyMs *int32) time.Duration {
	limit := s.limits.Wait
	if bodyMs != nil {
		return min(time.Duration(*bodyMs)*time.Millisecond, limit)
	}
	for name, value := range preferences(c) {
		if !strings.EqualFold(name, "wait") {
			continue
		}
		// A preference that cannot be understood is ignored, as RFC 7240 asks.
		seconds, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			continue
		}
		wait := min(time.Duration(seconds)*time.Second, limit)
		c.Response().Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return wait
	}
	return 0
}

// allowWait returns what wait returns. It counts a request that waits (mayWait), and moves the
// deadlines of its connection, which would otherwise end the request while it waits. It fails if
// too many requests of the tenant wait.
func (s *Server) allowWait(c echo.Context, bodyMs *int32) (time.Duration, error) {
	wait := s.wait(c, bodyMs)
	if wait == 0 {
		return 0, nil
	}
	if err := s.mayWait(c); err != nil {
		return 0, err
	}
	rc := http.NewResponseController(c.Response())
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, fmt.Errorf("lift the read deadline for a waiting fetch: %w", err)
	}
	if err := rc.SetWriteDeadline(time.Now().Add(wait + s.limits.Write)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, fmt.Errorf("move the write deadline of a waiting fetch: %w", err)
	}
	return wait, nil
}

// representation reports whether the answer is to hold the whole job. It is, unless the preference
// return of RFC 7240 asks for a minimal answer.
func representation(c echo.Context) bool {
	for name, value := range preferences(c) {
		if !strings.EqualFold(name, "return") {
			continue
		}
		whole := strings.EqualFold(value, "representation")
		if whole || strings.EqualFold(value, "minimal") {
			c.Response().Header().Set("Preference-Applied", "return="+strings.ToLower(value))
			return whole
		}
	}
	return true
}

// preferences returns the names and values of the Prefer headers.
func preferences(c echo.Context) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, header := range c.Request().Header.Values("Prefer") {
			for _, preference := range strings.Split(header, ",") {
				preference, _, _ = strings.Cut(preference, ";") // parameters of the preference
				name, value, _ := strings.Cut(preference, "=")
				if !yield(strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `"`)) {
					return
				}
			}
		}
	}
}
