// Package pgtest gives every test a private PostgreSQL database with our schema, cloned from a
// migrated template in tens of milliseconds, and login roles to act as.
//
// A test gets a database and not a schema, because notifications and advisory locks are per
// database, and statements name the schema ojs. The server is the first of these that there is: the
// one at OJS_TEST_DATABASE_URL, one started from local binaries (in OJS_TEST_PG_BIN, if set), a
// container, one started from downloaded binaries. OJS_TEST_BACKEND=url|local|container names one of
// them. See server.go.
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

// DB is the private database of one test. It is dropped when the test ends, unless the test failed.
// Its methods end the test if they fail. Pools may be used from any goroutine.
type DB struct {
	// Name of the database.
	Name string
	// URL logs in as a superuser. Like the other URLs it has query parameters, so a test may append
	// further ones with &.
	URL string
	// ServiceURL logs in as the server does: a role that is a member of ojs_service and of
	// nothing else.
	ServiceURL string
	// Pool logs in as the superuser.
	Pool *pgxpool.Pool

	t        testing.TB
	server   *server
	password string // of all login roles of this database

	mu      sync.Mutex               // guards pools and tenants
	pools   map[string]*pgxpool.Pool // by URL
	tenants map[string]string        // URL by tenant
	stopped bool                     // SetNow has stopped the clock of the schema
}

// PoolSize is the largest number of connections of each pool that this package returns.
const PoolSize = 20

// New makes a database for a test, with the schema, no jobs and default settings.
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

// Service returns a pool that logs in as the server does (ServiceURL). Each call returns the same one.
func (d *DB) Service() *pgxpool.Pool { return d.pool(d.ServiceURL) }

// TenantURL returns a URL that logs in as a tenant. The first call for a tenant makes its role.
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

// As returns a pool that logs in as a tenant (TenantURL).
func (d *DB) As(tenant string) *pgxpool.Pool { return d.pool(d.TenantURL(tenant)) }

// OperatorURL returns a URL that logs in as a member of ojs_operator and of no other role.
func (d *DB) OperatorURL() string { return d.GroupURL("ojs_operator") }

// Operator returns a pool that logs in as an operator (OperatorURL).
func (d *DB) Operator() *pgxpool.Pool { return d.pool(d.OperatorURL()) }

// GroupURL returns a URL that logs in as a member of one group, such as ojs_worker; if group is "", as
// a role that may only connect.
func (d *DB) GroupURL(group string) string {
	d.t.Helper()
	if group == "" {
		return d.LoginURL("nobody", "")
	}
	return d.LoginURL(strings.TrimPrefix(group, "ojs_"), "in role "+pgx.Identifier{group}.Sanitize())
}

// LoginURL returns a URL that logs in as the role RoleName(name). The first call makes the role, with
// the given options of `create role`.
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

// RoleName returns a name for a role that only this test uses: all databases of a server share its
// roles. Roles with such a name are dropped with the database.
func (d *DB) RoleName(prefix string) string { return prefix + "_" + d.Name }

// Open opens the database as the server program does, and closes it at the end of the test.
func (d *DB) Open() *pg.DB {
	d.t.Helper()
	opened, err := pg.Open(d.t.Context(), pg.Config{URL: d.ServiceURL, AppName: "test"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(opened.Close)
	return opened
}

// SetNow stops the clock of the schema (ojs.now) at an instant, for all sessions. The zero time lets
// it run again.
//
// The first call makes ojs.now read a sequence, and later calls set the sequence. If each call
// replaced the function, every session would have to plan all its statements anew. It is a sequence
// and no table because a transaction sees its new value at once, whenever it began.
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

// exec runs a statement as superuser.
func (d *DB) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.Pool.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

// pool returns the pool of a URL, and makes it at the first call. cleanup closes it.
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

// cleanup closes the pools and drops the database and its roles. After a failure it keeps them and
// logs how to reach the database.
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
		// Pool.Close waits until every connection is released. Without this limit the test would hang, and
		// nothing would tell why.
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
