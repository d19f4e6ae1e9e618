package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// explainCommand returns the command that says why a job waits.
func explainCommand() *cli.Command {
	return &cli.Command{
		Name: "explain", Usage: "say why a job waits; with --tenant, what that tenant is told",
		ArgsUsage: "ID", Action: withAdmin("ID", explain),
	}
}

// previewCommand returns the command that computes shares for a weight, and changes nothing.
func previewCommand() *cli.Command {
	return &cli.Command{
		Name: "preview-weight", Usage: "show the shares of all tenants as they would be if the tenant of --tenant had this WEIGHT",
		ArgsUsage: "WEIGHT", Action: withAdmin("WEIGHT", previewWeight),
	}
}

// explain prints why a job waits, in sentences.
func explain(ctx context.Context, o *operator) error {
	if !jsonbody.IsUUID(o.argument()) {
		return cmdline.Misuse(fmt.Errorf("%q is not the id of a job: ids are UUIDs in lowercase with hyphens", o.argument()))
	}
	return admin.Explain(ctx, o.out, o.sql, o.argument(), o.tenant, o.Bool("json"))
}

// previewWeight prints the weights and shares as they are, and as they would be.
func previewWeight(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(o.argument(), 64); err != nil {
		return cmdline.Misuse(fmt.Errorf("%q is not a weight", o.argument()))
	}
	rows, err := o.sql.PreviewWeight(ctx, sqlcgen.PreviewWeightParams{Tenant: *o.tenant, Weight: o.argument()})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, weightColumns)
}

// topCommand returns `ojs-pg top`, which shows the queues and tenants with the largest backlogs,
// again and again until q is pressed.
func topCommand() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "show queues and tenants every two seconds: backlog, running jobs, shares, waiting times",
		Description: `Needs the database only, as ojs-pg admin does. q or Ctrl-C ends it. If the output is not a terminal, it
prints once and ends.

LAST MIN is how many jobs of the queue were handed out in the last minute, OF ALL their part of all jobs that
were. SHARE is the tenant's part of them, and IDEAL the part that its weight gives it. Both are sums over all
queues, but shares hold within each queue: a tenant that has jobs in more queues than others gets more than
IDEAL. OLDEST is how long the oldest waiting job has waited.`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&durationFlag{
				Name: "interval", Value: 2 * time.Second, Sources: cli.EnvVars("OJS_TOP_INTERVAL"), Usage: "`TIME` between two screens",
				Validator: cmdline.AtLeast(100 * time.Millisecond),
			},
			&cli.BoolFlag{Name: "once", Sources: cli.EnvVars("OJS_TOP_ONCE"), Usage: "print one screen and end"},
			&cli.Int32Flag{
				Name: "rows", Sources: cli.EnvVars("OJS_TOP_ROWS"), DefaultText: "as many as fit",
				Usage: "show at most so many `ROWS` of queues, and as many of tenants", Validator: cmdline.Between[int32](1, 1000),
			},
		},
		Action: withAdmin("", top),
	}
}

// defaultRows is how many queues, and how many tenants, are shown if the output is not a terminal.
const defaultRows = 20

// ANSI sequences. Each line is overwritten and its rest cleared, because the screen would flicker
// if all of it was cleared first.
const (
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearScreen = "\x1b[J"
)

