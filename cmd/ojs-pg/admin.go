package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// adminCommand returns `ojs-pg admin`, for operators. It runs the statements of HTTP's /admin
// routes on the database itself, so that it works while no server runs.
func adminCommand() *cli.Command {
	return &cli.Command{
		Name:  "admin",
		Usage: "show tenants, queues, jobs and workers, and change how jobs are handed out",
		Description: `Needs the database only, no server. The login must be a member of ojs_operator or ojs_service.
Lists have 80 columns: times are ages, large numbers are in thousands (k) or millions (M). --wide prints
all columns in full, and --json prints the same rows for programs.

    ojs-pg admin queues
    ojs-pg admin --tenant acme queues
    ojs-pg admin jobs --state active
    ojs-pg admin dead-letters retry --queue mail --older-than PT1H --yes`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&cli.BoolFlag{Name: "json", Sources: cli.EnvVars("OJS_ADMIN_JSON"), Usage: "print JSON instead of tables"},
			wideFlag("OJS_ADMIN"),
			&cli.StringFlag{
				Name: "tenant", Sources: cli.EnvVars("OJS_ADMIN_TENANT"),
				Usage: "`ID` of the tenant; all tenants if it is left out",
			},
			&cli.StringFlag{
				Name: "reason", Sources: cli.EnvVars("OJS_ADMIN_REASON"),
				Usage: "`TEXT` that says why something is changed, for the audit trail",
			},
		},
		Commands: append([]*cli.Command{
			{Name: "tenants", Usage: "list tenants", Flags: pageFlags(), Action: withAdmin("", listTenants)},
			{Name: "tenant", Usage: "show a tenant", ArgsUsage: "ID", Action: withAdmin("ID", showTenant)},
			{Name: "queues", Usage: "list queues", Flags: pageFlags(), Action: withAdmin("", listQueues)},
			{Name: "queue", Usage: "show a queue and its configuration", ArgsUsage: "NAME", Action: withAdmin("NAME", showQueue)},
			{Name: "rules", Usage: "list limits and pauses", Flags: pageFlags(), Action: withAdmin("", listRules)},
			explainCommand(), previewCommand(),
			{Name: "workers", Usage: "list workers", Flags: pageFlags(), Action: withAdmin("", listWorkers)},
			{Name: "worker", Usage: "show a worker and its jobs", ArgsUsage: "ID", Action: withAdmin("ID", showWorker)},
			directCommand(), removeWorkerCommand(),
			poolsCommand(),
			schedulingCommand(),
			deadLettersCommand(),
			dispatchCommand(),
		}, slices.Concat(jobCommands(), sharingCommands(), limitCommands(), neighbourCommands(), tenantCommands())...),
		Action: func(_ context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

// directCommand returns the command that gives workers a directive. They learn it from the answer
// to their next heartbeat.
func directCommand() *cli.Command {
	return &cli.Command{
		Name: "direct", Usage: "tell workers to go on (running), to fetch no more jobs (quiet), or to end (terminate)",
		ArgsUsage: "DIRECTIVE",
		Description: `Needs --worker or --all. quiet ends with running. terminate is final for the processes that are told: they take
jobs only after they have been started again.

    ojs-pg admin direct quiet --all
    ojs-pg admin direct terminate --worker mailer-7`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "worker", Sources: cli.EnvVars("OJS_ADMIN_WORKER"), Usage: "`ID` of the one worker to tell"},
			&cli.BoolFlag{Name: "all", Sources: cli.EnvVars("OJS_ADMIN_ALL"), Usage: "tell all workers, with --tenant all of that tenant"},
		},
		Action: withAdmin("DIRECTIVE", direct),
	}
}

// removeWorkerCommand returns the command that declares a worker dead.
func removeWorkerCommand() *cli.Command {
	return &cli.Command{
		Name: "remove-worker", Usage: "declare a silent worker dead now, and give its jobs back", ArgsUsage: "ID",
		Description: `The worker must be stale: silent for half of the heartbeat timeout, 15 s by default. Without this command it is
declared dead after the whole of it.`,
		Action: withAdmin("ID", removeWorker),
	}
}

