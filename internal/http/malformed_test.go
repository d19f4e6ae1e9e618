package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Every request here must be refused with a 4xx that names the field, and leave nothing behind.
// A list where one object is wanted leads to the route that takes several jobs.
func TestAListInPlaceOfAJob(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, path := range []string{"/ojs/v1/jobs", "/ojs/v1/jobs/batch"} {
		r := a.do("POST", path, `[{"type": "a", "args": []}]`).want(400)
		if got := r.text("error.hint"); !strings.Contains(got, "/ojs/v1/jobs/batch") {
			t.Errorf("POST %s hints: %s", path, got)
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits = Limits{Body: 200_000, BatchBody: 400_000, BatchJobs: 20} })

	job := func(fields string) string { return `{"type":"email.send","args":[1],` + fields + `}` }
	options := func(fields string) string { return job(`"options":{` + fields + `}`) }
	retry := func(fields string) string { return options(`"retry":{` + fields + `}`) }
	const anyID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

	type tc struct {
		name   string
		method string // default POST
		path   string // default /ojs/v1/jobs
		body   string
		header string
		field  string
		status int // default any 4xx
	}
	cases := []tc{
		// Not JSON, or not an object.
		{name: "no body", body: "", field: "body", status: 400},
		{name: "blank body", body: "  \n", field: "body", status: 400},
		{name: "not JSON", body: `{ invalid json }`, field: "body", status: 400},
		{name: "truncated", body: `{"type":"a","args":[1`, field: "args", status: 400},
		{name: "array as body", body: `[{"type":"a","args":[]}]`, field: "body", status: 400},
		{name: "string as body", body: `"job"`, field: "body", status: 400},
		{name: "null as body", body: `null`, field: "body", status: 400},
		{name: "number as body", body: `42`, field: "body", status: 400},
		{name: "byte order mark", body: "\xEF\xBB\xBF" + `{"type":"a","args":[]}`, field: "body", status: 400},
		{name: "comment", body: `{"type":"a", /* args */ "args":[]}`, field: "body", status: 400},
		{name: "trailing garbage", body: `{"type":"a","args":[]} x`, field: "body", status: 400},
		{name: "two objects", body: `{"type":"a","args":[]}{"type":"b","args":[]}`, field: "body", status: 400},
		{name: "trailing NUL", body: "{\"type\":\"a\",\"args\":[]}\x00", field: "body", status: 400},
		{name: "UTF-16", body: "{\x00\"\x00}\x00", field: "body", status: 400},
		{name: "single quotes", body: `{'type':'a','args':[]}`, field: "body", status: 400},
		{name: "NaN", body: `{"type":"a","args":[NaN]}`, field: "args[0]", status: 400},
		{name: "hexadecimal", body: `{"type":"a","args":[0x10]}`, field: "args", status: 400},
		{name: "leading zero", body: `{"type":"a","args":[007]}`, field: "args[0]", status: 400},
		{name: "trailing comma", body: `{"type":"a","args":[1,]}`, field: "args[1]", status: 400},
		{name: "too large", body: job(`"meta":{"x":"` + strings.Repeat("x", 200_000) + `"}`), field: "body", status: 413},

		// Text that cannot be stored or would be repaired.
		{name: "raw NUL", body: "{\"type\":\"a\",\"args\":[\"a\x00b\"]}", field: "args[0]", status: 400},
		{name: "escaped NUL in args", body: `{"type":"a","args":[{"x":"a\u0000b"}]}`, field: "args[0].x", status: 400},
		{name: "escaped NUL in a key", body: `{"type":"a","args":[{"x\u0000":1}]}`, field: "args[0]", status: 400},
		{name: "escaped NUL in meta", body: job(`"meta":{"x":"\u0000"}`), field: "meta.x", status: 400},
		{name: "escaped NUL in type", body: `{"type":"a\u0000","args":[]}`, field: "type", status: 400},
		{name: "escaped NUL in an unknown attribute", body: job(`"x_y":"\u0000"`), field: "x_y", status: 400},
		{name: "bad UTF-8 in args", body: "{\"type\":\"a\",\"args\":[\"\xff\xfe\"]}", field: "args[0]", status: 400},
		{name: "bad UTF-8 in a key", body: "{\"type\":\"a\",\"args\":[{\"\xc3\x28\":1}]}", field: "args[0]", status: 400},
		{name: "overlong UTF-8", body: "{\"type\":\"a\",\"args\":[\"\xc0\xaf\"]}", field: "args[0]", status: 400},
		{name: "lone high surrogate", body: `{"type":"a","args":["\ud83d"]}`, field: "args[0]", status: 400},
		{name: "lone low surrogate", body: `{"type":"a","args":["\ude00\ud83d"]}`, field: "args[0]", status: 400},
		{name: "control character", body: "{\"type\":\"a\",\"args\":[\"a\tb\"]}", field: "args[0]", status: 400},
		{name: "unknown escape", body: `{"type":"a","args":["\q"]}`, field: "args[0]", status: 400},
		{name: "repeated key", body: `{"type":"a","args":[],"type":"b"}`, field: "type", status: 400},
		{name: "repeated key, escaped", body: `{"type":"a","args":[],"\u0074ype":"b"}`, field: "type", status: 400},
		{name: "repeated key inside args", body: `{"type":"a","args":[{"x":1,"x":2}]}`, field: "args[0].x", status: 400},
		{
			name: "repeated key inside retry", body: retry(`"max_attempts":1,"max_attempts":2`), field: "options.retry.max_attempts",
			status: 400,
		},
		{name: "too deep", body: `{"type":"a","args":` + nested(100) + `}`, field: "args[0][0]", status: 400},
		{name: "far too deep", body: `{"type":"a","args":` + nested(50_000) + `}`, field: "args[0][0]", status: 400},
		{name: "deep and open", body: `{"type":"a","args":` + strings.Repeat(`[{"a":`, 30_000), field: "args[0].a", status: 400},

		// type and args.
		{name: "no type", body: `{"args":[]}`, field: "type", status: 400},
		{name: "type null", body: `{"type":null,"args":[]}`, field: "type", status: 400},
		{name: "type number", body: `{"type":1,"args":[]}`, field: "type", status: 400},
		{name: "type object", body: `{"type":{},"args":[]}`, field: "type", status: 400},
		{name: "type empty", body: `{"type":"","args":[]}`, field: "type", status: 400},
		{name: "type uppercase", body: `{"type":"Email.Send","args":[]}`, field: "type", status: 400},
		{name: "type with a trailing newline", body: `{"type":"email\n","args":[]}`, field: "type", status: 400},
		{name: "type huge", body: `{"type":"` + strings.Repeat("a", 100_000) + `","args":[]}`, field: "type", status: 400},
		{name: "no args", body: `{"type":"a"}`, field: "args", status: 400},
		{name: "args null", body: `{"type":"a","args":null}`, field: "args", status: 400},
		{name: "args object", body: `{"type":"a","args":{"to":"x"}}`, field: "args", status: 400},
		{name: "args string", body: `{"type":"a","args":"[]"}`, field: "args", status: 400},

		// Other attributes.
		{name: "id number", body: job(`"id":7`), field: "id", status: 400},
		{name: "id no UUID", body: job(`"id":"not-a-uuid"`), field: "id", status: 400},
		{name: "id uppercase", body: job(`"id":"019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F"`), field: "id", status: 400},
		{name: "id of version 4", body: job(`"id":"550e8400-e29b-41d4-a716-446655440000"`), field: "id", status: 400},
		{name: "id in braces", body: job(`"id":"{` + anyID + `}"`), field: "id", status: 400},
		{name: "specversion of the future", body: job(`"specversion":"2.0"`), field: "specversion", status: 422},
		{name: "specversion number", body: job(`"specversion":1.0`), field: "specversion", status: 400},
		{name: "schema number", body: job(`"schema":5`), field: "schema", status: 400},
		{name: "meta array", body: job(`"meta":[]`), field: "meta", status: 400},
		{name: "meta string", body: job(`"meta":"x"`), field: "meta", status: 400},
		{name: "meta too large", body: job(`"meta":{"x":"` + strings.Repeat("x", 70_000) + `"}`), field: "meta", status: 413},
		{name: "meta with a number beyond numeric", body: job(`"meta":{"x":[1e999999]}`), field: "meta.x[0]", status: 400},
		{name: "options array", body: job(`"options":[]`), field: "options", status: 400},
		{name: "options string", body: job(`"options":"queue=a"`), field: "options", status: 400},
		{
			name: "options too large", body: options(`"pace_hint":{"x":"` + strings.Repeat("x", 70_000) + `"}`), field: "options",
			status: 413,
		},
		{name: "metadata array", body: options(`"metadata":[1]`), field: "options.metadata", status: 400},
		{name: "unique string", body: options(`"unique":"key"`), field: "options.unique", status: 400},
		{name: "unique at the top, string", body: job(`"unique":"key"`), field: "unique", status: 400},

		{name: "queue number", body: options(`"queue":5`), field: "options.queue", status: 400},
		{name: "queue empty", body: options(`"queue":""`), field: "options.queue", status: 400},
		{name: "queue uppercase", body: options(`"queue":"Default"`), field: "options.queue", status: 400},
		{name: "queue with a slash", body: options(`"queue":"a/b"`), field: "options.queue", status: 400},
		{name: "queue with a newline", body: options(`"queue":"a\n"`), field: "options.queue", status: 400},
		{name: "queue too long", body: options(`"queue":"` + strings.Repeat("q", 129) + `"`), field: "options.queue", status: 400},
		{name: "queue at the top, bad", body: job(`"queue":"-q"`), field: "queue", status: 400},
		{name: "queue twice, different", body: job(`"queue":"a","options":{"queue":"b"}`), field: "options.queue", status: 400},
		{name: "priority string", body: options(`"priority":"10"`), field: "options.priority", status: 400},
		{name: "priority fraction", body: options(`"priority":1.5`), field: "options.priority", status: 400},
		{name: "priority exponent", body: options(`"priority":1e1`), field: "options.priority", status: 400},
		{name: "priority too high", body: options(`"priority":101`), field: "options.priority", status: 400},
		{name: "priority too low", body: options(`"priority":-101`), field: "options.priority", status: 400},
		{name: "priority beyond 32 bits", body: options(`"priority":2147483648`), field: "options.priority", status: 400},
		{name: "priority of 40 digits", body: options(`"priority":` + strings.Repeat("9", 40)), field: "options.priority", status: 400},
		{name: "priority at the top, bad", body: job(`"priority":[1]`), field: "priority", status: 400},
		{name: "timeout_ms string", body: options(`"timeout_ms":"1s"`), field: "options.timeout_ms", status: 400},
		{name: "timeout_ms negative", body: options(`"timeout_ms":-1`), field: "options.timeout_ms", status: 400},
		{name: "timeout negative", body: job(`"timeout":-1`), field: "timeout", status: 400},
		{name: "timeout beyond milliseconds", body: job(`"timeout":2147484`), field: "timeout", status: 400},
		{name: "timeout disagrees", body: job(`"timeout":5,"options":{"timeout_ms":1000}`), field: "options.timeout_ms", status: 400},
		{
			name: "visibility_timeout_ms zero", body: options(`"visibility_timeout_ms":0`), field: "options.visibility_timeout_ms",
			status: 400,
		},
		{
			name: "visibility_timeout_ms boolean", body: options(`"visibility_timeout_ms":true`), field: "options.visibility_timeout_ms",
			status: 400,
		},
		{
			name: "visibility_timeout_ms too long", body: options(`"visibility_timeout_ms":2147483647`),
			field: "options.visibility_timeout_ms", status: 400,
		},
		{name: "max_attempts string", body: options(`"max_attempts":"3"`), field: "options.max_attempts", status: 400},
		{name: "max_attempts negative", body: options(`"max_attempts":-1`), field: "options.max_attempts"},
		{name: "tags string", body: options(`"tags":"a,b"`), field: "options.tags", status: 400},
		{name: "tags of numbers", body: options(`"tags":["a",1]`), field: "options.tags[1]", status: 400},
		{name: "tags with null", body: options(`"tags":[null]`), field: "options.tags[0]", status: 400},
		{name: "tags with an empty one", body: options(`"tags":["a",""]`), field: "options.tags", status: 400},
		{name: "tag too long", body: options(`"tags":["` + strings.Repeat("t", 256) + `"]`), field: "options.tags", status: 400},
		{name: "pending string", body: options(`"pending":"yes"`), field: "options.pending", status: 400},

		// Times.
		{name: "time number", body: options(`"delay_until":1771000000`), field: "options.delay_until", status: 400},
		{name: "time without offset", body: options(`"delay_until":"2031-05-04T15:00:00"`), field: "options.delay_until", status: 400},
		{name: "time nonsense", body: options(`"scheduled_at":"tomorrow"`), field: "options.scheduled_at", status: 400},
		{name: "time empty", body: options(`"expires_at":""`), field: "options.expires_at", status: 400},
		{name: "date that is none", body: options(`"scheduled_at":"2031-02-30T00:00:00Z"`), field: "options.scheduled_at", status: 400},
		{name: "year zero", body: options(`"scheduled_at":"0000-01-01T00:00:00Z"`), field: "options.scheduled_at", status: 400},
		{name: "year of five digits", body: options(`"scheduled_at":"12031-02-03T00:00:00Z"`), field: "options.scheduled_at", status: 400},
		{name: "infinity", body: options(`"expires_at":"infinity"`), field: "options.expires_at", status: 400},
		{name: "relative nonsense", body: options(`"scheduled_at":"+2 hours"`), field: "options.scheduled_at", status: 400},
		{name: "relative month", body: options(`"scheduled_at":"+P1M"`), field: "options.scheduled_at", status: 400},
		{name: "relative negative", body: options(`"scheduled_at":"+PT-5S"`), field: "options.scheduled_at", status: 400},
		{
			name: "scheduled twice, different", body: options(`"scheduled_at":"2031-01-01T00:00:00Z","delay_until":"2032-01-01T00:00:00Z"`),
			field: "options.delay_until", status: 400,
		},
		{name: "scheduled_at at the top, bad", body: job(`"scheduled_at":"soon"`), field: "scheduled_at", status: 400},

		// Retry policies: SQL's verdict, in the client's spelling.
		{name: "retry array", body: options(`"retry":[3]`), field: "options.retry", status: 400},
		{name: "retry at the top, bad", body: job(`"retry":{"max_attempts":-1}`), field: "retry.max_attempts", status: 422},
		{name: "retry.max_attempts negative", body: retry(`"max_attempts":-1`), field: "options.retry.max_attempts", status: 422},
		{name: "retry.max_attempts fraction", body: retry(`"max_attempts":2.5`), field: "options.retry.max_attempts", status: 422},
		{
			name: "retry.max_attempts huge", body: retry(`"max_attempts":` + strings.Repeat("9", 40)), field: "options.retry.max_attempts",
			status: 422,
		},
		{
			name: "retry.backoff_coefficient below one", body: retry(`"backoff_coefficient":0.5`),
			field: "options.retry.backoff_coefficient", status: 422,
		},
		{
			name: "retry.backoff_coefficient string", body: retry(`"backoff_coefficient":"2"`), field: "options.retry.backoff_coefficient",
			status: 422,
		},
		{
			name: "retry.backoff_coefficient beyond numeric", body: retry(`"backoff_coefficient":1e200000`),
			field: "options.retry.backoff_coefficient", status: 400,
		},
		{
			name: "retry.initial_interval no duration", body: retry(`"initial_interval":"1s"`), field: "options.retry.initial_interval",
			status: 422,
		},
		{
			name: "retry.initial_interval_ms negative", body: retry(`"initial_interval_ms":-5`), field: "options.retry.initial_interval_ms",
			status: 422,
		},
		{name: "retry.max_interval number", body: retry(`"max_interval":5`), field: "options.retry.max_interval", status: 422},
		{name: "retry.jitter number", body: retry(`"jitter":7`), field: "options.retry.jitter", status: 422},
		{
			name: "retry.non_retryable_errors of numbers", body: retry(`"non_retryable_errors":[1]`),
			field: "options.retry.non_retryable_errors", status: 422,
		},
		{name: "retry.on_exhaustion unknown", body: retry(`"on_exhaustion":"explode"`), field: "options.retry.on_exhaustion", status: 422},

		// Tenants.
		{name: "tenant null", body: job(`"meta":{"tenant_id":null}`), field: "meta.tenant_id", status: 400},
		{name: "tenant empty", body: job(`"meta":{"tenant_id":""}`), field: "meta.tenant_id", status: 400},
		{name: "tenant number", body: job(`"meta":{"tenant_id":5}`), field: "meta.tenant_id", status: 400},
		{name: "tenant with a space", body: job(`"meta":{"tenant_id":"a b"}`), field: "meta.tenant_id", status: 400},
		{name: "tenant with a newline", body: job(`"meta":{"tenant_id":"acme\n"}`), field: "meta.tenant_id", status: 400},
		{
			name: "tenant too long", body: job(`"meta":{"tenant_id":"` + strings.Repeat("a", 257) + `"}`), field: "meta.tenant_id",
			status: 400,
		},
		{name: "tenant header bad", body: job(`"meta":{}`), header: "X-OJS-Tenant: a b", field: "X-OJS-Tenant", status: 400},
		{name: "tenant header empty", body: job(`"meta":{}`), header: "X-OJS-Tenant: ", field: "X-OJS-Tenant", status: 400},
		{
			name: "tenant header too long", body: job(`"meta":{}`), header: "X-OJS-Tenant: " + strings.Repeat("a", 257),
			field: "X-OJS-Tenant", status: 400,
		},
		{name: "tenant header reserved", body: job(`"meta":{}`), header: "X-OJS-Tenant: _mine", field: "X-OJS-Tenant", status: 400},
		{
			name: "tenant header reserved, on a read", method: "GET", path: "/ojs/v1/jobs/" + anyID, header: "X-OJS-Tenant-ID: _mine",
			field: "X-OJS-Tenant-ID", status: 400,
		},
		{name: "tenant alias bad", body: job(`"meta":{}`), header: "X-OJS-Tenant-ID: ü", field: "X-OJS-Tenant-ID", status: 400},
		{
			name: "tenant header against body", body: job(`"meta":{"tenant_id":"acme"}`), header: "X-OJS-Tenant: globex",
			field: "meta.tenant_id", status: 400,
		},
		{
			name: "tenant header against options", body: options(`"metadata":{"tenant_id":"acme"}`), header: "X-OJS-Tenant: globex",
			field: "options.metadata.tenant_id", status: 400,
		},

		// Headers.
		{name: "text as content type", body: job(`"meta":{}`), header: "Content-Type: text/plain", field: "Content-Type", status: 400},
		{
			name: "form as content type", body: `type=a`, header: "Content-Type: application/x-www-form-urlencoded", field: "Content-Type",
			status: 400,
		},
		{
			name: "other charset", body: job(`"meta":{}`), header: "Content-Type: application/json; charset=latin1", field: "Content-Type",
			status: 400,
		},
		{
			name: "broken content type", body: job(`"meta":{}`), header: "Content-Type: application/json;;", field: "Content-Type",
			status: 400,
		},
		{name: "compressed body", body: "\x1f\x8b\x08", header: "Content-Encoding: gzip", field: "Content-Encoding", status: 400},
		{name: "unknown version", body: job(`"meta":{}`), header: "OJS-Version: 3.0", field: "OJS-Version", status: 422},
		{name: "huge headers", body: job(`"meta":{}`), header: "X-Huge: " + strings.Repeat("x", 40_000), field: "headers", status: 431},

		// Batches.
		{name: "batch without jobs", path: "/ojs/v1/jobs/batch", body: `{}`, field: "jobs", status: 400},
		{name: "batch of an object", path: "/ojs/v1/jobs/batch", body: `{"jobs":{"type":"a","args":[]}}`, field: "jobs", status: 400},
		{name: "batch null", path: "/ojs/v1/jobs/batch", body: `{"jobs":null}`, field: "jobs", status: 400},
		{name: "batch empty", path: "/ojs/v1/jobs/batch", body: `{"jobs":[]}`, field: "jobs", status: 400},
		{
			name: "batch of strings", path: "/ojs/v1/jobs/batch", body: `{"jobs":[` + job(`"meta":{}`) + `,"b"]}`, field: "jobs[1]",
			status: 400,
		},
		{name: "batch with null", path: "/ojs/v1/jobs/batch", body: `{"jobs":[null]}`, field: "jobs[0]", status: 400},
		{
			name: "batch too long", path: "/ojs/v1/jobs/batch",
			body: `{"jobs":[` + strings.Repeat(`{"type":"a","args":[]},`, 20) + `{"type":"a","args":[]}]}`, field: "jobs", status: 400,
		},
		{
			name: "batch, second without type", path: "/ojs/v1/jobs/batch", body: `{"jobs":[` + job(`"meta":{}`) + `,{"args":[]}]}`,
			field: "jobs[1].type", status: 400,
		},
		{
			name: "batch, second with a bad queue", path: "/ojs/v1/jobs/batch",
			body: `{"jobs":[` + job(`"meta":{}`) + `,` + options(`"queue":"No"`) + `]}`, field: "jobs[1].options.queue", status: 400,
		},
		{
			name: "batch, third with a bad retry", path: "/ojs/v1/jobs/batch",
			body:  `{"jobs":[` + job(`"meta":{}`) + `,` + job(`"meta":{}`) + `,` + retry(`"max_attempts":-1`) + `]}`,
			field: "jobs[2].options.retry.max_attempts", status: 422,
		},
		{
			name: "batch, second of another tenant", path: "/ojs/v1/jobs/batch",
			body: `{"jobs":[` + job(`"meta":{}`) + `,` + job(`"meta":{"tenant_id":"acme"}`) + `]}`, header: "X-OJS-Tenant: globex",
			field: "jobs[1].meta.tenant_id", status: 400,
		},
		{
			name: "batch, same id twice", path: "/ojs/v1/jobs/batch",
			body: `{"jobs":[` + job(`"id":"`+anyID+`"`) + `,` + job(`"id":"`+anyID+`"`) + `]}`, field: "id", status: 409,
		},

		// Workers.
		{name: "fetch without queues", path: "/ojs/v1/workers/fetch", body: `{}`, field: "queues", status: 400},
		{name: "fetch, queues string", path: "/ojs/v1/workers/fetch", body: `{"queues":"default"}`, field: "queues", status: 400},
		{name: "fetch, queues empty", path: "/ojs/v1/workers/fetch", body: `{"queues":[]}`, field: "queues", status: 400},
		{name: "fetch, queue number", path: "/ojs/v1/workers/fetch", body: `{"queues":["a",1]}`, field: "queues[1]", status: 400},
		{name: "fetch, queue empty", path: "/ojs/v1/workers/fetch", body: `{"queues":[""]}`, field: "queues[0]", status: 400},
		{
			name: "fetch, too many queues", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"` + strings.Repeat(`,"a"`, 100) + `]}`,
			field: "queues", status: 400,
		},
		{name: "fetch, count zero", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"count":0}`, field: "count", status: 400},
		{name: "fetch, count string", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"count":"5"}`, field: "count", status: 400},
		{name: "fetch, count too high", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"count":1001}`, field: "count", status: 400},
		{
			name: "fetch, lease too short", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"visibility_timeout_ms":999}`,
			field: "visibility_timeout_ms", status: 400,
		},
		{
			name: "fetch, worker number", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"worker_id":7}`, field: "worker_id",
			status: 400,
		},
		{
			name: "fetch, worker too long", path: "/ojs/v1/workers/fetch",
			body: `{"queues":["a"],"worker_id":"` + strings.Repeat("w", 256) + `"}`, field: "worker_id", status: 400,
		},
		{name: "fetch, wait negative", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"wait_ms":-1}`, field: "wait_ms", status: 400},
		{
			name: "fetch, strategy unknown", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"strategy":"fastest"}`,
			field: "strategy", status: 422,
		},
		{
			name: "fetch, strategy empty", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"strategy":""}`,
			field: "strategy", status: 400,
		},
		{name: "fetch, weight 0", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"weights":{"a":0}}`, field: "weights", status: 422},
		{
			name: "fetch, weights in a list", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"weights":[1]}`,
			field: "weights", status: 400,
		},
		{
			name: "fetch, two tenants", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"]}`, header: "X-OJS-Tenant: a\nX-OJS-Tenant: b",
			field: "X-OJS-Tenant", status: 400,
		},
		{name: "ack without job", path: "/ojs/v1/workers/ack", body: `{}`, field: "job_id", status: 400},
		{name: "ack, job number", path: "/ojs/v1/workers/ack", body: `{"job_id":5}`, field: "job_id", status: 400},
		{name: "ack, job no UUID", path: "/ojs/v1/workers/ack", body: `{"job_id":"x' or 1=1"}`, field: "job_id", status: 400},
		{
			name: "ack, lease no UUID", path: "/ojs/v1/workers/ack", body: `{"job_id":"` + anyID + `","lease":"1"}`, field: "lease",
			status: 400,
		},
		{
			name: "ack, worker object", path: "/ojs/v1/workers/ack", body: `{"job_id":"` + anyID + `","worker_id":{}}`, field: "worker_id",
			status: 400,
		},
		{
			name: "ack, result with NUL", path: "/ojs/v1/workers/ack", body: `{"job_id":"` + anyID + `","result":"\u0000"}`,
			field: "result", status: 400,
		},
		{name: "ack of an unknown job", path: "/ojs/v1/workers/ack", body: `{"job_id":"` + anyID + `"}`, field: anyID, status: 404},
		{name: "ack, jobs string", path: "/ojs/v1/workers/ack", body: `{"jobs":"all"}`, field: "jobs", status: 400},
		{
			name: "ack, worker of many bad", path: "/ojs/v1/workers/ack", body: `{"worker_id":5,"jobs":[{"job_id":"` + anyID + `"}]}`,
			field: "worker_id", status: 400,
		},
		{
			name: "ack by path, other job in the body", path: "/ojs/v1/jobs/" + anyID + "/ack",
			body: `{"job_id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0a"}`, field: "job_id", status: 400,
		},
		{name: "nack without error", path: "/ojs/v1/workers/nack", body: `{"job_id":"` + anyID + `"}`, field: "error", status: 400},
		{
			name: "nack, error string", path: "/ojs/v1/workers/nack", body: `{"job_id":"` + anyID + `","error":"boom"}`, field: "error",
			status: 400,
		},
		{
			name: "nack without message", path: "/ojs/v1/workers/nack", body: `{"job_id":"` + anyID + `","error":{"code":"x"}}`,
			field: "error.message", status: 400,
		},
		{
			name: "nack, message number", path: "/ojs/v1/workers/nack", body: `{"job_id":"` + anyID + `","error":{"message":5}}`,
			field: "error.message", status: 400,
		},
		{
			name: "nack, code number", path: "/ojs/v1/workers/nack", body: `{"job_id":"` + anyID + `","error":{"message":"m","code":5}}`,
			field: "error.code", status: 400,
		},
		{
			name: "nack, retryable string", path: "/ojs/v1/workers/nack",
			body: `{"job_id":"` + anyID + `","error":{"message":"m","retryable":"no"}}`, field: "error.retryable", status: 400,
		},
		{
			name: "nack, requeue string", path: "/ojs/v1/workers/nack",
			body: `{"job_id":"` + anyID + `","error":{"message":"m"},"requeue":"yes"}`, field: "requeue", status: 400,
		},
		{name: "heartbeat without worker", path: "/ojs/v1/workers/heartbeat", body: `{"active_jobs":[]}`, field: "worker_id", status: 400},
		{name: "heartbeat, worker empty", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":""}`, field: "worker_id", status: 400},
		{
			name: "heartbeat, active_jobs string", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","active_jobs":"x"}`,
			field: "active_jobs", status: 400,
		},
		{
			name: "heartbeat, active_jobs fraction", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","active_jobs":1.5}`,
			field: "active_jobs", status: 400,
		},
		{
			name: "heartbeat, state unknown", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","state":"idle"}`, field: "state",
			status: 400,
		},
		{name: "heartbeat, state number", path: "/ojs/v1/workers/beat", body: `{"worker_id":"w","state":1}`, field: "state", status: 400},
		{
			name: "heartbeat, active_jobs negative", path: "/ojs/v1/workers/beat", body: `{"worker_id":"w","active_jobs":-1}`,
			field: "active_jobs", status: 400,
		},
		{
			name: "heartbeat, shutdown string", path: "/ojs/v1/workers/beat", body: `{"worker_id":"w","shutdown":"yes"}`, field: "shutdown",
			status: 400,
		},
		{
			name: "heartbeat, queue bad", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","queues":["A"]}`, field: "queues",
			status: 400,
		},
		{
			name: "heartbeat, labels object", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","labels":{}}`, field: "labels",
			status: 400,
		},
		{
			name: "heartbeat, started_at no time", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","started_at":"now"}`,
			field: "started_at", status: 400,
		},
		{name: "a cost that is text", path: "/ojs/v1/jobs", body: `{"type":"a","args":[],"cost":"5"}`, field: "cost", status: 422},
		{name: "a cost of 0", path: "/ojs/v1/jobs", body: `{"type":"a","args":[],"cost":0,"tags":["x"]}`, field: "cost", status: 422},
		{name: "registration without worker", path: "/ojs/v1/workers/register", body: `{"hostname":"h"}`, field: "worker_id", status: 400},
		{
			name: "registration of two workers", path: "/ojs/v1/workers/register", body: `{"worker_id":"a","worker":{"id":"b"}}`,
			field: "worker.id", status: 400,
		},
		{
			name: "registration, no pool", path: "/ojs/v1/workers/register", body: `{"worker_id":"w","pool":"a b"}`, field: "pool",
			status: 400,
		},
		{
			name: "registration, unknown strategy", path: "/ojs/v1/workers/register", body: `{"worker":{"id":"w","strategy":"fair"}}`,
			field: "strategy", status: 422,
		},
		{name: "FETCH, no pool", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"pool":"a b"}`, field: "pool", status: 400},
		{name: "FETCH, pool number", path: "/ojs/v1/workers/fetch", body: `{"queues":["a"],"pool":1}`, field: "pool", status: 400},
		{
			name: "registration, pid string", path: "/ojs/v1/workers/register", body: `{"worker_id":"w","pid":"1"}`, field: "pid",
			status: 400,
		},
		{
			name: "registration, concurrency 0", path: "/ojs/v1/workers/register", body: `{"worker_id":"w","concurrency":0}`,
			field: "concurrency", status: 400,
		},
		{
			name: "registration, metadata array", path: "/ojs/v1/workers/register", body: `{"worker_id":"w","metadata":[]}`,
			field: "metadata", status: 400,
		},
		{name: "sign-off without worker", path: "/ojs/v1/workers/deregister", body: `{}`, field: "worker_id", status: 400},
		{
			name: "heartbeat, lease too short", path: "/ojs/v1/workers/heartbeat", body: `{"worker_id":"w","visibility_timeout_ms":10}`,
			field: "visibility_timeout_ms", status: 400,
		},

		// Paths and queries.
		{name: "job id no UUID", method: "GET", path: "/ojs/v1/jobs/nonsense", field: "id", status: 404},
		{name: "job id uppercase", method: "GET", path: "/ojs/v1/jobs/" + strings.ToUpper(anyID), field: "id", status: 404},
		{name: "job id with NUL", method: "DELETE", path: "/ojs/v1/jobs/%00", field: "id", status: 404},
		{name: "cancel of an unknown job", method: "DELETE", path: "/ojs/v1/jobs/" + anyID, field: anyID, status: 404},
		{name: "activate of an unknown job", path: "/ojs/v1/jobs/" + anyID + "/activate", field: anyID, status: 404},
		{name: "queue no name", method: "GET", path: "/ojs/v1/queues/%ff/stats", field: "queue", status: 404},
		{name: "limit no number", method: "GET", path: "/ojs/v1/queues?limit=all", field: "limit", status: 400},
		{name: "limit too high", method: "GET", path: "/ojs/v1/events?limit=100000", field: "limit", status: 400},
		{name: "events of a queue with NUL", method: "GET", path: "/ojs/v1/events?queues=a%00b", field: "queues", status: 400},
		{name: "tenant with bad UTF-8", method: "GET", path: "/ojs/v1/admin/tenants/%c3%28", field: "tenant", status: 404},
	}
	if len(cases) < 80 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := *a
			a.t = t
			if c.method == "" {
				c.method = http.MethodPost
			}
			if c.path == "" {
				c.path = "/ojs/v1/jobs"
			}
			var headers []string
			if c.header != "" {
				headers = strings.Split(c.header, "\n")
			}
			r := a.do(c.method, c.path, c.body, headers...)
			if r.status < 400 || r.status > 499 || c.status != 0 && r.status != c.status {
				t.Fatalf("status %d, want %d: %.500s", r.status, c.status, r.body)
			}
			field := r.text("error.details.field")
			if field != c.field && !strings.HasPrefix(field, c.field) && !strings.Contains(r.text("error.message"), c.field) {
				t.Errorf("does not name %q: %.500s", c.field, r.body)
			}
			if len(r.body) > 2000 {
				t.Errorf("echoes %d bytes", len(r.body))
			}
			wantErrorShape(r)
		})
	}
	for _, table := range []string{"job", "journal", "lease", "tenant", "queue"} {
		if n := a.count("select count(*) from ojs." + table); n != 0 {
			t.Errorf("%d rows in ojs.%s", n, table)
		}
	}
}

// Of several faults the same is named each time.
func TestWhichOfSeveralFaultsIsNamed(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/jobs?type=%00&state=%00&queue=%00&cursor=%00", "", "cursor"},
		{"GET", "/jobs?until=soon&since=soon", "", "since"},
		{"GET", "/dead-letter?type=%00&queue=%00&older_than=%00&error_type=%00", "", "error_type"},
		{"GET", "/dead-letter?until=soon&since=soon", "", "since"},
		{"GET", "/admin/audit?action=%00&actor=%00", "", "action"},
		{"PUT", "/admin/tenants/acme/limits", `{"tenant": "b", "tenant_id": "c", "max_concurrency": 1}`, "tenant_id"},
		{"POST", "/dead-letter/retry?type=a&queue=b&limit=2", `{"confirm": true}`, "limit"},
	} {
		for range 20 {
			if r := a.do(c.method, v1+c.path, c.body); r.status < 400 || r.status > 422 || r.text("error.details.field") != c.field {
				t.Errorf("%s names %s, want %s", c.path, r.text("error.details.field"), c.field)
				break
			}
		}
	}
}

// wantErrorShape checks what every error must have.
func wantErrorShape(r *reply) {
	r.t.Helper()
	for _, path := range []string{"error.code", "error.message", "error.request_id", "error.docs_url"} {
		if r.text(path) == "" {
			r.t.Errorf("%s is missing: %.500s", path, r.body)
		}
	}
	if _, ok := r.get("error.retryable").(bool); !ok {
		r.t.Errorf("error.retryable is missing: %.500s", r.body)
	}
	if _, ok := r.get("error.details").(map[string]any); !ok {
		r.t.Errorf("error.details is missing: %.500s", r.body)
	}
	wantHeaders(r)
	if r.header.Get(requestIDHeader) != r.text("error.request_id") {
		r.t.Errorf("request id %q in the header, %q in the body", r.header.Get(requestIDHeader), r.text("error.request_id"))
	}
}

func wantHeaders(r *reply) {
	r.t.Helper()
	if got := r.header.Get("Content-Type"); got != jsonbody.ContentType {
		r.t.Errorf("Content-Type %q", got)
	}
	if got := r.header.Get("OJS-Version"); got != "1.0" {
		r.t.Errorf("OJS-Version %q", got)
	}
	if r.header.Get(requestIDHeader) == "" {
		r.t.Error("no request id")
	}
}

// The reader's limits hold where a request is big but harmless.
func TestLargeButFine(t *testing.T) {
	t.Parallel()
	a := start(t)
	var deep any = 1
	for range 97 {
		deep = []any{deep}
	}
	args, err := json.Marshal([]any{deep, strings.Repeat("é", 300_000), map[string]any{"k": make([]int, 10_000)}})
	if err != nil {
		t.Fatal(err)
	}
	id := a.push(fmt.Sprintf(`{"type":"big","args":%s}`, args))
	if got := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200); !strings.Contains(got.body, string(args)) {
		t.Error("the arguments came back different")
	}
}

// noBodies are routes that ignore the body.
var noBodies = []string{"POST /ojs/v1/admin/jobs/bulk/delete", "DELETE /ojs/v1/admin/queues/:name/jobs"}

// A body that is no object is refused by every route, also by those that need none, and so is one that names a tenant.
func TestBodiesOfEveryRoute(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[]}`)
	for _, route := range a.srv.handler.(*echo.Echo).Routes() {
		name := route.Method + " " + route.Path
		if route.Method == http.MethodGet || route.Method == http.MethodHead || strings.HasPrefix(route.Method, "echo") ||
			slices.Contains(noBodies, name) {
			continue
		}
		path := strings.NewReplacer(":id", id, ":name", "default").Replace(route.Path)
		for _, body := range []string{`[]`, `null`, `{`, ` `} {
			if r := a.do(route.Method, path, body); r.status != 400 || r.get("error.details.field") != "body" {
				t.Errorf("%s %s: %d %s", name, body, r.status, r.body)
			}
		}
	}
	for _, path := range []string{"jobs/" + id + "/activate", "jobs/" + id + "/cancel", "cron/c/trigger", "admin/workers/w/quiet"} {
		a.do("POST", "/ojs/v1/"+path, `{"tenant_id":"acme"}`).want(400).is(map[string]any{
			"error.details.field": "tenant_id", "error.details.meant": "X-OJS-Tenant",
		})
		a.do("POST", "/ojs/v1/"+path, `{"resaon":"x"}`).want(400).is(map[string]any{"error.details.meant": "reason"})
	}
	if state := a.do("GET", "/ojs/v1/jobs/"+id, "").text("job.state"); state != "available" {
		t.Errorf("the job is %s", state)
	}
	a.do("POST", "/ojs/v1/admin/dispatch/hold", `{"reason":"an outage"}`).want(200)
	if got := pgtest.One[string](t, a.pool, "select reason from ojs.audit_trail order by n desc limit 1"); got != "an outage" {
		t.Errorf("the audit trail has the reason %q", got)
	}
	a.do("DELETE", "/ojs/v1/jobs/"+id, `{"why":"not needed"}`).want(400).is(map[string]any{"error.details.field": "why"})
	a.do("DELETE", "/ojs/v1/jobs/"+id, `{"reason":"not needed","x_tenant":"acme"}`).want(200)
}
