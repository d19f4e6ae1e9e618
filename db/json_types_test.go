package db_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Values that the tests below send, and how they are kept if no caller turns them into jsonb.
const (
	typedArgs    = `[1,  {"b": 1, "a": 2}]`
	typedMeta    = `{"k":  1}`
	typedRetry   = `{"max_attempts":  7}`
	typedOptions = `{"note":  1}`
)

// jsonTypes are the types in which programs hold JSON; "" is a literal without a type.
var jsonTypes = []string{"", "json", "jsonb", "text", "varchar"}

func asType(value, as string) string {
	if as == "" {
		return "'" + value + "'"
	}
	return "'" + value + "'::" + as
}

// normal returns a value as it is after a conversion to jsonb.
func normal(value, as string) string {
	if as != "jsonb" {
		return value
	}
	return map[string]string{typedArgs: `[1, {"a": 2, "b": 1}]`, typedOptions: `{"note": 1}`}[value]
}

// wantTyped returns the row of a job as typedValues shows it.
func wantTyped(args, rest string) string {
	return fmt.Sprintf(`%s {"k": 1} {"max_attempts": 7} %s`, normal(typedArgs, args), normal(typedOptions, rest))
}

const typedValues = "select args::text, meta::text, retry::text, options::text from "

func TestEveryTypeOfJSONEnqueues(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	for _, args := range jsonTypes {
		for _, rest := range jsonTypes {
			for _, call := range []string{
				"ojs.enqueue('a', %s, p_meta => %s, p_retry => %s, p_options => %s)",
				"ojs.enqueue(p_options => %[4]s, p_retry => %[3]s, p_meta => %[2]s, p_args => %[1]s, p_type => 'a')",
				"ojs.enqueue('a'::text, %s, 'q', 0, null, null, %s, %s, null, null, null, null, false, %s)",
				"ojs.put_cron('c', '@daily', 'a', %s, p_meta => %s, p_retry => %s, p_options => %s)",
			} {
				sql := typedValues + fmt.Sprintf(call, asType(typedArgs, args), asType(typedMeta, rest), asType(typedRetry, rest),
					asType(typedOptions, rest))
				if got, want := lines(t, acme, sql)[0], wantTyped(args, rest); got != want {
					t.Errorf("%s\n  has %s\n want %s", sql, got, want)
				}
			}
		}
	}
	for sql, want := range map[string]string{
		"ojs.enqueue('a')":                                                     `[] {} - -`,
		"ojs.enqueue('a', '[]')":                                               `[] {} - -`,
		"ojs.enqueue('a', p_queue => 'q')":                                     `[] {} - -`,
		"ojs.enqueue('a', p_meta => jsonb_build_object('k', 1))":               `[] {"k": 1} - -`,
		"ojs.enqueue('a', '[1 ]', p_retry => null, p_options => null)":         `[1 ] {} - -`,
		"ojs.enqueue('a', '[1 ]'::json, p_retry => null::jsonb)":               `[1 ] {} - -`,
		"ojs.enqueue('a', p_options => json_build_object('n', 1))":             `[] {} - {"n" : 1}`,
		"ojs.enqueue('a'::varchar, '[1]'::jsonb)":                              `[1] {} - -`,
		"ojs.enqueue('a'::varchar, '[1]')":                                     `[1] {} - -`,
		"ojs.enqueue('a', '[]', p_meta => '{}'::jsonb, p_retry => '{}'::json)": "",
	} {
		if want == "" {
			refused(t, acme, "42883", typedValues+sql)
		} else if got := lines(t, acme, typedValues+sql)[0]; got != want {
			t.Errorf("%s has %s, want %s", sql, got, want)
		}
	}
	for sql, state := range map[string]string{
		"ojs.enqueue('a', null)": "OJ400", "ojs.enqueue('a', null::jsonb)": "OJ400", "ojs.enqueue('a', 5)": "OJ400",
		"ojs.enqueue('a', p_meta => null)": "OJ400", "ojs.enqueue('a', p_meta => 5)": "OJ400",
		"ojs.enqueue('a', '[')": "22P02", "ojs.enqueue('a', '['::text)": "22P02", "ojs.enqueue('a', array[1])": "22P02",
		"ojs.enqueue('a', p_meta => '{')": "22P02", "ojs.enqueue('a', p_options => '{'::text)": "22P02",
	} {
		failure := refused(t, acme, state, "select "+sql)
		if strings.Contains(failure.Where, "SQL statement") && state == "22P02" {
			t.Errorf("%s shows the body of a function:\n%s", sql, failure.Where)
		}
	}
}

