package httpapi

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Cron jobs come in two spellings: {name, cron, type, args, meta, options} of the specification and the SDKs, and
// {name, expression, job_template: {type, args, options}} of the conformance suite and the CLI. What
// describes the jobs they make is an envelope as in POST /ojs/v1/jobs, and is read as one.

// cronAttributes are those of the cron job itself; the rest of the body is the envelope.
var cronAttributes = set("name", "cron", "expression", "timezone", "overlap_policy", "catch_up", "enabled", "description", "job_template",
	// Read-only (ojs-cron section 2.2): ignored.
	"id", "tenant_id", "status", "last_run_at", "next_run_at", "upcoming_runs", "run_count", "created_at", "updated_at")

// cronName is what SQL accepts as one; a path with another names no cron job.
var cronName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,254}$`)

// cronText reads an attribute that has two names.
func cronText(o *object, key, alias string) (v *string, name string) {
	v, name = o.text(key), key
	if other := o.text(alias); other != nil {
		if v != nil && *v != *other {
			o.fail(invalid(o.at(alias), "disagrees with %s", o.at(key)))
		}
		v, name = other, alias
	}
	return v, name
}

func orText(v *string, missing string) string {
	if v == nil {
		return missing
	}
	return *v
}

// template is the envelope of the jobs that a cron job makes.
func template(req *object) *object {
	job := &object{path: req.path, fault: req.fault}
	if inner := req.child("job_template"); inner != nil {
		job = inner
		for _, m := range req.fields {
			if !cronAttributes[m.key] {
				req.fail(invalid(req.at(m.key), "must not stand beside job_template"))
			}
		}
	} else {
		for _, m := range req.fields {
			if !cronAttributes[m.key] {
				job.fields = append(job.fields, m)
			}
		}
	}
	if job.raw("args") == nil {
		job.fields = append(job.fields, member{key: "args", rawKey: []byte(`"args"`), raw: []byte("[]")})
	}
	return job
}

func (s *Server) putCron(c echo.Context) error {
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	header, headerName, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	name := req.name("name")
	if path := c.Param("name"); path != "" {
		if name != nil && *name != path {
			req.fail(invalid("name", "is %q, but the path names %q", clip(*name), clip(path)))
		}
		if !isText(path) {
			req.fail(invalid("name", "must be text in UTF-8 without NUL characters")) // SQL, which knows the other rules, cannot even be asked
		}
		name = &path
	} else if name == nil {
		req.missing("name")
	}
	expression, spelled := cronText(req, "expression", "cron")
	if expression == nil {
		req.missing("cron")
	}
	zone := orText(req.text("timezone"), "UTC")
	params := sqlcgen.PutCronParams{
		Name: orText(name, ""), Expression: orText(expression, ""), Timezone: zone, Queue: "default", Meta: []byte("{}"),
		OverlapPolicy: orText(req.text("overlap_policy"), "skip"), CatchUp: orText(req.text("catch_up"), "once"),
		Enabled: req.flag("enabled"), Description: req.text("description"),
	}
	job := template(req)
	flat, whose := appendFlat(nil, job, header, headerName, time.Now())
	params.Tenant = whose
	if err := req.err(); err != nil {
		return err
	}
	if err := cronParams(&params, job, flat); err != nil {
		return err
	}
	if err := checkCron(params.Expression, zone, spelled); err != nil {
		return err
	}
	row, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsCron, error) { return q.PutCron(ctx, params) })
	if err != nil {
		err = s.db.Err(err)
		var known *pg.Error
		if errors.As(err, &known) && known.Status < http.StatusInternalServerError {
			if field, _ := known.Details["field"].(string); !cronAttributes[field] {
				relocate(known, []*object{job}, headerName, false)
			}
		}
		return err
	}
	status := http.StatusCreated
	if !row.CreatedAt.Equal(row.UpdatedAt) {
		status = http.StatusOK
	}
	return s.planned(c, status, row)
}

// cronParams takes the flat job apart that ojs.enqueue_many would take whole.
func cronParams(params *sqlcgen.PutCronParams, job *object, flat []byte) error {
	integer := func(raw []byte) *int32 {
		v, _ := strconv.ParseInt(string(raw), 10, 32) // written by the flattener
		n := int32(v)
		return &n
	}
	for _, m := range members(flat) {
		switch m.key {
		case "type":
			params.Type = unquote(m.raw)
		case "args":
			params.Args = m.raw
		case "queue":
			params.Queue = unquote(m.raw)
		case "priority":
			params.Priority = *integer(m.raw)
		case "meta":
			params.Meta = m.raw
		case "retry":
			params.Retry = m.raw
		case "max_attempts":
			params.MaxAttempts = integer(m.raw)
		case "timeout_ms":
			params.TimeoutMs = integer(m.raw)
		case "visibility_timeout_ms":
			params.VisibilityTimeoutMs = integer(m.raw)
		case "tags":
			params.Tags = []string{}
			for _, tag := range elements(m.raw) {
				params.Tags = append(params.Tags, unquote(tag))
			}
		case "options":
			params.Options = m.raw
		case "extra":
			params.Extra = m.raw
		default:
			at := locate(job, "", m.key)
			return refuse(codeUnsupported, at, "%s is not supported for a cron job: its jobs are made when they are due", at)
		}
	}
	return nil
}

// checkCron refuses an expression that the server, when it comes to planning, could not read.
func checkCron(expression, zone, spelled string) error {
	_, err := sched.ParseCron(expression, zone)
	var fault *sched.CronError
	if !errors.As(err, &fault) {
		return err
	}
	if fault.Field == "expression" {
		return invalid(spelled, "%s", fault.What)
	}
	return invalid(fault.Field, "%s", fault.What)
}

// planned writes a cron job that was just changed, with the time at which it is due next.
func (s *Server) planned(c echo.Context, status int, row sqlcgen.OjsCron) error {
	ctx, cancel := s.query(c)
	defer cancel()
	row, err := s.cron.PlanNew(ctx, row)
	if err != nil {
		// It is registered, and a tick will plan it.
		s.log.Warn("a cron job could not be planned at once", "error", err)
	}
	return s.writeCron(c, status, &row)
}

func (s *Server) listCrons(c echo.Context) error {
	scope, _, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	params := sqlcgen.CronsParams{Tenant: scope}
	switch v := c.QueryParam("enabled"); v {
	case "":
	case "true", "false":
		on := v == "true"
		params.Enabled = &on
	default:
		return invalid("enabled", "must be true or false")
	}
	ctx, cancel := s.query(c)
	defer cancel()
	rows, total, err := pageOf(limit, offset, func(limit, offset int32) ([]sqlcgen.CronsRow, error) {
		params.MaxRows, params.Skip = limit, offset
		return s.q.Crons(ctx, params)
	}, func(r sqlcgen.CronsRow) int64 { return r.Total })
	if err != nil {
		return err
	}
	list := []byte{'['}
	for i := range rows {
		if i > 0 {
			list = append(list, ',')
		}
		list = s.appendCron(list, &rows[i].OjsCron)
	}
	list = append(list, ']')
	return blob(c, http.StatusOK, listed(list, []string{"cron_jobs", "crons", "items"}, func(w *writer) {
		w.integer("count", int64(len(rows)))
		w.pagination(pagination(total, limit, offset, limit))
	})...)
}

// cronRef reads the cron job a path names.
func cronRef(c echo.Context) (name string, scope *string, err error) {
	scope, _, err = tenant(c.Request().Header)
	if err != nil {
		return "", nil, err
	}
	name = c.Param("name")
	if !cronName.MatchString(name) {
		return "", nil, noSuch("cron job", name)
	}
	return name, scope, nil
}

func (s *Server) getCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	row, err := s.q.GetCron(ctx, sqlcgen.GetCronParams{Name: name, Tenant: scope})
	if err != nil {
		return err
	}
	return s.writeCron(c, http.StatusOK, &row)
}

// patchCron changes what is given of the schedule; what the jobs are is changed by registering anew.
func (s *Server) patchCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	expression, spelled := cronText(req, "expression", "cron")
	params := sqlcgen.ConfigureCronParams{
		Name: name, Tenant: scope, Enabled: req.flag("enabled"), Expression: expression, Timezone: req.text("timezone"),
		OverlapPolicy: req.text("overlap_policy"), CatchUp: req.text("catch_up"), Description: req.text("description"),
	}
	only(req, notConfigurable, "enabled", "expression", "cron", "timezone", "overlap_policy", "catch_up", "description")
	if err := req.err(); err != nil {
		return err
	}
	if expression != nil || params.Timezone != nil {
		ctx, cancel := s.query(c)
		defer cancel()
		row, err := s.q.GetCron(ctx, sqlcgen.GetCronParams{Name: name, Tenant: scope})
		if err != nil {
			return err
		}
		if err := checkCron(orText(expression, row.Expression), orText(params.Timezone, row.Timezone), spelled); err != nil {
			return err
		}
	}
	return s.configureCron(c, params)
}

func (s *Server) pauseCron(c echo.Context) error { return s.enableCron(c, false) }

func (s *Server) resumeCron(c echo.Context) error { return s.enableCron(c, true) }

func (s *Server) enableCron(c echo.Context, on bool) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	return s.configureCron(c, sqlcgen.ConfigureCronParams{Name: name, Tenant: scope, Enabled: &on})
}

func (s *Server) configureCron(c echo.Context, params sqlcgen.ConfigureCronParams) error {
	row, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsCron, error) {
		return q.ConfigureCron(ctx, params)
	})
	if err != nil {
		return err
	}
	return s.planned(c, http.StatusOK, row)
}

func (s *Server) deleteCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	row, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsCron, error) {
		return q.DeleteCron(ctx, sqlcgen.DeleteCronParams{Name: name, Tenant: scope})
	})
	if err != nil {
		return err
	}
	return s.writeCron(c, http.StatusOK, &row, attr{"deleted", []byte("true")}, attr{"name", dispatch.AppendString(nil, row.Name)})
}

func (s *Server) triggerCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.TriggerCron(ctx, sqlcgen.TriggerCronParams{Name: name, Tenant: scope})
	})
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/jobs/"+job.ID)
	return s.writeJob(c, http.StatusCreated, &job)
}

type cronRunJSON struct {
	ScheduledAt   stamp   `json:"scheduled_at"`
	TriggeredAt   stamp   `json:"triggered_at"`
	Status        string  `json:"status"`
	Manual        bool    `json:"manual"`
	Missed        int32   `json:"missed"`
	JobID         *string `json:"job_id"`
	Reason        *string `json:"reason,omitempty"`
	Message       *string `json:"message,omitempty"`
	ExistingJobID *string `json:"existing_job_id,omitempty"`
}

func (s *Server) cronHistory(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	row, err := s.q.GetCron(ctx, sqlcgen.GetCronParams{Name: name, Tenant: scope})
	if err != nil {
		return err
	}
	runs, total, err := pageOf(limit, offset, func(limit, offset int32) ([]sqlcgen.CronRunsRow, error) {
		return s.q.CronRuns(ctx, sqlcgen.CronRunsParams{Tenant: row.TenantID, Name: row.Name, MaxRows: limit, Skip: offset})
	}, func(r sqlcgen.CronRunsRow) int64 { return r.Total })
	if err != nil {
		return err
	}
	items := make([]cronRunJSON, len(runs))
	for i, r := range runs {
		status := "triggered"
		if r.JobID == nil {
			status = "skipped"
		}
		items[i] = cronRunJSON{
			ScheduledAt: stamp(r.DueAt), TriggeredAt: stamp(r.At), Status: status, Manual: r.Manual, Missed: r.Missed,
			JobID: r.JobID, Reason: r.Reason, Message: r.Message, ExistingJobID: r.Blocker,
		}
	}
	return encode(c, http.StatusOK, map[string]any{
		"name": row.Name, "history": items, "items": items, "pagination": pagination(total, limit, offset, limit),
	})
}

// writeCron writes it under both names that clients read.
func (s *Server) writeCron(c echo.Context, status int, row *sqlcgen.OjsCron, more ...attr) error {
	shown := s.appendCron(nil, row)
	w := writer{}
	w.open()
	w.raw("cron", shown)
	w.raw("cron_job", shown)
	for _, a := range more {
		w.raw(a.name, a.raw)
	}
	w.close()
	return blob(c, status, w.b)
}

func (s *Server) appendCron(b []byte, r *sqlcgen.OjsCron) []byte {
	w := writer{b: b}
	w.open()
	w.text("name", r.Name)
	w.text("expression", r.Expression)
	w.text("cron", r.Expression)
	w.text("timezone", r.Timezone)
	w.flag("enabled", r.Enabled)
	switch {
	case !r.Enabled:
		w.text("status", "paused")
	case r.Error != nil:
		w.text("status", "error")
		w.text("error", *r.Error)
	default:
		w.text("status", "active")
	}
	w.text("overlap_policy", r.OverlapPolicy)
	w.text("catch_up", r.CatchUp)
	w.key("description")
	if r.Description != nil {
		w.b = dispatch.AppendString(w.b, *r.Description)
	} else {
		w.b = append(w.b, "null"...)
	}
	options := cronOptions(r)
	meta := s.appendMeta(nil, &sqlcgen.OjsJob{TenantID: r.TenantID, Meta: r.Meta})
	envelope := func() {
		w.text("type", r.Type)
		w.raw("args", r.Args)
		w.raw("meta", meta)
		w.raw("options", options)
		if r.Extra != nil {
			// As with jobs: what would repeat an attribute is left out.
			for _, m := range members(r.Extra) {
				if !written[m.key] && !cronAttributes[m.key] {
					w.verbatim(m)
				}
			}
		}
	}
	envelope()
	w.key("job_template")
	w.open()
	envelope()
	w.close()
	w.key("last_run_at")
	if r.LastRunAt != nil {
		w.b = appendTime(w.b, *r.LastRunAt)
	} else {
		w.b = append(w.b, "null"...)
	}
	w.key("next_run_at")
	if r.Enabled && len(r.Upcoming) > 0 {
		w.b = appendTime(w.b, r.Upcoming[0])
	} else {
		w.b = append(w.b, "null"...)
	}
	w.integer("run_count", r.RunCount)
	w.time("created_at", &r.CreatedAt)
	w.time("updated_at", &r.UpdatedAt)
	w.close()
	return w.b
}

// cronOptions gathers what of the envelope a client sends as options.
func cronOptions(r *sqlcgen.OjsCron) []byte {
	w := writer{}
	w.open()
	w.text("queue", r.Queue)
	if r.Priority != 0 {
		w.integer("priority", int64(r.Priority))
	}
	for _, n := range []struct {
		name string
		v    *int32
	}{{"max_attempts", r.MaxAttempts}, {"timeout_ms", r.TimeoutMs}, {"visibility_timeout_ms", r.VisibilityTimeoutMs}} {
		if n.v != nil {
			w.integer(n.name, int64(*n.v))
		}
	}
	if r.TimeoutMs != nil && *r.TimeoutMs%1000 == 0 {
		w.integer("timeout", int64(*r.TimeoutMs/1000))
	}
	if r.Retry != nil {
		w.raw("retry", r.Retry)
	}
	if r.Tags != nil {
		w.texts("tags", r.Tags)
	}
	if r.Options != nil {
		for _, m := range members(r.Options) {
			w.verbatim(m)
		}
	}
	w.close()
	return w.b
}
