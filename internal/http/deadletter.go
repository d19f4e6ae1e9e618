package httpapi

import (
	"context"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The dead letter queue (ojs-dead-letter section 10), under /dead-letter and, for operators' tools, under /admin/dead-letter.

// deadFilter picks dead letters.
type deadFilter struct {
	queue, jobType, errorType *string
	since, until              *time.Time
}

// maxBulk is the most jobs that one bulk request changes.
const maxBulk = 10000

func queryText(c echo.Context, name string) (*string, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	for _, r := range v {
		if r == 0 || r == utf8.RuneError {
			return nil, invalid(name, "must be text without NUL characters")
		}
	}
	return &v, nil
}

func queryTime(c echo.Context, name string) (*time.Time, error) {
	v := c.QueryParam(name)
	if v == "" {
		return nil, nil
	}
	at, err := parseTime(v)
	if err != nil {
		return nil, invalid(name, "%s", err)
	}
	return &at, nil
}

// deadQuery reads a filter from the query; older_than is another name of until.
func deadQuery(c echo.Context) (f deadFilter, err error) {
	for name, to := range map[string]**string{"queue": &f.queue, "type": &f.jobType, "error_type": &f.errorType} {
		if *to, err = queryText(c, name); err != nil {
			return f, err
		}
	}
	for name, to := range map[string]**time.Time{"since": &f.since, "until": &f.until} {
		if *to, err = queryTime(c, name); err != nil {
			return f, err
		}
	}
	if older, err := queryTime(c, "older_than"); err != nil {
		return f, err
	} else if older != nil {
		f.until = older
	}
	return f, nil
}

// deadBody reads what a bulk request is about: {"filter": {...}, "limit": n, "confirm": true}. What the client does not confirm is
// not done.
func (s *Server) deadBody(c echo.Context) (f deadFilter, limit int32, err error) {
	req, err := s.body(c, s.limits.Body, true)
	if err != nil {
		return f, 0, err
	}
	for name := range c.QueryParams() {
		return f, 0, invalid(clip(name), "belongs in the body here")
	}
	now := time.Now()
	fields := []string{"queue", "type", "error_type", "since", "until", "older_than"}
	// The filter may stand by itself or be the body, but not half of it here and half there.
	filter := req.child("filter")
	if filter == nil {
		filter = req
		only(req, notKnown, append(fields, "filter", "limit", "confirm")...)
	} else {
		only(req, notKnown, "filter", "limit", "confirm")
		only(filter, notKnown, fields...)
	}
	f.queue, f.jobType, f.errorType = filter.name("queue"), filter.name("type"), filter.name("error_type")
	f.since, f.until = filter.when("since", now), filter.when("until", now)
	if older := filter.when("older_than", now); older != nil {
		f.until = older
	}
	limit = 1000
	if v := req.integer("limit", 1); v != nil {
		limit = *v
	}
	confirmed := req.flag("confirm")
	if err := req.err(); err != nil {
		return f, 0, err
	}
	if limit > maxBulk {
		return f, 0, invalid("limit", "must be an integer between 1 and %d", maxBulk)
	}
	if confirmed == nil || !*confirmed {
		return f, 0, invalid("confirm", "must be true: this changes every job that the filter lets pass")
	}
	if f.until == nil {
		// What fails again meanwhile is not meant.
		f.until = &now
	}
	return f, limit, nil
}

func (s *Server) listDeadLetters(c echo.Context) error {
	scope, _, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	f, err := deadQuery(c)
	if err != nil {
		return err
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	total, err := s.q.DeadLetterCount(ctx, sqlcgen.DeadLetterCountParams{
		Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, Tenant: scope,
	})
	if err != nil {
		return err
	}
	jobs, err := s.q.DeadLetters(ctx, sqlcgen.DeadLettersParams{
		Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, MaxRows: int32(limit), Skipped: int32(offset), Tenant: scope,
	})
	if err != nil {
		return err
	}
	w := writer{}
	w.open()
	// Clients read one of two names.
	w.key("jobs")
	at := len(w.b)
	w.b = s.appendJobs(w.b, jobs, nil)
	list := w.b[at:len(w.b):len(w.b)]
	w.raw("items", list)
	w.integer("total", total)
	w.pagination(pagination(int(total), limit, offset))
	w.close()
	return blob(c, http.StatusOK, w.b)
}

func (s *Server) deadLetter(c echo.Context) (sqlcgen.OjsJob, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return sqlcgen.OjsJob{}, err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	return s.q.DeadLetterInfo(ctx, sqlcgen.DeadLetterInfoParams{ID: id, Tenant: scope})
}

func (s *Server) getDeadLetter(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job)
}

// getDeadLetterFlat is for operators' tools, which want the job itself.
func (s *Server) getDeadLetterFlat(c echo.Context) error {
	job, err := s.deadLetter(c)
	if err != nil {
		return err
	}
	return blob(c, http.StatusOK, s.appendJob(nil, &job))
}

func (s *Server) retryDeadLetter(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	req, err := s.body(c, s.limits.Body, true)
	if err != nil {
		return err
	}
	override := req.typed("override", "object")
	if override != nil {
		req.storable(override, "override")
		req.child("override").when("expires_at", time.Now()) // SQL takes more than RFC 3339
	}
	only(req, notKnown, "override")
	if err := req.err(); err != nil {
		return err
	}
	job, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.RetryDeadLetter(ctx, sqlcgen.RetryDeadLetterParams{ID: id, Override: override, Tenant: scope})
	})
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job, attr{"previous_state", []byte(`"discarded"`)}, attr{"re_enqueued_at", appendTime(nil, job.EnqueuedAt)})
}

