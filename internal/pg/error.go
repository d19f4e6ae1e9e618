package pg

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

const (
	codeInternal     = "internal_error"
	codeNotReachable = "backend_unavailable"
)

// ErrOverloaded refuses a request because too many requests wait for the database already.
var ErrOverloaded = errors.New("too many requests wait for the database")

// Problem is one row of ojs.problem: what an error means outside of Postgres.
type Problem struct {
	SQLState  string
	Code      string
	Status    int
	Retryable bool
	Title     string
	Hint      string
}

// Error is a failure of a call into PostgreSQL, or of a request before it, as a client may see it.
// Err holds what only the log may see.
type Error struct {
	SQLState  string // empty if Postgres did not answer
	Code      string
	Status    int
	Retryable bool
	Message   string
	Hint      string
	Field     string         // the field at fault: SQL's name of it, or its path in the request; "" if the error is about no field
	Fault     string         // what is wrong with Field, to be said after its name; "" if Message does not begin with that name
	Index     *int           // the position, from 0, of the job of a batch at fault; nil: the error is not about one job of a batch
	Details   map[string]any // what else the client is told, by name; never changed once it is set, because errors of a batch may share it
	Err       error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Code + ": " + e.Message
	}
	return e.Code + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Tell adds a detail for the client to an error that was just made, and returns the error.
func (e *Error) Tell(name string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[name] = value
	return e
}

// Limit is what an error tells about the limit that refused a request. A number that the error does
// not tell is nil.
type Limit struct {
	Name   string // such as max_enqueue_rate; "" if a queue was full
	Tenant string // "" if the limit is no tenant's
	Queue  string // "" if the limit is not a queue's

	Current, Maximum *float64 // of the limit Name
	Depth, Bound     *float64 // of the queue: jobs that wait, and how many may
	RetryAfter       *float64 // seconds
}

// Limit reads the details of an error that a limit has caused.
func (e *Error) Limit() (l Limit) {
	text := func(name string) string {
		value, _ := e.Details[name].(string)
		return value
	}
	number := func(name string) *float64 {
		if value, ok := e.Details[name].(float64); ok {
			return &value
		}
		return nil
	}
	return Limit{
		Name: text("limit"), Tenant: text("tenant_id"), Queue: text("queue"),
		Current: number("current"), Maximum: number("maximum"),
		Depth: number("depth"), Bound: number("bound"), RetryAfter: number("retry_after"),
	}
}

// Busy reports whether a limit refused a job only because other transactions, which may roll back,
// hold what is left of it.
func (e *Error) Busy() bool { return e.Details["busy"] == true }

// Err turns an error of pgx into an *Error. It returns nil, an *Error, and the end of the caller's
// own context as they are.
func (d *DB) Err(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, ErrOverloaded) {
		return d.overloaded(err)
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		// The reason (a wrong password, too many clients) is for the log, not for the caller.
		return d.unreachable(err)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return d.fromPostgres(pgErr, err)
	}
	var network net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, pgconn.ErrConnClosed), errors.As(err, &network), pgconn.SafeToRetry(err):
		return d.unreachable(err)
	}
	return &Error{Code: codeInternal, Status: http.StatusInternalServerError, Message: "internal error", Err: err}
}

// Outdated reports whether a statement failed because it does not fit the schema: a migration has
// changed the schema since the statement was prepared, or the program has a mistake. The statement
// has changed nothing, so it may be run again.
func Outdated(err error) bool {
	switch state := sqlstate.Of(err); state {
	case sqlstate.FeatureNotSupported, sqlstate.InternalError:
		return true
	case sqlstate.InsufficientPrivilege:
		return false
	default:
		return strings.HasPrefix(state, sqlstate.ClassSyntaxOrAccess)
	}
}

// changing caches for a second whether a migration is running or has just ended. Without the cache
// each of a thousand errors during a migration would query the database. mu guards all fields; it
// is held while the query runs, so that one error asks and the others wait.
type changing struct {
	mu      sync.Mutex
	askedAt time.Time
	is      bool
}

const (
	changingKept  = time.Second
	changingAgain = 100 * time.Millisecond // after the query failed
)

func (d *DB) schemaChanging() bool {
	c := &d.changing
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.askedAt) > changingKept {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		is, err := sqlcgen.New(d.pool).SchemaChanging(ctx)
		c.askedAt = time.Now()
		if err == nil {
			c.is = is
		} else {
			c.askedAt = c.askedAt.Add(changingAgain - changingKept) // keep the old answer for a short time only: it may be wrong by now
		}
	}
	return c.is
}

// overloaded returns the 503 for ErrOverloaded.
func (d *DB) overloaded(err error) *Error {
	e := d.unreachable(err)
	e.Message, e.Hint = "Too many requests wait for the database at the moment.", "Try again later."
	return e
}

