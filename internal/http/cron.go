package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Cron jobs come in two spellings: {name, cron, type, args, meta, options} of the specification and
// the SDKs, and {name, expression, job_template: {type, args, options}} of the conformance suite
// and the CLI. The fields that describe the jobs of a cron job form an envelope, which is read like
// the envelope of POST /ojs/v1/jobs.

// cronAttributes are the fields of the cron job itself. The other fields of the body are the
// envelope.
var cronAttributes = jsonbody.Set("name", "cron", "expression", "timezone", "overlap_policy", "catch_up", "enabled", "description",
	"job_template",
	// Read-only fields (ojs-cron section 2.2) are ignored, except that noTenant refuses a tenant.
	"id", "tenant_id", "status", "last_run_at", "next_run_at", "upcoming_runs", "run_count", "created_at", "updated_at")

// cronNames are the fields that a client may mean, of a cron job and of its envelope. Misspelt
// names are compared with them.
var cronNames = slices.Concat([]string{
	"name", "cron", "expression", "timezone", "overlap_policy", "catch_up", "enabled", "description", "job_template",
}, envelopeNames)

// cronText reads a text that may have either of two names. It returns the text and the name that
// the client used, and fails if both names are used for different texts.
func cronText(o *jsonbody.Object, key, alias string) (v *string, name string) {
	v, name = o.Text(key), key
	if other := o.Text(alias); other != nil {
		if v != nil && *v != *other {
			o.Fail(problems.Invalid(o.At(alias), "disagrees with %s", o.At(key)))
		}
		v, name = other, alias
	}
	return v, name
}

// orText returns *v, or missing if v is nil.
func orText(v *string, missing string) string {
	if v == nil {
		return missing
	}
	return *v
}

// template returns the envelope of the jobs that a cron job makes: job_template, or the fields of
// the body that are not the cron job's own. It fails if fields of an envelope stand next to
// job_template. Missing args are read as [].
func template(req *jsonbody.Object) *jsonbody.Object {
	job := &jsonbody.Object{Path: req.Path, Fault: req.Fault}
	if inner := req.Child("job_template"); inner != nil {
		job = inner
		for _, m := range req.Fields {
			if !cronAttributes[m.Key] {
				req.Fail(problems.Invalid(req.At(m.Key), "must not stand beside job_template"))
			}
		}
	} else {
		for _, m := range req.Fields {
			if !cronAttributes[m.Key] {
				job.Fields = append(job.Fields, m)
			}
		}
	}
	if job.Raw("args") == nil {
		job.Fields = append(job.Fields, jsonbody.Member{Key: "args", RawKey: []byte(`"args"`), Raw: []byte("[]")})
	}
	return job
}

func (s *Server) cronRoutes() []route {
	return scoped(underPrefixes([]string{v1 + "/cron", v1 + "/crons"}, []route{
		{Method: http.MethodGet, Scope: scopeRead, Query: paged + "enabled", OfTenant: true, Handler: s.listCrons},
		{Method: http.MethodPost, Scope: scopeProduce, Queues: queuesInBody, Handler: s.putCron},
		{Method: http.MethodGet, Path: "/:name", Scope: scopeRead, Queues: queueOfCron, Handler: s.getCron},
		{Method: http.MethodPut, Path: "/:name", Scope: scopeProduce, Queues: queueOfCron, Handler: s.putCron},
		{Method: http.MethodPatch, Path: "/:name", Scope: scopeProduce, Queues: queueOfCron, Handler: s.patchCron},
		{Method: http.MethodDelete, Path: "/:name", Scope: scopeProduce, Queues: queueOfCron, Handler: withoutBody(s.deleteCron)},
		{Method: http.MethodPost, Path: "/:name/pause", Scope: scopeProduce, Queues: queueOfCron, Handler: withoutBody(s.pauseCron)},
		{Method: http.MethodPost, Path: "/:name/resume", Scope: scopeProduce, Queues: queueOfCron, Handler: withoutBody(s.resumeCron)},
		{Method: http.MethodPost, Path: "/:name/trigger", Scope: scopeProduce, Queues: queueOfCron, Handler: withoutBody(s.triggerCron)},
		{
			Method: http.MethodGet, Path: "/:name/history", Scope: scopeRead, Queues: queueOfCron,
			Query: paged, Handler: s.cronHistory,
		},
	}))
}

