package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// jobStates are the states that a job can be in, in the order of its life.
var jobStates = []string{"scheduled", "pending", "available", "active", "retryable", "completed", "cancelled", "discarded"}

// stateFlag is an option that narrows a command to jobs in some states.
func stateFlag() cli.Flag {
	return &cli.StringSliceFlag{
		Name: "state", Sources: cli.EnvVars("OJS_ADMIN_STATE"),
		Usage: "`STATE` of the jobs: " + strings.Join(jobStates, ", ") + "; several are separated by commas",
		Validator: func(states []string) error {
			for _, state := range states {
				if err := cmdline.OneOf(jobStates...)(state); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// jobCommands look at single jobs, at what has happened to them, and at what keeps them waiting.
func jobCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "jobs", Usage: "list jobs, the newest first or the oldest (--oldest), or show one job",
			ArgsUsage: "[ID]", Action: withAdmin("[ID]", jobs),
			Flags: append(queueAndTypeFlags(), limitFlag(), &cli.BoolFlag{
				Name: "oldest", Sources: cli.EnvVars("OJS_ADMIN_OLDEST"), Usage: "list the oldest jobs first",
			}, stateFlag()),
		},
		{
			Name: "events", Usage: "list the latest events of jobs, tenants and cron jobs, the newest first",
			Action: withAdmin("", listEvents),
			Flags: append(queueAndTypeFlags(), limitFlag(), &cli.StringFlag{
				Name: "since", Sources: cli.EnvVars("OJS_ADMIN_SINCE"),
				Usage: "leave out events before this `TIME`, as in RFC 3339, or longer ago than this age, such as 1h or PT1H",
			}),
		},
		{
			Name: "cancel", Usage: "cancel jobs", ArgsUsage: "ID...", Action: withAdmin("ID...", eachJob(cancelJob)),
		},
		{
			Name: "retry", Usage: "have discarded jobs run again, dead letters among them", ArgsUsage: "ID...",
			Action: withAdmin("ID...", eachJob(retryJob)),
		},
		{
			Name: "blocked", Usage: "list tenants whose jobs cannot be handed out, with the queue and the reason",
			Action: withAdmin("", listBlocked), Flags: append(queueFlags(), pageFlags()...),
		},
	}
}

// queueAndTypeFlags are the options that jobs and events share.
func queueAndTypeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "queue", Sources: cli.EnvVars("OJS_ADMIN_QUEUE"), Usage: "`NAME` of the queue; all queues if it is left out"},
		&cli.StringFlag{Name: "type", Sources: cli.EnvVars("OJS_ADMIN_TYPE"), Usage: "`TYPE` of the jobs or events; all if it is left out"},
	}
}

// jobs shows the job that is named, or lists jobs.
func jobs(ctx context.Context, o *operator) error {
	if o.argument() != "" {
		return showJob(ctx, o)
	}
	params := sqlcgen.ListJobsParams{
		States: o.StringSlice("state"), Queue: given(o.String("queue")), Type: given(o.String("type")), Tenant: o.tenant,
	}
	if len(params.States) == 0 {
		params.States = nil // an empty list lets no state pass
	}
	list := newestJobs
	if o.Bool("oldest") {
		list = oldestJobs
	}
	rows, err := list(ctx, o.sql, params, int(o.Int32("limit")))
	if err != nil {
		return err
	}
	return table(ctx, o, rows, jobColumns(&params))
}

// newestJobs reads the newest jobs that match, at most most of them. One statement looks at some
// 10,000 jobs, so that a filter that few jobs pass takes several: the database is never busy with
// one for long, and Ctrl-C ends the search between two.
func newestJobs(ctx context.Context, q *sqlcgen.Queries, params sqlcgen.ListJobsParams, most int) ([]sqlcgen.ListJobsRow, error) {
	found := []sqlcgen.ListJobsRow{} // not nil: --json prints [] if there is no job
	for {
		floor, err := q.JobsFloor(ctx, sqlcgen.JobsFloorParams{Before: params.Before, Tenant: params.Tenant})
		if err != nil {
			return nil, err
		}
		params.Floor, params.MaxRows = given(floor), int32(most-len(found))
		rows, err := q.ListJobs(ctx, params)
		if err != nil {
			return nil, err
		}
		found = append(found, rows...)
		if len(found) >= most || params.Floor == nil {
			// Jobs of several tenants may have the same id; SQL returns all of them.
			return found[:min(len(found), most)], nil
		}
		params.Before = params.Floor
	}
}

