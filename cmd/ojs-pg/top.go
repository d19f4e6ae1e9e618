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

func explainCommand() *cli.Command {
	return &cli.Command{
		Name: "explain", Usage: "say why a job waits; with --tenant what that tenant is told",
		ArgsUsage: "ID", Action: withAdmin("ID", explain),
	}
}

func previewCommand() *cli.Command {
	return &cli.Command{
		Name: "preview-weight", Usage: "say what shares the tenants would have if that of --tenant had a WEIGHT",
		ArgsUsage: "WEIGHT", Action: withAdmin("WEIGHT", previewWeight),
	}
}

func explain(ctx context.Context, o *operator) error {
	if !jsonbody.IsUUID(o.argument()) {
		return cmdline.Misuse(fmt.Errorf("%q is no job: ids are UUIDs in lowercase with hyphens", o.argument()))
	}
	return admin.Explain(ctx, o.out, o.sql, o.argument(), o.tenant, o.Bool("json"))
}

func previewWeight(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(o.argument(), 64); err != nil {
		return cmdline.Misuse(fmt.Errorf("%q is no weight", o.argument()))
	}
	rows, err := o.sql.PreviewWeight(ctx, sqlcgen.PreviewWeightParams{Tenant: *o.tenant, Weight: o.argument()})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, weightColumns)
}

// topCommand shows the queues and tenants with the largest backlogs, again and again.
func topCommand() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "watch queues and tenants: backlog, what runs, shares, waits",
		Description: `Needs the database alone, as ojs-pg admin does. Ends with q or Ctrl-C. Where its output is no terminal,
it looks once.
SHARE is a tenant's part of what was handed out in the last minute, IDEAL the part that its weight gives it.`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&cli.DurationFlag{
				Name: "interval", Value: 2 * time.Second, Sources: cli.EnvVars("OJS_TOP_INTERVAL"), Usage: "`TIME` between two looks",
				Validator: cmdline.AtLeast(100 * time.Millisecond),
			},
			&cli.BoolFlag{Name: "once", Sources: cli.EnvVars("OJS_TOP_ONCE"), Usage: "print it once, and end"},
			&cli.Int32Flag{
				Name: "rows", Sources: cli.EnvVars("OJS_TOP_ROWS"), DefaultText: "as many as fit",
				Usage: "at most so many `ROWS` of each", Validator: cmdline.Between[int32](1, 1000),
			},
		},
		Action: withAdmin("", top),
	}
}

// defaultRows are shown of each where nothing says how many fit.
const defaultRows = 20

// ANSI sequences: what was there would flicker if all of it was cleared first.
const (
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearScreen = "\x1b[J"
)

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
		// Else a key would arrive with the next line only. Ctrl-C is a key then, too.
		before, err := term.MakeRaw(keys)
		if err != nil {
			return fmt.Errorf("read keys: %w", err)
		}
		defer func() { _ = term.Restore(keys, before) }()
		go awaitQuit(os.Stdin, stop)
	}
	return watch(ctx, o.Duration("interval"), look)
}

// awaitQuit calls stop when q or Ctrl-C is pressed, or when no more keys come. It ends with the process at the latest.
func awaitQuit(keys io.Reader, stop func()) {
	defer stop()
	for key := make([]byte, 1); ; {
		if _, err := keys.Read(key); err != nil || key[0] == 'q' || key[0] == 3 {
			return
		}
	}
}

// topRows are as many as were asked for, or as fit onto the screen twice beside the headings.
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

// headings are the lines of the screen that are no rows: the time, two tables' heads, two empty lines, and where the cursor stands.
const headings = 6

// watch looks until the context ends, which is no error: that is how it is told to stop.
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

// showTop writes one screen at once: in parts it would be seen half old and half new.
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

// topText is a screen of 80 columns.
func topText(at time.Time, queues []sqlcgen.TopQueuesRow, tenants []sqlcgen.TopTenantsRow, oldest map[string]float64) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "ojs-pg top  %s\n\n", at.Format(time.DateTime))
	fmt.Fprintf(&b, "%-32s %9s %7s %9s %8s %9s\n", "QUEUE", "BACKLOG", "ACTIVE", "LAST MIN", "OF ALL", "OLDEST")
	for _, q := range queues {
		name := q.Name
		if q.Paused {
			name = admin.Clip(name, 23) + " (paused)"
		}
		fmt.Fprintf(&b, "%-32s %9s %7s %9s %8s %9s\n", admin.Clip(name, 32), admin.Count(q.Backlog), admin.Count(q.Active), admin.Count(q.Dispatched1m),
			admin.Percent(q.Ratio1m), admin.Age(q.OldestWaitSeconds))
	}
	fmt.Fprintf(&b, "\n%-24s %7s %9s %7s %9s %8s %8s\n", "TENANT", "WEIGHT", "BACKLOG", "ACTIVE", "OLDEST", "SHARE", "IDEAL")
	for _, t := range tenants {
		fmt.Fprintf(&b, "%-24s %7.4g %9s %7s %9s %8s %8s\n", admin.Clip(t.ID, 24), t.Weight, admin.Count(t.Backlog), admin.Count(t.Active),
			admin.Age(oldest[t.ID]), admin.Percent(t.Share1m), admin.Percent(t.IdealShare))
	}
	return b.String()
}