// cronNameOf returns the name of a cron job: the path's, or else the body's. It fails if they
// differ.
func cronNameOf(req *jsonbody.Object, path string) string {
	name := req.Name("name")
	if path == "" {
		if name == nil {
			req.Missing("name")
		}
		return orText(name, "")
	}
	if name != nil && *name != path {
		req.Fail(problems.Invalid("name", "is %q, but the path names %q", problems.Clip(*name), problems.Clip(path)))
	}
	if !jsonbody.IsText(path) {
		// PostgreSQL cannot take such a text as a parameter. SQL knows the other rules for names.
		req.Fail(problems.Invalid("name", "must be text in UTF-8 without NUL characters"))
	}
	return path
}

func (s *Server) putCron(c echo.Context) error {
	req, err := s.body(c, s.limits.Body, false, jsonbody.Parts{})
	if err != nil {
		return err
	}
	noTenant(req)
	jsonbody.Near(req, cronNames...)
	header, headerName := requestTenant(c), scopeHeader(c)
	name := cronNameOf(req, c.Param("name"))
	expression, spelled := cronText(req, "expression", "cron")
	if expression == nil {
		req.Missing("cron")
	}
	zone := orText(req.Text("timezone"), "UTC")
	params := sqlcgen.PutCronParams{
		Name: name, Expression: orText(expression, ""), Timezone: zone, Queue: "default", Meta: []byte("{}"),
		OverlapPolicy: orText(req.Text("overlap_policy"), "skip"), CatchUp: orText(req.Text("catch_up"), "once"),
		Enabled: req.Flag("enabled"), Description: req.Text("description"),
	}
	job := template(req)
	made := readJob(job, header, headerName, time.Now())
	if err := req.Err(); err != nil {
		return err
	}
	if err := cronParams(&params, job, made); err != nil {
		return err
	}
	if err := checkCron(params.Expression, zone, spelled); err != nil {
		return err
	}
	if err := forQueues(c, "queue", params.Queue); err != nil {
		return err
	}
	if err := s.forCron(c, name); err != nil {
		return err
	}
	ofJobs := spellJobs(nil, []*jsonbody.Object{job}, headerName, false)
	spelledBy(c, func(problem *pg.Error) string {
		if cronAttributes[problem.Field] {
			return ""
		}
		return ofJobs(problem)
	})
	row, err := patiently(s, c, (*sqlcgen.Queries).PutCron, params)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if !row.CreatedAt.Equal(row.UpdatedAt) {
		status = http.StatusOK
	}
	return s.planned(c, status, row)
}

// cronParams copies the envelope of a cron job's jobs into params. It fails for fields that make no
// sense for such jobs, because they are made when they are due.
func cronParams(params *sqlcgen.PutCronParams, sent *jsonbody.Object, job *dispatch.NewJob) error {
	for _, not := range []struct {
		field string
		given bool
	}{
		{"id", job.ID != nil},
		{"scheduled_at", job.ScheduledAt != nil},
		{"expires_at", job.ExpiresAt != nil},
		{"pending", job.Pending != nil},
	} {
		if not.given {
			at := locate(sent, "", not.field)
			return problems.Refuse(problems.CodeUnsupported, at,
				"%s is not supported for a cron job: its jobs are made when they are due", at)
		}
	}
	params.Tenant, params.Type, params.Args = job.Tenant, string(job.Type), job.Args
	if job.Queue != nil {
		params.Queue = string(job.Queue)
	}
	if job.Priority != nil {
		params.Priority = *job.Priority
	}
	if job.Meta != nil {
		params.Meta = job.Meta
	}
	params.Retry, params.Options, params.Extra = job.Retry, job.Options, job.Extra
	params.MaxAttempts, params.TimeoutMs, params.VisibilityTimeoutMs = job.MaxAttempts, job.TimeoutMs, job.VisibilityTimeoutMs
	if job.Tags != nil {
		params.Tags = []string{}
		for _, tag := range jsonbody.Elements(job.Tags) {
			params.Tags = append(params.Tags, jsonbody.Unquote(tag))
		}
	}
	return nil
}

// checkCron refuses an expression or a time zone that the scheduler could not parse. spelled is the
// client's name for the expression.
func checkCron(expression, zone, spelled string) error {
	_, err := sched.ParseCron(expression, zone)
	var fault *sched.CronError
	if !errors.As(err, &fault) {
		return err
	}
	if fault.Field == "expression" {
		return problems.Invalid(spelled, "%s", fault.What)
	}
	return problems.Invalid(fault.Field, "%s", fault.What)
}

// planned answers with a cron job that was just changed, and with the time at which it is due next.
func (s *Server) planned(c echo.Context, status int, row sqlcgen.OjsCron) error {
	ctx := s.queryContext(c)
	row, err := s.cron.PlanNew(ctx, row)
	if err != nil {
		// The change is stored, and the scheduler's next tick will plan the cron job.
		s.log.Warn("a cron job could not be planned at once", "tenant", row.TenantID, "queue", row.Queue, "cron", row.Name, "error", err)
	}
	return s.writeCron(c, status, &row)
}

