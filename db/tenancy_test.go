package db_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// --- what the catalogs say: forgetting one of these leaks ---

func expectNone(t *testing.T, q querier, what, sql string, args ...any) {
	t.Helper()
	if got := lines(t, q, sql, args...); len(got) > 0 {
		t.Errorf("%s:\n  %s", what, strings.Join(got, "\n  "))
	}
}

const ours = `c.relnamespace = 'ojs'::pg_catalog.regnamespace`

func TestEveryTableWithTenantDataHasRowSecurity(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "tables of tenants' data without forced row security", `
		select c.relname from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p') and not (c.relrowsecurity and c.relforcerowsecurity)
		  and exists (select from pg_catalog.pg_attribute a
			where a.attrelid = c.oid and a.attname in ('tenant_id', 'tenant_ids', 'tenants', 'tenant') and not a.attisdropped)`)
	// A table without a tenant's name in it is so on purpose.
	got := list[string](t, d.Pool, `
		select c.relname || case when c.relrowsecurity and c.relforcerowsecurity then '' else ' open' end from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p')
		  and not exists (select from pg_catalog.pg_attribute a
			where a.attrelid = c.oid and a.attname in ('tenant_id', 'tenant_ids', 'tenants', 'tenant') and not a.attisdropped)
		order by 1`)
	want := []string{
		"clock_mark", "code open", "cut", "dispatch_state", "duty", "fold open", "lane open", "neighbour_watch", "notice", "pace",
		"pool_tally", "problem open", "queue",
		"rotation", "schema_hash open", "schema_release open", "server_clock", "settings open", "sleeper", "static_config",
		"tally_mark", "tier",
		"upkeep_task", "waiter",
	}
	if !slices.Equal(got, want) {
		t.Errorf("tables without a tenant column are %q, want %q: look at row security and grants before adding one", got, want)
	}

	expectNone(t, d.Pool, "policies for somebody unknown", `
		select p.tablename, p.policyname, p.roles::text from pg_catalog.pg_policies p
		where p.schemaname = 'ojs' and not p.roles <@ '{ojs_owner,ojs_service,ojs_operator,ojs_producer,ojs_tenant}'::name[]`)
	// The planner may ask a tenant's own condition before a policy, and explain counts the rows that only the policy has kept back.
	expectNone(t, d.Pool, "policies for tenants, who read through views", `
		select p.tablename, p.policyname, p.qual, p.with_check from pg_catalog.pg_policies p
		where p.schemaname = 'ojs' and 'ojs_tenant' = any (p.roles) and (p.tablename, p.cmd) <> ('queue', 'SELECT')`)
	expectNone(t, d.Pool, "tables that tenants read", `
		select c.relname from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p') and pg_catalog.has_any_column_privilege('ojs_tenant', c.oid, 'select')
		  and c.relname not in ('job', 'queue', 'settings', 'problem')`)
	const kindOfJob = "select c.relkind::text from pg_catalog.pg_class c where c.oid = 'ojs.job'::pg_catalog.regclass"
	if kind := one[string](t, d.Pool, kindOfJob); kind != "p" {
		t.Errorf("ojs.job is of kind %s: only of a partitioned table is no node in the plan of whom no policy admits", kind)
	}
	expectNone(t, d.Pool, "permissive policies on partitions, which would be reached past their parent's", `
		select p.tablename, p.policyname from pg_catalog.pg_policies p
		join pg_catalog.pg_class c on c.oid = format('%I.%I', p.schemaname, p.tablename)::pg_catalog.regclass
		where p.schemaname = 'ojs' and c.relispartition and p.roles <> '{ojs_owner}'`)
}

func TestFunctionsAndViewsAreClosed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "functions of somebody else", `
		select p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proowner <> 'ojs_owner'::pg_catalog.regrole`)
	expectNone(t, d.Pool, "functions everybody may call", `
		select p.oid::pg_catalog.regprocedure::text
		from pg_catalog.pg_proc p, pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and a.grantee = 0`)
	// A helper that only definers may call runs with their search_path; a setting of its own would cost time in every call.
	const callable = `(p.prorettype = 'trigger'::pg_catalog.regtype or exists (select from pg_catalog.aclexplode(p.proacl) a
		where a.grantee <> p.proowner))`
	expectNone(t, d.Pool, "functions under the caller's search_path with more than the caller's rights, or in plpgsql", `
		select p.oid::pg_catalog.regprocedure::text, p.proconfig::text from pg_catalog.pg_proc p
		join pg_catalog.pg_language l on l.oid = p.prolang
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and (p.prosecdef or l.lanname <> 'sql' and `+callable+`)
		  and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)`)
	expectNone(t, d.Pool, "helpers that pin a search_path which their callers have pinned", `
		select p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and not p.prosecdef and not `+callable+`
		  and p.proconfig::text like '%search_path%'
		  and p.proname not in ('_set_schema_hash', '_privileges', '_put_right', '_keep_privileges')`) // migrate calls them
	expectNone(t, d.Pool, "functions that write with partitions pruned, which ends a server of version 18", `
		select p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.prosecdef and p.provolatile = 'v'
			and not coalesce('enable_partition_pruning=off' = any (p.proconfig), false)`)
	expectNone(t, d.Pool, "functions in a language that can do anything", `
		select p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and l.lanname not in ('sql', 'plpgsql')`)
	// Each of these has to keep its rows from tenants by itself: TestExplainDoesNotLeak looks at those that tenants read.
	owners := list[string](t, d.Pool, `
		select c.relname from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('v', 'm') and not coalesce('security_invoker=true' = any (c.reloptions), false) order by 1`)
	if want := strings.Fields(`
		_own_audit _own_cron _own_cron_run _own_job _own_quota _own_refused _own_rule _own_tenant _own_throttle _own_usage_batch _own_worker
		_quota_use _served_tenants _shard_counts _shard_groups _shard_sums _tenant_groups _usual_weight audit_trail cron_runs crons limits
		queue_stats refusals rule_stats shard_stats tenant_stats throttles usage_batches workers`); !slices.Equal(owners, want) {
		t.Errorf("views that do not run with their reader's rights are %q, want %q", owners, want)
	}
	expectNone(t, d.Pool, "relations of somebody else", `
		select c.relname from pg_catalog.pg_class c where `+ours+` and c.relowner <> 'ojs_owner'::pg_catalog.regrole`)
	expectNone(t, d.Pool, "relations granted to everybody", `
		select c.relname, a.privilege_type from pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a where `+ours+` and a.grantee = 0`)
	expectNone(t, d.Pool, "groups that are more than groups", `
		select r.rolname from pg_catalog.pg_roles r
		where r.rolname in ('ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant')
		  and (r.rolsuper or r.rolbypassrls or r.rolcanlogin or r.rolcreaterole or r.rolcreatedb or r.rolreplication
			or exists (select from pg_catalog.pg_auth_members m where m.member = r.oid))`)
}

