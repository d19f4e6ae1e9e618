// Package problems makes the errors that a request can end with before SQL has seen it.
package problems

import (
	"fmt"
	"strings"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// The codes that a request can fail with before SQL has seen it. Their status, hint and whether the
// client may retry stand in ojs.problem, as those of SQL's own errors do.
const (
	CodeInvalidPayload     = "invalid_payload"
	CodeInvalidRequest     = "invalid_request"
	CodeNotFound           = "not_found"
	CodeDuplicate          = "duplicate"
	CodeTooLarge           = "payload_too_large"
	CodeUnsupported        = "unsupported"
	CodeTenantMismatch     = "TENANT_MISMATCH"
	CodeAmbiguousJob       = "ambiguous_job"
	CodeTenantAccessDenied = "TENANT_ACCESS_DENIED"
	CodeUnauthorized       = "unauthorized"
	CodeForbidden          = "forbidden"
	CodeResultPruned       = "RESULT_PRUNED"
	CodeTimeout            = "timeout"
	CodeAway               = "backend_unavailable"
	CodeLimit              = "TENANT_LIMIT_EXCEEDED"
	CodeQueueFull          = "QUEUE_FULL"
)

// Refuse returns an error about a field. Its status is the one that ojs.problem has for code. The
// message is complete: the name of the field is not added to it.
func Refuse(code, field, format string, args ...any) *pg.Error {
	return &pg.Error{Code: code, Message: fmt.Sprintf(format, args...), Field: field}
}

// Forbidden returns the refusal of something that a credential does not allow. about is added to
// the details.
func Forbidden(field, hint string, about map[string]any, format string, args ...any) *pg.Error {
	err := Refuse(CodeForbidden, field, format, args...)
	err.Hint = hint
	err.Details = about
	return err
}

// Hints for a client whose credential is not sufficient.
const (
	HintQueue     = "Use a credential that is for this queue, or for all."
	HintAllQueues = "Use a credential that is for all queues."
	HintOperator  = "Use an operator's credential, which is no tenant's."
)

// Invalid returns the refusal of a field. Its message is the name of the field and then the text.
func Invalid(field, format string, args ...any) *pg.Error {
	return Refuse(CodeInvalidRequest, field, "%s %s", field, fmt.Sprintf(format, args...))
}

// missHints holds hints for things that do not exist, by kind. For a job the hint is in
// ojs.problem.
var missHints = map[string]string{
	"worker":   "Check the id; a worker that has not been heard of for long is forgotten.",
	"pool":     "Check the name; the list of pools shows those that there are.",
	"queue":    "Check the name; the list of queues shows those that there are.",
	"tenant":   "Check the id; the list of tenants shows those that there are.",
	"usage":    "A tenant has a row once an hour in which it used something has ended.",
	"tier":     "Check the name; the list of tiers shows those that there are.",
	"api_key":  "Check the id; the list of keys shows it.",
	"cron job": "Check the name, and whose cron job it is; the list of cron jobs shows those that there are.",
}

// NoSuch returns the error for a name or an id of something that does not exist.
func NoSuch(what, name string) *pg.Error {
	return &pg.Error{
		Code: CodeNotFound, Message: what + " " + Clip(name) + " does not exist", Hint: missHints[what],
		Details: map[string]any{"resource_type": what, "resource_id": Clip(name)},
	}
}

// Clip shortens a text of a client to 64 bytes, for messages.
func Clip(s string) string {
	const longest = 64
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "..."
}
