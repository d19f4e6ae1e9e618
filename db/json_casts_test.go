package db_test

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A cast runs a function of the role that made it. None of a caller's runs with the rights of a function that takes JSON of any type.
func TestCastsOfCallersDoNotRunAsTheOwner(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select ojs.enqueue('a', p_tenant => 'globex')")
	acme := connect(t, d.TenantURL("acme"))
	exec(t, acme, "create type pg_temp.trojan as (x int)")
	for _, target := range []string{"json", "jsonb"} {
		exec(t, acme, `create function pg_temp.as_`+target+`(pg_temp.trojan) returns `+target+` language plpgsql immutable as $$
			begin
				raise exception 'runs as %', current_user;
			end $$`)
		exec(t, acme, "create cast (pg_temp.trojan as "+target+") with function pg_temp.as_"+target+"(pg_temp.trojan)")
	}
	for _, call := range []string{
		"ojs.enqueue('a', '[]', p_meta => row(1)::pg_temp.trojan)", "ojs.enqueue('a', '[]', p_retry => row(1)::pg_temp.trojan)",
		"ojs.enqueue('a', '[]', p_options => row(1)::pg_temp.trojan)", "ojs.enqueue_many(row(1)::pg_temp.trojan)",
		"ojs.enqueue('a', row(1)::pg_temp.trojan)", "ojs.enqueue_once('k', row(1)::pg_temp.trojan)",
		"ojs.ack(gen_random_uuid(), p_result => row(1)::pg_temp.trojan)", "ojs.nack(gen_random_uuid(), row(1)::pg_temp.trojan)",
		"ojs.fetch('{q}', p_weights => row(1)::pg_temp.trojan)", "ojs.settle(row(1)::pg_temp.trojan)",
		"ojs.retry(gen_random_uuid(), row(1)::pg_temp.trojan)",
	} {
		refused(t, acme, "OJ400 22P02", "select "+call)
	}
	// Every function with such a parameter asks first.
	expectNone(t, d.Pool, "functions that cast whatever they are given", `
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace = 'ojs'::regnamespace and p.prosecdef
			and p.prosrc !~ '^\s*declare\s+c_json constant boolean := ojs\._json_type\('
			and exists (select from unnest(p.proargtypes) a join pg_type y on y.oid = a where y.typtype = 'p' and y.typname like 'any%')`)
}