func TestEverythingHasAComment(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "without a comment", `
		select 'schema', 'ojs' where pg_catalog.obj_description('ojs'::pg_catalog.regnamespace, 'pg_namespace') is null
		union all
		select 'relation', c.relname::text from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p', 'v', 'm') and pg_catalog.obj_description(c.oid, 'pg_class') is null
		union all
		select 'column', c.relname || '.' || a.attname from pg_catalog.pg_attribute a join pg_catalog.pg_class c on c.oid = a.attrelid
		where `+ours+` and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and not a.attisdropped
			and pg_catalog.col_description(c.oid, a.attnum) is null
		union all
		select 'function', p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and pg_catalog.obj_description(p.oid, 'pg_proc') is null
		union all
		select 'type', y.typname::text from pg_catalog.pg_type y left join pg_catalog.pg_class c on c.oid = y.typrelid
		where y.typnamespace = 'ojs'::pg_catalog.regnamespace and y.typelem = 0 and (y.typtype <> 'c' or c.relkind = 'c')
			and pg_catalog.obj_description(y.oid, 'pg_type') is null`)
	// They end in a full stop and are no leftovers.
	expectNone(t, d.Pool, "comments that are no sentence", `
		select d.description from pg_catalog.pg_description d
		where (d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
			and d.objoid in (select c.oid from pg_catalog.pg_class c where `+ours+`)
			or d.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass
				and d.objoid in (select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::pg_catalog.regnamespace))
		  and d.description !~ '[.]$'`)
}

// Change data capture of the whole database must not stop the job system.
func TestEveryTableCanBePublished(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "tables without a replica identity", `
		select c.relname from pg_catalog.pg_class c where `+ours+` and c.relkind in ('r', 'p')
		and not (c.relreplident = 'f' or c.relreplident = 'd'
			and exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary)
			or c.relreplident = 'i' and exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisreplident))`)
	exec(t, d.Pool, "create publication everything for all tables")
	for _, state := range states {
		bring(t, d, state, "q."+state)
	}
	exec(t, d.Operator(), "select from ojs.configure_tenant('acme', 2)")
	exec(t, d.Operator(), "select from ojs.pause('q')")
	exec(t, d.Service(), "select ojs.register_waiters($1, '{q}')", someID)
	oneJob(t, d.Service(), "ojs.fetch('{q.available,q.pending}')")
	tick(t, d.Service(), 1000)
	tx := begin(t, d.Pool)
	for _, table := range list[string](t, d.Pool, `
		select c.relname from pg_catalog.pg_class c where `+ours+" and c.relkind in ('r', 'p') order by c.relname = 'lane'") {
		column := one[string](t, d.Pool, `
			select a.attname from pg_catalog.pg_attribute a
			where a.attrelid = ('ojs.' || $1)::pg_catalog.regclass and a.attnum > 0 and a.attidentity = '' limit 1`, table)
		exec(t, tx, fmt.Sprintf("update ojs.%s set %s = %s", table, column, column))
		exec(t, tx, "delete from ojs."+table)
	}
	rollback(t, tx)
}

// The planner would tell how often a value occurs in the jobs of all tenants.
func TestNoStatisticsOfTenantsData(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, state := range states {
		bring(t, d, state, "q."+state)
	}
	tick(t, d.Service(), 1000)
	// What a view reads is in its reader's plan.
	const readable = ours + ` and c.relkind in ('r', 'p', 'm')
		and (c.relispartition or c.oid in (
			with recursive reads(oid) as (
				select c.oid from pg_catalog.pg_class c
				where ` + ours + ` and pg_catalog.has_any_column_privilege('ojs_tenant', c.oid, 'select')
				union
				select p.refobjid from reads r join pg_catalog.pg_rewrite w on w.ev_class = r.oid and w.rulename = '_RETURN'
				join pg_catalog.pg_depend p on p.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass and p.objid = w.oid
					and p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
			)
			select r.oid from reads r
		)) and a.attnum > 0 and not a.attisdropped
		and a.attname not in ('xid', 'seq', 'at', 'n') and c.relname not in ('problem', 'settings')`
	expectNone(t, d.Pool, "columns of tables that tenants read on which statistics would be kept", `
		select c.relname, a.attname from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
		where `+readable+` and a.attstattarget is distinct from 0`)
	exec(t, d.Pool, "analyze")
	expectNone(t, d.Pool, "columns of tables that tenants read on which statistics are kept", `
		select c.relname, a.attname from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
		join pg_catalog.pg_statistic s on s.starelid = c.oid and s.staattnum = a.attnum where `+readable)
	expectNone(t, d.Pool, "extended statistics", `
		select stxname from pg_catalog.pg_statistic_ext where stxnamespace = 'ojs'::pg_catalog.regnamespace`)
}

