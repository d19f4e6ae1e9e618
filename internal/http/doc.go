// Package httpapi serves the OJS HTTP binding: routes, handlers, JSON shapes, headers and limits of
// bodies. SQL decides what a request means: a handler reads the request, calls one SQL function
// with the tenant, and writes the answer. The status of an error comes from the table ojs.problem
// by the error's code (errors.go).
//
// A file uses only names that are declared in files after it in this list. Methods of Server may be
// declared in any file:
//
//	Routes, and the server:    server serve metrics queuemetrics lacking system
//	Jobs and workers:          erase jobs deadletters results cron enqueue partial settle fetch workers events
//	What operators configure:  settings tiers pools queues apikeys neighbours tenants limits
//	What operators look at:    dispatch explain doctor stats usage audit bulk
//	Bodies and answers:        pressure endings wire envelope idempotency read bind
//	Who may, and how much:     admit auth refusedtokens keyring errors refusals respond route scope page room
//	What a request carries:    config tenantheader request bounds rates defaulttenant background
//
// The directory is named http and the package httpapi, so that files can import net/http under its
// own name.
package httpapi
