package db_test

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestAPIKeysAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, c := range []struct{ call, state, field string }{
		{"ojs.create_api_key('a b', '{read}')", "OJ400", "tenant"},
		{"ojs.create_api_key('acme', '{}')", "OJ422", "scopes"},
		{"ojs.create_api_key('acme', null)", "OJ422", "scopes"},
		{"ojs.create_api_key('acme', '{read,everything}')", "OJ422", "scopes"},
		{"ojs.create_api_key('acme', array['read', null])", "OJ422", "scopes"},
		{"ojs.create_api_key(null, '{produce,work,read}')", "OJ422", "tenant"},
		{"ojs.create_api_key(null, '{work}')", "OJ422", "tenant"},
		{"ojs.create_api_key(null, '{all-tenants}')", "OJ422", "scopes"},
		{"ojs.create_api_key('acme', '{work,all-tenants}')", "OJ422", "scopes"},
		{"ojs.create_api_key('acme', '{read}', p_queues => '{}')", "OJ400", "queues"},
		{"ojs.create_api_key('acme', '{read}', p_queues => '{NO}')", "OJ400", "queues"},
		{"ojs.create_api_key('acme', '{read}', p_name => repeat('x', 256))", "OJ400", "name"},
		{"ojs.create_api_key('acme', '{read}', p_expires_at => ojs.now())", "OJ422", "expires_at"},
		{"ojs.rotate_api_key('" + someID + "')", "OJ404", "id"},
		{"ojs.revoke_api_key('" + someID + "')", "OJ404", "id"},
		{"ojs.rotate_api_key((select id from ojs.create_api_key('acme', '{read}')), '1 year')", "OJ422", "overlap"},
	} {
		failure := refused(t, d.Operator(), c.state, "select "+c.call)
		if got := detail(t, failure)["field"]; got != c.field {
			t.Errorf("%s names field %v", c.call, got)
		}
	}
	for _, call := range []string{
		"select ojs.create_api_key('acme', '{read}')", "select ojs.rotate_api_key('" + someID + "')",
		"select ojs.revoke_api_key('" + someID + "')", "select ojs._key_owner('x')", "select * from ojs.api_keys",
		"select * from ojs.api_key",
	} {
		refused(t, d.As("acme"), "42501", call)
	}
	refused(t, d.Operator(), "42501", "select hash from ojs.api_key")
	refused(t, d.Operator(), "42501", "select ojs._key_owner('x')")
}

// A key is good until it expires, is revoked or its overlap is over; its secret is kept nowhere.
func TestAPIKeysEnd(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	operator := d.Operator()
	valid := func(secret string) bool {
		t.Helper()
		return exec(t, d.Service(), "select from ojs._key_owner(sha256($1::text::bytea))", secret) == 1
	}
	made := func(sql string, args ...any) (id, secret string) {
		t.Helper()
		if err := operator.QueryRow(t.Context(), sql, args...).Scan(&id, &secret); err != nil {
			t.Fatal(err)
		}
		return id, secret
	}
	first, secret := made("select id::text, secret from ojs.create_api_key('acme', '{work,produce,work}', 'shop', '{mail}', $1)",
		noon.Add(time.Hour))
	if got := one[string](t, operator, "select concat_ws(' ', tenant_id, scopes, queues, name, state) from ojs.api_keys"); got !=
		"acme {produce,work} {mail} shop valid" {
		t.Errorf("the key is %s", got)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.api_key k where k::text like '%' || $1 || '%'", secret[12:]); got != 0 {
		t.Error("the secret is kept")
	}
	second, other := made("select id::text, secret from ojs.rotate_api_key($1, '10 minutes')", first)
	if secret == other || !valid(secret) || !valid(other) || valid(secret+"x") {
		t.Error("for ten minutes both are good")
	}
	const like = "select concat_ws(' ', tenant_id, scopes, queues, name) from ojs.api_keys where id = $1"
	if got := one[string](t, operator, like, second); got != "acme {produce,work} {mail} shop" {
		t.Errorf("the new key is %s", got)
	}
	refused(t, operator, "OJ409", "select ojs.rotate_api_key($1)", first)
	d.SetNow(noon.Add(10 * time.Minute))
	if valid(secret) || !valid(other) {
		t.Error("after ten minutes the new one is good")
	}
	exec(t, operator, "select ojs.revoke_api_key($1, 'leaked')", second)
	if valid(other) {
		t.Error("it is revoked")
	}
	_, third := made("select id::text, secret from ojs.create_api_key('acme', '{read}', p_expires_at => $1)", noon.Add(time.Hour))
	d.SetNow(noon.Add(time.Hour))
	if valid(third) {
		t.Error("it has expired")
	}
	const states = "select string_agg(state, ' ' order by created_at, state) from ojs.api_keys"
	if got := one[string](t, operator, states); got != "expired revoked expired" {
		t.Errorf("states are %q", got)
	}
	// A tenant that is deregistered has no credentials any more.
	fourth, last := made("select id::text, secret from ojs.create_api_key('globex', '{read}')")
	exec(t, operator, "select ojs.configure_tenant('globex', 2)")
	exec(t, operator, "select ojs.deregister_tenant('globex', 'globex', 'left')")
	if valid(last) {
		t.Errorf("key %s of a deregistered tenant is good", fourth)
	}
}

// That a key is used is written once a minute.
func TestAPIKeysSayWhenTheyWereUsed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	secret := one[string](t, d.Operator(), "select secret from ojs.create_api_key('acme', '{read}')")
	used := func() string {
		t.Helper()
		exec(t, d.Service(), "select ojs._key_owner(sha256($1::text::bytea))", secret)
		return one[string](t, d.Pool, "select ctid || ' ' || extract(epoch from last_used_at - $1)::int from ojs.api_key", noon)
	}
	first := used()
	d.SetNow(noon.Add(59 * time.Second))
	if again := used(); again != first {
		t.Errorf("written again after 59 seconds: %s, then %s", first, again)
	}
	d.SetNow(noon.Add(61 * time.Second))
	if got := used(); got == first || got[len(got)-2:] != "61" {
		t.Errorf("after 61 seconds it says %s", got)
	}
}