// tenantMay lists everything that ojs_tenant may do. Think before you add a line.
var tenantMay = strings.Split(strings.TrimSpace(`
execute ojs."fetch"(text[],integer,text,integer,text,text,anycompatible,text)
execute ojs._arrivals()
execute ojs._attempts(integer,jsonb)
execute ojs._default_tenant()
execute ojs._required_tenant(jsonb)
execute ojs._defaulted(text,ojs._defaults)
execute ojs._cut(text,integer)
execute ojs._deficit(numeric,numeric,numeric)
execute ojs._first_state(boolean,timestamptz,timestamptz)
execute ojs._raise(text,text,jsonb,text)
execute ojs._oldest_aside()
execute ojs._only_tenant()
execute ojs._growing(timestamptz,timestamptz)
execute ojs._grown(ojs.allowance,integer,integer,double precision[],timestamptz,timestamptz)
execute ojs._own_shard_groups(text)
execute ojs._own_shards(text)
execute ojs._own_tenant_groups(text)
execute ojs._queue_shares()
execute ojs._recent()
execute ojs._refuse_long(text,text)
execute ojs._result_until(timestamptz,json,json)
execute ojs._retry_max_attempts(jsonb)
execute ojs._heartbeat_timeout()
execute ojs._reads_all()
execute ojs._sees_all()
execute ojs._served_queues()
execute ojs._serves(text[],text[])
execute ojs._tenant_valid(text)
execute ojs._no_type()
execute ojs._type_only(jsonb)
execute ojs._uuid_v7()
execute ojs._with_fault(jsonb,text)
execute ojs.ack(uuid,uuid,anycompatible,text,text)
execute ojs.ack_many(uuid[],uuid[],json[],text[],text[],boolean)
execute ojs.activate(uuid,text)
execute ojs.beat(text,uuid[],text,integer,text,integer,text,integer,text[],integer,text[],text,`+
	`anycompatible,timestamptz,text,text,anycompatible)
execute ojs.cancel(uuid,text)
execute ojs.configure_cron(text,boolean,text,text,text,text,text,text)
execute ojs.cron_info(text,text)
execute ojs.current_tenant()
execute ojs.delete_cron(text,text)
execute ojs.deregister_worker(text,text)
execute ojs.direct_worker(text,text,text)
execute ojs.direct_workers(text,text)
execute ojs.enqueue(text,anyelement,text,integer,timestamptz,timestamptz,anycompatible,anycompatible,`+
	`integer,integer,integer,text[],boolean,anycompatible,anycompatible,uuid,text)
execute ojs.enqueue(text,text,text,integer,timestamptz,timestamptz,anycompatible,anycompatible,`+
	`integer,integer,integer,text[],boolean,anycompatible,anycompatible,uuid,text)
execute ojs.enqueue_bulk(character varying,jsonb[],text,integer,timestamptz,timestamptz,anycompatible,anycompatible,`+
	`integer,integer,integer,text[],text)
execute ojs.enqueue_bulk(character varying,text[],text,integer,timestamptz,timestamptz,anycompatible,anycompatible,`+
	`integer,integer,integer,text[],text)
execute ojs.enqueue_bulk(text,json[],text,integer,timestamptz,timestamptz,anycompatible,anycompatible,`+
	`integer,integer,integer,text[],text)
execute ojs.enqueue_each(anycompatible)
execute ojs.enqueue_many(anycompatible,text)
execute ojs.enqueue_once(text,anycompatible,text,bytea)
execute ojs.dead_letter_count(text,text,text,timestamptz,timestamptz,text)
execute ojs.dead_letter_info(uuid,text)
execute ojs.dead_letter_stats(text)
execute ojs.dead_letters(text,text,text,timestamptz,timestamptz,integer,integer,text,bigint)
execute ojs.delete_dead_letter(uuid,text)
execute ojs.erase(text,uuid[],text[],text,text,timestamptz,timestamptz,uuid,integer,text)
execute ojs.purge_dead_letters(text,text,text,timestamptz,timestamptz,integer,text)
execute ojs.retry_dead_letter(uuid,anycompatible,text)
execute ojs.retry_dead_letters(text,text,text,timestamptz,timestamptz,integer,text)
execute ojs.retry(uuid,anycompatible,text)
execute ojs.failed_count(text,text,text,timestamptz,timestamptz,text)
execute ojs.retry_many(text,text,text,timestamptz,timestamptz,integer,text)
execute ojs.events(text[],text[],integer,text)
execute ojs.explain(uuid,text)
execute ojs.heartbeat(text,uuid[],integer,text)
execute ojs.job_info(uuid,text)
execute ojs.help()
execute ojs.help(text)
execute ojs.job_results(uuid[],text,bigint)
execute ojs.job_status(uuid,text)
execute ojs.nack(uuid,anycompatible,uuid,text,boolean,text)
execute ojs.now()
execute ojs.put_cron(text,text,text,anyelement,text,text,integer,anycompatible,anycompatible,integer,integer,integer,text[],`+
	`anycompatible,anycompatible,text,text,boolean,text,text)
execute ojs.put_cron(text,text,text,text,text,text,integer,anycompatible,anycompatible,integer,integer,integer,text[],`+
	`anycompatible,anycompatible,text,text,boolean,text,text)
execute ojs.register_worker(text,text,integer,text[],integer,text[],text,anycompatible,timestamptz,`+
	`text,text,text,anycompatible)
execute ojs.release(uuid,uuid)
execute ojs.remove_worker(text,text)
execute ojs.settle(anycompatible,boolean)
execute ojs.trigger_cron(text,text)
execute ojs.verify_usage(text)
execute ojs.worker_info(text,text)
insert ojs.jobs (args, attempt, created_at, enqueued_at, errors, expires_at, extra, finished_at, id, lease_expires_at, max_attempts, `+
	`meta, options, priority, queue, result, retry, retry_at, scheduled_at, started_at, state, tags, timeout_ms, type, `+
	`visibility_timeout_ms, worker_id)
select ojs._own_job
select ojs.audit_trail
select ojs.cron_runs
select ojs.crons
select ojs.job (args, attempt, created_at, enqueued_at, errors, expires_at, extra, finished_at, id, `+
	`lease_expires_at, max_attempts, meta, options, priority, queue, result, retry, retry_at, scheduled_at, seq, started_at, `+
	`state, tags, tenant_id, timeout_ms, type, visibility_timeout_ms, worker_id)
select ojs.jobs
select ojs.limits
select ojs.overview
select ojs.overview_by_queue
select ojs.problem
select ojs.queue
select ojs.queue_stats
select ojs.refusals
select ojs.results
select ojs.rule_stats
select ojs.settings
select ojs.shard_stats
select ojs.tenant_stats
select ojs.throttles
select ojs.usage_batches
select ojs.workers
usage ojs
usage ojs.job_seq`), "\n")

func TestGrantsOfTenants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	got := list[string](t, d.Pool, `
		with granted as (
			select lower(a.privilege_type) || ' ' || c.oid::pg_catalog.regclass::text as what, a.grantee
			from pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a where `+ours+`
			union all
			select lower(x.privilege_type) || ' ' || c.oid::pg_catalog.regclass::text || ' ('
				|| string_agg(a.attname, ', ' order by a.attname) || ')', x.grantee
			from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid, pg_catalog.aclexplode(a.attacl) x
			where `+ours+` group by c.oid, x.privilege_type, x.grantee
			union all
			select lower(a.privilege_type) || ' ' || p.oid::pg_catalog.regprocedure::text, a.grantee
			from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a where p.pronamespace = 'ojs'::pg_catalog.regnamespace
			union all
			select lower(a.privilege_type) || ' ' || n.nspname, a.grantee
			from pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a where n.nspname = 'ojs'
		)
		select replace(what, 'timestamp with time zone', 'timestamptz') from granted
		where grantee in (0, 'ojs_tenant'::pg_catalog.regrole) order by what collate "C"`)
	for _, may := range got {
		if !slices.Contains(tenantMay, may) {
			t.Errorf("tenants may %s, which nobody decided", may)
		}
	}
	for _, may := range tenantMay {
		if !slices.Contains(got, may) {
			t.Errorf("tenants may not %s", may)
		}
	}
	expectNone(t, d.Pool, "columns that tenants can choose", `
		-- What is inserted into the view ojs.jobs goes through its rule, which refuses these.
		select v.name, c.name from (values ('ojs.job'), ('ojs.job_all')) v(name),
			(values ('seq'), ('state'), ('tenant_id'), ('lease'), ('attempt'), ('worker_id'), ('errors'), ('result'),
				('max_attempts'), ('created_at'), ('enqueued_at')) c(name)
		where exists (select from pg_catalog.pg_attribute a where a.attrelid = v.name::pg_catalog.regclass and a.attname = c.name)
		and (pg_catalog.has_column_privilege('ojs_tenant', v.name, c.name, 'insert')
			or pg_catalog.has_column_privilege('ojs_tenant', v.name, c.name, 'update'))`)
	expectNone(t, d.Pool, "what a tenant may write", `
		select c.relname, p from pg_catalog.pg_class c, unnest('{update,delete,truncate,references,trigger}'::text[]) p
		where `+ours+` and c.relkind in ('r', 'p', 'v', 'm') and pg_catalog.has_table_privilege('ojs_tenant', c.oid, p)`)
}

// --- people ---

// neighbours is a database in which acme and globex have jobs in every state, in a common queue and each in
// a queue of its own.
type neighbours struct {
	*pgtest.DB
	theirs map[string]string // globex's jobs by state
}

