// Package pgtest gives every test a private PostgreSQL database with our schema, cloned from a
// migrated template in tens of milliseconds, and login roles to act as.
//
// A database, not a schema: notifications and advisory locks are per database, and names
// in schema ojs stay true. The server behind it is, in this order, the one at
// OJS_TEST_DATABASE_URL, one started from local binaries (OJS_TEST_PG_BIN names them), a container,
// or one started from downloaded binaries. OJS_TEST_BACKEND=url|local|container insists. See server.go.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// DB is the private database of one test. It goes away with the test, unless that failed.
type DB struct {
	// Name of the database.
	Name string
	// URL logs in as a superuser. Like the others it ends in a query, to which a test may add with &.
	URL string
	// ServiceURL logs in as the server does: a role that is a member of ojs_service and of
	// nothing else.
	ServiceURL string
	// Pool of the superuser.
	Pool *pgxpool.Pool

	t        testing.TB
	server   *server
	password string // of all login roles of this database

	mu      sync.Mutex
	pools   map[string]*pgxpool.Pool // by URL
	tenants map[string]string        // URL by tenant
	stopped bool                     // the clock of the schema
}

// PoolSize bounds each pool handed out here.
const PoolSize = 20

// New clones the template.
func New(t testing.TB) *DB {
	t.Helper()
	ctx := t.Context()
	srv, err := shared()
	if err != nil {
		t.Fatalf("no PostgreSQL to test on: %v", err)
	}
	d := &DB{
		Name: "ojs_test_" + random(5), t: t, server: srv, password: random(8),
		pools: map[string]*pgxpool.Pool{}, tenants: map[string]string{},
	}
	t.Cleanup(d.cleanup)
	if err := srv.clone(ctx, d.Name); err != nil {
		t.Fatalf("clone the template: %v", err)
	}
	d.URL = srv.url(d.Name, "", "")
	service := d.RoleName("service")
	d.server.exec(t, fmt.Sprintf("create role %s login in role ojs_service password '%s'", service, d.password))
	d.ServiceURL = srv.url(d.Name, service, d.password)
	d.Pool = d.pool(d.URL)
	return d
}

// Service is a pool of ServiceURL.
func (d *DB) Service() *pgxpool.Pool { return d.pool(d.ServiceURL) }

// TenantURL logs in as a tenant; the login role is made at the first call.
func (d *DB) TenantURL(tenant string) string {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.tenants[tenant]; ok {
		return known
	}
	role := d.RoleName("tenant" + strconv.Itoa(len(d.tenants)+1))
	d.exec("select ojs.create_tenant_role($1, $2, $3, p_connections => 200)", tenant, role, d.password)
	d.tenants[tenant] = d.server.url(d.Name, role, d.password)
	return d.tenants[tenant]
}

// As is a pool of TenantURL.
func (d *DB) As(tenant string) *pgxpool.Pool { return d.pool(d.TenantURL(tenant)) }

// OperatorURL logs in as a member of ojs_operator, and of nothing else.
func (d *DB) OperatorURL() string { return d.GroupURL("ojs_operator") }

// Operator is a pool of OperatorURL.
func (d *DB) Operator() *pgxpool.Pool { return d.pool(d.OperatorURL()) }

// GroupURL logs in as a member of one group; without a group, as a role that may only connect.
func (d *DB) GroupURL(group string) string {
	d.t.Helper()
	if group == "" {
		return d.LoginURL("nobody", "")
	}
	return d.LoginURL(strings.TrimPrefix(group, "ojs_"), "in role "+pgx.Identifier{group}.Sanitize())
}

// LoginURL logs in as the role RoleName(name), made at the first call with options of
// `create role`.
func (d *DB) LoginURL(name, options string) string {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	role := d.RoleName(name)
	d.exec(fmt.Sprintf(`do $$ begin
		if to_regrole('%[1]s') is null then create role %[1]s login %[2]s password '%[3]s'; end if;
	end $$`, role, options, d.password))
	return d.server.url(d.Name, role, d.password)
}

// RoleName is a name for a role that belongs to this database: roles are shared by the whole
// server. Roles so named are dropped with the database.
func (d *DB) RoleName(prefix string) string { return prefix + "_" + d.Name }

// Open opens the database as the server program does.
func (d *DB) Open() *pg.DB {
	d.t.Helper()
	opened, err := pg.Open(d.t.Context(), pg.Config{URL: d.ServiceURL, AppName: "test"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(opened.Close)
	return opened
}

// SetNow stops the clock of the schema at an instant; the zero time lets it run again.
//
// The first call makes the clock's function read a sequence, and those after it only set that one: with a function of its own for each
// instant every session would have to plan all its statements anew. A sequence, because what transactions see of it does not depend on when
// they began.
func (d *DB) SetNow(at time.Time) {
	d.t.Helper()
	const clock = "create or replace function ojs.now() returns timestamptz language sql volatile set search_path = pg_catalog, pg_temp as "
	switch {
	case at.IsZero():
		d.exec(clock + "'select clock_timestamp()'")
		d.stopped = false
	case d.stopped:
		d.exec("select setval('public.test_clock', $1)", at.UnixMicro())
	default:
		d.exec("create sequence if not exists public.test_clock; grant select on public.test_clock to public")
		d.exec("select setval('public.test_clock', $1)", at.UnixMicro())
		d.exec(clock + "$$ select 'epoch'::timestamptz + last_value * interval '1 microsecond' from public.test_clock $$")
		d.stopped = true
	}
}

func (d *DB) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.Pool.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *DB) pool(address string) *pgxpool.Pool {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if pool, ok := d.pools[address]; ok {
		return pool
	}
	pool, err := newPool(address, PoolSize)
	if err != nil {
		d.t.Fatal(err)
	}
	d.pools[address] = pool
	return pool
}

func newPool(address string, size int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = size
	// The pool outlives the test's context, which ends before the cleanups.
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

func (d *DB) cleanup() {
	if d.t.Failed() {
		d.t.Log(d.server.keep(d.URL))
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range d.pools {
			pool.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		// Close waits for it; nobody else would notice.
		d.t.Error("the test never released a connection")
	}
	// PostgreSQL drops no database while a session logs in, which authentication_timeout lets take a minute.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := d.server.drop(ctx, d.Name); err != nil {
		d.t.Errorf("drop the test's database: %v", err)
	}
}

func random(bytes int) string {
	raw := make([]byte, bytes)
	rand.Read(raw)
	return hex.EncodeToString(raw)
}
