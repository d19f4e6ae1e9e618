// Package conformance has tests only. They play conformance cases against this project's server, which
// they start on a real PostgreSQL.
//
// The project's own cases are in testdata/own. The public OJS cases are not part of this repository; they
// are read from the directory that OJS_CONFORMANCE_SUITES names:
//
//	OJS_CONFORMANCE_SUITES=…/suites FOLDER=level-0-core go test ./conformance -run TestPublic -count=1 -v
//
// Without FOLDER the folders that this project declares to pass are played. OJS_CONFORMANCE_URL sends the
// cases to a server that is already running; it must have been started with its reset route allowed.
//
// internal/engine reads the cases and plays them.
package conformance
