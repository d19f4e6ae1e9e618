package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
)

// wideFlag is the option of commands that print lists. prefix begins its name in the environment.
func wideFlag(prefix string) cli.Flag {
	return &cli.BoolFlag{
		Name: "wide", Sources: cli.EnvVars(prefix + "_WIDE"),
		Usage: "print all columns, uncut, with times in full and numbers to the last digit; lines are long",
	}
}

// table prints a list of rows: the columns that are named, within 80 columns of the screen; all of
// them with --wide; JSON with --json.
func table[T any](ctx context.Context, o *operator, rows []T, columns []admin.Column) error {
	switch {
	case o.Bool("json"):
		return admin.JSON(o.out, rows)
	case o.Bool("wide"):
		return admin.Table(o.out, rows)
	}
	// Ages count from the database's clock, which has set the times.
	now, err := o.sql.Ago(ctx, 0)
	if err != nil {
		return err
	}
	return admin.List(o.out, rows, now, columns...)
}

// leastName is the width that a list leaves of a name at least, if the screen has no more columns.
const leastName = 10

// name is a column of names of tenants, queues or workers.
func name(field, head string) admin.Column {
	return admin.Column{Field: field, Head: head, Cut: leastName}
}

// column is a column that is never cut: numbers, times, states, ids.
func column(field, head string) admin.Column { return admin.Column{Field: field, Head: head} }

// percent is a column of shares.
func percent(field, head string) admin.Column {
	return admin.Column{Field: field, Head: head, Percent: true}
}

// spare is a column that is shown if the other columns leave space for it, such as a reason.
func spare(field, head string) admin.Column {
	return admin.Column{Field: field, Head: head, Spare: true}
}

// The columns of each list: those that an operator needs to find out what is wrong, in 80 columns
// of the screen when names have 20 characters and numbers seven digits.
var (
	tenantColumns = []admin.Column{
		name("id", ""), column("weight", ""), column("available", ""), column("active", ""), column("discarded", ""),
		column("oldest_wait_ms", "oldest"), percent("actual_share", "share"), spare("state", ""),
	}
	queueColumns = []admin.Column{
		name("name", ""), column("status", ""), column("available", ""), column("active", ""), column("retryable", ""),
		column("discarded", ""), column("oldest_wait_ms", "oldest"),
	}
	ruleColumns = []admin.Column{
		name("tenant_id", "tenant"), name("queue", ""), column("max_concurrency", "limit"), column("active", ""),
		column("paused_at", "paused"), spare("paused_by", "by"), spare("reason", ""),
	}
	limitColumns = []admin.Column{
		name("tenant_id", "tenant"), name("queue", ""), column("resource", ""), column("limit", ""), column("current", ""),
		{Field: "used_up", Head: "used", Percent: true, Spare: true},
		spare("reason", ""),
	}
	tierColumns = []admin.Column{
		name("name", ""), column("tenants", ""), column("due", ""), {Field: "config", Cut: 10}, {Field: "reason", Cut: 10},
	}
	workerColumns = []admin.Column{
		name("id", ""), name("tenant_id", "tenant"), column("state", ""),
		{Field: "queues", Cut: 8},
		column("active_jobs", "jobs"),
		column("last_heartbeat_at", "seen"), spare("directive", "told"), spare("hostname", "host"),
	}
	workerJobColumns = []admin.Column{
		column("id", ""), name("tenant_id", "tenant"), name("queue", ""), column("attempt", ""),
		column("started_at", "runs"), spare("type", ""),
	}
	poolColumns = []admin.Column{
		name("name", ""),
		{Field: "queues", Cut: 8},
		column("concurrency", "limit"),
		{Field: "strategy", Cut: 8},
		column("active_workers", "workers"), column("active_jobs", "jobs"), percent("utilization", "used"),
		spare("tenants", ""), spare("weights", ""),
	}
	schedulingColumns = []admin.Column{
		name("name", ""), column("waiting_jobs", "waiting"), column("active_jobs", "active"), column("oldest_wait_ms", "oldest"),
		column("dispatch_count_1m", "last min"), percent("dispatch_ratio_1m", "of all"), column("avg_wait_ms", "waited"),
	}
	shareColumns = []admin.Column{
		name("id", ""), column("weight", ""), column("waiting_jobs", "waiting"), column("active_jobs", "active"),
		column("dispatch_count_1m", "last min"), percent("dispatch_share_1m", "share"), percent("ideal_share", "ideal"),
		column("avg_wait_ms", "waited"),
	}
	neighbourColumns = []admin.Column{
		name("tenant_id", "tenant"), column("signal", ""), column("value", ""), column("threshold", ""), column("since", ""),
		spare("throttled_until", "throttled"), spare("seen_at", "seen"),
	}
	throttleColumns = []admin.Column{
		name("tenant_id", "tenant"), column("action", ""), column("original", ""), column("effective", ""), column("since", ""),
		column("until", ""), spare("reason", ""), spare("set_by", "by"),
	}
	weightColumns = []admin.Column{
		name("tenant_id", "tenant"), column("weight_now", ""), column("weight_then", ""), percent("share_now", ""),
		percent("share_then", ""),
	}
	auditColumns = []admin.Column{
		{Field: "n", Exact: true},
		column("at", "age"),
		{Field: "actor", Cut: 8},
		name("tenant_id", "tenant"), column("kind", ""),
		{Field: "name", Cut: 8},
		{Field: "action", Cut: 10},
		{Field: "change", Cut: 12},
		spare("reason", ""),
	}
	usageColumns = []admin.Column{
		name("tenant_id", "tenant"), column("hour", "age"), column("enqueued", "jobs"), column("attempts", ""),
		column("completed", "done"), column("failed", ""), column("worker_ms", ""), spare("stored_bytes", "bytes"),
		spare("refused_429", "429"), spare("refused_507", "507"),
	}
	usageFaultColumns = []admin.Column{
		name("tenant_id", "tenant"), {Field: "n", Exact: true}, column("hour", "age"), column("fault", ""),
	}
	deadLetterColumns = []admin.Column{
		column("id", ""), name("tenant_id", "tenant"),
		{Field: "queue", Cut: 8},
		column("finished_at", "age"),
		{Field: "error", Cut: 12},
		spare("type", ""),
	}
	keyColumns = []admin.Column{
		column("id", ""), name("tenant_id", "tenant"), name("name", ""), column("state", ""), column("last_used_at", "used"),
		spare("expires_at", "expires"),
		{Field: "scopes", Spare: true},
	}
	blockedColumns = []admin.Column{
		name("tenant_id", "tenant"), name("queue", ""), column("available", "waiting"),
		{Field: "why", Cut: 20},
		spare("since", ""),
		spare("detail", ""),
	}
)