func newNeighbours(t *testing.T) neighbours {
	t.Helper()
	n := neighbours{pgtest.New(t), map[string]string{}}
	for _, state := range states {
		// bring works for acme; the same for globex by renaming it.
		bring(t, n.DB, state, "own."+state)
	}
	exec(t, n.Pool, "alter table ojs.job disable trigger all")
	for _, table := range []string{"job", "journal", "release", "tenant_fairness"} {
		exec(t, n.Pool, "update ojs."+table+" set tenant_id = 'globex', queue = replace(queue, 'own', 'secret')")
	}
	exec(t, n.Pool, `
		update ojs.lease
		set tenants = array_fill('globex'::text, array[cardinality(tenants)]), queue = replace(queue, 'own', 'secret')`)
	exec(t, n.Pool, "update ojs.timer set tenant_ids = array_fill('globex'::text, array[cardinality(tenant_ids)])")
	exec(t, n.Pool, "update ojs.dispatch_state set queue = replace(queue, 'own', 'secret')")
	exec(t, n.Pool, "alter table ojs.job enable trigger all")
	for _, state := range states {
		n.theirs[state] = one[string](t, n.Pool, "select id::text from ojs.job where state::text = $1", state)
		bring(t, n.DB, state, "own."+state)
	}
	exec(t, n.Service(), `
		insert into ojs.jobs (tenant_id, type, queue) select t, 'shared.job', 'shared'
		from unnest('{acme,globex,globex}'::text[]) t, generate_series(1, 5)`)
	for range 3 {
		jobs(t, n.Service(), "ojs.fetch('{shared}', 3, 'shared-worker')")
	}
	exec(t, n.Service(), "select ojs.put_cron('nightly', '@daily', 'a', p_tenant => t) from unnest('{acme,globex}'::text[]) t")
	exec(t, n.Service(), "select ojs.pause('unused', t) from unnest('{acme,globex}'::text[]) t")
	exec(t, n.Service(), `select ojs.configure_limits(t, '{"max_queue_depth": 1000000}') from unnest('{acme,globex}'::text[]) t`)
	exec(t, n.Service(), "select ojs.note_refusals('{acme,globex}', array['', ''], '{max_queue_depth,max_queue_depth}', '{1,1}')")
	exec(t, n.Pool, `
		insert into ojs.usage_batch (tenant_id, n, hour, closed_at, enqueued, attempts, completed, failed, failed_attempts, worker_ms,
			refused_429, refused_507, hash)
		select t, i, '2031-05-04'::timestamptz + i * interval '1 hour', now(), 1, 1, 1, 1, 1, 1, 1, 1, ''
		from unnest('{acme,globex,globex}'::text[]) with ordinality u(t, i)`)
	exec(t, n.Service(), "select ojs.throttle(t) from unnest('{acme,globex}'::text[]) t")
	exec(t, n.Pool, "insert into ojs.cron_run (tenant_id, name, due_at) select tenant_id, name, now() from ojs.cron")
	exec(t, n.Service(), `
		select ojs.beat('worker of ' || t, p_tenant => t), ojs.beat('shared-worker') from unnest('{acme,globex}'::text[]) t`)
	exec(t, n.Operator(), "select from ojs.configure_tenant('acme', 2)")
	exec(t, n.Operator(), "select from ojs.configure_tenant('globex', 7.5)")
	tick(t, n.Service(), 1000)
	bring(t, n.DB, "available", "own.late")
	return n
}

func TestTenantsSeeTheirOwnOnly(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	acme := n.As("acme")
	if got := one[int](t, acme, "select count(*) from ojs.jobs"); got != len(states)+5+1 {
		t.Errorf("acme sees %d jobs, want its %d", got, len(states)+6)
	}
	if all, own := one[int](t, n.Service(), "select count(*) from ojs.jobs"), one[int](t, n.Operator(), `
		select count(*) from ojs.jobs where tenant_id = 'globex'`); all != 2*len(states)+16 || own != len(states)+10 {
		t.Errorf("the service sees %d jobs and an operator %d of globex", all, own)
	}
	sources := list[string](t, n.Pool, `
		select c.oid::pg_catalog.regclass::text from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p', 'v', 'm')
		and pg_catalog.has_any_column_privilege('ojs_tenant', c.oid, 'select')
		and exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id')`)
	sources = slices.DeleteFunc(sources, func(source string) bool { return source == "ojs.job" })
	if len(sources) < 8 {
		t.Errorf("tenants read only %q", sources)
	}
	// What no tick and no decision has taken in yet.
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, n.Service(), "insert into ojs.jobs (tenant_id, type, queue) values ($1, 'a', 'shared')", tenant)
	}
	for _, source := range append(
		sources,
		"ojs.events(p_limit => 1000)", "ojs._recent()", "ojs._arrivals()", "ojs._oldest_aside()",
		"ojs._own_shard_groups('acme')", "ojs._own_tenant_groups('acme')",
		"ojs.heartbeat('shared-worker', array['"+n.theirs["active"]+"'::uuid] || (select array_agg(id) from ojs.jobs))",
	) {
		if got := list[string](t, acme, "select distinct tenant_id from "+source); len(got) > 1 || len(got) == 1 && got[0] != "acme" {
			t.Errorf("acme sees in %s rows of %q", source, got)
		}
		if source != "ojs._oldest_aside()" {
			if got := one[int](t, acme, "select count(*) from "+source); got == 0 {
				t.Errorf("acme sees nothing in %s", source)
			}
		}
	}
	// The table has a row of theirs and shows none.
	if got := one[int](t, acme, "select count(*) from ojs.job"); got != 0 {
		t.Errorf("acme sees %d rows of ojs.job", got)
	}
	// Not even the names of queues that are others' only.
	for _, source := range []string{
		"ojs.queue_stats", "ojs.shard_stats", "ojs.events(p_limit => 1000)", "ojs.jobs", "ojs._own_shard_groups('globex')",
	} {
		if got := list[string](t, acme, "select distinct queue from "+source+" where queue like 'secret%'"); len(got) > 0 {
			t.Errorf("acme reads in %s of %q", source, got)
		}
	}
	want := "acme 2 - 1"
	if got := lines(t, acme, `
		select tenant_id, weight, null, effective_share from ojs.tenant_stats`); len(got) != 1 || !strings.HasPrefix(got[0], "acme") {
		t.Errorf("acme's statistics are %q, want %q", got, want)
	}
	seen := lines(t, acme, "select available, active, total_jobs, tenants from ojs.queue_stats where queue = 'shared'")
	if own := lines(t, n.Pool, `
		select count(*) filter (where state = 'available'), count(*) filter (where state = 'active'), count(*), 1::bigint
		from ojs.job where queue = 'shared' and tenant_id = 'acme'`); !slices.Equal(seen, own) {
		t.Errorf("of the shared queue acme sees %v, want %v", seen, own)
	}
}