func (s *Server) listCrons(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	// Half of the limit, because the answer holds the envelope of each cron job twice.
	params := sqlcgen.CronsParams{Tenant: requestTenant(c), MaxBytes: s.limits.List / 2}
	switch v := c.QueryParam("enabled"); v {
	case "":
	case "true", "false":
		on := v == "true"
		params.Enabled = &on
	default:
		return problems.Invalid("enabled", "must be true or false")
	}
	ctx := s.queryContext(c)
	rows, total, err := pageOf(limit, offset, func(limit, offset int32) ([]sqlcgen.CronsRow, error) {
		params.MaxRows, params.Skip = limit, offset
		return s.q.Crons(ctx, params)
	}, func(r sqlcgen.CronsRow) int64 { return r.Total })
	if err != nil {
		return err
	}
	out, list := s.wire(), []byte{'['}
	for i := range rows {
		if i > 0 {
			list = append(list, ',')
		}
		list = out.appendCron(list, &rows[i].OjsCron)
	}
	list = append(list, ']')
	give, err := s.carry(c, len(list))
	if err != nil {
		return err
	}
	defer give()
	return writeBlob(c, http.StatusOK, jsonbody.Listed(list, []string{"cron_jobs", "crons", "items"}, func(w *jsonbody.Writer) {
		w.Integer("count", int64(len(rows)))
		writePagination(w, pagination(total, limit, offset, len(rows)))
	})...)
}

// cronRef returns the name of a cron job in the path, and the tenant of the request. A name that no
// cron job can have gets 404.
func cronRef(c echo.Context) (name string, scope *string, err error) {
	scope, name = requestTenant(c), c.Param("name")
	if !names.Cron.MatchString(name) {
		return "", nil, problems.NoSuch("cron job", name)
	}
	return name, scope, nil
}

func (s *Server) getCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	ctx := s.queryContext(c)
	row, err := s.q.GetCron(ctx, sqlcgen.GetCronParams{Name: name, Tenant: scope})
	if err != nil {
		return err
	}
	return s.writeCron(c, http.StatusOK, &row)
}

// patchCronRequest holds the settings of a cron job that a client can change by themselves.
type patchCronRequest struct {
	_             struct{} `check:"configurable"`
	Enabled       *bool    `json:"enabled"`
	Expression    *string  `json:"expression"`
	Cron          *string  `json:"cron"`
	Timezone      *string  `json:"timezone"`
	OverlapPolicy *string  `json:"overlap_policy"`
	CatchUp       *string  `json:"catch_up"`
	Description   *string  `json:"description"`

	expression *string // the new expression, which the client named as spelled says
	spelled    string
}

// Check reads the expression under either of its names.
func (r *patchCronRequest) Check(o *jsonbody.Object) {
	r.expression, r.spelled = cronText(o, "expression", "cron")
}

// patchCron changes the settings that are given. Other settings, and the jobs, are changed by
// registering the cron job again.
func (s *Server) patchCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	var req patchCronRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.ConfigureCronParams{
		Name: name, Tenant: scope, Enabled: req.Enabled, Expression: req.expression, Timezone: req.Timezone,
		OverlapPolicy: req.OverlapPolicy, CatchUp: req.CatchUp, Description: req.Description,
	}
	if req.expression != nil || req.Timezone != nil {
		row, err := s.q.GetCron(s.queryContext(c), sqlcgen.GetCronParams{Name: name, Tenant: scope})
		if err != nil {
			return err
		}
		if err := checkCron(orText(req.expression, row.Expression), orText(req.Timezone, row.Timezone), req.spelled); err != nil {
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
	row, err := patiently(s, c, (*sqlcgen.Queries).ConfigureCron, params)
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
	row, err := patiently(s, c, (*sqlcgen.Queries).DeleteCron, sqlcgen.DeleteCronParams{Name: name, Tenant: scope})
	if err != nil {
		return err
	}
	return s.writeCron(c, http.StatusOK, &row, jsonbody.Attr{Name: "deleted", Raw: []byte("true")},
		jsonbody.Attr{Name: "name", Raw: jsonbody.AppendString(nil, row.Name)})
}

func (s *Server) triggerCron(c echo.Context) error {
	name, scope, err := cronRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, (*sqlcgen.Queries).TriggerCron, sqlcgen.TriggerCronParams{Name: name, Tenant: scope})
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/jobs/"+job.ID)
	return s.writeJob(c, http.StatusCreated, &job)
}

