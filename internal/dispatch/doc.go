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
//	decide.go      decisions: which requests share one, how long one waits for more, and who gets which jobs
//	settle.go      ACK and NACK
//	failures.go    what the log says of failed attempts
//	enqueue.go     one job, or many
//	giveback.go    jobs that did not reach their client
//	statements.go  what is sent to the database
//	metrics.go     what of it is counted
//
// # States of a request for jobs
//
//	new ──► deciding ──► answered
//	          │  ▲
//	          ▼  │ poll
//	        waiting, quiet or full
//
// A request is new until a decision takes it. While it is decided it is in no list. If there was no job it waits, in its group; if its
// worker is to get no jobs (ojs.direct_worker) it is quiet, in Dispatcher.quiet, where it takes nobody's place. A poll brings waiting
// requests of a group into its next decision, before new ones; a worker that may work again has all quiet requests put in line again
// (requeued), between the two. If its worker is at its concurrency (strategy least-loaded) it is full, in Dispatcher.full, in the same
// way, until attempts have ended at this server, or for Options.Recheck. A request is answered with jobs, with an error, or empty when
// its wait is over or the server stops. A caller who leaves takes its request out of its list; jobs of a decision under way are given
// back, and the attempt does not count.
//
// # Locks
//
// Dispatcher.mu guards requests, groups and deciders. It may be held when Listener.mu is taken (Subscribe, Close, Notified), never the
// other way round: the Listener calls wake without its locks. Locks of batchers and of the list of jobs to give back are leafs: nothing
// else is taken under them. No statement runs under a lock.
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
// handOut relies on this order of its rows: jobs are in fair order, and each row names its request; the jobs of a request follow one
// another, so that each request gets a run of the fair sequence. Requests come in the order sent, by least-loaded those of workers with
// the fewest jobs first. The last ones get fewer jobs, or none. A row without a job, with a worker_id and a request, says how many jobs
// that one may have at most. A row without a job and with a worker_id alone says that this worker is to get none. A row without both says
// that the call stopped early: it is asked again. Without that row, fewer jobs than the requests might have prove that no more were
// available and committed when the call began, so requests that were there before it need no look of their own.
package dispatch