// sharingCommands returns the commands that decide how tenants share queues: pauses, limits,
// weights.
func sharingCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "pause", Usage: "hand out no more jobs of a queue, of a tenant (--tenant), or of a tenant in a queue",
			ArgsUsage: "[QUEUE]", Action: withAdmin("[QUEUE]", pause(admin.Pause)),
		},
		{
			Name: "resume", Usage: "end a pause; give it the same queue and tenant as pause",
			ArgsUsage: "[QUEUE]", Action: withAdmin("[QUEUE]", pause(admin.Resume)),
		},
		{
			Name: "limit", Usage: "limit how many jobs of a queue, a tenant (--tenant) or both run at once; none removes the limit",
			ArgsUsage: "N", Flags: queueFlags(), Action: withAdmin("N", limitConcurrency),
		},
		{
			Name: "weigh", Usage: "set the weight of a tenant (--tenant), in all queues or in one; none removes that of the queue",
			ArgsUsage: "WEIGHT", Flags: queueFlags(), Action: withAdmin("WEIGHT", weigh),
		},
		{
			Name: "settings", Usage: "show the settings of the deployment, or change those that the JSON names, such as " +
				"{\"default_tenant\": \"house\"}",
			ArgsUsage: "[JSON]", Action: withAdmin("[JSON]", settings),
		},
		{
			Name: "fairness", Usage: "set the rule by which tenants share (tenant_fairness), in one queue or as the default of all queues",
			ArgsUsage: "JSON", Flags: queueFlags(), Action: withAdmin("JSON", fairness),
		},
		{
			Name: "max-priority", Usage: "refuse new jobs of a tenant (--tenant) whose priority is above N; 100 removes the limit",
			ArgsUsage: "N", Action: withAdmin("N", limitPriority),
			Flags: []cli.Flag{&cli.BoolFlag{
				Name: "clamp", Sources: cli.EnvVars("OJS_ADMIN_CLAMP"), Usage: "give such jobs the priority N instead of refusing them",
			}},
		},
	}
}

// schedulingCommand returns the command that shows what was handed out lately, of queues and to
// tenants.
func schedulingCommand() *cli.Command {
	return &cli.Command{
		Name: "scheduling", Usage: "show how many jobs were handed out of each queue, and how long they had waited", Flags: pageFlags(),
		Action: withAdmin("", listScheduling),
		Commands: []*cli.Command{{
			Name: "tenants", Usage: "show the share that each tenant was due, and the share that it got",
			Description: `SHARE is the tenant's part of the jobs of all queues that were handed out in the last minute, and IDEAL the part
that its weight gives it. Shares hold within each queue: a tenant that has jobs in more queues than others gets
more of the sum than IDEAL, and takes nothing from them.`,
			Action: withAdmin("", listShares),
		}},
	}
}

// dispatchCommand returns the command that shows, begins and ends the hold of dispatch.
func dispatchCommand() *cli.Command {
	action := func(call func(*sqlcgen.Queries, context.Context) (sqlcgen.OjsDispatch, error)) cli.ActionFunc {
		return withAdmin("", showDispatch(call))
	}
	return &cli.Command{
		Name: "dispatch", Usage: "show whether dispatch is held", Action: action((*sqlcgen.Queries).Dispatch),
		Commands: []*cli.Command{
			{Name: "hold", Usage: "hand out no jobs of any queue until the hold ends", Action: action((*sqlcgen.Queries).HoldDispatch)},
			{Name: "resume", Usage: "end the hold", Action: action((*sqlcgen.Queries).ResumeDispatch)},
		},
	}
}

// deadLettersCommand returns the command that counts, lists, retries and deletes dead letters.
func deadLettersCommand() *cli.Command {
	// The options of the filter are those of dead-letters itself. If retry and purge had options of the
	// same names, `dead-letters --queue mail purge` would pass over the queue.
	bulk := []cli.Flag{
		&cli.Int32Flag{
			Name: "limit", Value: 1000, Sources: cli.EnvVars("OJS_ADMIN_LIMIT"),
			Usage: "change at most so many `JOBS`", Validator: cmdline.Between[int32](1, 10000),
		},
		&cli.BoolFlag{Name: "yes", Sources: cli.EnvVars("OJS_ADMIN_YES"), Usage: "do it; without this option nothing is changed"},
	}
	return &cli.Command{
		Name: "dead-letters", Usage: "count the dead letters that match a filter", Flags: filterFlags(),
		Commands: []*cli.Command{
			{
				Name: "list", Usage: "list the dead letters that match, those that failed last first",
				Flags: pageFlags(), Action: withAdmin("", listDeadLetters),
			},
			{
				Name: "retry", Usage: "put the dead letter ID, or the dead letters that match, back into their queues", Flags: bulk,
				ArgsUsage: "[ID]", Action: withAdmin("[ID]", retryDeadLetters),
			},
			{
				Name: "purge", Usage: "delete the dead letters that match", Flags: bulk,
				Action: withAdmin("", bulkDeadLetters("deleted", (*admin.Filter).Purge)),
			},
		},
		Action: withAdmin("", countDeadLetters),
	}
}

