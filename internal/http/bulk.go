package httpapi

import (
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// maxBulk is the largest number of jobs that one bulk request changes.
const maxBulk = 10000

// checkBulk refuses a limit above maxBulk, and a request that is not confirmed.
func checkBulk(o *jsonbody.Object, limit int32, confirm bool) {
	if limit > maxBulk {
		o.Fail(problems.Invalid("limit", "must be an integer between 1 and %d", maxBulk))
	}
	if !confirm {
		o.Fail(problems.Invalid("confirm", "must be true: this changes every job that the filter lets pass"))
	}
}

// checkIDs refuses ids together with a filter, and a list of ids that is empty or too long.
func checkIDs(o *jsonbody.Object, ids []string, filtered bool) {
	switch {
	case ids != nil && filtered:
		o.Fail(problems.Invalid("ids", "does not go with a filter"))
	case ids != nil && (len(ids) == 0 || len(ids) > 1000):
		o.Fail(problems.Invalid("ids", "must name 1 to 1000 jobs"))
	}
}

// bulkError is a job that a bulk request did not change, and why.
type bulkError struct {
	JobID string `json:"job_id"`
	Code  string `json:"code"`
	Error string `json:"error"`
}