// oldestJobs reads the oldest jobs that match, at most most of them. As newestJobs does, it looks at
// 10,000 jobs with each statement.
func oldestJobs(ctx context.Context, q *sqlcgen.Queries, of sqlcgen.ListJobsParams, most int) ([]sqlcgen.ListJobsRow, error) {
	found := []sqlcgen.ListJobsRow{} // not nil: --json prints [] if there is no job
	params := sqlcgen.OldestJobsParams{
		After: "00000000-0000-0000-0000-000000000000", Tenant: of.Tenant, States: of.States, Queue: of.Queue, Type: of.Type,
	}
	for len(found) < most {
		upto, err := q.OldestStep(ctx, params.After)
		if err != nil {
			return nil, err
		}
		if upto == "" {
			break
		}
		params.Upto, params.MaxRows = upto, int32(most-len(found))
		rows, err := q.OldestJobs(ctx, params)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			found = append(found, sqlcgen.ListJobsRow(rows[i]))
		}
		params.After = upto
	}
	return found, nil
}

// jobColumns returns the columns of a list of jobs. An id has 36 columns of the screen, so that
// there is room for two of tenant, queue and type: those that the filter leaves open come first.
func jobColumns(of *sqlcgen.ListJobsParams) []admin.Column {
	columns := []admin.Column{column("id", "")}
	for _, c := range []struct {
		known *string
		admin.Column
	}{{of.Tenant, name("tenant_id", "tenant")}, {of.Queue, name("queue", "")}, {of.Type, name("type", "")}} {
		if c.known == nil && len(columns) < 3 {
			columns = append(columns, c.Column)
		}
	}
	columns = append(columns, column("state", ""), column("created_at", "age"))
	if of.Tenant == nil && of.Queue == nil && of.Type == nil {
		columns = append(columns, spare("type", ""))
	}
	return append(columns, spare("worker_id", "worker"))
}

// shownJob is a job as an operator sees it: the fields of HTTP's answers, without the lease, which
// would let its reader end the attempt.
type shownJob struct {
	ID             string          `json:"id"`
	Tenant         string          `json:"tenant_id"`
	Type           string          `json:"type"`
	Queue          string          `json:"queue"`
	State          string          `json:"state"`
	Priority       int32           `json:"priority"`
	Attempt        int32           `json:"attempt"`
	MaxAttempts    int32           `json:"max_attempts"`
	CreatedAt      time.Time       `json:"created_at"`
	ScheduledAt    *time.Time      `json:"scheduled_at,omitempty"`
	EnqueuedAt     time.Time       `json:"enqueued_at"`
	StartedAt      *time.Time      `json:"started_at,omitempty"`
	LeaseExpiresAt *time.Time      `json:"lease_expires_at,omitempty"`
	RetryAt        *time.Time      `json:"retry_at,omitempty"`
	FinishedAt     *time.Time      `json:"finished_at,omitempty"`
	ExpiresAt      *time.Time      `json:"expires_at,omitempty"`
	WorkerID       *string         `json:"worker_id,omitempty"`
	Tags           []string        `json:"tags,omitempty"`
	Args           json.RawMessage `json:"args"`
	Meta           json.RawMessage `json:"meta,omitempty"`
	Errors         json.RawMessage `json:"errors,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
}

// showJob prints one job. It fails with not_found if no tenant, or not the tenant of --tenant, has
// it.
func showJob(ctx context.Context, o *operator) error {
	if !jsonbody.IsUUID(o.argument()) {
		return cmdline.Misuse(fmt.Errorf("%q is no job: ids are UUIDs in lowercase with hyphens", o.argument()))
	}
	j, err := o.sql.JobInfo(ctx, sqlcgen.JobInfoParams{ID: o.argument(), Tenant: o.tenant})
	if err != nil {
		return err
	}
	return record(o, shownJob{
		ID: j.ID, Tenant: j.TenantID, Type: j.Type, Queue: j.Queue, State: j.State, Priority: j.Priority, Attempt: j.Attempt,
		MaxAttempts: j.MaxAttempts, CreatedAt: j.CreatedAt, ScheduledAt: j.ScheduledAt, EnqueuedAt: j.EnqueuedAt, StartedAt: j.StartedAt,
		LeaseExpiresAt: j.LeaseExpiresAt, RetryAt: j.RetryAt, FinishedAt: j.FinishedAt, ExpiresAt: j.ExpiresAt, WorkerID: j.WorkerID,
		Tags: j.Tags, Args: j.Args, Meta: j.Meta, Errors: j.Errors, Result: j.Result,
	})
}

// changedJob is a job that cancel or retry has changed, as it is printed.
type changedJob struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant_id"`
	Queue  string `json:"queue"`
	Type   string `json:"type"`
	State  string `json:"state"`
}