// queueFlags are the options of commands that are about one queue or all queues.
func queueFlags() []cli.Flag {
	return []cli.Flag{&cli.StringFlag{
		Name: "queue", Sources: cli.EnvVars("OJS_ADMIN_QUEUE"), Usage: "`NAME` of the queue; all queues if it is left out",
	}}
}

// limitFlag is the option that bounds a list. SQL refuses more than 1000 jobs, or events, at once.
func limitFlag() cli.Flag {
	return &cli.Int32Flag{
		Name: "limit", Value: 50, Sources: cli.EnvVars("OJS_ADMIN_LIMIT"), Usage: "print at most so many `ROWS`",
		Validator: cmdline.Between[int32](1, 1000),
	}
}

// pageFlags are the options of lists that are read a page at a time.
func pageFlags() []cli.Flag {
	return []cli.Flag{
		limitFlag(),
		&cli.Int32Flag{
			Name: "offset", Sources: cli.EnvVars("OJS_ADMIN_OFFSET"), Usage: "leave out so many `ROWS` at the beginning",
			Validator: cmdline.AtLeast[int32](0),
		},
	}
}

// filterFlags are the options that select dead letters (admin.Filter).
func filterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "queue", Sources: cli.EnvVars("OJS_ADMIN_QUEUE"), Usage: "only dead letters of this `QUEUE`"},
		&cli.StringFlag{Name: "type", Sources: cli.EnvVars("OJS_ADMIN_TYPE"), Usage: "only jobs of this `TYPE`"},
		&cli.StringFlag{
			Name: "error-type", Sources: cli.EnvVars("OJS_ADMIN_ERROR_TYPE"), Usage: "only jobs whose last error was of this `TYPE`",
		},
		&cli.StringFlag{
			Name: "older-than", Sources: cli.EnvVars("OJS_ADMIN_OLDER_THAN"),
			Usage: "only jobs that failed before a `TIME`, as in RFC 3339, or longer ago than an age, such as 30d or P30D",
		},
	}
}

// operator is a command of an operator while it runs: its options, the statements that it may call,
// where it prints, and the tenant of --tenant, nil for all tenants.
type operator struct {
	*cli.Command
	db     *pg.DB
	sql    *sqlcgen.Queries
	out    io.Writer
	tenant *string
}

// withAdmin returns an action that opens the database and runs do. argument is the name of the
// command's argument, in brackets if it may be left out, with dots after it if there may be several;
// with an empty name the command takes none.
// The action fails if the login may not do what operators do, and says which login may.
func withAdmin(argument string, do func(context.Context, *operator) error) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		most := min(len(argument), 1)
		if c.Args().Len() > most && !strings.HasSuffix(argument, "...") {
			return cmdline.Unexpected(c, c.Args().Get(most))
		}
		if c.Args().Len() < most && argument[0] != '[' {
			return cmdline.Misuse(fmt.Errorf("%s needs %s", c.FullName(), argument))
		}
		if err := cmdline.Meant(c, "reason", "name", "database-url"); err != nil {
			return err
		}
		url, err := databaseURL(c)
		if err != nil {
			return err
		}
		// One connection is enough, because statements run one after the other.
		db, err := pg.Open(ctx, pg.Config{URL: url, MaxConns: 1, AppName: "ojs-pg admin"})
		if err != nil {
			return err
		}
		defer db.Close()
		if err := migrate.CheckSchema(ctx, db.Pool()); err != nil {
			if role, is := errors.AsType[*migrate.RoleError](err); is {
				return fmt.Errorf("%s, and %s needs an administrator's.\n%s", role.Holds(), c.FullName(), administratorAdvice)
			}
			return err
		}
		o := &operator{Command: c, db: db, sql: sqlcgen.New(db.Pool()), out: c.Root().Writer, tenant: given(c.String("tenant"))}
		if reason := c.String("reason"); reason != "" {
			// The audit trail shows the reason with each change. It is set together with a bound on
			// the time of each statement, which an hour keeps out of the way.
			o.sql = sqlcgen.New(db.Within(time.Hour).As("", reason))
		}
		err = do(ctx, o)
		if _, isStatus := errors.AsType[cmdline.Status](err); isStatus || cmdline.IsMisuse(err) {
			return err
		}
		return plain(db.Err(err))
	}
}

// plain returns an error of the SQL functions as a person reads it: its code, message and hint,
// without the SQLSTATE. Other errors stay as they are, because their cause says what to mend.
func plain(err error) error {
	known, is := errors.AsType[*pg.Error](err)
	if !is || !strings.HasPrefix(known.SQLState, "OJ") {
		return err
	}
	text := known.Code + ": " + known.Message
	if known.Hint != "" {
		text += "\n" + known.Hint
	}
	return errors.New(text)
}

