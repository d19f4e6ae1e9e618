// Package dispatch puts requests that come at the same time into one statement, and keeps requests
// for jobs waiting until a commit brings some. It decides nothing: SQL says which job is next and
// what may be acknowledged. Jobs come from ojs.fetch_many, ojs.ack_many, ojs.settle and
// ojs.enqueue_rows, and go to internal/http. The reasons, with figures, are in
// docs/design/0004-combining-and-waiting.md.
//
// # Where things stand
//
//	dispatch.go    the Dispatcher: what it bounds, how it begins and ends
//	fetch.go       a FETCH: requests, and the groups that one call of ojs.fetch_many can serve
//	poll.go        when the requests that wait are looked at again: wakes, intervals, backoff, quiet workers
//	line.go        in which order groups of requests are decided
//	decide.go      decisions: which requests share one, how long one waits for more, which request gets which jobs
//	settle.go      ACK and NACK
//	failures.go    the log of failed attempts
//	enqueue.go     one job, or many
//	columns.go     the jobs of an enqueue as arrays, one for each column
//	giveback.go    jobs that did not reach their client
//	statements.go  the calls of SQL functions, and how their rows are read
//	metrics.go     counts and durations of these calls
//	canned.go      answers without a database, for a benchmark
//
// # States of a request for jobs
//
//	new ──► deciding ──► answered
//	          │  ▲
//	          ▼  │ poll
//	        waiting, quiet or full
//
// A request is in one of these states:
//
//	new        in group.incoming, until a decision takes it
//	deciding   in no list, while its decision is under way
//	waiting    in group.waiting: there was no job for it. A poll brings it into the next decision
//	quiet      in Dispatcher.quiet: its worker is to get no jobs (ojs.direct_worker). When a worker
//	           may work again, all quiet requests are decided again
//	full       in Dispatcher.full: its worker is at its concurrency (strategy least-loaded). When
//	           attempts have ended at this server, or after Options.Recheck, it is decided again
//	requeued   in group.requeued: it was quiet or full, or in another group, or its decision ended
//	           before it came to this request
//	answered   with jobs, with an error, or empty when its wait is over or the server stops
//
// A decision takes the waiting requests of a group first if a poll is due, then requeued ones, then
// new ones. A caller that leaves takes its request out of its list; jobs of a decision under way are
// given back, and the attempt does not count.
//
// # Locks
//
// Dispatcher.mu guards requests, groups and deciders. Listener.mu may be taken while it is held
// (Subscribe, Close, Notified), never the other way round: the Listener calls wake without its
// locks. The locks of batchers, giveBacks, failures and metrics are leaves: no other of these is taken
// while one of them is held. No statement runs while a lock is held.
//
// # When an enqueue is tried again
//
// Each of these has one function, and each tries only what certainly did nothing:
//
//	pg.WithRetry               a statement that was never sent, or lost against another one (deadlock, serialization): twice more, at once
//	batch.Batcher, runOrSplit     a statement that failed because of one of its jobs: each half of them by itself, and so on
//	Dispatcher.retryBusy       a job that a limit refused while others hold what is left of it: five times, after 10 to 160 ms
//	Dispatcher.retryLocked     a job whose id another transaction has locked: after 5 to 100 ms each time, until Options.Query is over
//
// Batches of HTTP (EnqueueMany, EnqueueEach, EnqueueOnce) are one statement each. pg.DB.WithLockRetry tries them again where a lock was in
// the way, as retryLocked does.
//
// # What ojs.fetch_many guarantees
//
// handOut relies on this order of its rows: jobs are in fair order, and each row names its request;
// the jobs of a request follow one another, so that each request gets a range of the fair sequence.
// Requests come in the order sent; with strategy least-loaded, requests of workers with the fewest
// jobs come first. The last requests get fewer jobs, or none. A row without a job means one of
// these:
//
//	worker_id and request   the request may have at most attempt jobs
//	worker_id alone         the worker is to get no jobs
//	worker_id and meta      the worker has registered with the pool, strategy or weights in meta
//	neither                 the call stopped early: make it again
//
// If the call did not stop early, fewer jobs than the requests may have prove that no more were
// available and committed when it began. Requests that were there before it need no look of their
// own.
package dispatch