// eachJob returns an action that changes the jobs that the arguments name, one after the other. It
// prints the jobs that were changed, and to stderr why another job was not. It fails if one was not.
func eachJob(change func(context.Context, *operator, string) (sqlcgen.OjsJob, error)) func(context.Context, *operator) error {
	return func(ctx context.Context, o *operator) error {
		for _, id := range o.Args().Slice() {
			if !jsonbody.IsUUID(id) {
				return cmdline.Misuse(fmt.Errorf("%q is no job: ids are UUIDs in lowercase with hyphens", id))
			}
		}
		done, failed := []changedJob{}, error(nil)
		for _, id := range o.Args().Slice() {
			job, err := change(ctx, o, id)
			err = o.db.Err(err)
			if known, is := errors.AsType[*pg.Error](err); err != nil && (!is || known.Status >= http.StatusInternalServerError) {
				failed = err // the next job would fail, too
				break
			} else if err != nil {
				fmt.Fprintln(o.Root().ErrWriter, plain(err))
				failed = cmdline.Status(1)
				continue
			}
			done = append(done, changedJob{job.ID, job.TenantID, job.Queue, job.Type, job.State})
		}
		columns := []admin.Column{column("id", ""), name("tenant_id", "tenant"), name("queue", ""), column("state", ""), spare("type", "")}
		if err := table(ctx, o, done, columns); err != nil {
			return err
		}
		return failed
	}
}

func cancelJob(ctx context.Context, o *operator, id string) (sqlcgen.OjsJob, error) {
	return o.sql.Cancel(ctx, sqlcgen.CancelParams{ID: id, Tenant: o.tenant})
}

func retryJob(ctx context.Context, o *operator, id string) (sqlcgen.OjsJob, error) {
	return o.sql.Retry(ctx, sqlcgen.RetryParams{ID: id, Tenant: o.tenant})
}

// shownEvent is an event as it is printed. The row of the statement has the data as bytes, which
// JSON would show in base64.
type shownEvent struct {
	ID       string          `json:"id"`
	Type     string          `json:"type"`
	At       time.Time       `json:"at"`
	TenantID string          `json:"tenant_id"`
	Queue    string          `json:"queue"`
	Subject  string          `json:"subject"`
	Data     json.RawMessage `json:"data"`
}

// listEvents prints the latest events. SQL has no lower bound in time, so --since leaves events out
// that SQL has returned.
func listEvents(ctx context.Context, o *operator) error {
	since, err := readTime(ctx, o, "since")
	if err != nil {
		return err
	}
	params := sqlcgen.EventsParams{MaxRows: o.Int32("limit"), Tenant: o.tenant}
	if kind := o.String("type"); kind != "" {
		params.Types = []string{kind}
	}
	if queue := o.String("queue"); queue != "" {
		params.Queues = []string{queue}
	}
	rows, err := o.sql.Events(ctx, params)
	if err != nil {
		return err
	}
	// Rows come newest first.
	isOld := func(e sqlcgen.EventsRow) bool { return since != nil && e.At.Before(*since) }
	if n := slices.IndexFunc(rows, isOld); n >= 0 {
		rows = rows[:n]
	}
	events := make([]shownEvent, len(rows))
	for i, e := range rows {
		events[i] = shownEvent{e.ID, e.Type, e.At, e.TenantID, e.Queue, e.Subject, e.Data}
	}
	return table(ctx, o, events, eventColumns(&params))
}

// readTime reads an option that is a time, or an age by the database's clock; nil: it is left out.
func readTime(ctx context.Context, o *operator, option string) (*time.Time, error) {
	text := o.String(option)
	if text == "" {
		return nil, nil
	}
	at, err := jsonbody.ParseTime(text)
	if err == nil {
		return &at, nil
	}
	age, err := readDuration(text)
	if err != nil {
		return nil, cmdline.Misuse(fmt.Errorf("--%s %q is neither a time, as in RFC 3339, nor an age such as 30m or PT1H", option, text))
	}
	at, err = o.sql.Ago(ctx, age.Seconds())
	return &at, err
}

// eventColumns returns the columns of a list of events: besides the job's id there is room for the
// tenant, or for the queue if all events are of one tenant.
func eventColumns(of *sqlcgen.EventsParams) []admin.Column {
	where := []admin.Column{name("tenant_id", "tenant"), spare("queue", "")}
	if of.Tenant != nil {
		where = []admin.Column{name("queue", "")}
	}
	kind := admin.Column{Field: "type", Cut: len("job.dead_lettered")}
	return slices.Concat([]admin.Column{column("at", "age"), kind}, where, []admin.Column{column("subject", "")})
}

// listBlocked prints the tenants whose jobs wait for something other than their turn, with the
// reason.
func listBlocked(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	rows, err := o.sql.BlockedTenants(ctx, sqlcgen.BlockedTenantsParams{
		Tenant: o.tenant, Queue: given(o.String("queue")), MaxRows: limit, Skip: skip,
	})
	if err != nil {
		return err
	}
	if !o.Bool("json") && !o.Bool("wide") {
		for i := range rows {
			rows[i].Why = telegraphic.Replace(rows[i].Why)
		}
	}
	return table(ctx, o, rows, blockedColumns)
}

// telegraphic shortens the sentences of ojs.blocked_tenants, which would take half of the screen:
// "the tenant's limit in the queue is reached" becomes "tenant limit in queue reached".
var telegraphic = strings.NewReplacer("the ", "", " is ", " ", "'s ", " ")