// Drivers say that a parameter is text, or nothing about it.
func TestEveryTypeOfJSONIsPrepared(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	conn, err := d.As("acme").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	execute := fmt.Sprintf("('a', '%s', '%s', '%s', '%s')", typedArgs, typedMeta, typedRetry, typedOptions)
	const call = "ojs.enqueue($1, $2, p_meta => $3, p_retry => $4, p_options => $5)"
	for n, types := range []string{
		"", "(text, text, text, text, text)", "(text, json, json, json, json)", "(text, jsonb, jsonb, jsonb, jsonb)",
		"(varchar, varchar, varchar, varchar, varchar)", "(text, jsonb)", "(unknown, json, unknown, text, text)",
	} {
		name := fmt.Sprintf("p%d", n)
		exec(t, conn, "prepare "+name+types+" as "+typedValues+call)
		args, rest := "", ""
		if words := strings.Split(strings.Trim(types, "()"), ", "); len(words) > 1 {
			args, rest = words[1], words[len(words)-1]
		}
		if types == "(text, jsonb)" {
			rest = ""
		}
		// Beyond five executions the plan is one for all parameters.
		for range 7 {
			if got, want := lines(t, conn, "execute "+name+execute)[0], wantTyped(args, rest); got != want {
				t.Errorf("prepared with %s: %s, want %s", types, got, want)
			}
		}
	}
	if got := one[string](t, conn, "select string_agg(parameter_types::text, ' ') from pg_prepared_statements where name = 'p0'"); got !=
		"{text,text,text,text,text}" {
		t.Errorf("parameters that nobody gives a type are %s", got)
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		sql := typedValues + call
		if got := lines(t, conn, sql, mode, "a", typedArgs, typedMeta, typedRetry, typedOptions)[0]; got != wantTyped("", "") {
			t.Errorf("by pgx in mode %s: %s", mode, got)
		}
	}
	// A driver that makes JSON of its values has to know that it is to.
	if got := one[string](t, conn, "select args::text from ojs.enqueue($1, $2::json)", "a", []any{1, "b"}); got != `[1,"b"]` {
		t.Errorf("a list became %s", got)
	}
	if _, err := conn.Exec(t.Context(), "select ojs.enqueue($1, $2)", "a", []any{1, "b"}); err == nil {
		t.Error("pgx makes text of a list: say so in the changelog")
	}
}

func TestEveryTypeOfJSONInTriggers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	for n, c := range []struct{ args, meta string }{
		{"jsonb_build_array(new.id)", "jsonb_build_object('k', new.id)"},
		{"json_build_array(new.id)", "json_build_object('k', new.id)"},
		{"jsonb_build_array(new.id)", "json_build_object('k', new.id)"},
		{"to_jsonb(array[new.id])", "to_jsonb(new) - 'id' || '{\"k\": 7}'"},
		{"format('[%s]', new.id)", "format('{\"k\": %s}', new.id)"},
		{"'[7]'", "'{\"k\": 7}'"},
	} {
		exec(t, d.Pool, fmt.Sprintf(`
			create table public.t%[1]d (id int);
			create function public.f%[1]d() returns trigger language plpgsql as $f$
			begin
				perform ojs.enqueue('t%[1]d', %[2]s, p_meta => %[3]s);
				perform ojs.enqueue('t%[1]d', p_args => %[2]s, p_meta => %[3]s);
				return new;
			end $f$;
			create trigger t after insert on public.t%[1]d for each row execute function public.f%[1]d();
			grant insert on public.t%[1]d to public`, n, c.args, c.meta))
		exec(t, acme, fmt.Sprintf("insert into public.t%d values (7)", n))
		sql := fmt.Sprintf("select args::text, meta::text from ojs.jobs where type = 't%d'", n)
		if got := strings.Join(lines(t, acme, sql), "; "); got != `[7] {"k": 7}; [7] {"k": 7}` {
			t.Errorf("a trigger with %s and %s made %s", c.args, c.meta, got)
		}
	}
	for _, as := range []string{"", "json", "jsonb"} {
		sql := fmt.Sprintf("insert into ojs.jobs (type, args, meta, retry, options) values ('a', %s, '%s', '%s', '%s') returning id",
			asType(typedArgs, as), typedMeta, typedRetry, typedOptions)
		if as != "" {
			sql = fmt.Sprintf("insert into ojs.jobs (type, args, meta, retry, options) values ('a', %s, %s, %s, %s) returning id",
				asType(typedArgs, as), asType(typedMeta, as), asType(typedRetry, as), asType(typedOptions, as))
		}
		id := one[[16]byte](t, acme, sql)
		if got, want := lines(t, acme, typedValues+"ojs.job_info($1)", id)[0], wantTyped(as, as); got != want {
			t.Errorf("%s\n  has %s\n want %s", sql, got, want)
		}
	}
}

