package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// key runs `ojs-pg key` as an operator, wants it to end with status, and returns what it printed, of an error the words.
func (o *operating) key(status int, args ...string) string {
	o.Helper()
	var stdout, stderr bytes.Buffer
	if got := run(append([]string{"ojs-pg", "key", "--json", "--database-url", o.operator()}, args...), &stdout, &stderr); got != status {
		o.Fatalf("key %s ends with %d, want %d:\n%s%s", strings.Join(args, " "), got, status, &stdout, &stderr)
	}
	if status != 0 {
		return stderr.String()
	}
	return stdout.String()
}

type keyJSON struct {
	ID        string   `json:"id"`
	Secret    string   `json:"secret"`
	Prefix    string   `json:"prefix"`
	TenantID  *string  `json:"tenant_id"`
	Scopes    []string `json:"scopes"`
	Queues    []string `json:"queues"`
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Reason    *string  `json:"reason"`
	RotatedTo *string  `json:"rotated_to"`
}

func (o *operating) one(text string) (k keyJSON) {
	o.Helper()
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		o.Fatalf("%v in %s", err, text)
	}
	return k
}

// good tells whether a server would take the key.
func (o *operating) good(secret string) bool {
	o.Helper()
	return pgtest.One[bool](o.T, o.pool, "select exists (select from ojs._key_owner(sha256(convert_to($1, 'UTF8'))))", secret)
}

// A key is made, listed, rotated and revoked, and ends when it is to.
func TestKeyCommand(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	o := &operating{t, d.ServiceURL, d.OperatorURL, d.Pool}
	made := o.one(o.key(0, "--tenant", "acme", "--reason", "a new shop", "create",
		"--scope", "work", "--scope", "produce", "--queue", "mail", "--name", "shop"))
	if !o.good(made.Secret) || made.TenantID == nil || *made.TenantID != "acme" ||
		!slices.Equal(made.Scopes, []string{"produce", "work"}) || !slices.Equal(made.Queues, []string{"mail"}) ||
		made.Name != "shop" || made.State != "valid" {
		t.Fatalf("made %+v", made)
	}
	operator := o.one(o.key(0, "create", "--scope", "admin"))
	var all []keyJSON
	listed := o.key(0, "list")
	if err := json.Unmarshal([]byte(listed), &all); err != nil || len(all) != 2 || strings.Contains(listed, made.Secret) {
		t.Fatalf("listed %v %s", err, listed)
	}
	if of := o.key(0, "--tenant", "acme", "list"); !strings.Contains(of, made.ID) || strings.Contains(of, operator.ID) {
		t.Errorf("the tenant's are %s", of)
	}

	// Both are good until the overlap ends, which here is at once, or later.
	next := o.one(o.key(0, "rotate", made.ID, "--overlap", "1h"))
	if !o.good(made.Secret) || !o.good(next.Secret) || !slices.Equal(next.Queues, made.Queues) || next.Name != "shop" {
		t.Errorf("rotated into %+v", next)
	}
	last := o.one(o.key(0, "rotate", next.ID, "--overlap", "0s"))
	if o.good(next.Secret) || !o.good(last.Secret) {
		t.Error("the overlap does not end")
	}
	if table := o.key(0, "list"); !strings.Contains(table, `"expired"`) || !strings.Contains(table, last.ID) {
		t.Errorf("listed %s", table)
	}
	revoked := o.one(o.key(0, "--reason", "leaked", "revoke", last.ID))
	if o.good(last.Secret) || revoked.State != "revoked" || revoked.Reason == nil || *revoked.Reason != "leaked" {
		t.Errorf("revoked %+v", revoked)
	}
	got := pgtest.List[string](t, o.pool, `select reason from ojs.audit where kind = 'api_key' and reason is not null order by n`)
	if !slices.Equal(got, []string{"a new shop", "leaked"}) {
		t.Errorf("the audit trail has %q", got)
	}
	// A worker of all tenants need not be an operator.
	if pool := o.one(o.key(0, "create", "--scope", "work", "--scope", "all-tenants")); pool.TenantID != nil ||
		!slices.Equal(pool.Scopes, []string{"all-tenants", "work"}) {
		t.Errorf("made %+v", pool)
	}
	// One that lasts ends by itself.
	brief := o.one(o.key(0, "create", "--scope", "admin", "--lasts", "1h"))
	pgtest.Exec(t, o.pool, "update ojs.api_key set expires_at = now() where id = $1", brief.ID)
	if o.good(brief.Secret) {
		t.Error("a key outlives its end")
	}

	for _, c := range []struct {
		status int
		args   []string
		want   string
	}{
		{2, []string{"--tenant", "globex", "revoke", "019539a4-b68c-7def-8000-1a2b3c4d5e6f"}, "leave out --tenant"},
		{2, []string{"--tenant", "globex", "rotate", "019539a4-b68c-7def-8000-1a2b3c4d5e6f"}, "leave out --tenant"},
		{2, []string{"--tenant", "", "create", "--scope", "admin"}, "--tenant is empty"},
		{2, []string{"revoke", "nobody"}, `"nobody" is not the ID of a key, which is a UUID`},
		{2, []string{"rotate", made.Prefix}, `is not the ID of a key`},
		{2, []string{"revoke"}, "needs ID"},
		{2, []string{"create"}, "name what the key may do"},
		{2, []string{"creat"}, `did you mean "ojs-pg key create"?`},
		{1, []string{"revoke", "019539a4-b68c-7def-8000-1a2b3c4d5e6f"}, "no API key"},
		{1, []string{"rotate", made.ID}, "The key after it, "},
		{1, []string{"rotate", last.ID}, "no valid API key"},
		{1, []string{"create", "--scope", "produce"}, "validation_error: a key without a tenant needs the scope all-tenants, too\nName"},
		{1, []string{"--tenant", "acme", "create", "--scope", "everything"}, "scopes must be"},
		{1, []string{"--tenant", "a b", "create", "--scope", "work"}, "tenant must match"},
		{1, []string{"create", "--scope", "admin", "--lasts", "-1h"}, "expires_at must be in the future"},
	} {
		if said := o.key(c.status, c.args...); !strings.Contains(said, c.want) || strings.Contains(said, "SQLSTATE") {
			t.Errorf("key %q says %s", c.args, said)
		}
	}
}
