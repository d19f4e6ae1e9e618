package sched

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // for machines without a time zone database

	"github.com/netresearch/go-cron"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Cron tells the database when cron jobs are due: it computes times from an expression and a time
// zone. Everything else is in SQL (db/code/cron/cron.sql). It keeps no state, so any number of
// servers and goroutines may use it at once.
type Cron struct {
	q   *sqlcgen.Queries
	log *slog.Logger
}

// NewCron makes a Cron. The Scheduler calls Plan when a tick asks for it.
func NewCron(db *pg.DB, log *slog.Logger) *Cron {
	return &Cron{q: sqlcgen.New(db.Pool()), log: log}
}

// maxPlanned is the largest number of cron jobs that one call of Plan plans; the next tick plans
// more.
const maxPlanned = 1000

// Plan computes the next times of all cron jobs without a plan. A cron job that cannot be planned
// does not stop the others; the error names all of them. A cron job that another transaction has
// locked is planned with the next tick. Plan ends with an error that concerns no single cron job,
// such as a database that is away.
func (c *Cron) Plan(ctx context.Context) error {
	rows, err := c.q.UnplannedCrons(pg.Unchecked(ctx), maxPlanned)
	if err != nil {
		return fmt.Errorf("look for cron jobs without a plan: %w", err)
	}
	var failed []error
	for _, r := range rows {
		err := guard.Call(func() error {
			_, err := c.plan(ctx, r)
			return err
		})
		if err == nil {
			continue
		}
		failed = append(failed, err)
		var panicked *guard.Panic
		if errors.As(err, &panicked) {
			c.log.Error("planning a cron job panicked", "id", r.ID, "expression", r.Expression, "timezone", r.Timezone, "error", err)
		} else if !pg.ItemFault(err) {
			break // the database is away: each of the others would wait for it, too
		}
	}
	return errors.Join(failed...)
}

// PlanNew computes the next times of a cron job that was just written, and returns its row with
// them, so that the answer to its author holds them. It returns the row unchanged if the cron job is
// off, has a plan, or cannot be planned (row.Error). After an error the next tick plans it.
func (c *Cron) PlanNew(ctx context.Context, row sqlcgen.OjsCron) (sqlcgen.OjsCron, error) {
	if !row.Enabled || row.Error != nil || len(row.Upcoming) > 0 {
		return row, nil
	}
	rows, err := c.plan(ctx, sqlcgen.UnplannedCronsRow{
		ID: row.ID, Rev: row.Rev, Expression: row.Expression, Timezone: row.Timezone, AnchorAt: row.AnchorAt, AfterAt: row.UpdatedAt,
	})
	switch {
	case err != nil:
		return row, err
	case len(rows) == 1:
		return rows[0], nil
	}
	// SQL skipped the row: another server has planned it already, or a transaction has it locked, in
	// which case the next tick plans it.
	return c.q.GetCron(ctx, sqlcgen.GetCronParams{Name: row.Name, Tenant: &row.TenantID})
}

// plan computes the next times of a cron job and stores them, or the reason why its expression
// cannot be read. It returns the stored row, or none if the row has changed or is locked.
func (c *Cron) plan(ctx context.Context, r sqlcgen.UnplannedCronsRow) ([]sqlcgen.OjsCron, error) {
	params := sqlcgen.PlanCronParams{ID: r.ID, Rev: r.Rev, Upcoming: []time.Time{}, LeftOut: []time.Time{}}
	if schedule, err := ParseCron(r.Expression, r.Timezone); err != nil {
		text := err.Error()
		params.Error = &text
		c.log.Warn("a cron job cannot be planned", "id", r.ID, "expression", r.Expression, "timezone", r.Timezone, "error", err)
	} else {
		params.Upcoming, params.LeftOut = schedule.upcoming(r.AfterAt, r.AnchorAt)
	}
	rows, err := c.q.PlanCron(pg.Unchecked(ctx), params)
	if err != nil {
		return nil, fmt.Errorf("plan the cron job %s: %w", r.ID, err)
	}
	return rows, nil
}

// Schedule is a cron expression in a time zone.
type Schedule struct {
	every  time.Duration  // of @every; zero for all other expressions
	wall   cron.Schedule  // in local time; asked in UTC, whose clock never jumps
	zone   *time.Location // what local time is
	hourly bool           // due in every hour
}