// noteNew tells on stderr that a tenant is not known yet. A change makes a tenant, so that without
// this line a misspelt name would look like a success.
func (o *operator) noteNew(ctx context.Context, tenant *string) error {
	if tenant == nil {
		return nil
	}
	rows, err := o.sql.Tenants(ctx, []string{*tenant})
	if err == nil && len(rows) == 0 {
		fmt.Fprintf(o.Root().ErrWriter, "note: tenant %s was not known before\n", *tenant)
	}
	return err
}

// administratorAdvice tells an operator which database URL to use instead of an application's. The
// quick start sets DATABASE_URL to an application's, so that this is a common mistake.
const administratorAdvice = "Set DATABASE_URL to an administrator's URL, whose login is a member of ojs_operator or ojs_service. " +
	"Under `ojs-pg dev` it is in the file <data dir>/admin-url."

// given returns a pointer to the value of an option, or nil if the option was left out: statements
// take nil for "any".
func given(option string) *string {
	if option == "" {
		return nil
	}
	return &option
}

// argument returns the argument of the command, or "" if it was left out.
func (o *operator) argument() string { return o.Args().First() }

// page returns how many rows to print, and how many to leave out before them (pageFlags).
func (o *operator) page() (limit, skip int32) { return o.Int32("limit"), o.Int32("offset") }

// record prints one row, a line for each field, or as JSON with --json.
func record[T any](o *operator, row T) error {
	if o.Bool("json") {
		return admin.JSON(o.out, row)
	}
	return admin.Record(o.out, row)
}

// forAll fails if --tenant is given to a command that is about all tenants. If the option were
// ignored, a command such as `dispatch hold` would do to all tenants what the operator wanted to do
// to one.
func (o *operator) forAll() error {
	if o.tenant != nil {
		return cmdline.Misuse(fmt.Errorf("%s is about all tenants: leave out --tenant", o.FullName()))
	}
	return nil
}

// shownTenant is a tenant as it is printed. The row of the statement has its limits as bytes, which
// JSON would show in base64.
type shownTenant struct {
	sqlcgen.TenantsRow
	Limits json.RawMessage `json:"limits"`
}

func shownTenants(rows []sqlcgen.TenantsRow) []shownTenant {
	shown := make([]shownTenant, len(rows))
	for i := range rows {
		shown[i] = shownTenant{rows[i], rows[i].Limits}
	}
	return shown
}

