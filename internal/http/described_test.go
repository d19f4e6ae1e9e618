package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// describe adds descriptions to the properties of all schemas, and fails for a property that has
// none. A line of descriptions that begins with Schema.property goes before one of the property
// alone.
func describe(schemas map[string]named) (missing []string) {
	known := descriptions()
	var walk func(path string, s schema)
	walk = func(path string, s schema) {
		properties, _ := s["properties"].(map[string]schema)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			about := known[path+"."+name]
			if about == "" {
				about = known[name]
			}
			if about == "" {
				missing = append(missing, path+"."+name)
				continue
			}
			p := maps.Clone(properties[name])
			p["description"] = about
			properties[name] = p
			walk(path+"."+name, p)
		}
		for _, inner := range []string{"items", "additionalProperties"} {
			if more, ok := s[inner].(schema); ok {
				walk(path, more)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		walk(name, schemas[name].schema)
		schemas[name].schema["description"] = schemas[name].about
	}
	return missing
}

// descriptions are what properties mean, one sentence each.
var descriptions = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(descriptionLines) {
		name, about, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if name == "" {
			continue
		}
		if _, twice := all[name]; twice || !ok {
			panic(fmt.Sprintf("%q is described twice, or is no line", name))
		}
		all[name] = about
	}
	return all
})

