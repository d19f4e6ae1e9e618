package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// contract names the schemas of a route: of its body, and of its answers by status.
type contract struct {
	body    string // empty: the route takes no body
	answers map[int]string
}

// plainText stands for an answer that is no JSON.
const plainText = "text"

// contracts has a line for each route that has no other name: its schemas. - stands for no body.
var contracts = sync.OnceValue(func() map[string]contract {
	all := map[string]contract{}
	for line := range strings.Lines(`
		GET /ojs/manifest                      -                       200 Manifest
		GET /health                            -                       200 Health
		GET /ready                             -                       200 Ready               503 Ready
		GET /metrics                           -                       200 text
		GET /ojs/v1/health                     -                       200 Health              503 Health
		GET /ojs/v1/ready                      -                       200 Ready               503 Ready

		POST /ojs/v1/jobs                      EnqueueRequest          201 JobAnswer
		POST /ojs/v1/jobs/batch                BatchRequest            201 BatchAnswer         207 BatchAnswer
		GET /ojs/v1/jobs                       -                       200 JobList
		GET /ojs/v1/jobs/:id                   -                       200 JobAnswer
		GET /ojs/v1/admin/jobs/:id             -                       200 Job
		PATCH /ojs/v1/jobs/:id                 PatchJobRequest         200 Job
		DELETE /ojs/v1/jobs/:id                ReasonRequest           200 JobAnswer
		POST /ojs/v1/jobs/:id/cancel           ReasonRequest           200 JobAnswer
		POST /ojs/v1/jobs/:id/activate         ReasonRequest           200 JobAnswer
		POST /ojs/v1/jobs/:id/retry            RetryRequest            200 JobAnswer
		GET /ojs/v1/jobs/:id/result            -                       200 ResultAnswer
		POST /ojs/v1/jobs/results              ResultsRequest          200 ResultsAnswer
		GET /ojs/v1/admin/tenants/:id/jobs     -                       200 JobList
		GET /ojs/v1/admin/jobs/:id/explain     -                       200 Explanation
		POST /ojs/v1/admin/jobs/bulk/cancel    CancelManyRequest       200 CancelManyAnswer
		POST /ojs/v1/admin/jobs/bulk/retry     RetryManyRequest        200 RetryManyAnswer
		POST /ojs/v1/admin/jobs/bulk/delete    -
		POST /ojs/v1/admin/erase               EraseRequest            200 EraseAnswer
		DELETE /ojs/v1/admin/queues/:name/jobs -

		POST /ojs/v1/workers/fetch             FetchRequest            200 JobsAnswer
		POST /ojs/v1/workers/ack               AckRequest              200 AcksAnswer
		POST /ojs/v1/workers/nack              NackRequest             200 NacksAnswer
		POST /ojs/v1/jobs/:id/ack              JobAckRequest           200 AckAnswer
		POST /ojs/v1/jobs/:id/nack             JobNackRequest          200 NackAnswer
		POST /ojs/v1/workers/heartbeat         HeartbeatRequest        200 HeartbeatAnswer
		POST /ojs/v1/workers/register          RegisterRequest         200 RegisterAnswer
		POST /ojs/v1/workers/deregister        DeregisterRequest       200 DeregisterAnswer
		GET /ojs/v1/workers                    -                       200 WorkerList
		GET /ojs/v1/workers/:id/health         -                       200 WorkerHealth        503 WorkerHealthOrError
		GET /ojs/v1/admin/workers/:id          -                       200 Worker
		POST /ojs/v1/admin/workers/:id/quiet   ReasonRequest           200 Worker
		POST /ojs/v1/admin/workers/:id/directive DirectiveRequest      200 Worker
		POST /ojs/v1/admin/workers/directive   DirectiveRequest        200 DirectWorkersAnswer
		DELETE /ojs/v1/admin/workers/:id       ReasonRequest           200 RemoveWorkerAnswer

		POST /ojs/v1/queues                    CreateQueueRequest      201 QueueConfigAnswer
		GET /ojs/v1/queues                     -                       200 QueueList
		GET /ojs/v1/queues/:name               -                       200 QueueAnswer
		DELETE /ojs/v1/queues/:name            DeleteQueueRequest      200 DeleteQueueAnswer
		GET /ojs/v1/queues/:name/stats         -                       200 QueueStatsAnswer
		GET /ojs/v1/queues/:name/config        -                       200 QueueConfigAnswer
		PUT /ojs/v1/queues/:name/config        QueueConfigRequest      200 QueueConfigAnswer
		PATCH /ojs/v1/queues/:name/config      QueueConfigRequest      200 QueueConfigAnswer
		POST /ojs/v1/queues/:name/pause        ReasonRequest           200 PauseQueueAnswer
		POST /ojs/v1/queues/:name/resume       ReasonRequest           200 PauseQueueAnswer
		PUT /ojs/v1/admin/queues/:name/limits  QueueLimitsRequest      200 QueueLimitsAnswer

		GET /ojs/v1/cron                       -                       200 CronList
		POST /ojs/v1/cron                      CronJobRequest          201 CronAnswer          200 CronAnswer
		GET /ojs/v1/cron/:name                 -                       200 CronAnswer
		PUT /ojs/v1/cron/:name                 CronJobRequest          201 CronAnswer          200 CronAnswer
		PATCH /ojs/v1/cron/:name               PatchCronRequest        200 CronAnswer
		DELETE /ojs/v1/cron/:name              ReasonRequest           200 DeleteCronAnswer
		POST /ojs/v1/cron/:name/pause          ReasonRequest           200 CronAnswer
		POST /ojs/v1/cron/:name/resume         ReasonRequest           200 CronAnswer
		POST /ojs/v1/cron/:name/trigger        ReasonRequest           201 JobAnswer
		GET /ojs/v1/cron/:name/history         -                       200 CronHistory

		GET /ojs/v1/dead-letter                -                       200 DeadLetterList
		DELETE /ojs/v1/dead-letter             DeadLetterRequest       200 PurgeDeadLettersAnswer
		POST /ojs/v1/dead-letter/purge         DeadLetterRequest       200 PurgeDeadLettersAnswer
		POST /ojs/v1/dead-letter/retry         DeadLetterRequest       200 RetryDeadLettersAnswer
		GET /ojs/v1/dead-letter/stats          -                       200 DeadLetterStats
		GET /ojs/v1/dead-letter/:id            -                       200 JobAnswer
		DELETE /ojs/v1/dead-letter/:id         ReasonRequest           200 DeleteDeadLetterAnswer
		POST /ojs/v1/dead-letter/:id/retry     RetryRequest            200 JobAnswer
		GET /ojs/v1/admin/dead-letter/:id      -                       200 Job
		DELETE /ojs/v1/admin/dead-letter/:id   ReasonRequest           204 -

		GET /ojs/v1/admin/tenants              -                       200 TenantList
		GET /ojs/v1/admin/tenants/:id          -                       200 Tenant
		PUT /ojs/v1/admin/tenants/:id          TenantRequest           201 Tenant              200 Tenant
		DELETE /ojs/v1/admin/tenants/:id       DeregisterTenantRequest 202 DeregisterTenantAnswer
		GET /ojs/v1/admin/tenants/:id/stats    -                       200 TenantStats
		POST /ojs/v1/admin/tenants/:id/suspend OnlyReasonRequest       200 Tenant
		POST /ojs/v1/admin/tenants/:id/unsuspend OnlyReasonRequest     200 Tenant
		PUT /ojs/v1/admin/tenants/:id/limits   TenantLimitsRequest     200 TenantLimitsAnswer
		POST /ojs/v1/admin/tenants/:id/pause   PauseTenantRequest      200 PauseTenantAnswer
		POST /ojs/v1/admin/tenants/:id/resume  PauseTenantRequest      200 PauseTenantAnswer
		POST /ojs/v1/admin/tenants/:id/throttle ThrottleRequest        200 ThrottleAnswer
		DELETE /ojs/v1/admin/tenants/:id/throttle ReasonRequest        200 ReleaseThrottleAnswer
		PUT /ojs/v1/admin/tenants/:id/tier     SetTierRequest          200 SetTierAnswer
		GET /ojs/v1/admin/rules                -                       200 RuleList
		GET /ojs/v1/admin/throttles            -                       200 ThrottleList
		GET /ojs/v1/admin/neighbours           -                       200 NeighboursAnswer
		PUT /ojs/v1/admin/neighbours           NeighbourWatchRequest   200 NeighbourWatchAnswer
		GET /ojs/v1/admin/tiers                -                       200 TierList
		GET /ojs/v1/admin/tiers/:name          -                       200 Tier
		PUT /ojs/v1/admin/tiers/:name          TierRequest             200 Tier
		DELETE /ojs/v1/admin/tiers/:name       ConfirmRequest          200 RemovedAnswer

		GET /ojs/v1/admin/settings             -                       200 Settings
		PUT /ojs/v1/admin/settings             SettingsRequest         200 Settings

		GET /ojs/v1/admin/pools                -                       200 PoolList
		GET /ojs/v1/admin/pools/:name          -                       200 PoolAnswer
		PUT /ojs/v1/admin/pools/:name          PoolRequest             200 PoolAnswer
		DELETE /ojs/v1/admin/pools/:name       ConfirmRequest          200 RemovedAnswer

		GET /ojs/v1/admin/api-keys             -                       200 APIKeyList
		POST /ojs/v1/admin/api-keys            CreateKeyRequest        201 NewAPIKey
		POST /ojs/v1/admin/api-keys/:id/rotate RotateKeyRequest        201 NewAPIKey
		DELETE /ojs/v1/admin/api-keys/:id      OnlyReasonRequest       200 APIKey

		GET /ojs/v1/events                     -                       200 EventList
		GET /ojs/v1/admin/audit                -                       200 AuditList
		GET /ojs/v1/usage                      -                       200 UsageList
		GET /ojs/v1/usage/latest               -                       200 UsageBatch
		GET /ojs/v1/usage/verify               -                       200 UsageVerdict
		GET /ojs/v1/admin/doctor               -                       200 DoctorAnswer
		GET /ojs/v1/admin/blocked              -                       200 BlockedList
		GET /ojs/v1/admin/stats                -                       200 Stats
		GET /ojs/v1/admin/scheduling/stats     -                       200 SchedulingStats
		GET /ojs/v1/admin/scheduling/tenants   -                       200 TenantShares
		GET /ojs/v1/admin/dispatch             -                       200 DispatchAnswer
		POST /ojs/v1/admin/dispatch/hold       ReasonRequest           200 DispatchAnswer
		POST /ojs/v1/admin/dispatch/resume     ReasonRequest           200 DispatchAnswer
	`) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		c := contract{answers: map[int]string{}}
		if words[2] != "-" {
			c.body = words[2]
		}
		for i := 3; i+1 < len(words); i += 2 {
			status, err := strconv.Atoi(words[i])
			if err != nil {
				panic(err)
			}
			if c.answers[status] = words[i+1]; words[i+1] == "-" {
				c.answers[status] = ""
			}
		}
		all[words[0]+" "+words[1]] = c
	}
	return all
})

