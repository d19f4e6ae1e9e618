package kit

import (
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// A credential may be for some queues only. Which queues a route is about stands beside it, so that most are asked before their handlers;
// what only the body tells, handlers ask, by For and the rest of this file.

// Reach is which queues a route is about.
type Reach int

// The zero value is the strictest, so that a route that does not say is refused.
const (
	AllQueues     Reach = iota // all of them, or what belongs to none: not for a credential of some
	NoQueue                    // none: what a worker says of itself
	QueueInPath                // the path's name
	QueueOfJob                 // that of the job which the path has the id of
	QueueOfCron                // that in which the path's cron job makes its jobs
	QueueInQuery               // the parameter queue
	QueuesInQuery              // the parameter queues
	QueuesInBody               // those that the body names, or the jobs that it names: the handler asks
)

// bounded is the handler of a route, behind the question whether the credential is for its queues.
func (k *Kit) bounded(reach Reach, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := k.within(c, reach); err != nil {
			Drain(c.Request())
			return err
		}
		return next(c)
	}
}

func (k *Kit) within(c echo.Context, reach Reach) error {
	if bound(c) == nil {
		return nil
	}
	switch reach {
	case NoQueue, QueuesInBody:
		return nil
	case QueueInPath:
		return ForQueues(c, "name", c.Param("name"))
	case QueueOfJob:
		return k.ForJobs(c, "id", c.Param("id"))
	case QueueOfCron:
		return k.ForCron(c, c.Param("name"))
	case QueueInQuery:
		queue, err := QueryText(c, "queue")
		if err != nil {
			return err
		}
		return ForFilter(c, "queue", queue)
	case QueuesInQuery:
		queues, err := CommaList(c, "queues", 100)
		if err != nil {
			return err
		}
		if queues == nil {
			return ForFilter(c, "queues", nil)
		}
		return ForQueues(c, "queues", queues...)
	case AllQueues:
	}
	return Forbidden("queues", hintAllQueues, nil, "this is about all queues, and the credential is for some")
}

// bound are the queues of a request's credential; nil: it is for all.
func bound(c echo.Context) []string {
	if p := Who(c); p != nil {
		return p.Queues
	}
	return nil
}

// ForQueues refuses queues that are not among those of the credential.
func ForQueues(c echo.Context, field string, queues ...string) error {
	own := bound(c)
	if own == nil {
		return nil
	}
	for _, queue := range queues {
		if !slices.Contains(own, queue) {
			return Forbidden(field, hintQueue, map[string]any{"queue": Clip(queue)}, "the credential is not for queue %q", Clip(queue))
		}
	}
	return nil
}

// ForFilter refuses a filter that lets pass jobs of other queues than the credential's; nil: it lets pass those of all.
func ForFilter(c echo.Context, field string, queue *string) error {
	switch {
	case bound(c) == nil:
		return nil
	case queue == nil:
		return Forbidden(field, "Name a queue of the credential, or use one that is for all queues.", nil,
			"the credential is for some queues: name one of them as %s", field)
	}
	return ForQueues(c, field, *queue)
}

// ForJobs refuses jobs in other queues than the credential's. Jobs that are not there are not refused.
func (k *Kit) ForJobs(c echo.Context, field string, ids ...string) error {
	elsewhere, err := k.Elsewhere(c, ids)
	if err == nil && len(elsewhere) > 0 {
		err = NotItsJob(field, elsewhere[0])
	}
	return err
}

// NotItsJob is the refusal of a job in another queue than the credential's.
func NotItsJob(field, id string) error {
	return Forbidden(field, hintQueue, nil, "the credential is not for the queue of job %s", id)
}

// Elsewhere are those of some jobs that are in other queues than the credential's.
func (k *Kit) Elsewhere(c echo.Context, ids []string) ([]string, error) {
	own := bound(c)
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !IsUUID(id) }) // which no job has
	if own == nil || len(ids) == 0 {
		return nil, nil
	}
	return k.SQL.JobsElsewhere(k.Context(c), sqlcgen.JobsElsewhereParams{Ids: ids, Tenant: Scope(c), Queues: own})
}

// ForCron refuses a cron job that makes its jobs in another queue than the credential's.
func (k *Kit) ForCron(c echo.Context, name string) error {
	own := bound(c)
	if own == nil || !IsText(name) {
		return nil
	}
	elsewhere, err := k.SQL.CronElsewhere(k.Context(c), sqlcgen.CronElsewhereParams{Name: name, Tenant: Scope(c), Queues: own})
	if err == nil && elsewhere {
		err = Forbidden("name", hintQueue, nil, "the credential is not for the queue of cron job %q", Clip(name))
	}
	return err
}