const descriptionLines = `
UsageBatch.attempts: How many attempts began.
UsageBatch.closed_at: When the row was written.
UsageBatch.completed: How many jobs were completed.
UsageBatch.enqueued: How many jobs were enqueued.
UsageBatch.failed: How many jobs were discarded, because their attempts were used up or they had expired.
UsageBatch.failed_attempts: How many attempts failed.
UsageBatch.hash: The SHA-256 of the canonical text of the row, in hex.
UsageBatch.hour: When the hour began.
UsageBatch.n: The number of the row in the tenant's chain, from 1.
UsageBatch.previous: The hash of the row before; null for the first row.
UsageBatch.refused_429: How many requests limits of the tenant refused with 429.
UsageBatch.refused_507: How many requests were refused with 507, because the tenant had no bytes left.
UsageBatch.stored_bytes: The bytes of the tenant's jobs when the hour was closed; null without a limit max_stored_bytes.
UsageBatch.worker_ms: How long the attempts that ended had run, in sum, in milliseconds.
UsageFault.fault: What is wrong with the row.
UsageFault.hour: When the hour of the row began; null if the row is not there.
UsageFault.n: The number of the row in the tenant's chain.
usage: The rows of the page.
faults: The first fault of each tenant.
valid: Whether there is no fault.
acknowledged: Always true.
action: What is lowered: the weight, the number of running jobs or the rate of new jobs.
AuditEntry.action: What was done, such as changed.
CancelManyAnswer.action: What the request did.
RetryManyAnswer.action: What the request did.
activated_at: When the pending job became available.
active: The number of jobs that workers run.
EraseAnswer.active: How many running jobs it erased; they end without a result.
Cause.active: How many jobs count against the limit.
RuleStat.active: How many jobs the last decision counted against the limit.
active_job_ids: The ids of the jobs that the worker runs.
active_jobs: The number of jobs that workers run.
HeartbeatRequest.active_jobs: The ids of the jobs that the worker runs, or their number with the ids in active_job_ids.
Worker.active_jobs: How many jobs the worker runs, as it reports.
WorkerHealth.active_jobs: How many jobs the worker runs, as it reports.
active_share: The part of all active jobs from which on a tenant is noisy.
active_workers: How many live workers name the pool or hold jobs of it.
actor: The login role or the caller that made the change.
actual_share: The tenant's part of the jobs that were handed out.
api_keys: The API keys of the page.
args: The arguments of the job.
as_of: The time of the numbers.
at: When the change was made.
atomicity: Whether the batch is enqueued as a whole (atomic, the default) or each job by itself (partial).
attempt: How many attempts have begun.
attempts_failed_24h: How many attempts failed in the last 24 hours, retried or not.
attempts_failed_last_hour: How many attempts failed in the last hour, retried or not.
attempts_failed_per_minute: How many attempts failed in the last minute, retried or not.
JobError.attempt: Which attempt failed.
audit: The changes of the page.
available: The number of jobs that can be handed out.
avg_wait_ms: How long jobs handed out in the last minute had been available, on average, in milliseconds.
NamedQueueNumbers.avg_wait_ms: How long jobs handed out in the last hour had been available, on average, in milliseconds.
QueueStatsAnswer.avg_wait_ms: How long jobs handed out in the last hour had been available, on average, in milliseconds.
avg_wait_5m_ms: How long jobs handed out in the last five minutes had been available, on average, in milliseconds.
avg_wait_1h_ms: How long jobs handed out in the last hour had been available, on average, in milliseconds.
backend: The state of the database.
Manifest.backend: The kind of database.
backoff_coefficient: The factor by which the wait grows; 2 by default.
backoff_strategy: How the wait grows from attempt to attempt; exponential by default.
backpressure: How many jobs the queue may hold.
backtrace: Where the handler failed.
because: Why there is the pause; operators alone read it.
burst: How many jobs may be enqueued at once; as limit, unless it is given.
by: The login or principal that paused, or that told the workers to rest or end; operators alone read it.
by_error_type: Numbers of dead letters by type of error; of many types the 1000 with the most.
by_queue: Numbers of dead letters by queue; of many queues the 1000 with the most.
by_type: Numbers of dead letters by type of job; of many types the 1000 with the most.
cancelled: The number of cancelled jobs.
QueueRetention.cancelled: How long cancelled jobs are kept, as an ISO 8601 duration.
cancelled_at: When the job was cancelled.
capabilities: Features of OJS, and whether this server has them.
catch_up: Whether the cron job fires once for the times that were missed, or skips them.
cause: A word for what holds the job back, such as paused or limit.
certainty: How exact dispatches_ahead is.
code: A word for the error, for programs.
Failure.code: A word for the error; DISCARD, FAIL and DEAD_LETTER end the job.
completed: The number of completed jobs.
QueueRetention.completed: How long completed jobs are kept, as an ISO 8601 duration.
completed_24h: How many jobs were completed in the last 24 hours.
completed_at: When the job was completed, or its last attempt ended.
completed_last_hour: How many jobs were completed in the last hour.
computed_at: When the numbers were read.
concurrency: How many jobs the worker runs at once.
Pool.concurrency: How many jobs the workers of the pool may run at once, together.
PoolAnswer.concurrency: How many jobs the workers of the pool may run at once, together.
PoolConfig.concurrency: How many jobs the workers of the pool may run at once, together.
LimitsUnder.concurrency: Another name of max_concurrency.
TenantLimitsRequest.concurrency: Another name of max_concurrency.
config: The configuration of the queue.
Tier.config: The template.
TierUnder.config: The template.
SettingsUnder.config: The settings to change.
configuration: The configuration of the queue, once more.
confirm: Must be true, or the server changes nothing.
ConfirmRequest.confirm: Must be true to remove what is in use.
DeregisterTenantRequest.confirm: The name of the tenant, if it has jobs that have not ended, or dead letters.
conformance_level: The highest level of OJS that the server has.
cost: What the job counts when tenants share a queue by cost, 0.001 to 1000000; 1 by default.
count: How many there are in this answer.
FetchRequest.count: How many jobs to hand out at most; 1 by default.
counts: Numbers of jobs by state.
created: Always true: the queue was not known before, so its name may be misspelt.
created_at: When it was created.
Queue.created_at: When the queue was configured, had its first job or was paused; null if this is not noted yet.
QueueNumbers.created_at: When the queue was configured, had its first job or was paused; null if this is not noted yet.
NamedQueueNumbers.created_at: When the queue was configured, had its first job or was paused; null if this is not noted yet.
QueueStatsAnswer.created_at: When the queue was configured, had its first job or was paused; null if this is not noted yet.
Tenant.created_at: When the tenant was configured first.
created_by: The login role that made the key.
cron: The cron expression.
CronAnswer.cron: The cron job.
DeleteCronAnswer.cron: The cron job.
cron_job: The cron job, once more.
cron_jobs: The cron jobs of the page.
crons: The cron jobs of the page, once more.
current: How much of the limit is used.
EraseAnswer.answers: How many answers to idempotency keys it emptied or deleted.
EraseAnswer.cancelled: How many of the jobs waited, and were cancelled.
EraseAnswer.dead_letters: How many dead letters it deleted.
EraseAnswer.jobs: How many jobs it erased.
EraseAnswer.locked: How many jobs another transaction had locked; send the request again.
EraseAnswer.next_cursor: The cursor of the next request; null if all is done.
EraseRequest.reason: Why, for the audit trail; required.
erase_after: The content of the tenant's jobs is erased after this ISO 8601 duration; by default it stays as long as they.
cursor: The next_cursor of the answer before.
data: What happened; the members depend on the type.
default_retry: The retry policy of jobs that have none.
Settings.default_retry: The retry policy of jobs that have none; null means that of the standard.
default_tenant: The tenant of jobs that name none.
default_timeout: How many seconds an attempt may run, for jobs that have no timeout_ms.
default_weight: The weight of tenants that have none in this queue.
deficit: How far the tenant lags behind its share.
delay_until: Another name of scheduled_at.
deleted: Always true.
PurgeDeadLettersAnswer.deleted: How many dead letters were deleted.
depth: The number of jobs that wait: available, scheduled and pending.
depth_ratio: How many times the median of waiting jobs a tenant has when it is noisy.
deregistered: Whether the worker was registered.
deregistered_at: When the tenant was ended.
description: What it is for.
detail: A longer message, as in RFC 9457.
details: More about the error, for programs.
JobError.details: More about the error, as the worker sent it.
Failure.details: More about the error, of any JSON type.
directive: What the worker is told to do; absent if it is told nothing.
DirectiveRequest.directive: What the worker is to do; resume is another name of running.
DirectWorkersAnswer.directive: What the workers were told to do.
discarded: The number of discarded jobs.
QueueRetention.discarded: How long discarded jobs are kept, as an ISO 8601 duration.
discarded_at: When the job was discarded.
dispatch: Whether dispatch is held, and how many jobs would run.
dispatch_count_1m: How many jobs were handed out in the last minute.
dispatch_count_5m: How many jobs were handed out in the last five minutes.
dispatch_count_1h: How many jobs were handed out in the last hour.
dispatch_ratio_1m: The part of all jobs handed out in the last minute, from 0 to 1.
dispatch_ratio_5m: The part of all jobs handed out in the last five minutes, from 0 to 1.
dispatch_ratio_1h: The part of all jobs handed out in the last hour, from 0 to 1.
dispatch_share_1m: The tenant's part of all jobs handed out in the last minute, from 0 to 1.
dispatch_share_5m: The tenant's part of all jobs handed out in the last five minutes, from 0 to 1.
dispatch_share_1h: The tenant's part of all jobs handed out in the last hour, from 0 to 1.
dispatched: How many jobs were handed out in all.
dispatches_ahead: How many jobs of the queue will be handed out before this one; null if that is not known.
docs_url: The page that explains the code.
drain: How many workers finish their jobs and take no more.
due: How many tenants do not have all of the template yet.
effective: The value that the throttle has set.
effective_priority: The priority with the boost of the tenant.
effective_share: The share of dispatch that the tenant is entitled to, from 0 to 1.
enabled: Whether the cron job fires.
StarvationPrevention.enabled: Whether the queues of the pool are kept from starving.
TenantFairness.enabled: Whether tenants share the queue; false means first in, first out across tenants.
endpoints: Paths of the server.
enqueue_rate: Another name of max_enqueue_rate, as a number per second.
enqueued: How many jobs were enqueued.
enqueued_at: When the job became available, or was created if it is not available yet.
enqueued_per_minute: How many jobs were enqueued in the last minute.
error: Why the request or the job failed.
Backend.error: Why the database counts as unhealthy.
BulkError.error: Why the job was not changed, in a sentence.
CronJob.error: Why the cron expression cannot be read.
Job.error: The error of the latest failed attempt.
JobResult.error: The error of the latest failed attempt.
ResultAnswer.error: The error of the latest failed attempt.
error_ratio: How many times the part of failed attempts of others a tenant has when it is noisy.
error_type: The type or the code of the error.
heartbeat_timeout_ms: For how many milliseconds a worker may be silent before it counts as dead.
idempotency_window: For how long an idempotency key is kept, as an ISO 8601 duration.
journal_retention: For how long the journal is kept, as an ISO 8601 duration.
Settings.retention: For how long jobs that have ended are kept at least, as an ISO 8601 duration.
SettingsConfig.retention: For how long jobs that have ended are kept at least, as an ISO 8601 duration.
Settings.tenant_fairness: How tenants share queues without a rule of their own.
SettingsConfig.tenant_fairness: How tenants share queues without a rule of their own, and weights of tenants to set.
tenant_required: Whether jobs that name no tenant are refused.
Settings.timeout_ms: For how many milliseconds heartbeats keep an attempt of a job without a timeout of its own; 0 means no limit.
SettingsConfig.timeout_ms: For how many milliseconds heartbeats keep an attempt of a job without a timeout of its own; 0 means no limit.
unknown_tenants: Whether jobs of tenants that are not configured are accepted or refused.
unsupported: What happens to jobs that ask for what this server cannot do: refuse, or carry the request without acting on it.
Blocked.why: Why no job of the tenant in the queue can be handed out.
blocked: Tenants whose available jobs cannot be handed out.
findings: What is wrong, the worst first.
worst: The severity of the first finding; null if nothing is wrong.
Finding.advice: What to do.
Finding.finding: What is wrong, in a sentence.
Finding.runbook: The page of docs/runbooks about it; empty if there is none.
Finding.severity: How bad it is; error, warning or note.
Finding.topic: What the finding is about.
jobs_refused: The ids whose leases are not extended, each with the reason; absent if there are none.
errors: The jobs that were not changed.
Job.errors: The errors of failed attempts, the oldest first; the latest 100 are kept.
events: The events.
existing_job_id: The job that had not ended, so that the cron job was skipped.
exists: Whether the queue has had a job, or has a configuration or a pause.
expires_at: When the job is discarded if no attempt has begun.
EnqueueRequest.expires_at: When the job is discarded if no attempt has begun, as RFC 3339 or + and an ISO 8601 duration.
JobOptions.expires_at: When the job is discarded if no attempt has begun, as RFC 3339 or + and an ISO 8601 duration.
Override.expires_at: When the job is discarded if no attempt has begun, as RFC 3339 or + and an ISO 8601 duration; null means never.
CronJobRequest.expires_at: Not supported for cron jobs.
JobTemplate.expires_at: Not supported for cron jobs.
APIKey.expires_at: When the key expires; null means never.
NewAPIKey.expires_at: When the key expires; null means never.
CreateKeyRequest.expires_at: When the key expires, as RFC 3339 or + and an ISO 8601 duration; never by default.
expression: The cron expression.
extensions: Extensions of OJS that the server has.
factor: What the action multiplies the value by.
failed: How many were not changed.
failed_24h: How many jobs failed for good in the last 24 hours.
failed_attempts: How many attempts have failed.
failed_last_hour: How many jobs failed for good in the last hour.
failed_per_minute: How many jobs failed for good in the last minute.
fairness: The weight of the tenant, in an object of its own.
TenantStats.fairness: The share that the tenant is entitled to, and the share that it gets.
fairness_weight: Another name of weight.
TierConfig.fairness_weight: The weight of tenants of the tier.
filter: Which jobs the request is about.
has_more: Whether there are more than the answer holds.
heartbeat_interval: How often the worker has to send a heartbeat, in seconds.
heartbeat_timeout: After how many seconds without a heartbeat the worker counts as dead.
held: Whether dispatch is held.
held_at: Since when dispatch is held; null if it is not.
held_by: What holds the job back, all that applies.
Cause.held_by: Jobs that count against the limit, ten at most; operators alone read them.
higher_ahead: How many jobs of the queue have a higher effective priority; null if the job is not available.
hint: What the caller can do.
history: The times at which the cron job was due or was triggered.
homepage: The address of the project.
hostname: The machine that the worker runs on.
id: The id of the job.
Event.id: The id of the event.
DeregisterTenantAnswer.id: The tenant.
Tenant.id: The tenant.
TenantShare.id: The tenant.
Worker.id: The name of the worker.
NamedWorker.id: The name of the worker.
Pool.id: The name of the pool.
PoolAnswer.id: The name of the pool.
APIKey.id: The id of the key.
NewAPIKey.id: The id of the key.
ideal_share: The part that the weight gives to the tenant among tenants that have work, from 0 to 1.
idempotency_key: A key by which the server recognizes the request when it is sent again.
ids: The jobs that the request is about.
implementation: Which server this is.
index: The position of the job in the batch, from 0 on.
initial_interval: The wait before the second attempt, as an ISO 8601 duration; PT1S by default.
initial_interval_ms: The wait before the second attempt, in milliseconds.
intervals: The wait before each attempt after the first, as ISO 8601 durations or milliseconds, for the strategy custom.
isolated: Whether workers of other pools get no jobs of the queues or tenants of this pool.
items: The list once more, under the name that all lists have.
jitter: How the wait varies at random; true multiplies it by 0.5 to 1.5.
job: The job.
job_id: The id of the job.
CronRun.job_id: The job that was made; null if it was skipped.
job_template: The jobs that the cron job makes.
jobs: The jobs.
AckManyRequest.jobs: What happened to each job.
NackManyRequest.jobs: What happened to each job.
Cause.jobs: How many jobs come first.
DeregisterTenantAnswer.jobs: How many jobs had not ended.
Stats.jobs: Numbers of jobs by state.
TenantStats.jobs: Numbers of jobs by state.
Worker.jobs: The jobs that the worker holds; only in the answer about one worker.
jobs_affected: Always 0, because the only strategy leaves jobs alone.
jobs_extended: The jobs whose leases are extended; stop working on a job that is missing here.
jobs_requeued: How many jobs of the worker are available again.
kind: What kind of thing was changed, such as tenant or queue.
labels: Labels of the worker.
language: The language that the server is written in.
last_heartbeat_at: When the server last heard of the worker.
last_run_at: When the cron job last made a job; null means never.
last_used_at: When the key was used last, to the minute; null means never.
lasts: How long throttles last, as an ISO 8601 duration.
lasts_seconds: How long throttles last, in seconds.
latency_ms: How long a round trip to the database took, in milliseconds.
Queue.latency_ms: How long jobs had been available before they were handed out.
lease: The token of the running attempt.
lease_expires_at: When the attempt is taken back unless a heartbeat extends it.
limit: How many the page may hold.
CancelManyRequest.limit: How many jobs to cancel at most; 1000 by default.
DeadLetterRequest.limit: How many jobs to change at most, up to 10000; 1000 by default.
RetryManyRequest.limit: How many jobs to retry at most, up to 10000; 1000 by default.
Limit.limit: The number.
limit_reason: Why the limit was set.
limits: Limits of the tenant.
QueueLimitsAnswer.limits: Limits of the queue.
TierConfig.limits: Limits of tenants of the tier.
manual: Whether a request triggered it.
matched: How many jobs the request was about.
max_age: How long dead letters are kept, as an ISO 8601 duration; null means without end.
max_attempts: How many attempts the job may have; 3 by default.
max_concurrency: How many jobs may run at once; null means no limit.
PoolConfig.max_concurrency: Another name of concurrency.
max_concurrent_jobs: Another name of max_concurrency.
max_count: How many dead letters of each tenant are kept; null means all.
max_depth: How many jobs of all tenants that have not ended the queue may hold; 0 means any number.
max_enqueue_rate: How many jobs may be enqueued in each period.
max_in_flight_requests: How many requests of the tenant one server works on at once.
max_interval: The longest wait, as an ISO 8601 duration; PT5M by default.
max_interval_ms: The longest wait, in milliseconds.
max_jobs_per_second: Another name of max_enqueue_rate, as a number per second.
max_priority: The highest priority that a new job may have; 100 means no limit.
max_queue_depth: How many jobs may be available, scheduled or pending.
max_scheduled: How many jobs may be scheduled.
max_size: Another name of backpressure.max_depth.
max_stored_bytes: How many bytes the jobs of the tenant may take up.
max_request_rate: How many requests the tenant may send to one server in a period.
max_waiting_polls: How many requests of the tenant may wait for jobs or results at one server.
message: What happened, in a sentence for people.
meta: An object of the producer's; tenant_id in it names the tenant.
metadata: An object of the worker's.
JobOptions.metadata: Members to add to meta.
min_active: How many jobs a tenant has to run before it counts as noisy.
min_dispatch_ratio: The part of the dispatches that each queue gets at least; 0.05 by default.
min_jobs: How many jobs a tenant has to have before it counts as noisy.
missed: How many earlier due times this one stands for.
mode: Whether noisy tenants are ignored, noted or throttled.
most: How many jobs may run at once, throttle included; null means no limit.
n: The number of the change.
name: The name.
AuditEntry.name: What was changed.
APIKey.name: What the key is for.
NewAPIKey.name: What the key is for.
CreateKeyRequest.name: What the key is for.
Tenant.name: The tenant, once more.
new: What has changed, as it is now.
newest_at: When the newest dead letter failed; null if there is none.
next_attempt_at: When the job becomes available again.
next_cursor: Where the next page begins, to be sent as cursor; null if there is none.
next_prune_at: When old dead letters are removed next.
next_run_at: When the cron job fires next; null if it does not.
noisy: Tenants that count as noisy.
non_retryable_errors: Codes or types of errors after which the job is not tried again; auth.* matches by its beginning.
occurred_at: When the attempt failed.
offset: How many items come before the page.
ojs_version: The version of OJS.
ok: Always true.
old: What has changed, as it was before.
older_than: Another name of until, or an age such as P30D.
oldest_at: When the oldest dead letter failed; null if there is none.
oldest_wait_ms: How long the first available job has waited, in milliseconds.
on_exhaustion: What happens after the last attempt; discard by default.
options: Options of the job that have no attribute of their own, as they were sent.
EnqueueRequest.options: Settings of the job, which may stand at the top, too.
CronJob.options: Settings of the jobs.
CronJob.job_template.options: Settings of the jobs.
CronJobRequest.options: Settings of the jobs, which may stand at the top, too.
JobTemplate.options: Settings of the jobs, which may stand at the top, too.
original: The value without the throttle; null means no limit.
over_priority: What happens to a job above max_priority: it is refused, or gets max_priority.
overlap: How long the old key remains valid, as an ISO 8601 duration; a day by default.
overlap_policy: What happens when the cron job is due and a job that it made has not ended.
override: New values of the job.
p50: What half of the jobs waited at most, in milliseconds.
p95: What 95 of 100 jobs waited at most, in milliseconds.
p99: What 99 of 100 jobs waited at most, in milliseconds.
p50_wait_ms: What half of the jobs of the last minute waited at most, in milliseconds.
p95_wait_ms: What 95 of 100 jobs of the last minute waited at most, in milliseconds.
p99_wait_ms: What 99 of 100 jobs of the last minute waited at most, in milliseconds.
p50_wait_5m_ms: What half of the jobs of the last five minutes waited at most, in milliseconds.
p95_wait_5m_ms: What 95 of 100 jobs of the last five minutes waited at most, in milliseconds.
p99_wait_5m_ms: What 99 of 100 jobs of the last five minutes waited at most, in milliseconds.
p50_wait_1h_ms: What half of the jobs of the last hour waited at most, in milliseconds.
p95_wait_1h_ms: What 95 of 100 jobs of the last hour waited at most, in milliseconds.
p99_wait_1h_ms: What 99 of 100 jobs of the last hour waited at most, in milliseconds.
page: The number of the page, from 1 on.
pagination: Which part of the list this is.
paused: Whether dispatch is stopped.
paused_at: Since when dispatch is stopped; null if it goes on.
paused_by: The login role that stopped dispatch.
pending: The number of jobs that wait to be activated.
JobOptions.pending: Whether the job waits to be activated.
per_page: The same as limit.
period: The time that the rate is about, as an ISO 8601 duration.
pid: The id of the worker's process.
pool: The pool of the worker.
PoolAnswer.pool: The pool, once more.
PoolUnder.pool: The configuration of the pool.
Cause.pool: The pool that holds the job back; operators alone read it.
pools: The pools of the page.
prefix: The first characters of the secret.
previous_state: The state before the request.
priority: Jobs with a higher priority are handed out first; -100 to 100, 0 by default.
PatchJobRequest.priority: The new priority, as a number, or as high (10), normal (0) or low (-10).
priority_boost: What is added to the priorities of the tenant's jobs when they are handed out, -100 to 100.
priority_scope: Whether priorities order the jobs of all tenants (queue), or those of each tenant (tenant).
processed_per_minute: How many jobs were completed or failed for good in the last minute.
protocols: The protocols that the server speaks.
queue: The name of the queue.
QueueAnswer.queue: The queue.
QueueStatsAnswer.queue: The numbers of the queue, or its name for the Go SDK.
PauseQueueAnswer.queue: The queue.
Rule.queue: The queue; empty means all.
RuleStat.queue: The queue; empty means all.
TenantLimitsRequest.queue: The queue in which the limits hold; absent means all queues together.
TenantLimitsAnswer.queue: The queue in which the limits hold; null means all queues together.
PauseTenantRequest.queue: The queue in which the tenant is paused; absent means all queues.
QueueLimitsRequest.queue: The queue, which has to be the one of the path.
queue_depth: Another name of max_queue_depth.
queues: The names of the queues.
APIKey.queues: The queues that the key is for; null means all.
NewAPIKey.queues: The queues that the key is for; null means all.
CreateKeyRequest.queues: The queues that the key is for; all by default.
Pool.queues: The queues whose jobs the workers get; absent means all.
PoolAnswer.queues: The queues whose jobs the workers get; absent means all.
PoolConfig.queues: The queues whose jobs the workers get, as names or as an object with weights; absent means all.
Stats.queues: How many queues there are.
TenantStats.queues: How many queues have jobs of the tenant.
quiet: How many workers fetch no more jobs.
rate_limit: Not supported: refused, unless the deployment carries such fields.
rate_ratio: How many times the average of new jobs a tenant enqueues when it is noisy.
re_enqueued_at: When the job became available again.
reason: Why it is changed, for the audit trail.
APIKey.reason: Why the key was revoked.
NewAPIKey.reason: Why the key was revoked.
AuditEntry.reason: Why it was changed.
CronRun.reason: Why no job was made.
Rule.reason: Why dispatch is stopped.
RuleStat.reason: Why dispatch is stopped.
Throttle.reason: Why the tenant is throttled.
Tier.reason: Why the tier was changed last.
reasons: The same as held_by, as sentences.
registered_at: When the worker registered.
remaining: How many are left that match; null if they could not be counted.
request_id: The id by which the server's log names the request.
requeue: Whether the job is available again at once.
result: The result of the job, of any JSON type.
result_expires_at: When the result is removed; absent if it stays as long as the job.
result_size_bytes: How many bytes the result has.
result_stored_at: When the result was stored.
result_ttl: How many seconds the result is kept after the job ended; -1 as long as the job, 0 not at all, 604800 by default.
results: What became of each job.
ResultsAnswer.results: The results by the ids of jobs.
retention: How long jobs that have ended are kept at least.
DeadLetterStats.retention: How long dead letters are kept.
retried: How many dead letters run again.
retry: The retry policy.
retry_delay_ms: How long the wait after the latest failure is, in milliseconds.
retryable: The number of jobs that wait for their next attempt.
Problem.retryable: Whether the same request may succeed later.
JobError.retryable: Whether the job may be tried again, as the worker said.
Failure.retryable: Whether the job may be tried again; false ends it.
revoked_at: When the key was revoked; null if it was not.
rotated_to: The key that replaces this one; null if there is none.
rotation_interval: How long a queue with work may go without a job handed out, as an ISO 8601 duration; PT30S by default.
rule: The limit or pause.
rules: The limits and pauses of the page.
run_count: How many jobs the cron job has made.
running: How many workers work.
scheduled: The number of jobs that wait for their time.
scheduled_at: When the job becomes available.
EnqueueRequest.scheduled_at: When the job becomes available, as RFC 3339 or + and an ISO 8601 duration.
JobOptions.scheduled_at: When the job becomes available, as RFC 3339 or + and an ISO 8601 duration.
CronJobRequest.scheduled_at: Not supported for cron jobs.
JobTemplate.scheduled_at: Not supported for cron jobs.
CronRun.scheduled_at: When the cron job was due.
scheduled_jobs: Another name of max_scheduled.
schema: The name of a schema; it is stored, and the server does not check it.
scope: What the cause is about.
scopes: What the bearer of the key may do.
secret: The secret that clients send.
seen_at: When the tenant was last seen to be noisy.
server_time: The time of the server.
set_by: The login role that throttled the tenant; null if the server did, or if a tenant asks.
settings: The settings.
shutdown: Whether the worker ends; the same as the state terminate.
signal: What the tenant uses much of.
since: Only what came at this time or later.
Cause.since: Since when.
NoisyNeighbour.since: Since when without a break.
Throttle.since: Since when.
soft: Whether jobs beyond the limit are enqueued and only told of.
source: Which queue the event comes from, as a URI.
span: The time that the settings look at, as an ISO 8601 duration.
span_seconds: The time that the settings look at, in seconds.
specversion: The version of OJS.
stale: How many workers have been silent for too long.
started_at: When the latest attempt began.
Worker.started_at: When the worker's process began.
HeartbeatRequest.started_at: When the worker's process began, as RFC 3339.
RegisterRequest.started_at: When the worker's process began, as RFC 3339.
NamedWorker.started_at: When the worker's process began, as RFC 3339.
starvation_prevention: What keeps queues of the pool from waiting without end.
state: The state of the job.
APIKey.state: Whether the key is valid.
NewAPIKey.state: Whether the key is valid.
DeleteQueueAnswer.state: Always deleted.
DeregisterTenantAnswer.state: Always deregistering.
HeartbeatAnswer.state: What the worker is to do.
RegisterAnswer.state: What the worker is to do.
HeartbeatRequest.state: What the worker does.
Worker.state: What the worker reports that it does, or stale.
WorkerHealth.state: What the worker reports that it does, or stale.
Queue.state: Whether dispatch of the queue is stopped.
QueueAnswer.state: Whether dispatch of the queue is stopped.
QueueConfigAnswer.state: Whether dispatch of the queue is stopped.
PauseQueueAnswer.state: Whether dispatch of the queue is stopped.
Tenant.state: Whether the tenant's new jobs are taken, and its jobs handed out.
stats: The numbers.
status: Whether it is healthy.
BatchResult.status: Whether the job was enqueued.
CronJob.status: Whether the cron job fires.
CronRun.status: Whether a job was made.
UnsettledJob.status: The HTTP status that a request about this job alone would have.
Queue.status: Whether dispatch of the queue is stopped.
QueueNumbers.status: Whether dispatch of the queue is stopped.
NamedQueueNumbers.status: Whether dispatch of the queue is stopped.
QueueStatsAnswer.status: Whether dispatch of the queue is stopped.
PauseQueueAnswer.status: Whether dispatch of the queue is stopped.
PauseQueueAnswer.queue.status: Whether dispatch of the queue is stopped.
strategy: How jobs are chosen from several queues.
Backpressure.strategy: What happens to a job beyond the bound.
DeleteQueueAnswer.strategy: What happens to the jobs.
DeleteQueueRequest.strategy: What happens to the jobs; reject refuses the request while jobs have not ended.
DeleteQueueRequest.target_queue: Not supported: the queue of the strategy move.
TenantFairness.strategy: Whether tenants share by weight or take turns.
subject: What the event is about, such as the id of a job.
succeeded: How many were changed.
summary: Numbers of workers by state.
tags: Labels of the job.
tenant: The tenant.
tenant_ahead: How many jobs of the same tenant, queue and effective priority come first; null if the job is not available.
tenant_fairness: How tenants share the queue.
tenant_id: The tenant.
APIKey.tenant_id: The tenant that the bearer acts for; null means an operator.
NewAPIKey.tenant_id: The tenant that the bearer acts for; null means an operator.
CreateKeyRequest.tenant_id: The tenant that the bearer acts for; an operator by default.
Rule.tenant_id: The tenant; empty means all.
RuleStat.tenant_id: The tenant; empty means all.
Event.tenant_id: The tenant; empty if the event is about none.
Worker.tenant_id: The tenant that the worker serves; absent means all.
tenants: The tenants.
Tier.tenants: How many tenants have the tier.
Pool.tenants: The tenants whose jobs the workers get; absent means all.
PoolAnswer.tenants: The tenants whose jobs the workers get; absent means all.
PoolConfig.tenants: The tenants whose jobs the workers get; absent means all.
terminate: How many workers end.
text: What holds the job back, in a sentence.
threshold: The value from which on the tenant is noisy.
throttle: The throttle.
throttled: Always false.
throttled_to: How many jobs may run at once because of a throttle; null means there is none.
throttled_until: Until when the tenant is throttled; null if it is not.
throttles: Tenants that are throttled.
throughput: How many jobs came and went in the last minute.
throughput_per_second: How many attempts ended per second, in the last minute.
tier: The tier of the tenant; null means none.
tiers: The tiers of the page.
time: When it happened.
timeout: How many seconds an attempt may run; 0 means no limit of its own.
timeout_ms: How many milliseconds an attempt may run.
timezone: The IANA name of the time zone; UTC by default.
total: How many there are in all.
CursorPage.total: How many there are in all; null if that is not known.
total_jobs: How many jobs there are, in all states.
triggered_at: When the server looked at it.
type: The type of the job.
Backend.type: Always postgres.
Event.type: What happened, such as job.completed.
Failure.type: The type of the error.
JobError.type: The type of the error.
unique: The option unique; refused, unless the deployment carries such fields.
unit: What tenants share: jobs, their cost or their time.
until: Only what came before this time.
Cause.until: Until when.
Throttle.until: When the throttle ends.
updated_at: When it was changed last.
uptime_seconds: For how many seconds the process has run.
utilization: The part of its concurrency that the pool uses.
value: How much the tenant uses.
version: The version of OJS.
Implementation.version: The version of the server.
Worker.version: The version of the worker's program.
HeartbeatRequest.version: The version of the worker's program.
NamedWorker.version: The version of the worker's program.
RegisterRequest.version: The version of the worker's program.
visibility_timeout: How many seconds a lease lasts, for jobs that have no visibility_timeout_ms.
visibility_timeout_default: How many seconds a lease lasts if neither the job nor the FETCH says.
visibility_timeout_ms: How many milliseconds a lease lasts without a heartbeat.
wait_ms: How many milliseconds to wait for a job, at most 60000.
waiting_jobs: The number of jobs that can be handed out.
warning_threshold: The part of max_depth from which on events warn; 0.8 by default.
weight: The share of dispatch relative to other tenants, 0.000001 to 1000000.
PoolConfig.queues.weight: The weight of the queue.
weights: Weights of queues, for the strategy weighted.
TenantFairness.weights: Weights of tenants in this queue.
window: The time that the shortest numbers are about, as an ISO 8601 duration.
worker: The worker, in an object of its own.
worker_id: The name of the worker.
workers: The workers of the page.
DirectWorkersAnswer.workers: How many workers were told.
Stats.workers: How many workers there are.
TenantStats.workers: How many workers serve the tenant alone.
`
