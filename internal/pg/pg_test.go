package pg_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestErrors(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	raise := func(sqlstate string) string { return "do $$ begin raise sqlstate '" + sqlstate + "'; end $$" }
	cases := map[string]struct {
		sql string
		pg.Error
	}{
		"our own error brings its details and hint": {
			`select ojs._raise('OJ409', 'job x is completed', '{"job_id": "x", "current_state": "completed"}', 'read it first')`,
			pg.Error{
				SQLState: "OJ409", Code: "conflict", Status: 409, Message: "job x is completed", Hint: "read it first",
				Details: map[string]any{"job_id": "x", "current_state": "completed"},
			},
		},
		"an error without details has the table's hint": {
			`select ojs._raise('OJ404', 'job y does not exist')`,
			pg.Error{SQLState: "OJ404", Code: "not_found", Status: 404, Message: "job y does not exist", Hint: db.Problems()["OJ404"].Hint},
		},
		"a value of the wrong form is quoted": {
			`select 'nonsense'::uuid`,
			pg.Error{
				SQLState: "22P02", Code: "invalid_payload", Status: 400, Message: `invalid input syntax for type uuid: "nonsense"`,
				Hint: db.Problems()["22P02"].Hint,
			},
		},
		"bad UTF-8": {
			`select convert_from('\xff', 'utf8')`,
			pg.Error{
				SQLState: "22021", Code: "invalid_payload", Status: 400, Message: `invalid byte sequence for encoding "UTF8": 0xff`,
				Hint: db.Problems()["22021"].Hint,
			},
		},
		"missing rights are told without naming what is behind": {
			`select * from ojs.tenant_role`,
			pg.Error{
				SQLState: "42501", Code: "TENANT_ACCESS_DENIED", Status: 403, Message: db.Problems()["42501"].Title,
				Hint: db.Problems()["42501"].Hint,
			},
		},
		"a serialization failure may be retried": {
			raise("40001"),
			pg.Error{
				SQLState: "40001", Code: "backend_unavailable", Status: 503, Retryable: true, Message: db.Problems()["40001"].Title,
				Hint: db.Problems()["40001"].Hint,
			},
		},
		"an SQLSTATE without a row has its class's": {
			raise("53400"),
			pg.Error{
				SQLState: "53400", Code: "backend_unavailable", Status: 503, Retryable: true, Message: db.Problems()["53"].Title,
				Hint: db.Problems()["53"].Hint,
			},
		},
		"the unknown says nothing": {
			`select * from ojs.secret_table`,
			pg.Error{SQLState: "42P01", Code: "internal_error", Status: 500, Message: "internal error"},
		},
		"a statement timeout": {
			`set statement_timeout = 1; select pg_sleep(60)`,
			pg.Error{
				SQLState: "57014", Code: "backend_unavailable", Status: 503, Retryable: true, Message: db.Problems()["57"].Title,
				Hint: db.Problems()["57"].Hint,
			},
		},
		"a session that was ended": {
			`select pg_terminate_backend(pg_backend_pid())`,
			pg.Error{
				SQLState: "57P01", Code: "backend_unavailable", Status: 503, Retryable: true, Message: db.Problems()["57"].Title,
				Hint: db.Problems()["57"].Hint,
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), d.ServiceURL)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			_, err = conn.PgConn().Exec(t.Context(), c.sql).ReadAll()
			var got *pg.Error
			if !errors.As(db.Err(err), &got) {
				t.Fatalf("%v became no *pg.Error", err)
			}
			if !errors.Is(got, err) {
				t.Error("the error behind is lost")
			}
			if got.SQLState != c.SQLState || got.Code != c.Code || got.Status != c.Status || got.Retryable != c.Retryable ||
				got.Message != c.Message || got.Hint != c.Hint {
				t.Errorf("got  %+v\nwant %+v", *got, c.Error)
			}
			if len(got.Details) != len(c.Details) {
				t.Errorf("details %v, want %v", got.Details, c.Details)
			}
			for k, v := range c.Details {
				if got.Details[k] != v {
					t.Errorf("details %v, want %v", got.Details, c.Details)
				}
			}
			if db.Err(got) != error(got) {
				t.Error("a second translation changes the error")
			}
		})
	}
}

func TestConstraintIsNamed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	if _, err := d.Pool.Exec(t.Context(), "create table public.rule (v int not null constraint v_in_range check (v < 10))"); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"insert into public.rule values (11)":   "constraint v_in_range",
		"insert into public.rule values (null)": "field v",
	} {
		_, err := d.Pool.Exec(t.Context(), sql)
		var got *pg.Error
		if !errors.As(db.Err(err), &got) || got.Code != "invalid_request" ||
			fmt.Sprint("constraint ", got.Details["constraint"]) != want && "field "+got.Field != want {
			t.Errorf("%s: %+v", sql, got)
		}
		if got != nil && strings.Contains(got.Message, "11") {
			t.Errorf("the message quotes the row: %s", got.Message)
		}
	}
}

func TestConnectionErrors(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, deadline := db.Pool().Exec(expired, "select 1")
	_, password := pgx.Connect(t.Context(), strings.Replace(d.ServiceURL, "@", "x@", 1))
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/ojs")
	_, database := pgx.Connect(t.Context(), strings.Replace(d.ServiceURL, d.Name, "nothing", 2))
	for name, err := range map[string]error{
		"a deadline": deadline, "a refused connection": refused, "a database that is gone": database,
		"a wrong password": password,
	} {
		if name == "a wrong password" && err == nil {
			continue // the server trusts everybody
		}
		var got *pg.Error
		if !errors.As(db.Err(err), &got) || got.Code != "backend_unavailable" || got.Status != 503 || !got.Retryable {
			t.Errorf("%s: %v became %+v", name, err, got)
		}
	}

	cancelled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	_, err := db.Pool().Exec(cancelled, "select 1")
	var got *pg.Error
	if err := db.Err(err); errors.As(err, &got) || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller's cancellation became %v", err)
	}
	if db.Err(nil) != nil {
		t.Error("no error became one")
	}
}

func TestOpenTakesARole(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: d.URL, Role: "ojs_service", AppName: "an app", MaxConns: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var got string
	err = db.Pool().QueryRow(t.Context(), "select concat_ws(' ', current_user, current_setting('is_superuser'), "+
		"current_setting('application_name'), current_setting('timezone'))").Scan(&got)
	if err != nil || got != "ojs_service off an app UTC" {
		t.Errorf("the session is %q (%v)", got, err)
	}
	if n := db.Pool().Config().MaxConns; n != 3 {
		t.Errorf("the pool has %d connections", n)
	}
}

func TestOpenWaitsForNoSchema(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := pg.Open(ctx, pg.Config{URL: "postgres://127.0.0.1:1/ojs"}); err == nil ||
		!strings.Contains(err.Error(), "connect to the database") {
		t.Errorf("no server: %v", err)
	}
	if _, err := pg.Open(ctx, pg.Config{URL: "mysql://secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad address: %v", err)
	}
}