// listTenants prints tenants by name. The names are read first, a page of them, because the numbers
// of a tenant cost much more than its name.
func listTenants(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	limit, skip := o.page()
	page, err := o.sql.TenantNames(ctx, sqlcgen.TenantNamesParams{MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	rows, err := o.sql.Tenants(ctx, page.Names)
	if err != nil {
		return err
	}
	return table(ctx, o, shownTenants(rows), tenantColumns)
}

// showTenant prints all that is known about one tenant.
func showTenant(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	rows, err := o.sql.Tenants(ctx, []string{tenant})
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return &pg.Error{Code: "not_found", Message: "there is no tenant " + tenant}
	}
	return record(o, shownTenants(rows)[0])
}

// listQueues prints queues by name, over all tenants or the part of the tenant of --tenant.
func listQueues(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	page, err := o.sql.QueueNames(ctx, sqlcgen.QueueNamesParams{Tenant: o.tenant, MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	rows, err := o.sql.Queues(ctx, sqlcgen.QueuesParams{Tenant: o.tenant, Names: page.Names})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, queueColumns)
}

// showQueue prints a queue with its configuration. It fails with not_found if the queue has had no
// job and has neither a configuration nor a pause.
func showQueue(ctx context.Context, o *operator) error {
	row, exists, err := admin.OneQueue(ctx, o.sql, o.argument(), o.tenant)
	if err == nil && !exists && o.tenant != nil { // the queue may exist although the tenant has no jobs in it
		_, exists, err = admin.OneQueue(ctx, o.sql, o.argument(), nil)
	}
	if err != nil {
		return err
	}
	if !exists {
		return &pg.Error{
			Code:    "not_found",
			Message: "there is no queue " + o.argument() + ": it has had no job, and neither a configuration nor a pause",
		}
	}
	config, err := admin.QueueConfig(ctx, o.sql, o.argument(), o.tenant)
	if err != nil {
		return err
	}
	return record(o, struct {
		sqlcgen.QueuesRow
		Config json.RawMessage `json:"config"`
	}{row, config.Config})
}

// listRules prints limits of concurrency and pauses.
func listRules(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	rows, err := o.sql.Rules(ctx, sqlcgen.RulesParams{Tenant: o.tenant, MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, ruleColumns)
}

// of returns what a rule is about, which is the queue, if one is named, and the tenant of --tenant,
// and why it is changed. It fails if both are left out, because the rule would be about all jobs.
func (o *operator) of(queue string) (admin.Of, error) {
	of := admin.Of{Queue: given(queue), Tenant: o.tenant, Reason: given(o.String("reason"))}
	if of.Queue == nil && of.Tenant == nil {
		return of, cmdline.Misuse(errors.New("name a queue, a tenant (--tenant) or both"))
	}
	return of, nil
}

// pause returns the action of pause or of resume, and prints the rule as it is then.
func pause(do admin.Switch) func(context.Context, *operator) error {
	return func(ctx context.Context, o *operator) error {
		of, err := o.of(o.argument())
		if err != nil {
			return err
		}
		if err := o.noteNew(ctx, of.Tenant); err != nil {
			return err
		}
		rule, err := do(o.sql, ctx, of)
		if err != nil {
			return err
		}
		says := " is not paused"
		if rule.PausedAt != nil {
			says = " is paused"
		}
		return o.tellRule(ctx, of, &rule, says)
	}
}

// shownRule is a limit or a pause as it is printed with --json. The row of the statement also has a
// transaction's number, by which the database tells limits apart.
type shownRule struct {
	TenantID       string     `json:"tenant_id"`
	Queue          string     `json:"queue"`
	MaxConcurrency *int32     `json:"max_concurrency"`
	PausedAt       *time.Time `json:"paused_at"`
	PausedBy       *string    `json:"paused_by"`
	Reason         *string    `json:"reason"`
	LimitReason    *string    `json:"limit_reason"`
	Waiting        int64      `json:"waiting_jobs"`
	Tenants        int64      `json:"waiting_tenants"`
}

// tellRule prints a rule after a change: a sentence that says how many jobs wait, or JSON.
func (o *operator) tellRule(ctx context.Context, of admin.Of, rule *sqlcgen.OjsRule, says string) error {
	queue := of.Queue
	if queue != nil && *queue == "*" { // all queues
		queue = nil
	}
	wait, err := o.sql.WaitingJobs(ctx, sqlcgen.WaitingJobsParams{Tenant: of.Tenant, Queue: queue})
	if err != nil {
		return err
	}
	if o.Bool("json") {
		return admin.JSON(o.out, shownRule{
			rule.TenantID, rule.Queue, rule.MaxConcurrency, rule.PausedAt, rule.PausedBy, rule.Reason, rule.LimitReason,
			wait.Jobs, wait.Tenants,
		})
	}
	subject := "everything"
	switch {
	case of.Tenant != nil && queue != nil:
		subject = fmt.Sprintf("tenant %s in queue %s", *of.Tenant, *queue)
	case of.Tenant != nil:
		subject = "tenant " + *of.Tenant
	case queue != nil:
		subject = "queue " + *queue
	}
	_, err = fmt.Fprintf(o.out, "%s%s: %d jobs of %d tenants wait\n", subject, says, wait.Jobs, wait.Tenants)
	return err
}

// limitConcurrency limits how many jobs run at once, or removes the limit.
func limitConcurrency(ctx context.Context, o *operator) error {
	of, err := o.of(o.String("queue"))
	if err != nil {
		return err
	}
	params := sqlcgen.LimitConcurrencyParams{Tenant: of.Tenant, Queue: of.Queue, Reason: of.Reason}
	if text := o.argument(); text != "none" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return cmdline.Misuse(fmt.Errorf("%q is neither a number of jobs nor none", text))
		}
		most := int32(n)
		params.MaxConcurrency = &most
	}
	if err := o.noteNew(ctx, of.Tenant); err != nil {
		return err
	}
	rule, err := o.sql.LimitConcurrency(ctx, params)
	if err != nil {
		return err
	}
	says := " has no limit"
	if params.MaxConcurrency != nil {
		says = fmt.Sprintf(" runs at most %d jobs at once", *params.MaxConcurrency)
	}
	return o.tellRule(ctx, of, &rule, says)
}

// forOne fails if --tenant is left out of a command that is about one tenant.
func (o *operator) forOne() error {
	if o.tenant == nil {
		return cmdline.Misuse(errors.New("name the tenant: --tenant"))
	}
	return nil
}

// weigh sets or removes a weight. The weight is sent as it was typed, because it is a decimal
// number and a float would round it.
func weigh(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	params := sqlcgen.WeighTenantParams{Tenant: *o.tenant, Queue: given(o.String("queue"))}
	if text := o.argument(); text != "none" {
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return cmdline.Misuse(fmt.Errorf("%q is neither a weight nor none", text))
		}
		params.Weight = &text
	} else if params.Queue == nil {
		return cmdline.Misuse(errors.New("none removes the weight in a queue: add --queue"))
	}
	if err := o.noteNew(ctx, o.tenant); err != nil {
		return err
	}
	if err := o.sql.WeighTenant(ctx, params); err != nil {
		return err
	}
	if params.Queue != nil {
		return showConfig(ctx, o, *params.Queue)
	}
	rows, err := o.sql.Tenants(ctx, []string{*o.tenant})
	if err != nil || len(rows) == 0 {
		return err
	}
	return record(o, shownTenants(rows)[0])
}

