package httpapi

import (
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// A credential may be for some queues only. Which queues a route is about stands beside it, so that most are asked before their handlers;
// what only the body tells, handlers ask, by For and the rest of this file.

// reach is which queues a route is about.
type reach int

// The zero value is the strictest, so that a route that does not say is refused.
const (
	allQueues     reach = iota // all of them, or what belongs to none: not for a credential of some
	noQueue                    // none: what a worker says of itself
	queueInPath                // the path's name
	queueOfJob                 // that of the job which the path has the id of
	queueOfCron                // that in which the path's cron job makes its jobs
	queueInQuery               // the parameter queue
	queuesInQuery              // the parameter queues
	queuesInBody               // those that the body names, or the jobs that it names: the handler asks
)

// bounded is the handler of a route, behind the question whether the credential is for its queues.
func (s *Server) bounded(reach reach, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.within(c, reach); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		return next(c)
	}
}

func (s *Server) within(c echo.Context, reach reach) error {
	if bound(c) == nil {
		return nil
	}
	switch reach {
	case noQueue, queuesInBody:
		return nil
	case queueInPath:
		return forQueues(c, "name", c.Param("name"))
	case queueOfJob:
		return s.forJobs(c, "id", c.Param("id"))
	case queueOfCron:
		return s.forCron(c, c.Param("name"))
	case queueInQuery:
		queue, err := queryText(c, "queue")
		if err != nil {
			return err
		}
		return forFilter(c, "queue", queue)
	case queuesInQuery:
		queues, err := commaList(c, "queues", 100)
		if err != nil {
			return err
		}
		if queues == nil {
			return forFilter(c, "queues", nil)
		}
		return forQueues(c, "queues", queues...)
	case allQueues:
	}
	return problems.Forbidden("queues", problems.HintAllQueues, nil, "this is about all queues, and the credential is for some")
}

// bound are the queues of a request's credential; nil: it is for all.
func bound(c echo.Context) []string {
	if p := principalOf(c); p != nil {
		return p.Queues
	}
	return nil
}

// forQueues refuses queues that are not among those of the credential.
func forQueues(c echo.Context, field string, queues ...string) error {
	own := bound(c)
	if own == nil {
		return nil
	}
	for _, queue := range queues {
		if !slices.Contains(own, queue) {
			return problems.Forbidden(field, problems.HintQueue, map[string]any{"queue": problems.Clip(queue)},
				"the credential is not for queue %q", problems.Clip(queue))
		}
	}
	return nil
}

// forFilter refuses a filter that lets pass jobs of other queues than the credential's; nil: it lets pass those of all.
func forFilter(c echo.Context, field string, queue *string) error {
	switch {
	case bound(c) == nil:
		return nil
	case queue == nil:
		return problems.Forbidden(field, "Name a queue of the credential, or use one that is for all queues.", nil,
			"the credential is for some queues: name one of them as %s", field)
	}
	return forQueues(c, field, *queue)
}

// forJobs refuses jobs in other queues than the credential's. Jobs that are not there are not refused.
func (s *Server) forJobs(c echo.Context, field string, ids ...string) error {
	elsewhere, err := s.elsewhere(c, ids)
	if err == nil && len(elsewhere) > 0 {
		err = notItsJob(field, elsewhere[0])
	}
	return err
}

// notItsJob is the refusal of a job in another queue than the credential's.
func notItsJob(field, id string) error {
	return problems.Forbidden(field, problems.HintQueue, nil, "the credential is not for the queue of job %s", id)
}

// elsewhere are those of some jobs that are in other queues than the credential's.
func (s *Server) elsewhere(c echo.Context, ids []string) ([]string, error) {
	own := bound(c)
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !jsonbody.IsUUID(id) }) // which no job has
	if own == nil || len(ids) == 0 {
		return nil, nil
	}
	return s.q.JobsElsewhere(s.queryContext(c), sqlcgen.JobsElsewhereParams{Ids: ids, Tenant: requestTenant(c), Queues: own})
}

// forCron refuses a cron job that makes its jobs in another queue than the credential's.
func (s *Server) forCron(c echo.Context, name string) error {
	own := bound(c)
	if own == nil || !jsonbody.IsText(name) {
		return nil
	}
	elsewhere, err := s.q.CronElsewhere(s.queryContext(c), sqlcgen.CronElsewhereParams{Name: name, Tenant: requestTenant(c), Queues: own})
	if err == nil && elsewhere {
		err = problems.Forbidden("name", problems.HintQueue, nil, "the credential is not for the queue of cron job %q", problems.Clip(name))
	}
	return err
}

// jobRef reads the job a path names. An id that no job can have is an unknown job.
func jobRef(c echo.Context) (id string, scope *string, err error) {
	id = c.Param("id")
	if !jsonbody.IsUUID(id) {
		return "", nil, problems.Refuse(problems.CodeNotFound, "id", "job %q does not exist: ids are UUIDs in lowercase with hyphens",
			problems.Clip(id))
	}
	return id, requestTenant(c), nil
}