// otherNames are prefixes of routes that have two names, each with the prefix of the name that
// contracts knows.
var otherNames = [][2]string{
	{"/ojs/v1/crons", "/ojs/v1/cron"},
	{"/ojs/v1/admin/dead-letter", "/ojs/v1/dead-letter"},
	{"/ojs/v1/admin/queues", "/ojs/v1/queues"},
	{"/ojs/v1/admin/jobs", "/ojs/v1/jobs"},
	{"/ojs/v1/admin/workers", "/ojs/v1/workers"},
	{"/ojs/v1/admin/usage", "/ojs/v1/usage"},
	{"/ojs/v1/workers/beat", "/ojs/v1/workers/heartbeat"},
	{"/ojs/v1/admin/observability/health", "/ojs/v1/health"},
}

// contractOf returns the schemas of a route.
func contractOf(method, path string) (contract, bool) {
	all := contracts()
	if c, ok := all[method+" "+path]; ok {
		return c, true
	}
	for _, names := range otherNames {
		if rest, ok := strings.CutPrefix(path, names[0]); ok && (rest == "" || rest[0] == '/') {
			c, ok := all[method+" "+names[1]+rest]
			return c, ok
		}
	}
	return contract{}, false
}

// validators compiles all schemas. They are strict: today's answers have no members that the
// document does not name.
var validators = sync.OnceValue(func() map[string]*jsonschema.Schema {
	all := map[string]any{}
	schemas := componentSchemas(errorCodes)
	for name, n := range schemas {
		all[name] = strict(n.schema)
	}
	const url = "mem:///openapi"
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	raw, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": all}})
	if err != nil {
		panic(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		panic(err)
	}
	if err := c.AddResource(url, doc); err != nil {
		panic(err)
	}
	compiled := map[string]*jsonschema.Schema{}
	for name := range schemas {
		compiled[name] = c.MustCompile(url + "#/components/schemas/" + name)
	}
	return compiled
})

// errorCodes are the codes of ojs.problem, which TestGoldenExamples compares with the database.
var errorCodes = []string{
	"QUEUE_FULL", "RESULT_PRUNED", "RESULT_TOO_LARGE", "TENANT_ACCESS_DENIED", "TENANT_LIMIT_EXCEEDED",
	"TENANT_MISMATCH", "TENANT_REQUIRED",
	"TENANT_SUSPENDED", "TENANT_UNKNOWN", "ambiguous_job", "backend_unavailable", "conflict", "duplicate",
	"forbidden", "internal_error",
	"invalid_payload", "invalid_request", "not_found", "payload_too_large", "timeout", "unauthorized", "unsupported",
	"validation_error",
}

// checkContract checks an exchange with the schemas of docs/openapi.yaml: every answer, and every
// body that the server has accepted. The requests of api and of room come through here.
func checkContract(t *testing.T, e *echo.Echo, req *http.Request, body string, r *reply) {
	t.Helper()
	route := e.NewContext(req, nil)
	e.Router().Find(req.Method, echo.GetPath(req), route)
	known, ok := contractOf(req.Method, route.Path())
	if !ok || r.value == nil {
		return // a route that does not exist, or no body; TestContractsAreThoseOfRoutes knows all routes
	}
	name := known.answers[r.status]
	if name == "" && r.status >= 400 {
		name = "Error"
	}
	if name == "" {
		t.Errorf("docs/openapi.yaml has no answer %d of %s %s", r.status, req.Method, route.Path())
		return
	}
	if err := validators()[name].Validate(plain(r.value)); err != nil {
		t.Errorf("the answer of %s %s is no %s: %v in %.2000s", req.Method, route.Path(), name, err, r.body)
	}
	failed, _ := r.get("failed").(json.Number)
	if body == "" || known.body == "" || r.status >= 300 || failed != "" && failed != "0" || r.get("jobs_refused") != nil {
		return // an item of a batch that is malformed fails by itself
	}
	sent, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		return // an error report that is no JSON is repaired
	}
	if err := validators()[known.body].Validate(sent); err != nil {
		t.Errorf("the body of %s %s was accepted, but is no %s: %v in %.2000s", req.Method, route.Path(), known.body, err, body)
	}
}

