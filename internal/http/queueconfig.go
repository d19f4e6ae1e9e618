package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// configuredJSON is a queue as queue-config section 9 shows it.
type configuredJSON struct {
	Name      string          `json:"name"`
	State     string          `json:"state"`
	Config    json.RawMessage `json:"config"`
	CreatedAt *kit.Stamp      `json:"created_at,omitempty"`
	UpdatedAt *kit.Stamp      `json:"updated_at,omitempty"`
}

func configuredOf(q *sqlcgen.OjsQueue) configuredJSON {
	return configuredJSON{
		Name: q.Queue, State: queueOf(admin.Queue{Paused: q.Paused}).Status, Config: q.Config,
		CreatedAt: kit.StampOf(&q.CreatedAt), UpdatedAt: kit.StampOf(q.UpdatedAt),
	}
}

// configurable reads the queue a path names. Its configuration is the same for all tenants.
func configurable(c echo.Context) (name string, err error) {
	name = c.Param("name")
	if name == "_default" {
		return "", kit.Refuse(kit.CodeUnsupported, "name", "a policy for all queues is not supported; configure each of them")
	}
	if !queueName.MatchString(name) {
		return "", kit.NoSuch("queue", name)
	}
	if c.Request().Method == http.MethodGet {
		return name, nil
	}
	return name, forAllTenants(c, "a queue cannot be configured")
}

// forAllTenants refuses a request that names a tenant.
func forAllTenants(c echo.Context, cannot string) error {
	scope, header, err := kit.Tenant(c.Request().Header)
	if err == nil && scope != nil {
		err = kit.Refuse(kit.CodeUnsupported, header, "%s for one tenant; send the request without %s", cannot, header)
	}
	return err
}

// configuration reads what SQL knows about a queue; one without a row has no configuration.
func (s *Server) configuration(c echo.Context, name string) (configuredJSON, error) {
	ctx, cancel := s.query(c)
	defer cancel()
	rows, err := s.q.ConfiguredQueue(ctx, name)
	if err != nil {
		return configuredJSON{}, err
	}
	if len(rows) == 0 {
		return configuredJSON{Name: name, State: "active", Config: json.RawMessage("{}")}, nil
	}
	return configuredOf(&rows[0]), nil
}

func (s *Server) getQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	shown, err := s.configuration(c, name)
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, shown)
}

// putQueueConfig changes what the body names, bare or under config.
func (s *Server) putQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	config := req.Source
	path := ""
	if req.Has("config") {
		kit.Only(req, kit.NotKnown, "config")
		config = req.Typed("config", "object")
		path = "config"
		if config == nil && req.Err() == nil {
			req.Missing("config")
		}
	}
	shown, err := s.configure(c, req, name, config, path)
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, shown)
}

// createQueue configures a queue that nobody has configured.
func (s *Server) createQueue(c echo.Context) error {
	if err := forAllTenants(c, "a queue cannot be created"); err != nil {
		return err
	}
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	name := req.Name("name")
	switch {
	case req.Err() != nil:
	case name == nil:
		req.Missing("name")
	case !queueName.MatchString(*name):
		req.Fail(kit.Invalid("name", "must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters"))
	}
	kit.Only(req, kit.NotKnown, "name", "config")
	config := req.Typed("config", "object")
	if config == nil {
		config = []byte("{}")
	}
	if err := req.Err(); err != nil {
		return err
	}
	known, err := s.configuration(c, *name)
	if err != nil {
		return err
	}
	if known.CreatedAt != nil {
		return kit.Refuse(kit.CodeDuplicate, "name", "queue %s exists; change it with PUT /ojs/v1/queues/%[1]s/config", *name)
	}
	shown, err := s.configure(c, req, *name, config, "config")
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/queues/"+*name)
	return kit.Encode(c, http.StatusCreated, shown)
}

func (s *Server) configure(c echo.Context, req *kit.Object, name string, config []byte, path string) (configuredJSON, error) {
	req.Storable(config, path)
	if err := req.Err(); err != nil {
		return configuredJSON{}, err
	}
	queue, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsQueue, error) {
		return q.ConfigureQueue(ctx, sqlcgen.ConfigureQueueParams{Queue: name, Config: config})
	})
	if err != nil {
		err = s.db.Err(err)
		var known *pg.Error
		if field, ok := "", errors.As(err, &known); ok && path != "" {
			if field, ok = known.Details["field"].(string); ok {
				known.Details["field"] = path + "." + field
			}
		}
		return configuredJSON{}, err
	}
	return configuredOf(&queue), nil
}

// deleteQueue removes a queue's configuration; strategy says what is to happen to its jobs.
func (s *Server) deleteQueue(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	req, err := s.body(c, s.limits.Body, true)
	if err != nil {
		return err
	}
	strategy := c.QueryParam("strategy")
	if given := req.Text("strategy"); given != nil {
		strategy = *given
	}
	if err := req.Err(); err != nil {
		return err
	}
	if strategy == "" {
		return kit.Invalid("strategy", "is required: what happens to the queue's jobs; \"reject\"")
	}
	_, err = patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (struct{}, error) {
		return struct{}{}, q.DeleteQueue(ctx, sqlcgen.DeleteQueueParams{Queue: name, Strategy: strings.ToValidUTF8(strategy, "?")})
	})
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"queue": name, "strategy": strategy, "jobs_affected": 0, "state": "deleted"})
}