// The same call about another tenant's job and about none at all gives the same answer to the letter.
func TestForeignJobsLookLikeNone(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	acme := n.As("acme")
	before := lines(t, n.Pool, "select j::text from ojs.job j where tenant_id = 'globex' order by id")
	calls := []string{
		"select count(*) from ojs.jobs where id = $1", "select count(*) from ojs.results where id = $1",
		"select count(*) from ojs.job where id = $1", "select count(*) from ojs.events(p_limit => 1000) where subject = $1::text",
		"select from ojs.job_info($1)", "select from ojs.job_info($1, 'acme')", "select from ojs.ack($1)",
		"select from ojs.ack($1, p_worker_id => 'w1')",
		`select from ojs.nack($1, '{"message": "x"}')`, `select from ojs.nack($1, '{"message": "x"}', p_requeue => true)`,
		"select from ojs.cancel($1)", "select from ojs.activate($1)",
		"select count(*) from ojs.heartbeat('w1', array[$1::uuid])",
		// Even with the lease, which acme cannot know.
		"select from ojs.ack($1, (select lease from theirs))", "select from ojs.release($1, (select lease from theirs))",
	}
	answer := func(sql, id, lease string) string {
		t.Helper()
		sql = strings.ReplaceAll(sql, "(select lease from theirs)", "'"+lease+"'")
		var count *int
		err := acme.QueryRow(t.Context(), sql, id).Scan(&count)
		var failure *pgconn.PgError
		if errors.As(err, &failure) {
			return strings.ReplaceAll(fmt.Sprint(failure.Code, failure.Message, failure.Detail, failure.Hint, failure.Where), id, "<id>")
		}
		if count == nil {
			return fmt.Sprint("none ", err)
		}
		return fmt.Sprint(*count)
	}
	for _, state := range states {
		lease := otherID
		if state == "active" {
			lease = one[string](t, n.Pool, "select lease::text from ojs.job where id = $1", n.theirs[state])
		}
		for _, call := range calls {
			foreign, unknown := answer(call, n.theirs[state], lease), answer(call, someID, lease)
			if foreign != unknown || foreign != "0" && !strings.HasPrefix(foreign, "OJ404") {
				t.Errorf("%s of a %s job\n  of another tenant: %s\n  that does not exist: %s", call, state, foreign, unknown)
			}
		}
		if got := answer("select from ojs.job_info($1, 'globex')", n.theirs[state], lease); !strings.HasPrefix(got, "OJ403") {
			t.Errorf("naming the other tenant: %s", got)
		}
	}
	if after := lines(t, n.Pool, "select j::text from ojs.job j where tenant_id = 'globex' order by id"); !slices.Equal(before, after) {
		t.Errorf("globex's jobs changed from\n  %s\nto\n  %s", strings.Join(before, "\n  "), strings.Join(after, "\n  "))
	}
}

