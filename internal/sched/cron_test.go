package sched

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestLocalTimesThatAreLeftOutOrComeTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expression, zone, after string
		want                    []string
	}{
		"Berlin leaves out 02:30": {"30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", []string{
			"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z",
		}},
		"Berlin leaves out 02:00, the first moment": {
			"0 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-30T00:00:00Z"},
		},
		"Berlin has 03:00, the moment after": {
			"0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"},
		},
		"Berlin runs 02:30 once when it comes twice": {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{
			"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z",
		}},
		"asked between the two": {"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}},
		"Berlin runs 02:00 the first time": {"0 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{
			"2026-10-25T00:00:00Z", "2026-10-26T01:00:00Z",
		}},
		"Berlin runs 03:00 when the clock was put back": {
			"0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T02:00:00Z"},
		},
		"every half hour of one hour, the first time": {
			"*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:00:00Z"},
		},
		"every hour goes on in the hour that comes twice": {"30 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", []string{
			"2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z",
		}},
		"@hourly goes on, too": {
			"@hourly", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		},
		"every hour has no gap when one is left out": {"30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", []string{
			"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z",
		}},
		"New York leaves out 02:30": {"30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-09T06:30:00Z"}},
		"New York runs 01:30 once": {"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{
			"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z",
		}},
		"New York at nine, winter and summer": {"0 9 * * *", "America/New_York", "2026-03-07T00:00:00Z", []string{
			"2026-03-07T14:00:00Z", "2026-03-08T13:00:00Z",
		}},
		"Lord Howe leaves out half an hour": {
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T00:00:00Z",
			[]string{"2026-10-02T15:45:00Z", "2026-10-04T15:15:00Z"},
		},
		"Lord Howe has 02:30 the day it leaves out what is before": {
			"30 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			[]string{"2026-10-03T15:30:00Z", "2026-10-04T15:30:00Z"},
		},
		"Lord Howe repeats half an hour, 01:45 runs once": {
			"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z",
			[]string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"},
		},
		"Lord Howe repeats half an hour, 01:15 is before it": {
			"15 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z",
			[]string{"2026-04-04T14:15:00Z", "2026-04-05T14:45:00Z"},
		},
		"Lord Howe, every quarter of an hour": {"*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30:00Z", []string{
			"2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:15:00Z", "2026-04-04T15:30:00Z",
		}},
		"midnight that a clock put forward leaves out": {
			"0 0 * * *", "America/Santiago", "2026-09-04T12:00:00Z",
			[]string{"2026-09-05T04:00:00Z", "2026-09-07T03:00:00Z"},
		},
		"a Monday, 29 February, and the next one": {"0 0 * FEB MON#5", "Europe/Berlin", "2026-11-22T00:00:00Z", []string{
			"2044-02-28T23:00:00Z", "2072-02-28T23:00:00Z", "2112-02-28T23:00:00Z",
		}},
		"the last day of a leap year far ahead": {
			"30 12 * * *", "Europe/Berlin", "2040-12-30T00:00:00Z",
			[]string{"2040-12-30T11:30:00Z", "2040-12-31T11:30:00Z", "2041-01-01T11:30:00Z"},
		},
		"the summer time of a leap year that begins at its end": {
			"0 3 1 4 *", "Europe/Berlin", "2040-12-31T15:00:00Z",
			[]string{"2041-04-01T01:00:00Z"},
		},
		"a day that an island left out": {
			"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z",
			[]string{"2012-12-29T22:00:00Z"},
		},
		"seconds": {
			"*/20 59 1 * * *", "America/New_York", "2026-11-01T05:59:00Z",
			[]string{"2026-11-01T05:59:20Z", "2026-11-01T05:59:40Z", "2026-11-02T06:59:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schedule, err := ParseCron(c.expression, c.zone)
			if err != nil {
				t.Fatal(err)
			}
			at := utc(t, c.after)
			for i, want := range c.want {
				next, _ := schedule.next(at, at)
				if got := next.UTC().Format(time.RFC3339); got != want {
					t.Fatalf("%d: %s, want %s", i, got, want)
				}
				at = next
			}
		})
	}
}

