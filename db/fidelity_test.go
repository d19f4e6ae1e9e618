package db_test

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What is not ours to interpret comes back as it was sent.
func TestFidelity(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	const digits = "1234567890123456789012345678901234567890"
	values := []string{
		`[]`, `[ ]`, "[\n\t1 ,2\r\n]", `[` + digits + `]`, `[-0, -0.0, 0e0, 1E+2, 1e-2, 1.0, 1.10, 0.` + digits + `]`,
		`[` + digits + `.` + digits + `e-40]`, `[1e999999]`,
		`[{"z":1,"a":2,"m":{"y":1,"b":2}}]`, `[{"":1," ":2,"\t":3}]`,
		`["\u00e9","é","e\u0301","\ud83d\ude00","😀","\/","/","\\u0000","\\ud800","\"",":","\b\f\n\r\t"]`,
		`[true,false,null,"",{},[]]`, `[{"a":"x:y","b":":"},{"a":1}]`, `["` + "\u2028\u2029\u007f\ufeff" + `"]`,
		strings.Repeat("[", 100) + "1" + strings.Repeat("]", 100), `["` + strings.Repeat("x", 1<<20-4) + `"]`,
		`[{"args": [{"type": "b"}]}]`, `[{"x":[1,2],"X":[1,2]}]`,
		// More than numeric holds behind the point.
		`[{"a":0.` + strings.Repeat("1", 17_000) + `,"b":` + strings.Repeat("1", 17_000) + `}]`,
	}
	for _, args := range values {
		object := `{ "x_only_once" : ` + args + `}`
		if len(object) > 1<<16 || strings.HasPrefix(args, "[[[") {
			object = `{"x_b":1,"x_a":2}`
		}
		for door, call := range map[string]string{
			"enqueue": `
				select id::text
				from ojs.enqueue('a', p_args => $1::text::json, p_options => $2::text::json, p_extra => $3::text::json)`,
			"many": `
				select id::text
				from ojs.enqueue_many((('[{"type": "a", "args": ' || $1::text || ', "options":' || $2::text || ', "extra": '
					|| $3::text || '}]'))::json)`,
			"insert": `
				insert into ojs.jobs (type, args, options, extra) values ('a', $1::text::json, $2::text::json, $3::text::json)
				returning id::text`,
		} {
			id := one[string](t, acme, call, args, object, object)
			for _, c := range []struct{ column, want string }{{"args", args}, {"options", object}, {"extra", object}} {
				for _, from := range []string{"ojs.jobs where id = $1", "ojs.job_info($1)"} {
					if got := one[string](t, acme, "select "+c.column+"::text from "+from, id); got != c.want {
						t.Errorf("%s by %s: sent %.200q, %s has %.200q", c.column, door, c.want, from, got)
					}
				}
			}
		}
	}
	// And through the hands of a worker, the result too.
	for range values {
		held := oneJob(t, d.Service(), "ojs.fetch('{default}')")
		result := values[int(held.ID[len(held.ID)-1])%len(values)]
		if got := one[string](t, acme, `
			select result::text from ojs.ack($1, $2, $3::text::json)`, held.ID, held.Lease, result); got != result {
			t.Errorf("a result of %.200q came back as %.200q", result, got)
		}
	}
	for _, result := range []string{`null`, `"text"`, `5.00`, ` {"b":1, "a":` + digits + `} `} {
		held := oneJob(t, d.Service(), "ojs.fetch('{default}')")
		if got := one[string](t, acme, "select result::text from ojs.ack($1, p_result => $2::text::json)", held.ID, result); got != result {
			t.Errorf("a result of %q came back as %q", result, got)
		}
	}
}

func TestEverythingElseIsKept(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const want = `a.b-c_d.e q.1-x 100 7 2999-01-02 03:04:05.123456+00 2999-01-03 00:00:00+00 0 1000 ` +
		`{"a,b","\"",é} {"n": 1e3, "tenant_id": "acme"} {"jitter": false}`
	const read = `
		select concat_ws(' ', type, queue, priority, max_attempts, scheduled_at at time zone 'UTC' || '+00',
			expires_at at time zone 'UTC' || '+00', timeout_ms, visibility_timeout_ms, tags, meta, retry)
		from `
	for door, from := range map[string]string{
		"enqueue": `
			ojs.enqueue('a.b-c_d.e', '[]', 'q.1-x', 100, '2999-01-02 03:04:05.123456Z', '2999-01-03Z',
				'{"tenant_id": "acme", "n": 1e3}', '{"jitter": false}', 7, 0, 1000, '{"a,b","\"",é}')`,
		"many": `
			ojs.enqueue_many('[{"type": "a.b-c_d.e", "args": [], "queue": "q.1-x", "priority": 100,
				"scheduled_at": "2999-01-02T03:04:05.123456Z", "expires_at": "2999-01-03T02:00:00+02:00",
				"meta": {"tenant_id": "acme", "n": 1e3}, "retry": {"jitter": false}, "max_attempts": 7, "timeout_ms": 0,
				"visibility_timeout_ms": 1000, "tags": ["a,b", "\"", "é"]}]')`,
	} {
		got := one[string](t, d.As("acme"), read+from)
		if got = strings.ReplaceAll(got, "1000}", "1e3}"); strings.ReplaceAll(got, `"n": 1000`, `"n": 1e3`) != want {
			t.Errorf("%s keeps\n  %s, want\n  %s", door, got, want)
		}
	}
}
