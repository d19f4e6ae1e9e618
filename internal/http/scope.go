package httpapi

import (
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// A credential may be for some queues only. The field Queues of a route says which queues the route
// is about, so most requests are checked before their handlers run. If only the body names the
// queues, the handler checks them, with forQueues and the functions after it.

// reach says which queues a route is about.
type reach int

// The zero value is the strictest, so that a route that does not say is refused.
const (
	allQueues     reach = iota // all queues, or something that belongs to none: refused to a credential for some
	noQueue                    // none: a worker reports about itself
	queueInPath                // the queue that the path names
	queueOfJob                 // the queue of the job that the path names
	queueOfCron                // the queue in which the path's cron job makes its jobs
	queueInQuery               // the queue in the parameter queue
	queuesInQuery              // the queues in the parameter queues
	queuesInBody               // the queues, or the queues of jobs, that the body names: the handler checks them
)

// bounded wraps next. It refuses a request if the route concerns a queue that is not one of the
// credential's queues.
func (s *Server) bounded(reach reach, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.within(c, reach); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		return next(c)
	}
}

// within refuses a request if a queue that reach names is not one of the credential's queues.
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

// bound returns the queues that the credential of a request is for; nil: all queues.
func bound(c echo.Context) []string {
	if p := principalOf(c); p != nil {
		return p.Queues
	}
	return nil
}

// forQueues fails if one of queues is not one of the credential's queues. field is the field of the
// request that names them.
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

// forFilter refuses a filter that selects jobs outside of the credential's queues. queue is the
// queue that the filter names; nil: the filter selects jobs of all queues.
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

// forJobs fails if a job is in a queue that is not one of the credential's queues. It accepts the
// id of a job that does not exist.
func (s *Server) forJobs(c echo.Context, field string, ids ...string) error {
	elsewhere, err := s.elsewhere(c, ids)
	if err == nil && len(elsewhere) > 0 {
		err = notItsJob(field, elsewhere[0])
	}
	return err
}

// notItsJob returns the error for a job whose queue is not one of the credential's queues.
func notItsJob(field, id string) error {
	return problems.Forbidden(field, problems.HintQueue, nil, "the credential is not for the queue of job %s", id)
}

// elsewhere returns the ids of the jobs whose queue is not one of the credential's queues.
func (s *Server) elsewhere(c echo.Context, ids []string) ([]string, error) {
	own := bound(c)
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !jsonbody.IsUUID(id) }) // no job has such an id
	if own == nil || len(ids) == 0 {
		return nil, nil
	}
	return s.q.JobsElsewhere(s.queryContext(c), sqlcgen.JobsElsewhereParams{Ids: ids, Tenant: requestTenant(c), Queues: own})
}

// forCron refuses a cron job whose jobs go to a queue that is not one of the credential's queues.
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

// jobRef returns the id of the job in the path, and the tenant of the request. An id that no job
// can have gets 404.
func jobRef(c echo.Context) (id string, scope *string, err error) {
	id = c.Param("id")
	if !jsonbody.IsUUID(id) {
		return "", nil, problems.Refuse(problems.CodeNotFound, "id", "job %q does not exist: ids are UUIDs in lowercase with hyphens",
			problems.Clip(id))
	}
	return id, requestTenant(c), nil
}