// Every other function with JSON in it takes each type, and refuses what is no JSON as it refuses a bad literal.
func TestEveryTypeOfJSONElsewhere(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	jobs := `[{"type": "a", "args": [1,  2]}]`
	for n, as := range jsonTypes {
		id := "'" + one[string](t, service, "select id::text from ojs.enqueue('a', p_queue => 'held')") + "'"
		const held = "ojs.fetch('{held}')"
		for _, c := range []struct {
			q                 querier
			call, value, show string
			want              string
		}{
			{service, "ojs.enqueue_many(%s)", jobs, "args", ""},
			{service, "ojs.enqueue_each(%s)", jobs, "args", ""},
			{service, fmt.Sprintf("ojs.enqueue_once('key%d', %%s)", n), jobs, "args", ""},
			{service, "ojs.register_worker('w', p_metadata => %s)", `{"zone": 1}`, "state", "running"},
			{service, "ojs.beat('w', p_metadata => %s)", `{"zone": 1}`, "state", "running"},
			{service, "ojs.fetch('{none}', p_strategy => 'weighted', p_weights => %s)", `{"none": 2}`, "count(*)", "0"},
			{service, held, "", "id = " + id, "true"},
			{service, "ojs.nack(" + id + ", %s)", `{"message": "m", "code": "DISCARD"}`, "state", "discarded"},
			{service, "ojs.retry(" + id + ", %s)", `{"priority": 3}`, "priority", "3"},
			{service, held, "", "id = " + id, "true"},
			{service, "ojs.ack(" + id + ", p_result => %s)", `{"done":  [1]}`, "result", ""},
			{service, "ojs.settle(%s)", `[{"id": "01890a5d-ac96-774b-bcce-b302099a8057"}]`, "detail ->> 'resource_type'", "job"},
			{operator, "ojs.configure_queue('q', %s)", `{"visibility_timeout": 60}`, "config ->> 'visibility_timeout'", "60"},
			{operator, "ojs.configure_limits('acme', %s)", `{"max_queue_depth": 9}`, "maximum", "9"},
			{operator, "ojs.configure_tier('gold', %s)", `{"priority_boost": 5}`, "config ->> 'priority_boost'", "5"},
			{operator, "ojs.configure_static('tier', 'silver', %s, true)", `{"priority_boost": 5}`, "configure_static", "true"},
			{operator, "ojs.configure_pool('p', %s)", `{"concurrency": 5}`, "max_concurrency", "5"},
			{operator, "ojs.configure_pools(%s)", `{"pools": [{"name": "p", "concurrency": 6}]}`, "max_concurrency", "6"},
			{operator, "ojs.configure(p_default_retry => %s)", `{"max_attempts": 4}`, "default_retry ->> 'max_attempts'", "4"},
			{operator, "ojs.configure(p_tenant_fairness => %s)", `{"default_weight": 1}`, "tenant_fairness ->> 'default_weight'", "1"},
		} {
			if c.value != "" && (as == "" || as == "text") {
				failure := refused(t, c.q, "22P02", "select "+strings.Replace(c.call, "%s", asType(`{"a":`, as), 1))
				if n := strings.Count(failure.Where, "\n"); n > 1 || len(failure.Where) > 600 {
					t.Errorf("%s: a context of %d lines:\n%s", c.call, n+1, failure.Where)
				}
			}
			call := strings.Replace(c.call, "%s", asType(c.value, as), 1)
			got := lines(t, c.q, "select "+c.show+" from "+call)
			if c.show == "args" || c.show == "result" {
				want := map[string]string{"args": "[1,  2]", "result": `{"done":  [1]}`}[c.show]
				if as == "jsonb" {
					want = strings.ReplaceAll(want, "  ", " ")
				}
				got = lines(t, c.q, "select "+c.show+"::text from ojs.job where type = 'a' and "+c.show+"::text = $1 limit 1", want)
				c.want = want
			}
			if len(got) != 1 || got[0] != c.want {
				t.Errorf("%s: %q, want %q", call, got, c.want)
			}
		}
	}
}

func TestEveryTypeOfJSONInBulk(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	for n, list := range []string{
		`'{"[1]","[2]"}'`, `array['[1]', '[2]']`, `array['[1]', '[2]']::text[]`, `array['[1]', '[2]']::varchar[]`,
		`array['[1]', '[2]']::json[]`, `array['[1]', '[2]']::jsonb[]`, `array(select jsonb_build_array(i) from generate_series(1, 2) i)`,
		`array(select json_build_array(i) from generate_series(1, 2) i)`,
	} {
		for m, meta := range []string{"", "jsonb", "json", "text"} {
			for _, kind := range []string{"'%s'", "'%s'::text", "'%s'::varchar"} {
				if strings.Contains(kind, "varchar") && n == 0 {
					continue
				}
				name := strings.Trim(fmt.Sprintf("bulk.n%d.m%d.%s", n, m, strings.Trim(kind, "'%s:")), ".")
				call := fmt.Sprintf("select ojs.enqueue_bulk(%s, %s, p_meta => %s)", fmt.Sprintf(kind, name), list, asType(typedMeta, meta))
				exec(t, acme, call)
				got := strings.Join(lines(t, acme, "select args::text, meta::text from ojs.jobs where type = $1 order by id", name), "; ")
				if got != `[1] {"k": 1}; [2] {"k": 1}` {
					t.Errorf("%s of %s: %s", name, list, got)
				}
			}
		}
	}
	const prepared = "select count(*)::int from ojs.enqueue_bulk($1, $2, p_queue => $3)"
	if got := one[int](t, acme, prepared, "a", []string{"[1]", "[2]"}, "q"); got != 2 {
		t.Errorf("%d jobs of a list", got)
	}
}
