package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) queueConfigRoutes() []kit.Route {
	return kit.Scoped(append(
		[]kit.Route{
			{Method: http.MethodPost, Path: v1 + "/queues", Scope: kit.Admin, Handler: a.createQueue},
			{
				Method: http.MethodDelete, Path: v1 + "/queues/:name", Scope: kit.Admin, Queues: kit.QueueInPath, Query: "strategy",
				Handler: a.deleteQueue,
			},
		},
		kit.Under([]string{v1 + "/queues", v1 + "/admin/queues"}, []kit.Route{
			{Method: http.MethodGet, Path: "/:name/config", Scope: kit.Read, Queues: kit.QueueInPath, Handler: a.getQueueConfig},
			{Method: http.MethodPut, Path: "/:name/config", Scope: kit.Admin, Queues: kit.QueueInPath, Handler: a.putQueueConfig},
			{Method: http.MethodPatch, Path: "/:name/config", Scope: kit.Admin, Queues: kit.QueueInPath, Handler: a.putQueueConfig},
		})...))
}

// configurable reads the name of the queue that a path names. Its configuration is the same for all tenants.
func configurable(c echo.Context) (name string, err error) {
	name = c.Param("name")
	if name == "_default" {
		return "", kit.Refuse(kit.CodeUnsupported, "name", "a policy for all queues is not supported; configure each of them")
	}
	if !names.Queue.MatchString(name) {
		return "", kit.NoSuch("queue", name)
	}
	if c.Request().Method == http.MethodGet {
		return name, nil
	}
	return name, kit.ForAllTenants(c, "a queue cannot be configured")
}

// QueueConfig reads what SQL knows about a queue; one without a row has no configuration. For a tenant it is without the tenants' weights.
func QueueConfig(ctx context.Context, q *sqlcgen.Queries, name string, tenant *string) (sqlcgen.QueueConfigRow, error) {
	rows, err := q.QueueConfig(ctx, sqlcgen.QueueConfigParams{Queue: name, Tenant: tenant})
	if err != nil {
		return sqlcgen.QueueConfigRow{}, err
	}
	if len(rows) > 0 {
		return rows[0], nil
	}
	pause, err := q.QueuePause(ctx, name)
	return sqlcgen.QueueConfigRow{Name: name, State: statusOf(len(pause) > 0), Config: json.RawMessage("{}")}, err
}

func (a *Admin) getQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	config, err := QueueConfig(a.Context(c), a.SQL, name, kit.Scope(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, config)
}

// configRequest is a configuration: what it names is changed. It stands bare or under config.
type configRequest struct {
	_      struct{}        `check:"any"`
	Config json.RawMessage `json:"config" check:"object"`

	path string // of the configuration
}

// Check finds the configuration.
func (r *configRequest) Check(o *kit.Object) {
	r.Config, r.path = bareOrUnder(o, "config", r.Config)
}

// bareOrUnder checks a document that is the body or its only key, there read into under. It returns the document and the path to it.
func bareOrUnder(o *kit.Object, key string, under json.RawMessage) (document json.RawMessage, path string) {
	document = o.Source
	kit.Near(o, nil, key)
	if o.Has(key) {
		kit.Only(o, kit.NotKnown, key)
		if document, path = under, key; under == nil {
			o.Missing(key)
		}
	}
	o.Storable(document, path)
	return document, path
}

func (a *Admin) putQueueConfig(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	var req configRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	config, err := a.configure(c, sqlcgen.ConfigureQueueParams{Queue: name, Config: req.Config}, req.path)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, config)
}

type createRequest struct {
	_      struct{}        `check:"only"`
	Name   string          `json:"name" check:"required,name"`
	Config json.RawMessage `json:"config" check:"object,storable"`
}

// Check refuses a name that SQL would not take.
func (r *createRequest) Check(o *kit.Object) {
	if r.Name != "" && !names.Queue.MatchString(r.Name) {
		o.Fail(kit.Invalid("name", "must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters"))
	}
}

// createQueue configures a queue that nobody has configured.
func (a *Admin) createQueue(c echo.Context) error {
	if err := kit.ForAllTenants(c, "a queue cannot be created"); err != nil {
		return err
	}
	req := createRequest{Config: json.RawMessage("{}")}
	if err := c.Bind(&req); err != nil {
		return err
	}
	config, err := a.configure(c, sqlcgen.ConfigureQueueParams{Queue: req.Name, Config: req.Config, IsNew: true}, "config")
	var known *pg.Error
	if errors.As(err, &known) && known.Code == kit.CodeDuplicate {
		return kit.Refuse(kit.CodeDuplicate, "name", "queue %s exists; change it with PUT /ojs/v1/queues/%[1]s/config", req.Name)
	}
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, v1+"/queues/"+req.Name)
	return c.JSON(http.StatusCreated, config)
}

// configure writes a configuration that stands at path in the request, and returns what holds now.
func (a *Admin) configure(c echo.Context, params sqlcgen.ConfigureQueueParams, path string) (sqlcgen.QueueConfigRow, error) {
	row, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigureQueue, params)
	if err != nil {
		err = a.DB.Err(err)
		var known *pg.Error
		if errors.As(err, &known) && path != "" {
			if field, ok := known.Details["field"].(string); ok {
				known.Details["field"] = path + "." + field
			}
		}
	} else {
		a.RefreshDoor(a.Context(c))
	}
	return sqlcgen.QueueConfigRow(row), err
}

type deleteRequest struct {
	kit.Optional
	Strategy string `json:"strategy"`
}

// deleteQueue removes a queue's configuration; strategy says what is to happen to its jobs.
func (a *Admin) deleteQueue(c echo.Context) error {
	name, err := configurable(c)
	if err != nil {
		return err
	}
	req := deleteRequest{Strategy: c.QueryParam("strategy")}
	if err := c.Bind(&req); err != nil {
		return err
	}
	if req.Strategy == "" {
		return kit.Invalid("strategy", "is required: what happens to the queue's jobs; \"reject\"")
	}
	params := sqlcgen.DeleteQueueParams{Queue: name, Strategy: strings.ToValidUTF8(req.Strategy, "?")}
	_, err = kit.Patiently(a.Kit, c, func(q *sqlcgen.Queries, ctx context.Context, p sqlcgen.DeleteQueueParams) (struct{}, error) {
		return struct{}{}, q.DeleteQueue(ctx, p)
	}, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"queue": name, "strategy": req.Strategy, "jobs_affected": 0, "state": "deleted"})
}