func utc(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWhatExpressionsMean(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{ // after Friday, 30 January 2026, 10:00:30.5
		"* * * * *": "2026-01-30T10:01:00Z", "  */15  *\t* * * ": "2026-01-30T10:15:00Z", "0 9 * * MON-FRI": "2026-02-02T09:00:00Z",
		"0 9 * * mon,Wed": "2026-02-02T09:00:00Z",
		"0 0 1 JAN,dec *": "2026-12-01T00:00:00Z", "1-30/7 * * * *": "2026-01-30T10:01:00Z", "0 0 13 * FRI": "2026-02-06T00:00:00Z",
		"0 0 * * 0": "2026-02-01T00:00:00Z",
		"0 0 * * 7": "2026-02-01T00:00:00Z", "0 0 * * 5-7": "2026-01-31T00:00:00Z", "0 0 L * *": "2026-01-31T00:00:00Z",
		"0 0 15W * *": "2026-02-16T00:00:00Z",
		"0 0 LW * *":  "2026-02-27T00:00:00Z", "0 0 * * 5#3": "2026-02-20T00:00:00Z", "0 0 * * 5L": "2026-02-27T00:00:00Z",
		"0 0 * * friL": "2026-02-27T00:00:00Z",
		"0 0 29 2 *":   "2028-02-29T00:00:00Z", "0 0 31 * *": "2026-01-31T00:00:00Z", "*/10 * * * * *": "2026-01-30T10:00:40Z",
		"30 0 10 30 1 *": "2027-01-30T10:00:30Z",
		"@yearly":        "2027-01-01T00:00:00Z", "@annually": "2027-01-01T00:00:00Z", "@monthly": "2026-02-01T00:00:00Z",
		"@weekly": "2026-02-01T00:00:00Z", "@daily": "2026-01-31T00:00:00Z",
		"@midnight": "2026-01-31T00:00:00Z", "@hourly": "2026-01-30T11:00:00Z", "@every 45s": "2026-01-30T10:01:15.5Z",
		"@every 1h30m": "2026-01-30T11:30:30.5Z",
		"@every 500ms": "2026-01-30T10:00:31.5Z", "@every 2.5s": "2026-01-30T10:00:33.5Z",
	} {
		schedule, err := ParseCron(expression, "UTC")
		if err != nil {
			t.Errorf("%q: %v", expression, err)
			continue
		}
		after := utc(t, "2026-01-30T10:00:30.5Z")
		next, _ := schedule.next(after, after)
		if got := next.UTC().Format(time.RFC3339Nano); got != want {
			t.Errorf("%q: %s, want %s", expression, got, want)
		}
	}
}

func TestTimesThatAreLeftOutAreTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expression, zone, after, want string }{
		"the hour that Berlin leaves out":   {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},
		"three times, but one hour":         {"*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},
		"Lord Howe's half hour":             {"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T00:00:00Z", "2026-10-03T15:30:00Z"},
		"another hour":                      {"30 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ""},
		"every hour":                        {"30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", ""},
		"the hour that comes twice":         {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ""},
		"years before the time comes again": {"30 2 29 3 *", "Europe/Berlin", "2025-12-01T00:00:00Z", "2026-03-29T01:00:00Z"},
	} {
		schedule, err := ParseCron(c.expression, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		after := utc(t, c.after)
		times, left := schedule.upcoming(after, after)
		var got []string
		for _, at := range left {
			got = append(got, at.UTC().Format(time.RFC3339))
		}
		if strings.Join(got, " ") != c.want || len(times) < 2 {
			t.Errorf("%s: %q, want %q; %v", name, got, c.want, times)
		}
	}
}

func TestEveryCountsFromItsAnchor(t *testing.T) {
	t.Parallel()
	schedule, err := ParseCron("@every 30m", "UTC")
	if err != nil {
		t.Fatal(err)
	}
	anchor := utc(t, "2026-01-30T10:07:03Z")
	for after, want := range map[string]string{
		"2026-01-30T10:07:02.999Z": "2026-01-30T10:37:03Z", "2026-01-30T10:07:03Z": "2026-01-30T10:37:03Z",
		"2026-01-30T10:37:02Z": "2026-01-30T10:37:03Z", "2026-01-30T10:37:03Z": "2026-01-30T11:07:03Z",
		"2026-01-30T15:00:00Z": "2026-01-30T15:07:03Z",
	} {
		next, _ := schedule.next(utc(t, after), anchor)
		if got := next.UTC().Format(time.RFC3339); got != want {
			t.Errorf("after %s: %s, want %s", after, got, want)
		}
	}
}

func TestExpressionsAndZonesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{
		"", "   ", "not a valid cron", "* * * *", "0 0 0 0 0 0 0", "99 25 32 13 8", "60 * * * *", "* 24 * * *", "* * 32 * *",
		"* * 0 * *", "* * * 13 *", "* * * 0 *", "* * * * 8", "*/0 * * * *",
		"1- * * * *", "-1 * * * *", "5-1 * * * *", "1,,2 * * * *", "1, * * * *", "+1 * * * *", "1.5 * * * *", "** * * * *", "a b c d e",
		"* * * * MONDAY", "* * * JANUARY *", "0 0 30 2 *",
		"0 0 31 4 *", "TZ=UTC * * * * *", "CRON_TZ=Asia/Tokyo 0 9 * * *", "H * * * *", "@never", "@daily 1", "@every", "@every 0s",
		"@every -1s", "@every 1x", "@every 1h 30m", "@every 9999999h",
		"* * * * 1#6", "\x00 * * * *", "é * * * *", strings.Repeat("1,", 200) + "1 * * * *",
	} {
		_, err := ParseCron(expression, "UTC")
		if fault, ok := err.(*CronError); !ok || fault.Field != "expression" {
			t.Errorf("%q: %v", expression, err)
		}
	}
	for _, zone := range []string{
		"", "Local", "+05:00", "-08:00", "UTC+5", "EST", "PST", "CST", "MST", "EST5EDT", "Mars/Olympus",
		"europe/berlin", "Europe/../Europe/Berlin", "/etc/localtime", "Europe/Berlin\x00",
	} {
		_, err := ParseCron("* * * * *", zone)
		if fault, ok := err.(*CronError); !ok || fault.Field != "timezone" {
			t.Errorf("%q: %v", zone, err)
		}
	}
	for _, zone := range []string{
		"UTC", "GMT", "America/Argentina/Buenos_Aires", "America/Port-au-Prince", "Etc/GMT+5", "Japan",
		"Asia/Kolkata", "US/East-Indiana",
	} {
		if _, err := ParseCron("* * * * *", zone); err != nil {
			t.Errorf("%q: %v", zone, err)
		}
	}
}

func TestThreeServersOfWhichTwoAreKilledFireOncePerDueTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	clocks := map[string]*exec.Cmd{}
	for i := range 3 {
		name := "clock" + strconv.Itoa(i)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "OJS_TEST_CLOCK="+db.ServiceURL, "OJS_TEST_CLOCK_NAME="+name)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		clocks[name] = cmd
	}
	if _, err := db.Pool.Exec(t.Context(), `
		select ojs.put_cron('every-second', '* * * * * *', 'a', p_overlap_policy => 'allow'), ojs.put_cron('tick', '@every 1s', 'a',
			p_overlap_policy => 'allow', p_tenant => 'acme'),
			ojs.put_cron('broken', '61 * * * *', 'a')`); err != nil {
		t.Fatal(err)
	}
	threeMore := func() {
		t.Helper()
		const those = "from ojs.crons where name <> 'broken'"
		before := pgtest.One[int](t, db.Pool, "select coalesce(max(run_count), 0)::int "+those)
		db.Eventually("three more runs of each", "select count(*) = 2 and bool_and(run_count >= $1::int + 3) "+those, before)
	}
	threeMore()
	for range 2 {
		onDuty := ""
		pgtest.Eventually(t, "one that lives is on duty", func() bool {
			onDuty = pgtest.One[string](t, db.Pool, `
				select coalesce((
					select split_part(a.application_name, ' ', 1) from ojs.duty d join pg_stat_activity a on a.pid = d.backend
				), '')`)
			return clocks[onDuty] != nil
		})
		if err := clocks[onDuty].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		delete(clocks, onDuty)
		threeMore()
	}
	if _, err := db.Pool.Exec(t.Context(),
		"select ojs.configure_cron(name, false, p_tenant => tenant_id) from ojs.crons where name <> 'broken'"); err != nil {
		t.Fatal(err)
	}
	for what, query := range map[string]string{
		"each run has a job of its own, and no job is without a run": `select count(*) = count(distinct job_id) and count(*) = (select
			count(*) from ojs.job) and count(*) = (select sum(run_count) from ojs.cron) from ojs.cron_run`,
		"no due time has two runs": `select count(*) = count(distinct (tenant_id, name, due_at)) from
			ojs.cron_run`,
		"whole seconds are due, and no time before it came": `select bool_and(due_at = date_trunc('second', due_at)) filter
			(where name = 'every-second') and bool_and(at >= due_at) from ojs.cron_run`,
		"the jobs are the cron job's tenant's": `select bool_and(j.tenant_id = r.tenant_id and j.meta ->>
			'cron_name' = r.name) from ojs.cron_run r join ojs.job j on j.id = r.job_id`,
		"what cannot be read says so": `select error like 'expression %' and run_count = 0 and next_run_at
			is null from ojs.crons where name = 'broken'`,
	} {
		var ok bool
		if err := db.Pool.QueryRow(t.Context(), query).Scan(&ok); err != nil || !ok {
			t.Errorf("not so: %s (%v)", what, err)
		}
	}
}
