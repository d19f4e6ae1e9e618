//go:build linux

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The scopes of rules. Each rule is changed by one goroutine of the operator only.
var (
	limited = []scope{
		{Tenant: "beta"},
		{Tenant: "gamma"},
		{Queue: "mail"},
		{Tenant: "delta", Queue: "work"},
		{Tenant: "beta", Queue: "mail"},
		{Tenant: "acme"},
		{Pool: "narrow"},
		{Pool: "wide"},
		{Pool: "bound"},
		{Pool: "keepers"},
	}
	halted = [2][]scope{
		{{Tenant: "beta"}, {Tenant: "gamma"}, {Tenant: "acme", Queue: "work"}, {Tenant: "delta", Queue: "mail"}},
		{{Queue: "work"}, {Queue: "mail"}, {}},
	}
)

// atRest is the limit of all scopes at the end of a round. There is a limit, so that it can be checked,
// and it is higher than the number of jobs that a lost worker may hold, so that other jobs can run.
const atRest = 12

// someLimit returns a limit so small that it is reached, or unlimited.
func someLimit(r *rand.Rand, of scope) int {
	switch {
	case r.IntN(4) == 0:
		return unlimited
	case of.Tenant == "" && of.Pool == "":
		return 3 + r.IntN(6)
	}
	return 1 + r.IntN(4)
}

// operate changes limits, or pauses and resumes scopes, until the client stops.
func (c *client) operate(r *rand.Rand) {
	hand := int(c.next.Add(1)) - 1
	c.pause(c.Idle)
	o := &operator{client: c, r: r}
	defer o.leave()
	for c.stop.Err() == nil {
		if hand < 2 {
			of := limited[2*r.IntN(len(limited)/2)+hand]
			o.set(change{scope: of, Kind: limit, Most: someLimit(r, of)})
		} else {
			mine := halted[hand-2]
			of := mine[r.IntN(len(mine))]
			o.set(change{scope: of, Kind: halt, Most: 0})
			c.pause(time.Duration(50+r.IntN(200)) * time.Millisecond)
			for !o.set(change{scope: of, Kind: halt, Most: unlimited}) && c.stop.Err() == nil {
				c.pause(50 * time.Millisecond)
			}
			if hand == 2 {
				o.share()
			}
		}
		c.pause(time.Duration(20+r.IntN(150)) * time.Millisecond)
	}
}

// shares are settings of the fairness between the tenants of a queue. No promise about jobs depends on
// them.
var shares = []string{
	`{}`, `{"unit": "time"}`, `{"unit": "cost"}`, `{"enabled": false}`, `{"unit": "time", "weights": {"beta": 5, "gamma": 0.3}}`,
}

// share changes the fairness of a queue.
func (o *operator) share() {
	body := map[string]any{"tenant_fairness": json.RawMessage(shares[o.r.IntN(len(shares))])}
	path := "/ojs/v1/queues/" + []string{"work", "mail"}[o.r.IntN(2)] + "/config"
	if a := o.ask(o.r, http.MethodPut, path, "", body); !a.unknown() && a.status != http.StatusOK {
		o.book.wrong("PUT %s: %d: %s", path, a.status, a.body)
	}
}

// operator is one goroutine that changes rules. It has a session of its own, and opens another one when
// that ends.
type operator struct {
	*client
	r     *rand.Rand
	ctx   context.Context
	conn  *pgx.Conn
	end   func()
	since time.Time
}

func (o *operator) leave() {
	if o.conn != nil {
		o.end()
		o.conn = nil
	}
}

// set changes a rule, and returns true if the database has confirmed it.
func (o *operator) set(c change) bool {
	c.ID = newID()
	o.book.write(entry{What: rules, Change: &c})
	by := o.setByHTTP
	if c.scope == (scope{}) || o.r.IntN(2) == 0 {
		by = o.setBySQL
	}
	if !by(c) {
		return false
	}
	o.book.write(entry{What: ruled, Change: &c})
	return true
}