// fairness sets the rule by which tenants share a queue, or the rule of all queues without one.
func fairness(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	type shared struct {
		Fairness json.RawMessage `json:"tenant_fairness"`
	}
	document, queue := shared{json.RawMessage(o.argument())}, o.String("queue")
	// The document may stand under its name, as in a configuration file.
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(document.Fairness, &whole); err == nil && len(whole) == 1 && whole["tenant_fairness"] != nil {
		document.Fairness = whole["tenant_fairness"]
	}
	config, err := json.Marshal(document)
	if err != nil {
		return cmdline.Misuse(fmt.Errorf("%q is not JSON", o.argument()))
	}
	if queue == "" {
		if _, err := o.sql.PutSettings(ctx, sqlcgen.PutSettingsParams{Config: config}); err != nil {
			return err
		}
		now, err := o.sql.Settings(ctx)
		if err != nil {
			return err
		}
		return record(o, shared{now.TenantFairness})
	}
	if _, err := o.sql.ConfigureQueue(ctx, sqlcgen.ConfigureQueueParams{Queue: queue, Config: config}); err != nil {
		return err
	}
	return showConfig(ctx, o, queue)
}

// settings prints the settings of the deployment. If it has an argument, a JSON object, it first
// changes the settings that the object names.
func settings(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	if text := o.argument(); text != "" {
		if !json.Valid([]byte(text)) {
			return cmdline.Misuse(fmt.Errorf("%q is not JSON", text))
		}
		if _, err := o.sql.PutSettings(ctx, sqlcgen.PutSettingsParams{Config: []byte(text)}); err != nil {
			return err
		}
	}
	now, err := o.sql.Settings(ctx)
	if err != nil {
		return err
	}
	return record(o, now)
}

// showConfig prints the configuration of a queue after a change.
func showConfig(ctx context.Context, o *operator, queue string) error {
	config, err := admin.QueueConfig(ctx, o.sql, queue, nil)
	if err != nil {
		return err
	}
	return record(o, config)
}

// limitPriority sets the highest priority that a tenant's new jobs may have.
func limitPriority(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	n, err := strconv.ParseInt(o.argument(), 10, 32)
	if err != nil {
		return cmdline.Misuse(fmt.Errorf("%q is no priority", o.argument()))
	}
	most, over := int32(n), "refuse"
	if o.Bool("clamp") {
		over = "clamp"
	}
	if err := o.noteNew(ctx, o.tenant); err != nil {
		return err
	}
	tenant, err := o.sql.ConfigureTenant(ctx, sqlcgen.ConfigureTenantParams{Tenant: *o.tenant, MaxPriority: &most, OverPriority: &over})
	if err != nil {
		return err
	}
	return record(o, tenant)
}

// listWorkers prints registered workers. MaxBytes bounds the answers of HTTP; a terminal needs no
// bound.
func listWorkers(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	rows, err := o.sql.Workers(ctx, sqlcgen.WorkersParams{Tenant: o.tenant, MaxRows: limit, Skip: skip, MaxBytes: math.MaxInt64})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, workerColumns)
}

// showWorker prints a worker, and below it the jobs that it holds.
func showWorker(ctx context.Context, o *operator) error {
	worker, err := admin.OneWorker(ctx, o.sql, o.argument(), o.tenant)
	if err != nil {
		return err
	}
	if o.Bool("json") {
		return admin.JSON(o.out, worker)
	}
	if err := admin.Record(o.out, worker.WorkersRow); err != nil || len(worker.Jobs) == 0 {
		return err
	}
	fmt.Fprintln(o.out)
	return table(ctx, o, worker.Jobs, workerJobColumns)
}