type cronRunJSON struct {
	ScheduledAt   jsonbody.Stamp `json:"scheduled_at"`
	TriggeredAt   jsonbody.Stamp `json:"triggered_at"`
	Status        string         `json:"status"`
	Manual        bool           `json:"manual"`
	Missed        int32          `json:"missed"`
	JobID         *string        `json:"job_id"`
	Reason        *string        `json:"reason,omitempty"`
	Message       *string        `json:"message,omitempty"`
	ExistingJobID *string        `json:"existing_job_id,omitempty"`
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
	ctx := s.queryContext(c)
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
			ScheduledAt: jsonbody.Stamp(r.DueAt), TriggeredAt: jsonbody.Stamp(r.At), Status: status, Manual: r.Manual, Missed: r.Missed,
			JobID: r.JobID, Reason: r.Reason, Message: r.Message, ExistingJobID: r.Blocker,
		}
	}
	return c.JSON(http.StatusOK, map[string]any{
		"name": row.Name, "history": items, "items": items, "pagination": pagination(total, limit, offset, limit),
	})
}

// writeCron answers with a cron job under both names that clients read: cron and cron_job.
func (s *Server) writeCron(c echo.Context, status int, row *sqlcgen.OjsCron, more ...jsonbody.Attr) error {
	shown := s.wire().appendCron(nil, row)
	w := jsonbody.Writer{}
	w.Open()
	w.Raw("cron", shown)
	w.Raw("cron_job", shown)
	for _, a := range more {
		w.Raw(a.Name, a.Raw)
	}
	w.Close()
	return writeBlob(c, status, w.B)
}

func (out wire) appendCron(b []byte, r *sqlcgen.OjsCron) []byte {
	w := jsonbody.Writer{B: b}
	w.Open()
	w.Text("name", r.Name)
	w.Text("expression", r.Expression)
	w.Text("cron", r.Expression)
	w.Text("timezone", r.Timezone)
	w.Flag("enabled", r.Enabled)
	switch {
	case !r.Enabled:
		w.Text("status", "paused")
	case r.Error != nil:
		w.Text("status", "error")
		w.Text("error", *r.Error)
	default:
		w.Text("status", "active")
	}
	w.Text("overlap_policy", r.OverlapPolicy)
	w.Text("catch_up", r.CatchUp)
	if r.Description != nil {
		w.Text("description", *r.Description)
	} else {
		w.Null("description")
	}
	envelope := out.cronEnvelope(r)
	envelope(&w)
	w.Key("job_template")
	w.Open()
	envelope(&w)
	w.Close()
	if r.LastRunAt != nil {
		w.Time("last_run_at", r.LastRunAt)
	} else {
		w.Null("last_run_at")
	}
	if r.Enabled && len(r.Upcoming) > 0 {
		w.Time("next_run_at", &r.Upcoming[0])
	} else {
		w.Null("next_run_at")
	}
	w.Integer("run_count", r.RunCount)
	w.Time("created_at", &r.CreatedAt)
	w.Time("updated_at", &r.UpdatedAt)
	w.Close()
	return w.B
}

// cronEnvelope returns a function that writes the fields that describe the jobs of a cron job.
func (out wire) cronEnvelope(r *sqlcgen.OjsCron) func(*jsonbody.Writer) {
	options := cronOptions(r)
	meta := out.appendMeta(nil, &sqlcgen.OjsJob{TenantID: r.TenantID, Meta: r.Meta})
	return func(w *jsonbody.Writer) {
		w.Text("type", r.Type)
		w.Raw("args", r.Args)
		w.Raw("meta", meta)
		w.Raw("options", options)
		writeExtra(w, r.Extra, written, cronAttributes)
	}
}

// cronOptions returns the fields of the envelope that a client sends as options.
func cronOptions(r *sqlcgen.OjsCron) []byte {
	w := jsonbody.Writer{}
	w.Open()
	w.Text("queue", r.Queue)
	if r.Priority != 0 {
		w.Integer("priority", int64(r.Priority))
	}
	for _, n := range []struct {
		name string
		v    *int32
	}{{"max_attempts", r.MaxAttempts}, {"timeout_ms", r.TimeoutMs}, {"visibility_timeout_ms", r.VisibilityTimeoutMs}} {
		if n.v != nil {
			w.Integer(n.name, int64(*n.v))
		}
	}
	if r.TimeoutMs != nil && *r.TimeoutMs%1000 == 0 {
		w.Integer("timeout", int64(*r.TimeoutMs/1000))
	}
	if r.Retry != nil {
		w.Raw("retry", r.Retry)
	}
	if r.Tags != nil {
		w.Texts("tags", r.Tags)
	}
	if r.Options != nil {
		for _, m := range jsonbody.Members(r.Options) {
			w.Verbatim(m)
		}
	}
	w.Close()
	return w.B
}