// What a tenant's login must not be able to do, by whatever way.
func TestTenantsMayNot(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	n.TenantURL("acme")
	n.TenantURL("globex")
	globexRole := one[string](t, n.Pool, "select role_name::text from ojs.tenant_role where tenant_id = 'globex'")
	fingerprint := func() string {
		t.Helper()
		return one[string](t, n.Pool, `select md5((select string_agg(j::text, '' order by id, tenant_id) from ojs.job j)
			|| (select string_agg(r::text, '' order by role_name) from ojs.tenant_role r)
			|| (select string_agg(w::text, '' order by w::text) from ojs.journal w) || (select s::text from ojs.settings s)
			|| (select string_agg(h::text, '' order by version) from ojs.schema_hash h))`)
	}
	before := fingerprint()
	foreign := n.theirs["available"]
	const denied = "42501"
	statements := []struct{ states, sql string }{
		// Writing past the functions.
		{"42501 55000", "update ojs.jobs set priority = 100"},
		{denied, "update ojs.job set priority = 100"},
		{denied, "update ojs.job set tenant_id = 'globex'"},
		{"42501 55000", "update ojs.jobs set state = 'completed'"},
		{"42501 55000", "delete from ojs.jobs"},
		{denied, "delete from ojs.job"},
		{denied, "truncate ojs.job"},
		{denied, "truncate ojs.job_all"},
		{denied, "delete from ojs.journal"},
		{denied, "insert into ojs.journal (tenant_id, queue, priority, to_state, jobs) values ('acme', 'q', 0, 'available', 1)"},
		{
			denied,
			`insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
				values ('acme', 'q', 0, '` + someID + "', 'a', 1, 'active', 'completed')",
		},
		{denied, "update ojs.tenant_fairness set vtime = 0"},
		{denied, "update ojs.tenant set weight = 1000000"},
		{denied, "insert into ojs.tenant (tenant_id, weight) values ('acme', 9)"},
		{denied, "insert into ojs.tenant_role values (session_user, 'globex')"},
		{denied, "update ojs.queue set config = '{}'"},
		{denied, "update ojs.settings set default_tenant = 'acme'"},
		{denied, "merge into ojs.job j using (values (1)) v on true when matched then delete"},
		// Columns that are not theirs to choose.
		{denied, "insert into ojs.jobs (type, tenant_id) values ('a', 'globex')"},
		{denied, "insert into ojs.jobs (type, tenant_id) values ('a', 'acme')"},
		{"OJ400", "insert into ojs.jobs (type, state) values ('a', 'completed')"},
		{denied, "insert into ojs.job (type, seq) values ('a', 1)"},
		{denied, "insert into ojs.job (type, lease) values ('a', '" + someID + "')"},
		{denied, "insert into ojs.job (type, attempt) values ('a', -100)"},
		{"OJ400", "insert into ojs.jobs (type, created_at) values ('a', '2000-01-01')"},
		{"OJ400", "insert into ojs.jobs (type, errors) values ('a', '[]')"},
		{denied, "insert into ojs.job_all (type) values ('a')"},
		{"42501 0A000", `insert into ojs.jobs (type, id) values ('a', '` + someID + `')
			on conflict (id, tenant_id) do update set priority = 1`},
		{"OJ405", `insert into ojs.jobs (type, meta) values ('a', '{"tenant_id": "globex"}')`},
		{denied, "select setval('ojs.job_seq', 1)"},
		{denied, "alter sequence ojs.job_seq restart"},
		// Reading what is private.
		{denied, "select lease from ojs.job"},
		{denied, "select * from ojs.job"},
		{denied, "select * from ojs.job_all"},
		{denied, "insert into ojs.job (type) values ('a')"},
		{denied, "select from ojs.journal"},
		{denied, "select from ojs.lease"},
		{denied, "select from ojs.release"},
		{denied, "select from ojs.tally"},
		{denied, "select from ojs.tenant"},
		{denied, "select from ojs.worker"},
		{denied, "select from ojs.worker_beat"},
		{denied, "select from ojs.cron"},
		{denied, "select from ojs.cron_run"},
		{denied, "select from ojs._shard_counts"},
		{denied, "select from ojs._movement"},
		{denied, "select from ojs._own_cron"},
		{denied, "select from ojs._unfolded()"},
		{denied, "select from ojs._shards('globex')"},
		{denied, "select * from ojs.tenant_role"},
		{denied, "select * from ojs.timer"},
		{denied, "select * from ojs.waiter"},
		{denied, "select * from ojs.lane"},
		{denied, "select * from ojs.rotation"},
		{denied, "select * from ojs.tenant_fairness"},
		{denied, "select * from ojs.dispatch_state"},
		{denied, "select * from ojs.schema_hash"},
		{denied, "copy ojs.job to stdout"},
		{denied, "copy ojs.job_all to stdout"},
		{denied, "copy ojs.job (id) to program 'cat'"},
		{denied, "copy ojs.jobs (type, tenant_id) from stdin"},
		{"42501 0A000", "copy ojs.job (type) from stdin"},
		{denied, "table ojs.tenant_role"},
		{denied, "select pg_catalog.pg_read_file('PG_VERSION')"},
		// Locks that would stop others.
		{denied, "lock table ojs.job"},
		{denied, "lock table ojs.job in row exclusive mode"},
		{denied, "lock table ojs.jobs in share mode"},
		{denied, "lock table ojs.lane"},
		{denied, "select id from ojs.job for update"},
		{denied, "select id from ojs.jobs for share"},
		{denied, "select from ojs.fold for update"},
		// Functions of the service, of operators, and private ones.
		{denied, "select from ojs.fetch_many('{shared}', '{1}', '{w}', '{0}')"},
		{denied, "select from ojs.revisit"},
		{denied, "select ojs.tick()"},
		{denied, "select from ojs.pause('shared')"},
		{denied, "select from ojs.throttle('globex')"},
		{denied, "select from ojs.resume('shared')"},
		{denied, "select from ojs.configure_tenant('acme', 100)"},
		{denied, "select from ojs.configure('acme', false)"},
		{denied, "select ojs.rebuild()"},
		{denied, "select ojs.register_waiters('" + someID + "', '{shared}')"},
		{denied, "select ojs.drop_waiter('" + someID + "', 'shared')"},
		{denied, "select ojs.create_tenant_role('globex', session_user)"},
		{denied, "select ojs._map_tenant_role('globex', session_user)"},
		{denied, "select ojs._set_schema_hash(1, 'x')"},
		{denied, "select ojs.schema_hash()"},
		{denied, "select ojs._job_for('" + foreign + "', null)"},
		{denied, "select ojs._held_job('" + foreign + "', null, null, null, 'x')"},
		{denied, "select ojs._session_tenant('globex')"},
		{denied, "select ojs._fold_on()"},
		{denied, "select ojs._roll_up()"},
		{denied, "select ojs._promote('{globex}', array['" + n.theirs["scheduled"] + "'::uuid])"},
		{denied, "select ojs._reap('{globex}', array['" + n.theirs["active"] + "'::uuid])"},
		{denied, "select ojs._prune(1)"},
		{denied, "select ojs._expire_due('{globex}', array['" + foreign + "'::uuid])"},
		{denied, "select ojs._notify('{shared}')"},
		{denied, "select ojs._woken(null, 'active')"},
		{denied, "select ojs._released(null, 'completed', true)"},
		{denied, "select ojs._unnamed_tenant('{}')"},
		{denied, "select ojs._level('shared', 0)"},
		// Naming another tenant.
		{"OJ403", "select from ojs.enqueue('a', p_tenant => 'globex')"},
		{"OJ403", `select from ojs.enqueue_many('[{"type": "a", "args": []}]', 'globex')`},
		{"OJ403", "select from ojs.events(p_tenant => 'globex')"},
		{"OJ403", "select from ojs.heartbeat('w', p_tenant => 'globex')"},
		{"OJ403", "select from ojs.explain('" + foreign + "', 'globex')"},
		{"OJ404", "select from ojs.explain('" + foreign + "')"},
		{denied, "select from ojs.preview_weight('acme', 100)"},
		{"OJ403", "select from ojs.cancel('" + foreign + "', 'globex')"},
		{"OJ403", "select from ojs.ack('" + foreign + "', p_tenant => 'globex')"},
		{"OJ403", `select from ojs.nack('` + foreign + `', '{"message": "x"}', p_tenant => 'globex')`},
		{"OJ403", "select from ojs.activate('" + foreign + "', 'globex')"},
		// Taking another role.
		{denied, "set role ojs_owner"},
		{denied, "set role ojs_service"},
		{denied, "set role ojs_operator"},
		{denied, "set role " + globexRole},
		{denied, "set session authorization " + globexRole},
		{denied, "set local session authorization ojs_service"},
		{denied, "grant ojs_service to session_user"},
		{denied, "grant select on ojs.job to public"},
		{"42501 0LP01", "grant ojs_tenant to ojs_service"},
		{denied, "reassign owned by ojs_owner to session_user"},
		{denied, "alter role ojs_tenant bypassrls"},
		{denied, "alter default privileges for role ojs_owner grant execute on functions to public"},
		{denied, "create role mallory"},
		{denied, "set session_replication_role = replica"},
		// Changing the rules.
		{denied, "alter table ojs.job disable row level security"},
		{denied, "alter table ojs.job no force row level security"},
		{denied, "create policy p on ojs.job using (true)"},
		{denied, "drop policy staff on ojs.job"},
		{denied, "alter policy staff on ojs.job to public using (true)"},
		{denied, "create trigger t before insert on ojs.job for each row execute function ojs._job_inserted()"},
		{denied, "create rule r as on insert to ojs.jobs do instead nothing"},
		{denied, "alter table ojs.job disable trigger all"},
		{denied, "create or replace rule jobs_insert as on insert to ojs.jobs do instead nothing"},
		{denied, "alter view ojs.jobs alter tenant_id set default 'globex'"},
		{denied, "create or replace view ojs.jobs as select 1"},
		{denied, "create or replace function ojs.current_tenant() returns text language sql as $$ select 'globex' $$"},
		{denied, "alter function ojs.current_tenant() security invoker"},
		{denied, "create function ojs.mine() returns int language sql as $$ select 1 $$"},
		{denied, "create table ojs.mine ()"},
		{denied, "drop table ojs.job cascade"},
		{denied, "drop schema ojs cascade"},
		{denied, "comment on table ojs.job is 'mine'"},
		{denied, "create index on ojs.job (id)"},
		{denied, "create statistics s on id, queue from ojs.job"},
		{denied, "alter table ojs.job alter column queue set statistics 1000"},
		{denied, "create publication p for all tables"},
		{denied, "alter type ojs.job_state add value 'mine'"},
		{denied, "alter table ojs.job attach partition ojs.job default"},
	}
	for _, s := range statements {
		conn := n.As("acme")
		tx := begin(t, conn)
		// Names of the tenant's own first, as a session is free to.
		exec(t, tx, "set local search_path = pg_temp, ojs, pg_catalog")
		refused(t, tx, s.states, s.sql)
		rollback(t, tx)
	}
	if after := fingerprint(); after != before {
		t.Error("something of it had an effect")
	}
	// analyze and vacuum only warn; the statistics stay as they are.
	conn := connect(t, n.TenantURL("acme"))
	for _, sql := range []string{"analyze ojs.job", "vacuum ojs.job"} {
		exec(t, conn, sql)
	}
	if got := one[int](t, n.Pool, `
		select count(*) from pg_catalog.pg_stat_user_tables
		where schemaname = 'ojs' and (last_analyze is not null or last_vacuum is not null)`); got != 0 {
		t.Errorf("a tenant has analyzed or vacuumed %d tables", got)
	}
}