// direct gives one worker or all workers a directive, and prints how many were told. It fails if
// all workers that were to go on are ending.
func direct(ctx context.Context, o *operator) error {
	id, told := o.String("worker"), int32(1)
	if (id == "") != o.Bool("all") {
		return cmdline.Misuse(errors.New("name a worker with --worker ID, or tell all with --all"))
	}
	var err error
	if id == "" {
		told, err = o.sql.DirectWorkers(ctx, sqlcgen.DirectWorkersParams{Directive: o.argument(), Tenant: o.tenant})
	} else {
		_, err = o.sql.DirectWorker(ctx, sqlcgen.DirectWorkerParams{WorkerID: id, Directive: o.argument(), Tenant: o.tenant})
	}
	if err != nil {
		return err
	}
	answer := struct {
		Directive string `json:"directive"`
		Workers   int32  `json:"workers"`
		Note      string `json:"note,omitempty"`
	}{Directive: o.argument(), Workers: told}
	switch o.argument() {
	case "terminate":
		answer.Note = "terminate is final: start the workers again to have them take jobs"
	case "running", "resume":
		ending, err := ending(ctx, o)
		if err != nil {
			return err
		}
		if ending > 0 {
			answer.Note = fmt.Sprintf("%d workers are ending: restart them", ending)
		}
		if ending > 0 && told == 0 {
			return &pg.Error{Code: "conflict", Message: "no worker was told to go on: " + answer.Note}
		}
	}
	if o.Bool("json") {
		return admin.JSON(o.out, answer)
	}
	fmt.Fprintf(o.out, "directive  %s\nworkers    %d\n", answer.Directive, answer.Workers)
	if answer.Note != "" {
		fmt.Fprintln(o.out, "note       "+answer.Note)
	}
	return nil
}

// ending returns how many of the first 1000 workers are ending, so that no directive has them go
// on.
func ending(ctx context.Context, o *operator) (n int, err error) {
	rows, err := o.sql.Workers(ctx, sqlcgen.WorkersParams{Tenant: o.tenant, MaxRows: 1000, MaxBytes: math.MaxInt64})
	for i := range rows {
		if rows[i].State == "terminate" || rows[i].Directive != nil && *rows[i].Directive == "terminate" {
			n++
		}
	}
	return n, err
}

// removeWorker declares a worker dead, and prints how many of its jobs were taken back.
func removeWorker(ctx context.Context, o *operator) error {
	jobs, err := o.sql.RemoveWorker(ctx, sqlcgen.RemoveWorkerParams{WorkerID: o.argument(), Tenant: o.tenant})
	if err != nil {
		return err
	}
	return record(o, struct {
		WorkerID string `json:"worker_id"`
		Jobs     int32  `json:"jobs_taken_back"`
	}{o.argument(), jobs})
}

// filter returns the dead letters that the options select. Its upper bound in time is fixed at
// once, so that jobs that fail during the command belong to neither number that it prints.
func (o *operator) filter(ctx context.Context) (f admin.Filter, err error) {
	f = admin.Filter{
		Queue: given(o.String("queue")), Type: given(o.String("type")), ErrorType: given(o.String("error-type")),
		Older: given(o.String("older-than")),
	}
	if age, err := readDuration(o.String("older-than")); err == nil && age >= 0 {
		f.Older = new(fmt.Sprintf("PT%dS", int64(age.Seconds())))
	}
	if err := f.ReadAge("older-than", "until"); err != nil {
		return f, cmdline.Misuse(fmt.Errorf("--older-than %q is neither a time, as in RFC 3339, nor an age such as 12h, 30d or P30D",
			o.String("older-than")))
	}
	err = f.Bound(ctx, o.sql, true)
	return f, err
}

// countDeadLetters prints how many dead letters match.
func countDeadLetters(ctx context.Context, o *operator) error {
	filter, err := o.filter(ctx)
	if err != nil {
		return err
	}
	jobs, err := filter.Count(ctx, o.sql, o.tenant)
	if err != nil {
		return err
	}
	return record(o, struct {
		Jobs int64 `json:"jobs"`
	}{jobs})
}

// shownDeadLetter is a dead letter in a list. The row of the statement has the errors of all
// attempts.
type shownDeadLetter struct {
	ID         string     `json:"id"`
	TenantID   string     `json:"tenant_id"`
	Queue      string     `json:"queue"`
	Type       string     `json:"type"`
	Attempt    int32      `json:"attempt"`
	FinishedAt *time.Time `json:"finished_at"`
	Error      string     `json:"error"`
}

