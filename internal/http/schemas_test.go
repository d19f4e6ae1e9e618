package httpapi

import (
	"maps"
	"slices"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// named is a schema of docs/openapi.yaml under components, with its description.
type named struct {
	about string
	schema
	optional bool // the body of a request that may be left out
}

// componentSchemas returns all schemas by name. codes are the error codes.
func componentSchemas(codes []string) map[string]named {
	all := map[string]named{}
	for _, some := range []map[string]named{
		sharedSchemas(codes), jobSchemas(), jobRequests(), workerSchemas(), queueSchemas(), cronSchemas(),
		deadLetterSchemas(), tenantSchemas(),
		poolSchemas(), settingSchemas(), keySchemas(), systemSchemas(),
	} {
		maps.Copy(all, some)
	}
	return all
}

// body returns the schema of a request that jsonbody.Into reads into a T.
func body[T any](about string, p props) named {
	return named{about, bodyOf[T](p), mayBeLeftOut[T]()}
}

// answer returns the schema of an answer that encoding/json writes from a T.
func answer[T any](about string, p props) named { return named{about: about, schema: answerOf[T](p)} }

func made(about string, s schema) named { return named{about: about, schema: s} }

// page returns the schema of an answer of the function listed.
func page(about, name, item, pagination string) named {
	return made(about, object(props{name: list(ref(item)), "items": list(ref(item)), "pagination": ref(pagination)}))
}

func stateOfJob() schema { return oneOf(states...) }

// withNulls returns properties that may all be absent or null.
func withNulls(p props) props {
	out := props{}
	for name, s := range p {
		out[name+"?"] = nullable(s)
	}
	return out
}

func sharedSchemas(codes []string) map[string]named {
	return map[string]named{
		"Error": made("The body of every answer that refuses a request.", object(props{"error": ref("Problem")})),
		"Problem": made("Why a request is refused; members of details stand here, too.", open(object(props{
			"code": oneOf(codes...), "message": text(), "retryable": boolean(), "request_id": text(), "docs_url": schema{
				"type": "string", "format": "uri",
			}, "details": freeObject(), "hint?": text(),
		}))),
		"Page":       answer[pageJSON]("Which part of a list an answer holds.", nil),
		"CursorPage": answer[cursorPage]("Which part of a list an answer holds, and where the next part begins.", nil),
		"PartPage": made("Which part of a list an answer holds, without the length of the list.", object(props{
			"limit": whole64(), "offset": whole64(), "has_more": boolean(),
		})),
		"EventPage": made("How many events the answer may hold, and whether there are more.", object(props{
			"limit": whole64(), "has_more": boolean(),
		})),
		"BulkError": answer[bulkError]("A job that a bulk request did not change.", nil),
		"ReasonRequest": {
			"The reason of a change, for the audit trail.",
			closed(object(withNulls(props{"reason": text()}))), true,
		},
		"OnlyReasonRequest": body[reasonRequest]("The reason of a change, for the audit trail; other members are refused.", nil),
		"ConfirmRequest":    body[deletePoolRequest]("The confirmation of a removal that has consequences.", nil),
	}
}

// retryPolicy returns the schema of a retry policy.
func retryPolicy() schema {
	duration := func() schema { return either(text(), anyNumber()) }
	return open(object(props{
		"max_attempts?": between(0, 1000), "backoff_strategy?": oneOf("exponential", "linear", "polynomial",
			"constant", "none", "custom"),
		"initial_interval?": text(), "max_interval?": text(), "initial_interval_ms?": whole64(), "max_interval_ms?": whole64(),
		"intervals?": list(duration()), "backoff_coefficient?": schema{"type": "number", "minimum": 1, "maximum": 100},
		"jitter?":        either(boolean(), oneOf("none", "full", "equal", "decorrelated")),
		"on_exhaustion?": oneOf("discard", "dead_letter"), "non_retryable_errors?": list(text()),
	}))
}

func jobSchemas() map[string]named {
	counts := func() schema { return whole64() }
	short := props{"job": ref("Job"), "id": uuidText(), "type": text(), "queue": text(), "state": stateOfJob()}
	outcome := props{
		"state": stateOfJob(), "result": free(), "error?": ref("JobError"), "result_stored_at?": instant(),
		"result_expires_at?": instant(),
		"result_size_bytes?": whole64(),
	}
	acked := props{
		"acknowledged": schema{"type": "boolean"}, "id": uuidText(), "job_id": uuidText(),
		"state": stateOfJob(), "completed_at": instant(), "job?": ref("Job"),
	}
	nacked := props{
		"id": uuidText(), "job_id": uuidText(), "state": stateOfJob(), "attempt": whole32(),
		"max_attempts": whole32(), "retry_delay_ms?": whole64(),
		"next_attempt_at?": instant(), "discarded_at?": instant(), "completed_at?": instant(), "job?": ref("Job"),
	}
	return map[string]named{
		"RetryPolicy": made("When failed attempts of a job are repeated, and what happens after the last one.", retryPolicy()),
		"JobError": made("The error of a failed attempt, with all members that the worker sent.", open(object(props{
			"attempt": whole32(), "worker_id?": text(), "code": text(), "type": text(), "message?": text(),
			"occurred_at": instant(),
			"retryable?":  nullable(boolean()), "details?": free(),
		}))),
		"Job": made("A job; attributes that the producer added come back as they were sent.", open(object(props{
			"specversion": text(), "id": uuidText(), "type": text(), "queue": text(), "state": stateOfJob(),
			"args": freeList(), "meta": freeObject(),
			"priority": whole32(), "attempt": whole32(), "max_attempts": whole32(), "created_at": instant(),
			"enqueued_at": instant(), "scheduled_at?": instant(),
			"expires_at?": instant(), "started_at?": instant(), "completed_at?": instant(),
			"discarded_at?": instant(), "cancelled_at?": instant(), "next_attempt_at?": instant(),
			"timeout_ms?": whole32(), "visibility_timeout_ms?": whole32(), "tags?": list(text()), "retry?": ref("RetryPolicy"),
			"options?": freeObject(), "unique?": freeObject(), "worker_id?": text(), "error?": ref("JobError"),
			"errors?":         list(ref("JobError")),
			"retry_delay_ms?": whole64(), "result?": free(), "result_stored_at?": instant(),
			"result_expires_at?": instant(), "result_size_bytes?": whole64(),
			"lease?": uuidText(), "lease_expires_at?": instant(), "previous_state?": stateOfJob(),
			"activated_at?": instant(), "re_enqueued_at?": instant(),
		}))),
		"JobAnswer":  made("A job, and its main attributes once more at the top.", object(short)),
		"JobsAnswer": made("The jobs that a FETCH hands out, each with its lease.", object(props{"jobs": list(ref("Job"))})),
		"BatchAnswer": made("The jobs that a batch has enqueued.", object(props{
			"jobs": list(ref("Job")), "count": counts(), "enqueued": counts(), "failed": counts(),
			"results?": list(ref("BatchResult")),
		})),
		"BatchResult": made("What became of one job of a batch with atomicity partial.", object(props{
			"index": whole64(), "status": oneOf("created", "failed"), "id?": uuidText(), "error?": ref("Problem"),
		})),
		"JobLine": answer[jobLine]("A job in a list, without what its producer put into it.", nil),
		"JobList": page("A page of jobs, the newest first.", "jobs", "JobLine", "CursorPage"),
		"CancelManyAnswer": made("What a bulk cancellation has done.", object(props{
			"action": oneOf("cancel"), "matched": counts(), "succeeded": counts(), "failed": counts(),
			"errors":      list(ref("BulkError")),
			"next_cursor": nullable(uuidText()),
		})),
		"RetryManyAnswer": made("What a bulk retry has done.", object(props{
			"action": oneOf("retry"), "matched": counts(), "succeeded": counts(), "failed": counts(),
			"errors":     list(ref("BulkError")),
			"remaining?": nullable(counts()),
		})),
		"AckAnswer":  made("A job that has been acknowledged.", object(acked)),
		"NackAnswer": made("A job whose attempt has failed, and what follows.", object(nacked)),
		"UnsettledJob": made("A job that a batch of ACKs or NACKs could not settle.", object(props{
			"id?": uuidText(), "job_id?": uuidText(), "status": whole64(), "error": ref("Problem"),
		})),
		"AckManyAnswer": made("The outcome of an ACK for each of many jobs.", object(props{
			"results": list(either(ref("AckAnswer"), ref("UnsettledJob"))), "succeeded": counts(), "failed": counts(),
		})),
		"NackManyAnswer": made("The outcome of a NACK for each of many jobs.", object(props{
			"results": list(either(ref("NackAnswer"), ref("UnsettledJob"))), "succeeded": counts(), "failed": counts(),
		})),
		"AcksAnswer":  made("The answer about one job, or about many.", either(ref("AckAnswer"), ref("AckManyAnswer"))),
		"NacksAnswer": made("The answer about one job, or about many.", either(ref("NackAnswer"), ref("NackManyAnswer"))),
		"JobResult":   made("The state of a job, and its result if it has one.", object(outcome)),
		"ResultAnswer": made("The state of a job, and its result if it has one.", and(object(outcome),
			props{"job_id": uuidText()})),
		"ResultsAnswer": made("The results of jobs by id; null for a job that does not exist.", object(props{
			"results": mapOf(nullable(ref("JobResult"))),
		})),
		"Explanation": made("Why a job waits, and how many jobs come before it.", object(props{
			"id": uuidText(), "tenant_id": text(), "queue": text(), "priority": whole32(),
			"effective_priority": whole32(), "state": stateOfJob(),
			"reasons": list(text()), "held_by": list(ref("Cause")), "tenant_ahead": nullable(whole64()),
			"higher_ahead":     nullable(whole64()),
			"dispatches_ahead": nullable(whole64()), "certainty": nullable(oneOf("exact", "estimate", "at_least")),
		})),
		"Cause": made("One thing that holds a job back.", object(props{
			"cause": text(), "text": text(), "scope?": oneOf("everything", "tenant", "queue", "tenant_in_queue"),
			"since?": instant(), "until?": instant(),
			"by?": text(), "because?": text(), "worker_id?": text(), "pool?": text(), "queues?": list(text()), "jobs?": whole64(),
			"max_concurrency?": whole64(), "active?": whole64(), "held_by?": list(ref("SlotHolder")),
		})),
		"SlotHolder": made("A job that counts against a limit.", object(props{
			"id": uuidText(), "tenant_id": text(), "queue": text(), "worker_id?": text(), "started_at?": instant(),
			"lease_expires_at?": instant(),
		})),
	}
}

// envelopeProps returns the fields of a job as a producer sends it, but for its type and args.
// options holds the same settings, and some that stand only there.
func envelopeProps(inOptions bool) props {
	p := props{
		"queue": text(), "priority": between(-100, 100), "retry": ref("RetryPolicy"), "tags": list(text()),
		"max_attempts": between(0, 1000),
		"timeout":      whole32(), "timeout_ms": whole32(), "visibility_timeout_ms": whole32(), "scheduled_at": text(),
		"delay_until": text(),
		"expires_at":  text(), "unique": freeObject(), "meta": freeObject(), "result_ttl": whole64(),
		"cost": anyNumber(), "rate_limit": free(),
	}
	if inOptions {
		p["pending"], p["metadata"] = boolean(), freeObject()
	} else {
		p["id"], p["options"], p["specversion"], p["schema"] = uuidText(), ref("JobOptions"), text(), text()
	}
	return withNulls(p)
}

func jobRequests() map[string]named {
	job := func() schema {
		return open(and(object(envelopeProps(false)), props{
			"type": text(), "args": freeList(), "idempotency_key?": nullable(text()),
		}))
	}
	single := func(s schema) schema { return and(s, props{"job_id": uuidText()}) }
	oneAck := func() schema { return bodyOf[ackRequest](props{"result": free()}) }
	oneNack := func() schema { return bodyOf[nackRequest](props{"error": ref("Failure")}) }
	many := func(item string) schema {
		return closed(object(props{"jobs": schema{
			"type": "array", "items": ref(item), "minItems": 1,
			"maxItems": maxAckJobs,
		}, "worker_id?": nullable(text())}))
	}
	ids := func() schema { return schema{"type": "array", "items": uuidText(), "minItems": 1, "maxItems": 1000} }
	return map[string]named{
		"EnqueueRequest": made("A job to enqueue; attributes of your own begin with x_ or ext_.", job()),
		"JobOptions":     made("Settings of a job; unknown options are stored with it.", open(object(envelopeProps(true)))),
		"BatchRequest": made("Jobs to enqueue together.", closed(object(props{
			"jobs":       schema{"type": "array", "items": ref("EnqueueRequest"), "minItems": 1, "maxItems": 1000},
			"atomicity?": nullable(oneOf("atomic", "partial")), "idempotency_key?": nullable(schema{
				"type":      "string",
				"minLength": 1, "maxLength": 256,
			}),
		}))),
		"PatchJobRequest": body[patchRequest]("A change of a job that waits.", props{
			"priority": either(between(-100, 100), oneOf(slices.Sorted(maps.Keys(priorityNames))...)),
		}),
		"CancelManyRequest": body[cancelRequest]("Which jobs to cancel: some by id, or those that a filter lets pass.", props{
			"filter": ref("CancelFilter"), "ids": ids(),
		}),
		"CancelFilter": body[cancelFilter]("A filter of jobs that have not ended.", props{"state": oneOf(liveStates...)}),
		"RetryManyRequest": body[jobsRequest]("Which discarded jobs to retry: some by id, or those that a filter lets pass.", props{
			"filter": ref("RetryFilter"), "ids": ids(),
		}),
		"RetryFilter":  body[jobsFilter]("A filter of discarded jobs.", props{"state": oneOf("discarded")}),
		"RetryRequest": body[retryRequest]("What to change of a job before it runs again.", props{"override": ref("Override")}),
		"Override": made("New values of a job that runs again.", closed(object(props{
			"queue?": text(), "priority?": between(-100, 100), "args?": freeList(), "meta?": freeObject(),
			"retry?":        ref("RetryPolicy"),
			"max_attempts?": between(0, 1000), "expires_at?": nullable(text()),
		}))),
		"ResultsRequest": body[resultsRequest]("The jobs whose results are asked for.", props{
			"ids": schema{"type": "array", "items": uuidText(), "maxItems": maxResults},
		}),
		"FetchRequest": body[fetchRequest]("Which jobs a worker asks for.", props{
			"queues": schema{
				"type": "array", "items": schema{"type": "string", "minLength": 1}, "minItems": 1,
				"maxItems": maxFetchQueues,
			},
			"strategy": oneOf("strict", "round-robin", "weighted", "least-loaded"), "weights": mapOf(anyNumber()),
		}),
		"Ack":             made("An ACK of one of many jobs, which is done.", single(oneAck())),
		"Nack":            made("A NACK of one of many jobs, whose attempt has failed.", single(oneNack())),
		"JobAckRequest":   {"An ACK of the job of the path, which is done.", oneAck(), true},
		"JobNackRequest":  {"A NACK of the job of the path, whose attempt has failed.", oneNack(), true},
		"AckManyRequest":  made("ACKs of many jobs, which are done.", many("Ack")),
		"NackManyRequest": made("NACKs of many jobs, whose attempts have failed.", many("Nack")),
		"AckRequest":      made("An ACK of one job, or of many.", either(ref("AckManyRequest"), ref("Ack"))),
		"NackRequest": made("A NACK of one job, or of many.", either(ref("NackManyRequest"),
			ref("Nack"))),
		"Failure": made("Why an attempt has failed; further members are stored, too.", open(object(props{
			"message": text(), "code?": nullable(text()), "type?": nullable(text()),
			"retryable?": nullable(boolean()), "details?": free(),
			"detail?": free(), "backtrace?": free(),
		}))),
	}
}

func workerSchemas() map[string]named {
	state := func() schema { return oneOf("running", "quiet", "terminate") }
	says := func() schema { return oneOf("running", "quiet", "drain", "terminate", "stale") }
	pulse := props{"server_time": instant(), "heartbeat_interval": anyNumber(), "heartbeat_timeout": anyNumber()}
	about := props{"metadata": freeObject(), "weights": mapOf(anyNumber()), "strategy": oneOf("strict", "round-robin",
		"weighted", "least-loaded")}
	with := func(p, more props) props { p = maps.Clone(p); maps.Copy(p, more); return p }
	return map[string]named{
		"RegisterRequest": body[registerRequest]("A worker that begins; its id stands at the top or in worker.",
			with(about, props{
				"worker": ref("NamedWorker"),
			})),
		"HeartbeatRequest": body[heartbeatRequest]("A worker that lives, and the jobs that it runs.", with(about, props{
			"active_jobs": either(list(uuidText()), whole32()), "active_job_ids": list(uuidText()),
			"state": oneOf("running", "quiet", "drain", "draining", "terminate"),
		})),
		"NamedWorker":       body[namedWorker]("A worker, in an object of its own.", about),
		"DeregisterRequest": body[deregisterRequest]("A worker that ends.", nil),
		"DirectiveRequest": body[directiveRequest]("What a worker is told.", props{"directive": oneOf("running",
			"resume", "quiet", "terminate")}),
		"HeartbeatAnswer": made("Which leases are extended, and what the worker is to do.", and(object(pulse), props{
			"acknowledged": boolean(), "state": state(), "jobs_extended": list(uuidText()),
			"jobs_refused?": list(object(props{"index": whole64(), "status": whole64(), "error": ref("Problem"), "id?": text()})),
		})),
		"RegisterAnswer": made("What the worker is to do, and how often it has to send heartbeats.", and(object(pulse), props{
			"ok": boolean(), "worker_id": text(), "state": state(), "visibility_timeout_default": whole64(),
		})),
		"DeregisterAnswer": made("Whether the worker was known.", object(props{
			"ok": boolean(), "worker_id": text(),
			"deregistered": boolean(),
		})),
		"WorkerJob": answer[sqlcgen.WorkerJobsRow]("A job that a worker holds.", nil),
		"Worker": answer[admin.Worker]("A worker: what it reports, and what it was told.", with(about, props{
			"jobs": list(ref("WorkerJob")), "state": says(), "directive": state(), "queues": list(text()), "labels": list(text()),
			"active_job_ids": list(uuidText()),
		})),
		"WorkerList": made("A page of workers, and how many there are in each state.", and(
			object(props{"workers": list(ref("Worker")), "items": list(ref("Worker")), "pagination": ref("Page")}),
			props{"summary": object(props{
				"running": whole64(), "quiet": whole64(), "drain": whole64(), "terminate": whole64(),
				"stale": whole64(), "total": whole64(),
			})})),
		"WorkerHealth": made("Whether a worker takes jobs.", object(props{
			"status": oneOf("ok", "degraded"), "worker_id": text(), "state": says(), "directive?": state(),
			"active_jobs":       whole32(),
			"last_heartbeat_at": instant(),
		})),
		"WorkerHealthOrError": made("The health of a worker, or why it cannot be told.", either(ref("WorkerHealth"),
			ref("Error"))),
		"DirectWorkersAnswer": made("How many workers were told.", object(props{"directive": text(), "workers": whole64()})),
		"RemoveWorkerAnswer": made("A worker that was declared dead.", object(props{
			"deleted": boolean(), "worker_id": text(), "jobs_requeued": whole64(),
		})),
	}
}

func queueSchemas() map[string]named {
	status := func() schema { return oneOf("active", "paused") }
	config := func(nulls bool) schema {
		p := props{
			"visibility_timeout": between(1, 604800), "default_timeout": between(0, 2147483), "default_retry": ref("RetryPolicy"),
			"retention": ref("QueueRetention"), "max_size": whole64(), "backpressure": ref("Backpressure"),
			"tenant_fairness": ref("TenantFairness"),
			"description":     schema{"type": "string", "maxLength": 1000},
		}
		return closed(object(withNulls(p)))
	}
	counts := func() schema {
		p := props{}
		for _, state := range states {
			p[state] = whole64()
		}
		return object(p)
	}
	per := props{"status": status(), "created_at": nullable(instant())}
	configured := props{"config": ref("QueueConfig"), "state": status()}
	hours := props{}
	rates := answerOf[hourly](nil)["properties"].(map[string]schema)
	for name, s := range rates {
		hours[name+"?"] = s
	}
	all := and(answerOf[queueJSON](props{
		"status": status(), "state": status(), "created_at": nullable(instant()), "counts": ref("JobCounts"),
		"throughput": ref("QueueThroughput"),
		"latency_ms": ref("QueueLatency"),
	}), nil)
	whole := answerOf[sqlcgen.QueueConfigRow](configured)
	return map[string]named{
		"JobCounts": made("Numbers of jobs by state.", counts()),
		"QueueThroughput": made("How many jobs ended in the last minute, and how many attempts failed.",
			object(props{"processed_per_minute": whole64(), "failed_per_minute": whole64(), "attempts_failed_per_minute": whole64()})),
		"QueueLatency": made("How long jobs had been available before they were handed out, in the last hour.",
			object(props{"p50": whole64(), "p95": whole64(), "p99": whole64()})),
		"Queue":        made("A queue and its numbers.", all),
		"QueueNumbers": answer[sqlcgen.QueuesRow]("The numbers of a queue.", per),
		"NamedQueueNumbers": made("The numbers of a queue, and those of its last hour.",
			and(and(answerOf[sqlcgen.QueuesRow](per), hours), props{
				"queue": text(),
			})),
		"QueueList": page("A page of queues.", "queues", "Queue", "Page"),
		"QueueAnswer": made("A queue, its configuration and its numbers.", and(whole, props{
			"queue": ref("Queue"), "exists": boolean(), "configuration": ref("QueueConfig"), "paused": boolean(),
			"counts": ref("JobCounts"),
			"stats":  ref("QueueNumbers"),
		})),
		"QueueStatsAnswer": made("The numbers of a queue, in the shapes that clients read.",
			and(and(answerOf[sqlcgen.QueuesRow](per), hours), props{
				"queue": either(ref("QueueNumbers"), text()), "exists": boolean(), "stats": ref("NamedQueueNumbers"),
				"computed_at": instant(),
			})),
		"QueueConfigAnswer": answer[sqlcgen.QueueConfigRow]("The configuration of a queue.", configured),
		"QueueConfig":       made("Settings of a queue; in a request, null removes one.", config(true)),
		"QueueRetention": made("How long jobs that have ended are kept at least, as ISO 8601 durations.", closed(object(props{
			"completed?": text(), "discarded?": text(), "cancelled?": text(),
		}))),
		"Backpressure": made("How many jobs a queue may hold.", closed(object(withNulls(props{
			"max_depth": whole64(), "strategy": oneOf("reject"), "warning_threshold": schema{
				"type":    "number",
				"minimum": 0, "maximum": 1,
			},
		})))),
		"TenantFairness": made("How tenants share a queue.", closed(object(withNulls(props{
			"enabled": boolean(), "strategy": oneOf("fair-share", "round-robin"),
			"weights": mapOf(nullable(anyNumber())), "default_weight": anyNumber(),
			"unit": oneOf("jobs", "cost", "time"), "priority_scope": oneOf("queue", "tenant"),
		})))),
		"QueueConfigUnder": made("Settings of a queue, in an object of their own.",
			closed(object(props{"config": ref("QueueConfig")}))),
		"QueueConfigRequest": made("Settings of a queue, bare or under config; other settings stay as they are.",
			either(ref("QueueConfigUnder"), ref("QueueConfig"))),
		"CreateQueueRequest": body[createRequest]("A queue to configure for the first time.", props{
			"name": schema{"type": "string", "minLength": 1, "maxLength": 128}, "config": ref("QueueConfig"),
		}),
		"DeleteQueueRequest": body[deleteRequest]("What happens to the jobs of a queue whose configuration is removed.",
			props{"strategy": oneOf("reject")}),
		"DeleteQueueAnswer": made("A queue whose configuration is removed.", object(props{
			"queue": text(), "strategy": oneOf("reject"), "jobs_affected": whole64(), "state": oneOf("deleted"),
		})),
		"PauseQueueAnswer": made("Whether dispatch of a queue is stopped.", object(props{
			"queue": object(props{
				"name": text(), "status": status(), "paused": boolean(),
				"paused_at": nullable(instant()),
			}), "name": text(),
			"status": status(), "state": status(), "paused": boolean(), "paused_at": nullable(instant()), "created?": boolean(),
		})),
		"QueueLimitsRequest": body[queueLimits]("Limits of a queue over all tenants.", nil),
		"QueueLimitsAnswer": made("Limits of a queue over all tenants.", object(props{
			"limits": object(props{"max_concurrency": nullable(whole32())}), "rule": ref("Rule"),
		})),
	}
}

func cronSchemas() map[string]named {
	overlap := func() schema { return oneOf("skip", "allow", "cancel_previous", "enqueue") }
	catchUp := func() schema { return oneOf("once", "skip") }
	ofJobs := props{"type": text(), "args": freeList(), "meta": freeObject(), "options": ref("JobOptions")}
	cron := props{
		"name": text(), "expression": text(), "cron": text(), "timezone": text(), "enabled": boolean(),
		"status": oneOf("active", "paused", "error"),
		"error?": text(), "overlap_policy": overlap(), "catch_up": catchUp(), "description": nullable(text()),
		"job_template": open(object(ofJobs)), "last_run_at": nullable(instant()), "next_run_at": nullable(instant()),
		"run_count":  whole64(),
		"created_at": instant(), "updated_at": instant(),
	}
	maps.Copy(cron, ofJobs)
	put := envelopeProps(false)
	maps.Copy(put, withNulls(props{
		"name": text(), "cron": text(), "expression": text(), "timezone": text(), "overlap_policy": overlap(),
		"catch_up": catchUp(),
		"enabled":  boolean(), "description": schema{"type": "string", "maxLength": 1000},
		"job_template": freeObject(), "type": text(), "args": freeList(),
	}))
	template := envelopeProps(false)
	maps.Copy(template, props{"type": text(), "args?": freeList()})
	put["job_template?"] = nullable(ref("JobTemplate"))
	bothNames := func() schema { return object(props{"cron": ref("CronJob"), "cron_job": ref("CronJob")}) }
	return map[string]named{
		"CronJob": made("A cron job; attributes of its jobs that the server does not know come back as they were sent.",
			open(object(cron))),
		"CronJobRequest": made("A cron job to register: a schedule, and the jobs that it makes.", open(object(put))),
		"JobTemplate":    made("The jobs that a cron job makes.", open(object(template))),
		"PatchCronRequest": body[patchCronRequest]("Settings of a cron job to change.", props{
			"overlap_policy": overlap(), "catch_up": catchUp(), "description": schema{"type": "string", "maxLength": 1000},
		}),
		"CronAnswer":       made("A cron job, under both names that clients read.", bothNames()),
		"DeleteCronAnswer": made("A cron job that was removed.", and(bothNames(), props{"deleted": boolean(), "name": text()})),
		"CronList": made("A page of cron jobs, under the three names that clients read.", object(props{
			"cron_jobs": list(ref("CronJob")), "crons": list(ref("CronJob")), "items": list(ref("CronJob")), "count": whole64(),
			"pagination": ref("Page"),
		})),
		"CronRun": answer[cronRunJSON]("One time at which a cron job was due or was triggered.", props{
			"job_id": nullable(uuidText()), "existing_job_id": uuidText(), "status": oneOf("triggered", "skipped"),
		}),
		"CronHistory": made("When a cron job was due, the latest first.", object(props{
			"name": text(), "history": list(ref("CronRun")), "items": list(ref("CronRun")), "pagination": ref("Page"),
		})),
	}
}

func deadLetterSchemas() map[string]named {
	counts := func() schema { return mapOf(whole64()) }
	return map[string]named{
		"DeadLetterList": made("A page of dead letters, the latest first.", object(props{
			"jobs": list(ref("Job")), "items": list(ref("Job")), "total": whole64(), "pagination": ref("Page"),
		})),
		"DeadLetterStats": made("How many dead letters there are, and how long they are kept.", object(props{
			"total": whole64(), "by_queue": counts(), "by_type": counts(), "by_error_type": counts(),
			"oldest_at": nullable(instant()),
			"newest_at": nullable(instant()), "retention": object(props{
				"max_age": nullable(text()), "max_count": nullable(whole64()), "next_prune_at": nullable(instant()),
			}),
		})),
		"DeadLetterFilter": body[innerFilter]("A filter of dead letters.", nil),
		"DeadLetterRequest": body[bulkRequest]("Which dead letters to change; the filter stands under filter or at the top.",
			props{"filter": ref("DeadLetterFilter")}),
		"DeleteDeadLetterAnswer": made("A dead letter that was deleted.", object(props{
			"deleted": boolean(),
			"job_id":  uuidText(),
		})),
		"RetryDeadLettersAnswer": made("How many dead letters run again, and how many remain.", object(props{
			"retried": whole64(), "remaining": nullable(whole64()),
		})),
		"PurgeDeadLettersAnswer": made("How many dead letters were deleted, and how many remain.", object(props{
			"deleted": whole64(), "remaining": nullable(whole64()),
		})),
	}
}

func tenantSchemas() map[string]named {
	limits := func(p props) schema {
		for _, name := range []string{
			"max_concurrency", "max_queue_depth", "max_scheduled", "max_stored_bytes", "max_in_flight_requests",
			"max_waiting_polls",
			"max_enqueue_rate", "max_request_rate",
		} {
			p[name+"?"] = nullable(either(whole64(), ref("Limit")))
		}
		return object(p)
	}
	asked := func(p props) schema {
		for _, name := range []string{
			"concurrency", "max_concurrent_jobs", "enqueue_rate", "max_jobs_per_second",
			"queue_depth", "scheduled_jobs",
		} {
			p[name+"?"] = nullable(either(whole64(), ref("Limit")))
		}
		return closed(limits(p))
	}
	action := func() schema { return oneOf("weight", "concurrency", "rate") }
	mode := func() schema { return oneOf("off", "observe", "on") }
	count := props{
		"depth": whole64(), "failed_attempts": whole64(), "completed_24h": whole64(), "failed_24h": whole64(),
		"attempts_failed_24h": whole64(),
	}
	for _, state := range states {
		count[state] = whole64()
	}
	over := func() schema { return oneOf("refuse", "clamp") }
	noisy := props{"throttled_until": nullable(instant()), "signal": oneOf("queue_depth_ratio", "enqueue_rate_ratio",
		"active_job_ratio", "error_rate")}
	ratio := props{"mode": mode(), "action": action(), "depth_ratio": anyNumber(), "rate_ratio": anyNumber()}
	return map[string]named{
		"Limit": made("A limit that has more attributes than its number.", closed(object(props{
			"limit": whole64(), "period?": text(), "burst?": whole64(), "soft?": boolean(), "current?": whole64(),
		}))),
		"TenantLimits": made("The limits of a tenant, each as a number or an object.", limits(props{})),
		"LimitsUnder":  made("Limits of a tenant to set; null removes one.", asked(props{"reason?": nullable(text())})),
		"TenantLimitsRequest": made("Limits of a tenant to set, bare or under limits; null removes one.", asked(withNulls(props{
			"limits": ref("LimitsUnder"), "queue": text(), "reason": text(), "tenant_id": text(), "tenant": text(),
		}))),
		"TenantLimitsAnswer": made("The limits that a tenant has.", object(props{
			"tenant_id": text(), "queue": nullable(text()), "limits": ref("TenantLimits"),
		})),
		"TenantStats": made("The numbers of a tenant.", object(props{
			"as_of": instant(), "tenant_id": text(), "total_jobs": whole64(), "oldest_wait_ms": whole64(),
			"queues": whole64(), "workers": whole64(),
			"limits": ref("TenantLimits"), "jobs": object(count),
			"throughput": object(props{
				"processed_per_minute": whole64(), "enqueued_per_minute": whole64(), "attempts_failed_per_minute": whole64(),
			}),
			"fairness": object(props{
				"weight": anyNumber(), "effective_share": anyNumber(), "actual_share": anyNumber(),
				"deficit": anyNumber(), "dispatched": whole64(),
			}),
		})),
		"Tenant": made("A tenant: its settings and its numbers.", object(props{
			"id": text(), "name": text(), "state": oneOf("active", "paused", "suspended", "deregistering"),
			"weight": anyNumber(), "fairness_weight": anyNumber(),
			"priority_boost": whole32(), "max_priority": whole32(), "over_priority": over(), "tier": nullable(text()),
			"limits": ref("TenantLimits"),
			"stats":  ref("TenantStats"), "created_at?": instant(),
		})),
		"TenantList": page("A page of tenants.", "tenants", "Tenant", "Page"),
		"TenantRequest": body[tenantRequest]("Settings of a tenant to change.", props{
			"limits": ref("LimitsUnder"), "over_priority": over(),
			"fairness": closed(object(withNulls(props{"weight": anyNumber()}))),
		}),
		"DeregisterTenantRequest": body[deregisterTenantRequest]("The confirmation that a tenant is to end.", nil),
		"DeregisterTenantAnswer": made("A tenant that ends.", object(props{
			"id": text(), "tenant_id": text(), "state": oneOf("deregistering"), "jobs": whole64(), "deregistered_at": instant(),
		})),
		"Rule": made("What holds dispatch back: a limit, a pause or a throttle.",
			answerOf[shownRule](props{"limit_xid": nil})),
		"RuleStat": answer[sqlcgen.OjsRuleStat]("What holds dispatch back, and how much of a limit is used.",
			props{"limit_reason": nullable(text())}),
		"RuleList":           page("A page of limits and pauses.", "rules", "RuleStat", "Page"),
		"PauseTenantRequest": body[ofRequest]("The queue in which a tenant is paused, and why.", nil),
		"PauseTenantAnswer": made("Whether dispatch of a tenant is stopped.", object(props{
			"paused": boolean(),
			"rule":   ref("Rule"),
		})),
		"Throttle":       answer[sqlcgen.OjsThrottles]("A tenant that gets less for a while.", props{"action": action()}),
		"ThrottleAnswer": made("The throttle that was set.", object(props{"throttle": ref("Throttle")})),
		"ThrottleList":   page("A page of tenants that get less for a while.", "throttles", "Throttle", "PartPage"),
		"ThrottleRequest": body[throttleRequest]("How much less a tenant gets, and for how long.",
			props{"action": action()}),
		"ReleaseThrottleAnswer": made("A tenant that is no longer throttled.", object(props{
			"tenant_id": text(),
			"throttled": boolean(),
		})),
		"NoisyNeighbour": answer[sqlcgen.OjsNoisyNeighbour]("A tenant that uses much more than the others.", noisy),
		"NeighbourWatch": answer[sqlcgen.NeighbourWatchRow]("Settings by which tenants count as noisy.", ratio),
		"NeighboursAnswer": answer[admin.Neighbours]("Settings, noisy tenants and throttled tenants.", props{
			"settings": ref("NeighbourWatch"), "noisy": list(ref("NoisyNeighbour")), "throttles": list(ref("Throttle")),
		}),
		"NeighbourWatchRequest": body[watchRequest]("Settings by which tenants count as noisy, to change.",
			props{"mode": mode(), "action": action()}),
		"NeighbourWatchAnswer": made("Settings by which tenants count as noisy.",
			object(props{"settings": ref("NeighbourWatch")})),
		"TierConfig": made("What tenants of a tier have.", closed(object(withNulls(props{
			"limits": ref("LimitsUnder"), "fairness_weight": anyNumber(), "weight": anyNumber(),
			"priority_boost": between(-100, 100),
		})))),
		"Tier":     answer[sqlcgen.OjsTiers]("A tier, a template of what tenants have.", props{"config": ref("TierConfig")}),
		"TierList": page("A page of tiers.", "tiers", "Tier", "Page"),
		"TierUnder": made("The template of a tier, in an object of its own.",
			closed(object(props{"config": ref("TierConfig")}))),
		"TierRequest": made("The whole template of a tier, bare or under config.", either(ref("TierUnder"), ref("TierConfig"))),
		"SetTierRequest": func() named {
			n := body[tierRequest]("The tier to give to a tenant; null takes it away.", nil)
			n.schema["required"] = []string{"tier"}
			return n
		}(),
		"SetTierAnswer": made("The tier that a tenant has.", object(props{"tenant_id": text(), "tier": nullable(text())})),
		"RemovedAnswer": made("What was removed.", object(props{"name": text(), "deleted": boolean()})),
	}
}

func settingSchemas() map[string]named {
	return map[string]named{
		"Settings": answer[sqlcgen.SettingsRow]("The settings of the deployment.", props{
			"tenant_fairness": ref("TenantFairness"), "default_retry": nullable(ref("RetryPolicy")),
			"unknown_tenants": oneOf("accept", "refuse"), "unsupported": oneOf("refuse", "carry"),
		}),
		"SettingsConfig": made("Settings of the deployment, to change.", closed(object(props{
			"default_tenant?": text(), "tenant_required?": boolean(), "unknown_tenants?": oneOf("accept", "refuse"),
			"unsupported?": oneOf("refuse", "carry"), "tenant_fairness?": ref("TenantFairness"), "default_retry?": ref("RetryPolicy"),
			"timeout_ms?": between(0, 999999999), "heartbeat_timeout_ms?": between(1000, 86400000),
			"retention?": text(), "journal_retention?": text(), "idempotency_window?": text(),
		}))),
		"SettingsUnder":   made("Settings, in an object of their own.", closed(object(props{"config": ref("SettingsConfig")}))),
		"SettingsRequest": made("Settings to change, bare or under config.", either(ref("SettingsUnder"), ref("SettingsConfig"))),
	}
}

func poolSchemas() map[string]named {
	strategy := func() schema { return oneOf("strict", "round-robin", "weighted", "least-loaded") }
	p := func() props {
		return props{
			"weights": mapOf(anyNumber()), "starvation_prevention": ref("StarvationPrevention"),
			"strategy": strategy(), "queues": list(text()),
			"tenants": list(text()),
		}
	}
	config := withNulls(props{
		"name": text(), "queues": either(list(text()), mapOf(open(object(props{"weight?": anyNumber()})))),
		"concurrency":     between(1, 1000000),
		"max_concurrency": between(1, 1000000), "strategy": strategy(), "weights": mapOf(anyNumber()),
		"isolated": boolean(), "tenants": list(text()),
		"starvation_prevention": ref("StarvationPrevention"),
	})
	return map[string]named{
		"Pool":     answer[sqlcgen.PoolsRow]("A pool of workers and its numbers.", p()),
		"PoolList": page("A page of pools.", "pools", "Pool", "Page"),
		"PoolAnswer": made("A pool, at the top and under pool.", and(answerOf[sqlcgen.PoolsRow](p()),
			props{"pool": ref("Pool")})),
		"StarvationPrevention": made("What keeps a queue of a pool from waiting without end.", closed(object(props{
			"enabled": boolean(), "rotation_interval?": nullable(text()), "min_dispatch_ratio?": nullable(anyNumber()),
		}))),
		"PoolConfig": made("The whole configuration of a pool.", closed(object(config))),
		"PoolUnder": made("The configuration of a pool, in an object of its own.",
			closed(object(props{"pool": ref("PoolConfig")}))),
		"PoolRequest": made("The whole configuration of a pool, bare or under pool.", either(ref("PoolUnder"),
			ref("PoolConfig"))),
	}
}

func keySchemas() map[string]named {
	scopes := func() schema { return list(oneOf("produce", "work", "read", "admin")) }
	p := func() props {
		return props{
			"id": uuidText(), "scopes": scopes(), "state": oneOf("valid", "expired", "revoked"),
			"rotated_to": nullable(uuidText()),
		}
	}
	return map[string]named{
		"APIKey":           answer[sqlcgen.OjsApiKeys]("An API key without its secret.", p()),
		"NewAPIKey":        answer[sqlcgen.OjsNewApiKey]("An API key with its secret, which is shown once.", p()),
		"APIKeyList":       page("A page of API keys.", "api_keys", "APIKey", "PartPage"),
		"CreateKeyRequest": body[createKeyRequest]("An API key to make.", props{"scopes": scopes()}),
		"RotateKeyRequest": body[rotateKeyRequest]("How long the old key remains valid.", nil),
	}
}

func systemSchemas() map[string]named {
	shares := func() schema { return anyNumber() }
	stats := props{}
	for _, state := range states {
		stats[state] = whole64()
	}
	return map[string]named{
		"Event": answer[eventJSON]("A change in the life of a job, a cron job, a tenant or a queue.",
			props{"data": freeObject()}),
		"EventList":  page("The latest events, the newest first.", "events", "Event", "EventPage"),
		"AuditEntry": answer[sqlcgen.OjsAuditTrail]("A change of the configuration.", props{"old": free(), "new": free()}),
		"AuditList":  page("A page of the audit trail, the latest change first.", "audit", "AuditEntry", "CursorPage"),
		"Finding":    answer[sqlcgen.DoctorRow]("Something that is wrong, and what to do.", nil),
		"DoctorAnswer": made("What is wrong, the worst first.", object(props{
			"worst": nullable(text()), "findings": list(ref("Finding")),
		})),
		"Blocked":     answer[sqlcgen.BlockedTenantsRow]("A tenant whose available jobs in a queue cannot be handed out.", nil),
		"BlockedList": page("A page of blocked tenants, those with most jobs first.", "blocked", "Blocked", "PartPage"),
		"Stats": made("Numbers of queues, workers and jobs.", object(props{
			"queues": whole64(), "workers": whole64(), "jobs": object(stats), "throughput": object(props{
				"enqueued_per_minute": whole64(), "processed_per_minute": whole64(), "failed_per_minute": whole64(),
				"attempts_failed_per_minute": whole64(),
			}), "as_of": instant(),
		})),
		"SchedulingQueue":  answer[sqlcgen.SchedulingStatsRow]("What was handed out of a queue, and after what wait.", nil),
		"SchedulingTotals": answer[sqlcgen.SchedulingTotalsRow]("What was handed out of all queues.", nil),
		"SchedulingStats": made("A page of queues with what was handed out of them, and the sums over all queues.", object(props{
			"queues": list(ref("SchedulingQueue")), "items": list(ref("SchedulingQueue")), "pagination": ref("Page"),
			"window": text(),
			"stats":  ref("SchedulingTotals"),
		})),
		"TenantShare": answer[sqlcgen.TenantSharesRow]("The share that a tenant is entitled to, and the share that it got.",
			props{"ideal_share": shares()}),
		"TenantShares": made("A page of tenants with their shares.", object(props{
			"tenants": list(ref("TenantShare")), "items": list(ref("TenantShare")), "pagination": ref("Page"), "window": text(),
		})),
		"Health": answer[healthJSON]("The state of the process and its database.", props{
			"backend": ref("Backend"), "status": oneOf("ok", "degraded"),
		}),
		"Backend": answer[backendJSON]("The state of the database.", props{
			"status":     oneOf("healthy", "degraded", "unhealthy"),
			"latency_ms": whole64(),
		}),
		"Ready": made("Whether the server takes requests.", object(props{
			"status": oneOf("ready", "draining", "database unavailable"), "reason?": text(),
		})),
		"Manifest": answer[manifestJSON]("What this server can do.", props{
			"implementation": ref("Implementation"), "protocols": list(text()), "extensions": list(text()),
		}),
		"Implementation": answer[implementationJSON]("Which server this is.", nil),
		"Dispatch":       answer[admin.Dispatch]("Whether dispatch is held, and how many jobs would run.", nil),
		"DispatchAnswer": made("Whether dispatch is held, and how many jobs would run.",
			object(props{"dispatch": ref("Dispatch")})),
	}
}