// Identity is the role that logged in, and nothing a session says about itself.
func TestNoSettingDecides(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	conn := connect(t, n.TenantURL("acme"))
	own := one[int](t, conn, "select count(*) from ojs.jobs")
	for _, sql := range []string{
		"set ojs.tenant = 'globex'", "set ojs.tenant_id = 'globex'", "set app.tenant = 'globex'",
		`set request.jwt.claims = '{"tenant": "globex"}'`, "set application_name = 'ojs-pg'",
		"select set_config('ojs.current_tenant', 'globex', false)", "set search_path = ojs, public", "set role none",
		"set session authorization default", "reset role", "set row_security = on",
		"set check_function_bodies = off", "set default_transaction_isolation = 'serializable'",
		"set default_transaction_isolation = 'read committed'", "set plan_cache_mode = force_generic_plan",
		"prepare mine as select count(*) from ojs.jobs", "declare c cursor with hold for select id from ojs.jobs",
		"set role ojs_tenant", "reset role",
	} {
		exec(t, conn, sql)
		if got := one[string](t, conn, "select ojs.current_tenant()"); got != "acme" {
			t.Errorf("after %s the session is %s's", sql, got)
		}
		if got := one[int](t, conn, "select count(*) from ojs.jobs"); got != own {
			t.Errorf("after %s the session sees %d jobs, before %d", sql, got, own)
		}
		if got := one[string](t, conn, "select tenant_id from ojs.enqueue('a', p_queue => 'set')"); got != "acme" {
			t.Errorf("after %s the session enqueues for %s", sql, got)
		}
		own++
	}
	// Row security cannot be switched off; the query fails instead.
	exec(t, conn, "set row_security = off")
	refused(t, conn, "42501", "select count(*) from ojs.jobs")
}

// A login that is not mapped to a tenant is no tenant, and not the default one.
func TestUnmappedRoles(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	before := stored(t, n.DB)
	calls := []string{
		"select from ojs.enqueue('a')", "select from ojs.enqueue('a', p_tenant => 'acme')",
		`select from ojs.enqueue_many('[{"type": "a", "args": []}]')`, "insert into ojs.jobs (type) values ('a')",
		"select from ojs.job_info('" + n.theirs["active"] + "')", "select from ojs.ack('" + n.theirs["active"] + "')",
		`select from ojs.nack('` + n.theirs["active"] + `', '{"message": "x"}')`,
		"select from ojs.cancel('" + n.theirs["active"] + "', 'globex')", "select from ojs.activate('" + n.theirs["pending"] + "')",
		"select from ojs.heartbeat('w1')", "select from ojs.events()", "select from ojs.explain('" + n.theirs["available"] + "')",
		"select from ojs.release('" + n.theirs["active"] + "', '" + someID + "')",
	}
	member := connect(t, n.GroupURL("ojs_tenant"))
	for _, sql := range calls {
		if failure := refused(t, member, "OJ403", sql); !strings.Contains(failure.Hint, "create_tenant_role") {
			t.Errorf("%s: the hint is %q", sql, failure.Hint)
		}
	}
	for _, source := range []string{
		"ojs.jobs", "ojs.job", "ojs.results", "ojs.shard_stats", "ojs.tenant_stats", "ojs.workers", "ojs.crons", "ojs.cron_runs",
		"ojs._own_shard_groups('acme')", "ojs._own_tenant_groups('acme')", "ojs.queue_stats",
	} {
		if got := one[int](t, member, "select count(*) from "+source); got != 0 {
			t.Errorf("a login without a tenant sees %d rows of %s", got, source)
		}
	}
	stranger := connect(t, n.GroupURL(""))
	for _, sql := range append(calls, "select from ojs.jobs", "select from ojs.problem", "select ojs.now()",
		"select ojs.current_tenant()", "select from ojs.tenant_stats") {
		refused(t, stranger, "42501", sql)
	}
	if after := stored(t, n.DB); after != before {
		t.Errorf("stored: %s, before: %s", after, before)
	}
}

// The server's role does what functions do, and no more.
func TestTheServiceMayNot(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	for _, sql := range []string{
		"update ojs.job set state = 'completed'", "delete from ojs.job", "truncate ojs.job", "select * from ojs.tenant_role",
		"select from ojs.lane for update", "insert into ojs.job (type, seq) values ('a', 1)",
		"select ojs._set_schema_hash(1, 'x')", "select ojs.rebuild()", "set role ojs_owner",
		"alter table ojs.job disable row level security",
		"select ojs.create_tenant_role('acme', 'mallory')", "select from ojs.configure('acme')", "delete from ojs.journal",
		"select * from ojs.waiter",
	} {
		refused(t, n.Service(), "42501", sql)
	}
	for _, sql := range []string{
		"update ojs.job set state = 'completed'", "delete from ojs.job", "select * from ojs.tenant_role", "set role ojs_owner",
		"select ojs._set_schema_hash(1, 'x')", "update ojs.tenant set weight = 5",
		"select ojs.create_tenant_role('acme', 'mallory')",
	} {
		refused(t, n.Operator(), "42501", sql)
	}
}

