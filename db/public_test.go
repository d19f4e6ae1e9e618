package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Functions that the server and operators may call, in addition to those of tenants (tenantMay).
var (
	serviceMayCall  = strings.Fields("_key_owner _notify_full drop_waiter note_clock note_refusals register_waiters " + staffMayCall)
	operatorMayCall = strings.Fields("_map_tenant_role configure configure_dead_letters create_tenant_role cut_partition " +
		"delete_replay_rule drop_finished prune_usage rebuild set_replay_rule " + staffMayCall)
)

const staffMayCall = "_clock_lag _configured _counts_at _counts_since _detached_partitions " +
	"_doctor_clock _doctor_failures _doctor_privileges _doctor_roles _doctor_server _doctor_settings _doctor_tables " +
	"_doctor_transactions _doctor_work _failing_types _first_erasure _first_expiry _first_measure " +
	"_holders _id_time _is_replacement _iso_duration " +
	"_lane_holders " +
	"_dispatch_counters _lately _limit_json _named_session _pace _pace_ever _pace_from _pace_step _percentile " +
	"_pool_holders _pools_lately _resting_queues _seconds _tenant_gauges _told _unfit _wait_bounds " +
	"_waiting_servers _waits_sum _whole_config " +
	"configure_pool configure_pools configure_queue configure_tenant delete_pool delete_queue doctor enqueue_rows fetch_many " +
	"cancel_many configure_limits configure_static configure_tier create_api_key deregister_tenant jobs_floor list_jobs " +
	"reprioritize resume_tenant " +
	"put_settings put_tenant revoke_api_key rotate_api_key set_tier suspend_tenant " +
	"hold_dispatch limit_concurrency pause plan_cron preview_weight " +
	"release_many release_throttle resume resume_dispatch schema_changing schema_hash stand_down throttle tick unplanned_crons upkeep " +
	"watch_neighbours"

func TestGrantsOfStaff(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for role, want := range map[string][]string{"ojs_service": serviceMayCall, "ojs_operator": operatorMayCall} {
		got := list[string](t, d.Pool, `
			select distinct p.proname::text collate "C" from pg_catalog.pg_proc p
			where p.pronamespace = 'ojs'::pg_catalog.regnamespace
			  and exists (select from pg_catalog.aclexplode(p.proacl) a where a.grantee = $1::text::pg_catalog.regrole)
			  and not exists (
				select from pg_catalog.aclexplode(p.proacl) a where a.grantee = 'ojs_tenant'::pg_catalog.regrole) order by 1`, role)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s may call beyond what tenants may\n  %s\ninstead of\n  %s", role, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
	expectNone(t, d.Pool, "functions that tenants may call and the server or operators may not, or that somebody else may", `
		select p.oid::pg_catalog.regprocedure::text from pg_catalog.pg_proc p
		cross join lateral (
			select array_agg(a.grantee::pg_catalog.regrole::text) as roles from pg_catalog.aclexplode(p.proacl) a
			where a.grantee <> p.proowner
		) g
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace
		  and ('ojs_tenant' = any (g.roles) and not g.roles @> '{ojs_service,ojs_operator}'
			or not g.roles <@ '{ojs_service,ojs_operator,ojs_producer,ojs_worker,ojs_tenant}')`)
}

// Plans must not depend on statistics, which are not kept. So the settings are few, and are those of access.sql. The functions
// are named, because one that is left out is slow only in a database that is large.
func TestPlannerSettings(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	got := list[string](t, d.Pool, `
		select x.settings || ': ' || string_agg(distinct p.proname::text collate "C", ' ')
		from pg_catalog.pg_proc p
		cross join lateral (
			select string_agg(s, ' ' order by s) as settings from unnest(p.proconfig) s
			where s ~ '^(enable_|jit|max_parallel|plan_)' and s !~ 'pruning'
		) x
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and x.settings is not null
		group by x.settings order by x.settings collate "C"`)
	want := []string{
		"enable_bitmapscan=off enable_hashjoin=off enable_mergejoin=off enable_seqscan=off enable_sort=off jit=off " +
			"max_parallel_workers_per_gather=0 plan_cache_mode=force_generic_plan: " +
			"_arrivals _check_beat _check_workers _clock_lag _delete_dead _end_workers _erase_jobs " +
			"_erase_page _extend _failing_types _give_room _holders " +
			"_lately _notify_room " +
			"_oldest_aside _own_shard_groups _own_shards _own_tenant_groups _pool_holders _pools_lately " +
			"_put_aside _queue_shares _recent _record_beat _retry_dead _served_queues _trim_cron_runs " +
			"ack_many configure_pool configure_pools configure_static " +
			"configure_tenant configure_tier delete_pool deregister_tenant erase explain fetch fetch_many job_results " +
			"limit_concurrency pause put_tenant release_many release_throttle reprioritize resume set_tier settle throttle tick",
		"enable_bitmapscan=off enable_hashjoin=off enable_mergejoin=off enable_seqscan=off jit=off " +
			"max_parallel_workers_per_gather=0 plan_cache_mode=force_custom_plan: events jobs_floor list_jobs verify_usage",
		"jit=off plan_cache_mode=force_custom_plan: _lock_matching _replay dead_letter_count" +
			" dead_letter_stats dead_letters failed_count retry_many",
		"plan_cache_mode=force_generic_plan: enqueue_bulk enqueue_each enqueue_many enqueue_rows",
	}
	if !slices.Equal(got, want) {
		t.Errorf("functions are planned with\n  %s\ninstead of\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// Grants and settings outside of access.sql would not be found by a reader.
func TestGrantsStandOnOnePage(t *testing.T) {
	t.Parallel()
	for name, text := range codeFiles(t) {
		for _, words := range []string{
			"grant execute on function ojs.", "alter function", "set enable_", "set jit", "set plan_cache_mode",
		} {
			if name != "access.sql" && strings.Contains(text, words) {
				t.Errorf("%s: %q belongs into access.sql", name, words)
			}
		}
	}
}