// listDeadLetters prints the dead letters that match, with the last error of each.
func listDeadLetters(ctx context.Context, o *operator) error {
	filter, err := o.filter(ctx)
	if err != nil {
		return err
	}
	limit, skip := o.page()
	rows, err := o.sql.DeadLetters(ctx, sqlcgen.DeadLettersParams{
		Queue: filter.Queue, Type: filter.Type, ErrorType: filter.ErrorType, Since: filter.Since, Until: filter.Until,
		MaxRows: limit, Skipped: skip, Tenant: o.tenant, MaxBytes: math.MaxInt64,
	})
	if err != nil {
		return err
	}
	letters := make([]shownDeadLetter, len(rows))
	for i := range rows {
		j := &rows[i]
		letters[i] = shownDeadLetter{j.ID, j.TenantID, j.Queue, j.Type, j.Attempt, j.FinishedAt, lastError(j.Errors)}
	}
	return table(ctx, o, letters, deadLetterColumns)
}

// lastError returns the type or code of the last of a job's errors, with its message.
func lastError(all []byte) string {
	var errs []struct{ Type, Code, Message string }
	if json.Unmarshal(all, &errs) != nil || len(errs) == 0 {
		return ""
	}
	last := errs[len(errs)-1]
	return cmp.Or(last.Type, last.Code) + ": " + last.Message
}

// retryDeadLetters retries the dead letter that is named, or those that match the filter.
func retryDeadLetters(ctx context.Context, o *operator) error {
	id := o.argument()
	if id == "" {
		return bulkDeadLetters("retried", (*admin.Filter).Retry)(ctx, o)
	}
	for _, option := range []string{"queue", "type", "error-type", "older-than"} {
		if o.String(option) != "" {
			return cmdline.Misuse(fmt.Errorf("the ID names the job: leave out --%s", option))
		}
	}
	if !jsonbody.IsUUID(id) {
		return cmdline.Misuse(fmt.Errorf("%q is no job: ids are UUIDs in lowercase with hyphens", id))
	}
	j, err := o.sql.RetryDeadLetter(ctx, sqlcgen.RetryDeadLetterParams{ID: id, Tenant: o.tenant})
	if err != nil {
		return err
	}
	return record(o, struct {
		ID       string `json:"id"`
		TenantID string `json:"tenant_id"`
		Queue    string `json:"queue"`
		State    string `json:"state"`
	}{j.ID, j.TenantID, j.Queue, j.State})
}

// bulkDeadLetters returns an action that retries or deletes the dead letters that match. Without
// --yes it changes nothing, and fails with the number of them. done names in the past tense what do
// does.
func bulkDeadLetters(
	done string, do func(*admin.Filter, context.Context, *sqlcgen.Queries, int32, *string) (int32, error),
) func(context.Context, *operator) error {
	return func(ctx context.Context, o *operator) error {
		filter, err := o.filter(ctx)
		if err != nil {
			return err
		}
		if !o.Bool("yes") {
			jobs, err := filter.Count(ctx, o.sql, o.tenant)
			if err != nil {
				return err
			}
			return cmdline.Misuse(fmt.Errorf("%d jobs pass the filter, and at most %d would be %s: add --yes",
				jobs, o.Int32("limit"), done))
		}
		n, err := do(&filter, ctx, o.sql, o.Int32("limit"), o.tenant)
		if err != nil {
			return err
		}
		left, err := filter.Count(ctx, o.sql, o.tenant)
		if err != nil {
			return err
		}
		return record(o, struct {
			What      string `json:"what"`
			Jobs      int32  `json:"jobs"`
			Remaining int64  `json:"remaining"`
		}{done, n, left})
	}
}

// listScheduling prints what was handed out of each queue within the last minute.
func listScheduling(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	limit, skip := o.page()
	page, err := o.sql.QueueNames(ctx, sqlcgen.QueueNamesParams{MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	rows, err := o.sql.SchedulingStats(ctx, page.Names)
	if err != nil {
		return err
	}
	return table(ctx, o, rows, schedulingColumns)
}

// listShares prints what each tenant got within the last minute, and what it was due.
func listShares(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	page, err := o.sql.TenantNames(ctx, sqlcgen.TenantNamesParams{Tenant: o.tenant, MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	rows, err := o.sql.TenantShares(ctx, page.Names)
	if err != nil {
		return err
	}
	return table(ctx, o, rows, shareColumns)
}

// showDispatch returns an action that changes or reads the hold of dispatch, and prints it.
func showDispatch(call func(*sqlcgen.Queries, context.Context) (sqlcgen.OjsDispatch, error)) func(context.Context, *operator) error {
	return func(ctx context.Context, o *operator) error {
		if err := o.forAll(); err != nil {
			return err
		}
		d, err := call(o.sql, ctx)
		if err != nil {
			return err
		}
		return record(o, admin.Dispatch{Held: d.HeldAt != nil, OjsDispatch: d})
	}
}