func TestCreateTenantRole(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	role := d.RoleName("app")
	create := "select ojs.create_tenant_role($1, $2::text::name)"
	for _, c := range []struct {
		states string
		tenant any
		role   any
	}{
		{"OJ400", nil, role},
		{"OJ400", "", role},
		{"OJ400", "no such", role},
		{"OJ400", strings.Repeat("a", 257), role},
		{"OJ400", "acme", nil},
		{"OJ400", "acme", ""},
		{"OJ400", "acme", "ojs_owner"},
		{"OJ400", "acme", "ojs_service"},
		{"OJ400", "acme", "ojs_operator"},
		{"OJ400", "acme", "ojs_tenant"},
		{"OJ400", "acme", "pg_monitor"},
		{"OJ400", "acme", "pg_mine"},
		{"OJ400", "acme", one[string](t, d.Pool, "select session_user::text")},
		{"OJ400", "acme", d.RoleName("service")},
	} {
		refused(t, d.Pool, c.states, create, c.tenant, c.role)
	}
	refused(t, d.Pool, "OJ400", "select ojs.create_tenant_role('acme', $1::text::name, p_connections => 0)", role)
	if got := one[int](t, d.Pool, "select count(*) from ojs.tenant_role"); got != 0 {
		t.Errorf("%d roles were mapped", got)
	}
	if got := one[bool](t, d.Pool, "select pg_catalog.to_regrole($1) is not null", role); got {
		t.Error("a role was created")
	}
	// An operator who may create roles and give out the group.
	manager := d.RoleName("manager")
	exec(t, d.Pool, fmt.Sprintf("create role %s login createrole password 'manager' in role ojs_operator", manager))
	exec(t, d.Pool, "grant ojs_tenant to "+manager+" with admin option")
	address, err := url.Parse(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(manager, "manager")
	conn := connect(t, address.String())
	login := func(role string) *pgx.Conn {
		address.User = url.UserPassword(role, "secret")
		return connect(t, address.String())
	}
	exec(t, conn, "select ojs.create_tenant_role('acme', $1::text::name, 'secret')", role)
	if got := one[string](t, login(role), "select tenant_id from ojs.enqueue('a')"); got != "acme" {
		t.Errorf("the new role enqueues for %s", got)
	}
	// A role that is new is bounded; one that is there keeps its bounds, unless they are given.
	const bounds = "select rolconnlimit, rolconfig from pg_catalog.pg_roles where rolname = $1"
	const timeouts = " [statement_timeout=30s idle_in_transaction_session_timeout=5min idle_session_timeout=15min]"
	if got := lines(t, d.Pool, bounds, role); got[0] != "20"+timeouts {
		t.Errorf("the new role has the bounds %s", got[0])
	}
	if got := one[string](t, login(role), "show statement_timeout"); got != "30s" {
		t.Errorf("statements of the new role are cancelled after %s", got)
	}
	exec(t, conn, "select ojs.create_tenant_role('acme', $1::text::name, p_connections => 3)", role)
	exec(t, conn, "select ojs.create_tenant_role('acme', $1::text::name)", role)
	if got := lines(t, d.Pool, bounds, role); got[0] != "3"+timeouts {
		t.Errorf("with a limit of its own it has the bounds %s", got[0])
	}
	// A name that has to be quoted, and a second role of the same tenant.
	odd := d.RoleName(`O'Brien "x"; drop`)
	exec(t, conn, "select ojs.create_tenant_role('acme', $1::text::name, 'secret')", odd)
	if got := one[int](t, login(odd), "select count(*) from ojs.jobs"); got != 1 {
		t.Errorf("another role of the tenant sees %d jobs, want the one there is", got)
	}
	// Again: moved to another tenant, the password stays.
	exec(t, conn, "select ojs.create_tenant_role('globex', $1::text::name)", role)
	if got := lines(t, login(role), "select ojs.current_tenant(), (select count(*) from ojs.jobs)"); got[0] != "globex 0" {
		t.Errorf("the role that was moved is %s", got[0])
	}
	if got := list[string](t, d.Pool, "select tenant_id from ojs.tenant_role order by 1"); !slices.Equal(got, []string{"acme", "globex"}) {
		t.Errorf("mapped are roles of %q", got)
	}
}

// Names that a tenant puts first in its search_path are not taken for ours.
func TestSearchPathIsNotBelieved(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	conn := connect(t, n.TenantURL("acme"))
	role := one[string](t, conn, "select session_user::text")
	exec(t, n.Pool, "create schema evil authorization "+role)
	for _, sql := range []string{
		"create table evil.stolen (who text)",
		`create function evil.steal(text) returns text language plpgsql as $$ begin insert into evil.stolen
				select current_user where current_user <> session_user;
			return 'globex'; end $$`,
		"create function evil.current_tenant() returns text language sql as $$ select evil.steal('') $$",
		"create function evil.now() returns timestamptz language sql as $$ select evil.steal('')::timestamptz $$",
		"create function evil.length(text) returns int language sql as $$ select length(evil.steal('')) $$",
		"create function evil.coalesce_(text) returns text language sql as $$ select evil.steal('') $$",
		"create function evil.octet_length(text) returns int language sql as $$ select pg_catalog.length(evil.steal('')) $$",
		"create function evil.jsonb_typeof(jsonb) returns text language sql as $$ select evil.steal('') $$",
		"create function evil.json_typeof(json) returns text language sql as $$ select evil.steal('') $$",
		"create function evil.format(text, variadic anyarray) returns text language sql as $$ select evil.steal('') $$",
		"create function evil.gen_random_uuid() returns uuid language sql as $$ select evil.steal('')::uuid $$",
		"create function evil.pg_has_role(name, name, text) returns boolean language sql as $$ select evil.steal('') = 'globex' $$",
		"create function evil.pg_notify(text, text) returns void language sql as $$ select evil.steal('') $$",
		"create function evil.nextval(regclass) returns bigint language sql as $$ select pg_catalog.length(evil.steal('')) $$",
		"create function evil.eq(text, text) returns boolean language sql as $$ select evil.steal('') = 'globex' $$",
		"create operator evil.= (function = evil.eq, leftarg = text, rightarg = text)",
		"create operator evil.<> (function = evil.eq, leftarg = text, rightarg = text)",
		"create operator evil.~ (function = evil.eq, leftarg = text, rightarg = text)",
		"create operator evil.!~ (function = evil.eq, leftarg = text, rightarg = text)",
		"create function evil.has(jsonb, text) returns boolean language sql as $$ select evil.steal('') = 'globex' $$",
		"create operator evil.? (function = evil.has, leftarg = jsonb, rightarg = text)",
		"create function evil.get(jsonb, text) returns jsonb language sql as $$ select pg_catalog.to_jsonb(evil.steal('')) $$",
		"create operator evil.-> (function = evil.get, leftarg = jsonb, rightarg = text)",
		"create type evil.job_state as enum ('available')", "create domain evil.uuid as text", "create domain evil.int4 as text",
		"create table evil.job (id uuid, tenant_id text, state text)",
		"create table evil.tenant_role (role_name name, tenant_id text)",
		"create temp table tenant_role (role_name name, tenant_id text)",
		"create temp table job (id pg_catalog.uuid, tenant_id text, state text)",
		"insert into evil.tenant_role values (session_user, 'globex')",
		"insert into pg_temp.tenant_role values (session_user, 'globex')", "grant usage on schema evil to public",
		"grant all on all tables in schema evil to public",
		"set search_path = pg_temp, evil, ojs, pg_catalog",
	} {
		exec(t, conn, sql)
	}
	id := one[string](t, conn, `
		select id::pg_catalog.text
		from ojs.enqueue('a', '["x"]', p_queue => 'evil', p_meta => '{"tenant_id": "acme", "a": 1}',
			p_retry => '{"max_attempts": 5}', p_tags => '{a}', p_options => '{}', p_extra => '{}')`)
	exec(t, conn, `select from ojs.enqueue_many('[{"type": "a", "args": [], "queue": "evil", "meta": {"tenant_id": "acme"}}]')`)
	exec(t, conn, `insert into ojs.jobs (type, queue, meta) values ('a', 'evil', '{"tenant_id": "acme"}')`)
	for _, j := range jobs(t, n.Service(), "ojs.fetch('{evil}', 10)") {
		if j.Tenant != "acme" {
			t.Errorf("a job was enqueued for %s", j.Tenant)
		}
	}
	for _, sql := range []string{
		"select from ojs.job_info('" + id + "')", "select from ojs.heartbeat('w', array['" + id + "']::pg_catalog.uuid[])",
		`select from ojs.nack('` + id + `', '{"message": "x"}', p_requeue => true)`, "select from ojs.cancel('" + id + "')",
		"select from ojs.events()", "select from ojs.tenant_stats", "select from ojs.shard_stats", "select from ojs.jobs",
		"select from ojs.explain('" + id + "')",
	} {
		exec(t, conn, sql)
	}
	refused(t, conn, "OJ404", "select from ojs.job_info('"+n.theirs["active"]+"')")
	// A foreign key would tell which ids exist.
	refused(t, conn, "42501", "create table evil.mine (id pg_catalog.uuid, tenant_id text, foreign key (id, tenant_id) references ojs.job)")
	if got := list[string](t, n.Pool, "select distinct who from evil.stolen"); len(got) > 0 {
		t.Errorf("the tenant's functions ran as %q", got)
	}
	if got := list[string](t, conn, "select distinct tenant_id from ojs.jobs"); !slices.Equal(got, []string{"acme"}) {
		t.Errorf("the session sees jobs of %q", got)
	}
}
