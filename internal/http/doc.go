// Package httpapi is the OJS HTTP binding: routes, handlers, JSON shapes, headers and limits of bodies. What a request means is decided in
// SQL: a handler reads the request, calls one function with the tenant, and writes the answer. It never picks the status of an error.
//
// A file uses only names of files that stand after it in this list (methods of Server may stand anywhere):
//
//	Routes, and the server:    server serve metrics queuemetrics lacking system
//	Jobs and workers:          jobs deadletters results cron enqueue partial settle fetch workers events
//	What operators configure:  tiers pools queues apikeys neighbours tenants limits dispatch explain stats audit bulk
//	Bodies and answers:        pressure endings wire envelope idempotency read bind
//	Who may, and how much:     admit auth keyring errors refusals respond route scope page room
//	What a request carries:    config tenantheader request bounds defaulttenant background
//
// The directory is called http and the package is not, so that net/http keeps its name.
package httpapi
