// Package sqlstate names the SQLSTATEs that Go code acts on. What an error means to a client stands
// in the table ojs.problem.
package sqlstate

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The names are PostgreSQL's (its appendix "Error Codes"), in Go's spelling.
const (
	ProtocolViolation     = "08P01"
	FeatureNotSupported   = "0A000"
	NotNullViolation      = "23502"
	ReadOnlyTransaction   = "25006"
	InvalidStatementName  = "26000" // no statement of that name is prepared
	DependentObjectsExist = "2BP01"
	InvalidSchemaName     = "3F000"
	SerializationFailure  = "40001"
	DeadlockDetected      = "40P01"
	InsufficientPrivilege = "42501"
	UndefinedColumn       = "42703"
	UndefinedObject       = "42704"
	UndefinedFunction     = "42883"
	UndefinedTable        = "42P01"
	DuplicateStatement    = "42P05" // a statement of that name is prepared already
	DiskFull              = "53100"
	OutOfMemory           = "53200" // also of the lock table
	ProgramLimitExceeded  = "54000"
	LockNotAvailable      = "55P03"
	QueryCanceled         = "57014"
	InternalError         = "XX000"
	ClassConnection       = "08"
	ClassData             = "22" // a value that the caller sent does not fit
	ClassSyntaxOrAccess   = "42" // a statement names an object that is not there, or may not be used
	ClassResources        = "53" // PostgreSQL lacks connections, locks, memory or disk
	ClassOurs             = "OJ" // errors that the functions of schema ojs raise
)

// Of returns the SQLSTATE of an error that PostgreSQL has answered with, or "" for any other error.
func Of(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// In reports whether PostgreSQL has answered with an error whose SQLSTATE is one of codes.
func In(err error, codes ...string) bool {
	state := Of(err)
	return state != "" && slices.Contains(codes, state)
}

// InClass reports whether PostgreSQL has answered with an error of a class, which is the first two
// characters of its SQLSTATEs.
func InClass(err error, class string) bool { return strings.HasPrefix(Of(err), class) }