func (s *Server) retryDeadLetters(c echo.Context) error {
	return s.bulk(c, "retried", func(ctx context.Context, f deadFilter, limit int32, scope *string) (int32, error) {
		return s.q.RetryDeadLetters(ctx, sqlcgen.RetryDeadLettersParams{
			Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, MaxJobs: limit, Tenant: scope,
		})
	})
}

func (s *Server) purgeDeadLetters(c echo.Context) error {
	return s.bulk(c, "deleted", func(ctx context.Context, f deadFilter, limit int32, scope *string) (int32, error) {
		return s.q.PurgeDeadLetters(ctx, sqlcgen.PurgeDeadLettersParams{
			Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, MaxJobs: limit, Tenant: scope,
		})
	})
}

// bulk says how many jobs were done, and how many that the filter lets pass are left for another request.
func (s *Server) bulk(c echo.Context, done string, do func(context.Context, deadFilter, int32, *string) (int32, error)) error {
	scope, _, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	f, limit, err := s.deadBody(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	n, err := do(ctx, f, limit, scope)
	if err != nil {
		return err
	}
	left, err := s.q.DeadLetterCount(ctx, sqlcgen.DeadLetterCountParams{
		Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, Tenant: scope,
	})
	if err != nil {
		return err
	}
	return encode(c, http.StatusOK, map[string]any{done: n, "remaining": left})
}

func (s *Server) removeDeadLetter(c echo.Context) (string, error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return "", err
	}
	_, err = patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.DeleteDeadLetter(ctx, sqlcgen.DeleteDeadLetterParams{ID: id, Tenant: scope})
	})
	return id, err
}

func (s *Server) deleteDeadLetter(c echo.Context) error {
	id, err := s.removeDeadLetter(c)
	if err != nil {
		return err
	}
	return encode(c, http.StatusOK, map[string]any{"deleted": true, "job_id": id})
}

func (s *Server) deleteDeadLetterSilently(c echo.Context) error {
	if _, err := s.removeDeadLetter(c); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) deadLetterStats(c echo.Context) error {
	scope, _, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	stats, err := s.q.DeadLetterStats(ctx, scope)
	if err != nil {
		return err
	}
	return blob(c, http.StatusOK, stats)
}
