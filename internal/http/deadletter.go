package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The dead letter queue (ojs-dead-letter section 10), under /dead-letter and, for operators' tools, under /admin/dead-letter.

// deadFilter picks dead letters.
type deadFilter struct {
	queue, jobType, errorType *string
	since, until              *time.Time
	age                       *time.Duration // instead of until: how long ago, by the database's clock
}

// maxBulk is the most jobs that one bulk request changes.
const maxBulk = 10000

// deadQuery reads a filter from the query.
func deadQuery(c echo.Context) (f deadFilter, err error) {
	for name, to := range map[string]**string{"queue": &f.queue, "type": &f.jobType, "error_type": &f.errorType} {
		if *to, err = kit.QueryText(c, name); err != nil {
			return f, err
		}
	}
	for name, to := range map[string]**time.Time{"since": &f.since, "until": &f.until} {
		if *to, err = kit.QueryTime(c, name); err != nil {
			return f, err
		}
	}
	older, err := kit.QueryText(c, "older_than")
	if older == nil || err != nil {
		return f, err
	}
	return f, f.olderThan("older_than", "until", *older)
}

// olderThan reads another spelling of until, which may also be an age: P30D for until 30 days ago. Nothing here counts forward from now, so
// what does, +P30D, is refused.
func (f *deadFilter) olderThan(name, until, v string) error {
	at, err := kit.ParseTime(v)
	age, noAge := kit.ParseDuration(v)
	switch {
	case err == nil && f.until != nil && !f.until.Equal(at), noAge == nil && f.until != nil:
		return kit.Invalid(name, "disagrees with %s", until)
	case err == nil:
		f.until = &at
	case noAge == nil:
		f.age = &age
	default:
		return kit.Invalid(name, "must be a time as in RFC 3339 with an offset, or an age as an ISO 8601 duration of weeks to seconds, such as P30D")
	}
	return nil
}

// bound turns an age into a time, by the clock that dead letters are dated with; it gives a filter without either the present, if it is to have a bound.
func (s *Server) bound(ctx context.Context, f *deadFilter, required bool) error {
	age := f.age
	if age == nil && required {
		age = new(time.Duration)
	}
	if f.until != nil || age == nil {
		return nil
	}
	at, err := s.q.Ago(ctx, age.Seconds())
	f.until = &at
	return err
}

// deadBody reads what a bulk request is about: {"filter": {...}, "limit": n, "confirm": true}. What the client does not confirm is
// not done.
func (s *Server) deadBody(c echo.Context) (f deadFilter, limit int32, err error) {
	req, err := s.body(c, s.limits.Body, true)
	if err != nil {
		return f, 0, err
	}
	for name := range c.QueryParams() {
		return f, 0, kit.Invalid(kit.Clip(name), "belongs in the body here")
	}
	fields := []string{"queue", "type", "error_type", "since", "until", "older_than"}
	// The filter may stand by itself or be the body, but not half of it here and half there.
	filter := req.Child("filter")
	if filter == nil {
		filter = req
		kit.Only(req, kit.NotKnown, append(fields, "filter", "limit", "confirm")...)
	} else {
		kit.Only(req, kit.NotKnown, "filter", "limit", "confirm")
		kit.Only(filter, kit.NotKnown, fields...)
	}
	f.queue, f.jobType, f.errorType = filter.Name("queue"), filter.Name("type"), filter.Name("error_type")
	f.since, f.until = filter.Time("since"), filter.Time("until")
	if older := filter.Text("older_than"); older != nil {
		if err := f.olderThan(filter.At("older_than"), filter.At("until"), *older); err != nil {
			filter.Fail(err)
		}
	}
	limit = 1000
	if v := req.Integer("limit", 1); v != nil {
		limit = *v
	}
	confirmed := req.Flag("confirm")
	if err := req.Err(); err != nil {
		return f, 0, err
	}
	if limit > maxBulk {
		return f, 0, kit.Invalid("limit", "must be an integer between 1 and %d", maxBulk)
	}
	if confirmed == nil || !*confirmed {
		return f, 0, kit.Invalid("confirm", "must be true: this changes every job that the filter lets pass")
	}
	return f, limit, nil
}

func (s *Server) listDeadLetters(c echo.Context) error {
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	f, err := deadQuery(c)
	if err != nil {
		return err
	}
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	if err := s.bound(ctx, &f, false); err != nil {
		return err
	}
	total, err := s.q.DeadLetterCount(ctx, sqlcgen.DeadLetterCountParams{
		Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, Tenant: scope,
	})
	if err != nil {
		return err
	}
	jobs, err := s.q.DeadLetters(ctx, sqlcgen.DeadLettersParams{
		Queue: f.queue, Type: f.jobType, ErrorType: f.errorType, Since: f.since, Until: f.until, MaxRows: int32(limit), Skipped: int32(offset), Tenant: scope,
		MaxBytes: s.limits.List,
	})
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, kit.Listed(s.appendJobs(nil, jobs, nil), []string{"jobs", "items"}, func(w *kit.Writer) {
		w.Integer("total", total)
		w.Pagination(kit.Pagination(int(total), limit, offset, len(jobs)))
	})...)
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
	return kit.Blob(c, http.StatusOK, s.appendJob(nil, &job))
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
	override := req.Typed("override", "object")
	if override != nil {
		req.Storable(override, "override")
		req.Child("override").When("expires_at", time.Now()) // SQL takes more than RFC 3339
	}
	kit.Only(req, kit.NotKnown, "override")
	if err := req.Err(); err != nil {
		return err
	}
	job, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.RetryDeadLetter(ctx, sqlcgen.RetryDeadLetterParams{ID: id, Override: override, Tenant: scope})
	})
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job, kit.Attr{Name: "previous_state", Raw: []byte(`"discarded"`)}, kit.Attr{Name: "re_enqueued_at", Raw: kit.AppendTime(nil, job.EnqueuedAt)})
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
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	f, limit, err := s.deadBody(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	// What fails again meanwhile is not meant, neither by what is done nor by what remains.
	if err := s.bound(ctx, &f, true); err != nil {
		return err
	}
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
	return kit.Encode(c, http.StatusOK, map[string]any{done: n, "remaining": left})
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
	return kit.Encode(c, http.StatusOK, map[string]any{"deleted": true, "job_id": id})
}

func (s *Server) deleteDeadLetterSilently(c echo.Context) error {
	if _, err := s.removeDeadLetter(c); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) deadLetterStats(c echo.Context) error {
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	stats, err := s.q.DeadLetterStats(ctx, scope)
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, stats)
}