// plain returns a value as the validator reads it: with numbers that have all their digits.
func plain(v any) any {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		panic(err)
	}
	return out
}

// Every route has a line in contracts, and every line a route and schemas.
func TestContractsAreThoseOfRoutes(t *testing.T) {
	t.Parallel()
	unused := maps.Clone(contracts())
	used := map[string]bool{"Error": true}
	schemas := componentSchemas(errorCodes)
	for _, name := range describe(schemas) {
		t.Errorf("there is no description of %s", name)
	}
	for path, methods := range start(t).paths() {
		for _, method := range methods {
			c, ok := contractOf(method, path)
			if !ok {
				t.Errorf("there is no contract of %s %s", method, path)
			}
			delete(unused, method+" "+path)
			for _, name := range append([]string{c.body}, mapValues(c.answers)...) {
				if used[name] = true; name != "" && name != plainText && schemas[name].schema == nil {
					t.Errorf("%s %s: there is no schema %s", method, path, name)
				}
			}
		}
	}
	for name := range unused {
		t.Errorf("there is no route %s", name)
	}
	var text strings.Builder
	for _, n := range schemas {
		if err := json.NewEncoder(&text).Encode(n.schema); err != nil {
			t.Fatal(err)
		}
	}
	for name := range schemas {
		if !used[name] && !strings.Contains(text.String(), `#/components/schemas/`+name+`"`) {
			t.Errorf("nothing has the schema %s", name)
		}
	}
}