// unreachable returns the 503 for a database that cannot be reached.
func (d *DB) unreachable(err error) *Error {
	row, ok := d.Problems()[sqlstate.ClassConnection]
	if !ok {
		row = Problem{
			Code: codeNotReachable, Status: http.StatusServiceUnavailable, Retryable: true,
			Title: "The database cannot be reached.", Hint: "Try again.",
		}
	}
	return &Error{Code: row.Code, Status: row.Status, Retryable: row.Retryable, Message: row.Title, Hint: row.Hint, Err: err}
}

// fromPostgres returns the Error for an error that PostgreSQL has answered with. Its code, status
// and hint are the row of ojs.problem for its SQLSTATE. Without a row it is a 500, and the client
// is not told what failed.
func (d *DB) fromPostgres(pgErr *pgconn.PgError, err error) *Error {
	row, ok := d.problem(pgErr.Code)
	if limitOf(pgErr) != limitNone {
		// The server has reached a limit. The row for 54000 blames the size of the payload.
		row, ok = d.Problems()[sqlstate.ClassResources]
	}
	if Outdated(pgErr) {
		row, ok = d.Problems()[sqlstate.FeatureNotSupported], d.schemaChanging()
	}
	if !ok {
		return &Error{SQLState: pgErr.Code, Code: codeInternal, Status: http.StatusInternalServerError, Message: "internal error", Err: err}
	}
	e := &Error{
		SQLState: pgErr.Code, Code: row.Code, Status: row.Status, Retryable: row.Retryable,
		Message: row.Title, Hint: row.Hint, Err: err,
	}
	switch {
	case strings.HasPrefix(pgErr.Code, sqlstate.ClassOurs):
		e.Message = pgErr.Message
		if pgErr.Hint != "" {
			e.Hint = pgErr.Hint
		}
		e.readDetails(pgErr)
	case strings.HasPrefix(pgErr.Code, sqlstate.ClassData):
		// PostgreSQL's message names the value at fault, and quotes only what the caller sent.
		e.Message = pgErr.Message
		e.readDetails(pgErr)
	case pgErr.Code == sqlstate.NotNullViolation:
		e.Field = pgErr.ColumnName
	case pgErr.ConstraintName != "":
		e.Details = map[string]any{"constraint": pgErr.ConstraintName}
	}
	return e
}

// problems caches the rows of ojs.problem. known is replaced as a whole and never changed, so
// readers need no lock; mu guards readAt and lets one caller at a time read the table again.
type problems struct {
	known  atomic.Pointer[map[string]Problem]
	mu     sync.Mutex
	readAt time.Time // when the table was last read because a SQLSTATE was unknown
}

// Problems returns the rows of ojs.problem by SQLSTATE; the key of a row for a whole class is its
// two characters.
func (d *DB) Problems() map[string]Problem {
	if known := d.problems.known.Load(); known != nil {
		return *known
	}
	return nil
}

// problem returns the row for a SQLSTATE, or else for its class. Functions of a later release may
// raise a SQLSTATE of ours that this server does not know; then the table is read again, at most
// once a second.
func (d *DB) problem(state string) (row Problem, ok bool) {
	row, ok = d.Problems()[state]
	if !ok && strings.HasPrefix(state, sqlstate.ClassOurs) {
		d.readProblemsAgain()
		row, ok = d.Problems()[state]
	}
	if !ok {
		row, ok = d.Problems()[state[:min(2, len(state))]]
	}
	return row, ok
}

func (d *DB) readProblemsAgain() {
	d.problems.mu.Lock()
	defer d.problems.mu.Unlock()
	if time.Since(d.problems.readAt) < time.Second {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.loadProblems(ctx) // if this fails, the row for the class answers
	d.problems.readAt = time.Now()
}

// readDetails reads the object that our functions send as DETAIL. PostgreSQL's own detail is text,
// which may quote rows: it is left out.
func (e *Error) readDetails(pgErr *pgconn.PgError) {
	var typed struct {
		Field, Fault string
		Index        *int
	}
	var all map[string]any
	if json.Unmarshal([]byte(pgErr.Detail), &all) != nil || json.Unmarshal([]byte(pgErr.Detail), &typed) != nil {
		return
	}
	e.Field, e.Fault, e.Index = typed.Field, typed.Fault, typed.Index
	if e.Fault == "" && e.Field != "" {
		// A message that begins with the field is not repeated in the detail.
		if after, begins := strings.CutPrefix(pgErr.Message, e.Field+" "); begins {
			e.Fault = after
		}
	}
	for _, name := range [...]string{"field", "fault", "index"} {
		delete(all, name)
	}
	if len(all) > 0 {
		e.Details = all
	}
}