// top prints screens until a key or the context ends it, or one screen if the output is no
// terminal.
func top(ctx context.Context, o *operator) error {
	screen, live := o.out.(*os.File)
	live = live && !o.Bool("once") && term.IsTerminal(int(screen.Fd()))
	look := func() error {
		return showTop(ctx, o.sql, o.out, topRows(o.Int32("rows"), screen, live), live)
	}
	if !live {
		return look()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if keys := int(os.Stdin.Fd()); term.IsTerminal(keys) {
		// In raw mode a key arrives at once; otherwise it would arrive with the next line. The
		// terminal then sends no signal for Ctrl-C, so that it is read as a key, too.
		before, err := term.MakeRaw(keys)
		if err != nil {
			return fmt.Errorf("read keys: %w", err)
		}
		defer func() { _ = term.Restore(keys, before) }()
		go awaitQuit(os.Stdin, stop)
	}
	return watch(ctx, o.Duration("interval"), look)
}

// awaitQuit calls stop when q or Ctrl-C is pressed, or when the keys end. Nothing interrupts its
// read, so that it may run until the process ends.
func awaitQuit(keys io.Reader, stop func()) {
	defer stop()
	for key := make([]byte, 1); ; {
		if _, err := keys.Read(key); err != nil || key[0] == 'q' || key[0] == 3 {
			return
		}
	}
}

// topRows returns how many queues, and how many tenants, to show: as many as the option says, or as
// fit onto the screen, which has both below their headings.
func topRows(asked int32, screen *os.File, live bool) int32 {
	if asked > 0 {
		return asked
	}
	if live {
		if _, height, err := term.GetSize(int(screen.Fd())); err == nil {
			return int32(max((height-headings)/2, 1))
		}
	}
	return defaultRows
}

// headings is the number of lines of the screen that are not rows: the time, the heads of two
// tables, two empty lines, and the line of the cursor.
const headings = 6

// watch calls look at once and then at each interval, until the context ends. It fails if look
// fails; an end of the context is the way to stop it, and is no error.
func watch(ctx context.Context, interval time.Duration, look func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := look(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// showTop writes one screen. It writes all of it in one call, because a screen that is written in
// parts is seen half old and half new. Tenants' waits are read for the tenants shown only, because
// they cost more than the other numbers.
func showTop(ctx context.Context, q *sqlcgen.Queries, w io.Writer, rows int32, live bool) error {
	queues, err := q.TopQueues(ctx, rows)
	if err != nil {
		return err
	}
	tenants, err := q.TopTenants(ctx, rows)
	if err != nil {
		return err
	}
	names := make([]string, len(tenants))
	for i := range tenants {
		names[i] = tenants[i].ID
	}
	waits, err := q.TopWaits(ctx, names)
	if err != nil {
		return err
	}
	oldest := map[string]float64{}
	for _, wait := range waits {
		oldest[wait.ID] = wait.OldestWaitSeconds
	}
	text := topText(time.Now(), queues, tenants, oldest)
	if live {
		text = cursorHome + strings.ReplaceAll(text, "\n", clearLine+"\r\n") + clearScreen
	}
	_, err = io.WriteString(w, text)
	return err
}

// topText returns one screen of 80 columns. oldest is how long the oldest waiting job of each
// tenant has waited, in seconds.
func topText(at time.Time, queues []sqlcgen.TopQueuesRow, tenants []sqlcgen.TopTenantsRow, oldest map[string]float64) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "ojs-pg top  %s\n\n", at.Format(time.DateTime))
	fmt.Fprintf(&b, "%-32s %9s %7s %9s %8s %9s\n", "QUEUE", "WAITING", "ACTIVE", "LAST MIN", "OF ALL", "OLDEST")
	for _, q := range queues {
		name := q.Name
		if q.Paused {
			name = admin.Clip(name, 23) + " (paused)"
		}
		fmt.Fprintf(&b, "%-32s %9s %7s %9s %8s %9s\n", admin.Clip(name, 32), admin.Count(q.Backlog), admin.Count(q.Active),
			admin.Count(q.Dispatched1m), admin.Percent(q.Ratio1m), admin.Age(q.OldestWaitSeconds))
	}
	fmt.Fprintf(&b, "\n%-24s %7s %9s %7s %9s %8s %8s\n", "TENANT", "WEIGHT", "WAITING", "ACTIVE", "OLDEST", "SHARE", "IDEAL")
	for _, t := range tenants {
		fmt.Fprintf(&b, "%-24s %7.4g %9s %7s %9s %8s %8s\n", admin.Clip(t.ID, 24), t.Weight, admin.Count(t.Backlog), admin.Count(t.Active),
			admin.Age(oldest[t.ID]), admin.Percent(t.Share1m), admin.Percent(t.IdealShare))
	}
	return b.String()
}