// CronError says that an expression or a time zone cannot be used. Field is "expression" or
// "timezone", and What goes on after it.
type CronError struct{ Field, What string }

func (e *CronError) Error() string { return e.Field + " " + e.What }

var (
	// cronField matches one field. Days and months may be names. The library refuses L, W and # in
	// fields that are not days.
	cronField = regexp.MustCompile(`^[0-9A-Za-z*?#/-]+(,[0-9A-Za-z*?#/-]+)*$`)
	cronRange = regexp.MustCompile(`(?:^|,)(\d+)-(\d+)`)
	// lastWeekday matches the last weekday of a month, FRIL in ojs-cron, which the library writes 5#L.
	lastWeekday = regexp.MustCompile(`(?i)(^|,)([0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)L(,|$)`)
	everyText   = regexp.MustCompile(`^(\d+(\.\d+)?(ms|s|m|h))+$`)
	zoneName    = regexp.MustCompile(`^[A-Z][A-Za-z]*[a-z-][A-Za-z-]*$|^[A-Z][A-Za-z]+(/[A-Z][A-Za-z0-9_+-]*)+$`)

	cronFields = cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
		cron.Descriptor | cron.Extended | cron.DowOrDom
	cronParser = cron.MustNewParser(cronFields).WithMaxSearchYears(40) // after a Monday, 29 February 2072, the next one is in 2112
)

// longestEvery is the longest duration after @every: ten years.
const longestEvery = 10 * 366 * 24 * time.Hour

// ParseCron reads an expression (ojs-cron sections 3 and 4) and the name of a time zone. An error is
// a *CronError. It refuses a schedule that is never due, such as 30 February.
func ParseCron(expression, timezone string) (*Schedule, error) {
	zone, err := parseZone(timezone)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(expression)
	switch {
	case len(fields) == 0:
		return nil, badExpression("must not be empty")
	case len(expression) > 255:
		return nil, badExpression("is longer than 255 characters")
	case fields[0] == "@every":
		return parseEvery(fields, zone)
	case fields[0][0] == '@' && len(fields) > 1:
		return nil, badExpression("must be nothing but %s", fields[0])
	case fields[0][0] != '@' && len(fields) != 5 && len(fields) != 6:
		return nil, badExpression("must have five or six fields, not %d", len(fields))
	}
	hours := "0"
	if fields[0][0] != '@' {
		if err := checkFields(fields); err != nil {
			return nil, err
		}
		hours = fields[len(fields)-4]
		last := len(fields) - 1
		fields[last] = lastWeekday.ReplaceAllString(fields[last], "$1$2#L$3")
	} else if fields[0] == "@hourly" {
		hours = "*"
	}
	wall, err := cronParser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, badExpression("is not understood: %v", err)
	}
	if wall.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, badExpression("names a day that no month has")
	}
	return &Schedule{wall: wall, zone: zone, hourly: hours == "*" || hours == "*/1"}, nil
}

// badExpression returns the error of an expression.
func badExpression(format string, args ...any) error {
	return &CronError{"expression", fmt.Sprintf(format, args...)}
}

// parseZone returns the time zone with an IANA name. It refuses "Local" and short names such as
// "EST", which Go would accept: they mean different times on different servers, or ignore summer
// time.
func parseZone(timezone string) (*time.Location, error) {
	if timezone == "UTC" || timezone == "GMT" {
		return time.UTC, nil
	}
	zone, err := time.LoadLocation(timezone)
	if err != nil || !zoneName.MatchString(timezone) || timezone == "Local" {
		return nil, &CronError{"timezone", "must be a name of the IANA time zone database such as Europe/Berlin"}
	}
	return zone, nil
}

// parseEvery reads @every and a duration, which it rounds up to seconds.
func parseEvery(fields []string, zone *time.Location) (*Schedule, error) {
	if len(fields) != 2 || !everyText.MatchString(fields[1]) {
		return nil, badExpression("must name a duration after @every, such as 1h30m")
	}
	every, err := time.ParseDuration(fields[1])
	if err != nil || every <= 0 || every > longestEvery {
		return nil, badExpression("must name a duration above zero and of at most ten years after @every")
	}
	// Cron jobs are fired by the second.
	if rest := every % time.Second; rest > 0 {
		every += time.Second - rest
	}
	return &Schedule{every: every, zone: zone}, nil
}