// Jobs have the attributes that the server writes, and jobs and cron jobs are sent with the fields
// that the server compares misspelt names with.
func TestSchemasHaveTheNamesOfEnvelopes(t *testing.T) {
	t.Parallel()
	schemas := componentSchemas(errorCodes)
	for name, want := range map[string][]string{
		"Job": slices.Sorted(maps.Keys(written)), "CronJobRequest": cronNames,
		"EnqueueRequest": append(slices.Clone(envelopeNames), idempotencyField),
	} {
		properties := schemas[name].schema["properties"].(map[string]schema)
		for _, field := range want {
			if properties[field] == nil {
				t.Errorf("%s has no %s", name, field)
			}
		}
		for field := range properties {
			if !slices.Contains(want, field) {
				t.Errorf("%s has %s, which the server does not know", name, field)
			}
		}
	}
}

func mapValues(m map[int]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// isClosed reports whether a schema refuses members that it does not name.
func isClosed(schemas map[string]named, s schema) bool {
	if to, ok := s["$ref"].(string); ok {
		return isClosed(schemas, schemas[to[strings.LastIndex(to, "/")+1:]].schema)
	}
	if of, ok := s["anyOf"].([]schema); ok {
		return !slices.ContainsFunc(of, func(s schema) bool { return !isClosed(schemas, s) })
	}
	return s["additionalProperties"] == false
}

// The server refuses an unknown member of a body exactly where the schema does.
func TestUnknownMembersAreRefusedWhereTheSchemaSays(t *testing.T) {
	t.Parallel()
	a := start(t)
	schemas := componentSchemas(errorCodes)
	values := map[string]string{"priority": "1", "scopes": `["read"]`, "name": `"new"`, "tier": "null"} // that are looked at first
	id, closed, open := a.push(`{"type":"a","args":[]}`), 0, 0
	for path, methods := range a.paths() {
		for _, method := range methods {
			c, _ := contractOf(method, path)
			if c.body == "" {
				continue
			}
			to := strings.NewReplacer(":id", id, ":name", "default").Replace(path)
			sent := `{"zqzqzq":1`
			required, _ := schemas[c.body].schema["required"].([]string)
			for _, name := range required {
				if value, known := values[name]; known {
					sent += fmt.Sprintf(",%q:%s", name, value)
				}
			}
			r := a.do(method, to, sent+"}")
			field, _ := r.get("error.details.field").(string)
			refused := r.status >= 400 && strings.HasSuffix(field, "zqzqzq")
			switch want := isClosed(schemas, schemas[c.body].schema); {
			case want && !refused && field != "confirm" && r.status != http.StatusNotFound:
				t.Errorf("%s %s takes an unknown member, and %s is closed: %d %s", method, path, c.body, r.status, r.body)
			case !want && refused:
				t.Errorf("%s %s refuses an unknown member, and %s is open: %s", method, path, c.body, r.body)
			case want:
				closed++
			default:
				open++
			}
		}
	}
	if closed < 60 || open < 5 {
		t.Errorf("only %d closed and %d open bodies were sent", closed, open)
	}
}
