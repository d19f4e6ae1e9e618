package kit

import (
	"fmt"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// The codes a request can fail with before SQL has seen it. Status, retryable and hint stand in
// ojs.problem, where SQL's own errors have theirs.
const (
	codeInvalidPayload     = "invalid_payload"
	CodeInvalidRequest     = "invalid_request"
	CodeNotFound           = "not_found"
	CodeDuplicate          = "duplicate"
	codeTooLarge           = "payload_too_large"
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
	codeQueueFull          = "QUEUE_FULL"
)

// Refuse is an error about a field, with a code of ojs.problem, which has its status; the message stands by itself.
func Refuse(code, field, format string, args ...any) *pg.Error {
	return &pg.Error{Code: code, Message: fmt.Sprintf(format, args...), Details: map[string]any{"field": field}}
}

// Invalid is the refusal of a field for what the message, which follows its name, says about it.
func Invalid(field, format string, args ...any) *pg.Error {
	return Refuse(CodeInvalidRequest, field, "%s %s", field, fmt.Sprintf(format, args...))
}

// NoSuch is the refusal of a name that stands for nothing.
func NoSuch(what, name string) *pg.Error {
	return &pg.Error{
		Code: CodeNotFound, Message: what + " " + Clip(name) + " does not exist",
		Details: map[string]any{"resource_type": what, "resource_id": Clip(name)},
	}
}