func (o *operator) setByHTTP(c change) bool {
	method, path, body := http.MethodPut, "/ojs/v1/admin/queues/"+c.Queue, map[string]any{}
	if c.Tenant != "" {
		path = "/ojs/v1/admin/tenants/" + c.Tenant
		if c.Queue != "" {
			body["queue"] = c.Queue
		}
	}
	switch {
	case c.Pool != "":
		path, body = "/ojs/v1/admin/pools/"+c.Pool, c.pool()
	case c.Kind == limit:
		path += "/limits"
		if body["max_concurrency"] = c.Most; c.Most == unlimited {
			body["max_concurrency"] = nil
		}
	default:
		method = http.MethodPost
		if c.Tenant == "" {
			path = "/ojs/v1/queues/" + c.Queue
		}
		if path += "/pause"; c.Most == unlimited {
			path = path[:len(path)-len("pause")] + "resume"
		}
	}
	a := o.ask(o.r, method, path, "", body)
	if !a.unknown() && a.status != http.StatusOK {
		o.book.wrong("%s %s: %d: %s", method, path, a.status, a.body)
	}
	return a.status == http.StatusOK
}

func (o *operator) setBySQL(c change) bool {
	if o.conn != nil && time.Since(o.since) > sessions {
		o.leave()
	}
	if o.conn == nil {
		o.since = time.Now()
		if o.ctx, o.end, o.conn = o.connect(); o.conn == nil {
			return false
		}
	}
	if err := c.apply(o.ctx, o.conn); err != nil {
		if !o.expected(o.ctx, err) {
			o.book.wrong("%v of %v: %v", c.Kind, c.scope, err)
		}
		o.leave()
		return false
	}
	return true
}

// apply changes the rule in the database.
func (c change) apply(ctx context.Context, conn *pgx.Conn) error {
	sql, args := "select ojs.resume(coalesce(nullif($2, ''), $3), nullif($1, ''))", []any{c.Tenant, c.Queue, new("*")}
	if c.Tenant != "" {
		args[2] = nil
	}
	switch {
	case c.Pool != "":
		sql, args = "select ojs.configure_pool($1, $2::json)", []any{c.Pool, c.pool()}
	case c.Kind == limit:
		sql = "select ojs.limit_concurrency($3, nullif($1, ''), nullif($2, ''))"
		if args[2] = c.Most; c.Most == unlimited {
			args[2] = nil
		}
	case c.Most == 0:
		sql = "select ojs.pause(coalesce(nullif($2, ''), $3), nullif($1, ''))"
	}
	_, err := conn.Exec(ctx, sql, args...)
	return err
}

// pool returns the configuration of the pool whose concurrency changes.
func (c change) pool() map[string]any {
	raw, err := json.Marshal(poolNamed(c.Pool))
	config := map[string]any{}
	if err = errors.Join(err, json.Unmarshal(raw, &config)); err != nil {
		panic(err)
	}
	if c.Most < unlimited {
		config["concurrency"] = c.Most
	}
	return config
}

// setRules changes rules in the session of the campaign, while no operator does.
func (u *turn) setRules(changes ...change) {
	u.c.t.Helper()
	conn, err := u.c.pg.primary.connect(database)
	if err != nil {
		u.c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	book, err := openBook(filepath.Join(u.books, "campaign"), "campaign")
	if err != nil {
		u.c.t.Fatal(err)
	}
	for _, c := range changes {
		c.ID = newID()
		book.write(entry{What: rules, Change: &c})
		if err := c.apply(u.c.t.Context(), conn); err != nil {
			u.c.t.Fatal(fmt.Errorf("%v of %v: %w", c.Kind, c.scope, err))
		}
		book.write(entry{What: ruled, Change: &c})
	}
}

// firstRules sets the limits with which a round begins. In a third of the rounds there are none: a worker
// that keeps its transaction open is then served without the lane, and later meets the first limit.
// firstRules returns for how long the operator shall change nothing.
func (u *turn) firstRules() (idle time.Duration) {
	some := u.r.IntN(3) > 0
	if !some {
		idle = time.Duration(300+u.r.IntN(1000)) * time.Millisecond
	}
	var all []change
	for _, of := range limited {
		most := unlimited
		if some {
			most = someLimit(u.r, of)
		}
		all = append(all, change{scope: of, Kind: limit, Most: most})
	}
	u.setRules(all...)
	return idle
}

// lastRules sets the rules under which all jobs can end: no pauses, and limits of atRest.
func (u *turn) lastRules() {
	var all []change
	for _, of := range slices.Concat(halted[0], halted[1]) {
		all = append(all, change{scope: of, Kind: halt, Most: unlimited})
	}
	for _, of := range limited {
		all = append(all, change{scope: of, Kind: limit, Most: atRest})
	}
	u.setRules(all...)
}
