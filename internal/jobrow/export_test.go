package jobrow

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Fields are where Columns go when pgx scans a row.
func Fields(j *sqlcgen.OjsJob) []any {
	fields := make([]any, len(jobColumns))
	for i, c := range jobColumns {
		fields[i] = c.field(j)
	}
	return fields
}

// Types are the columns of a job, each with the OID of its type; 0: the type of its state.
func Types() (types []string) {
	for _, c := range jobColumns {
		types = append(types, fmt.Sprint(c.name, " ", c.oid))
	}
	return types
}

// ByHand reports whether a column of a job is decoded by hand.
func ByHand(field pgconn.FieldDescription) bool {
	return jobColumns[Column(field.Name)].decodable(field)
}