// checkFields refuses forms that the library would read differently than the specification.
func checkFields(fields []string) error {
	for _, f := range fields {
		if !cronField.MatchString(f) {
			return badExpression("has the malformed field %q", f)
		}
		for _, m := range cronRange.FindAllStringSubmatch(f, -1) {
			from, _ := strconv.Atoi(m[1])
			to, _ := strconv.Atoi(m[2])
			if from > to {
				return badExpression("has the range %s-%s, which ends before it begins", m[1], m[2])
			}
		}
	}
	return nil
}

// next returns the first time after `after` at which the schedule is due, or zero if there is none.
// A local time that a clock put forward leaves out is not due: leftOut holds when clocks were put
// forward over such a time. A local time that comes twice, because the clock is put back, is due the
// first time only (ojs-cron section 5.2); but a schedule that is due in every hour is due in both
// hours. anchor is the time that @every counts from.
func (s *Schedule) next(after, anchor time.Time) (next time.Time, leftOut []time.Time) {
	if s.every > 0 {
		if after.Before(anchor) {
			return anchor.Add(s.every), nil
		}
		return anchor.Add((after.Sub(anchor)/s.every + 1) * s.every), nil
	}
	// Local times are written as UTC. shown is the first local time after asked at which the expression
	// is due.
	var asked, shown time.Time
	// Each round looks at the time from stretch to the next change of the zone's clock.
	for stretch := after; ; {
		// Between two changes, local time is UTC with a constant shift.
		local := stretch.In(s.zone)
		_, offset := local.Zone()
		begin, end := local.ZoneBounds()
		if !end.IsZero() && !end.After(stretch) {
			// For distant years ZoneBounds counts 365 days a year and may return an end in the past.
			end = stretch.Add(24 * time.Hour)
		}
		shift := time.Duration(offset) * time.Second
		if from := after.UTC().Add(shift); from.Before(asked) || !from.Before(shown) {
			// The search may go through decades. Its result is kept, so that it is not repeated after each
			// change of the clock in these decades.
			asked, shown = from, s.wall.Next(from)
		}
		if shown.IsZero() {
			return shown, leftOut
		}
		due := shown.Add(-shift)
		switch {
		case !end.IsZero() && !due.Before(end):
			// Due after the change of the clock: look again with the new shift. If the change leaves out the
			// local time that was found, remember that.
			if _, then := end.In(s.zone).Zone(); !s.hourly && due.Sub(end) < time.Duration(then)*time.Second-shift {
				leftOut = append(leftOut, end)
			}
			stretch, after = end, end.Add(-1)
		case !s.hourly && again(begin, due, s.zone, shift):
			after = due // the second time of two
		default:
			return due, leftOut
		}
	}
}

// again reports whether the local time of at, a time after begin, has occurred before, because the
// clock was put back at begin. shift is the offset of the zone since then.
func again(begin, at time.Time, zone *time.Location, shift time.Duration) bool {
	if begin.IsZero() {
		return false
	}
	_, before := begin.Add(-1).In(zone).Zone()
	return at.Sub(begin) < time.Duration(before)*time.Second-shift
}

const (
	// maxUpcoming is the largest number of times in one plan. A cron job that is due every second needs
	// a plan about four times a minute.
	maxUpcoming = 16
	// ahead is how far after the first time a plan goes. A longer plan would more often be wrong because
	// the rules of a time zone have changed.
	ahead = 24 * time.Hour
)

// upcoming returns the next two times, and after them all times up to a day after the first, at most
// maxUpcoming. leftOut holds the moments between them at which a clock was put forward over a due
// time. Neither is nil: SQL takes arrays.
func (s *Schedule) upcoming(after, anchor time.Time) (times, leftOut []time.Time) {
	times, leftOut = []time.Time{}, []time.Time{}
	for len(times) < maxUpcoming {
		next, left := s.next(after, anchor)
		if next.IsZero() || len(times) >= 2 && next.Sub(times[0]) > ahead {
			break
		}
		times, leftOut = append(times, next), append(leftOut, left...)
		after = next
	}
	return times, leftOut
}
