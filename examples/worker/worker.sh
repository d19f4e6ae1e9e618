#!/usr/bin/env bash
# A worker: bash worker.sh. It needs curl and jq, and runs one job at a time.
set -uo pipefail

base=${OJS_URL:-http://127.0.0.1:8080}/ojs/v1/workers
queues=$(jq -Rc 'split(",")' <<<"${OJS_QUEUES:-default}")
lease_ms=${OJS_LEASE_MS:-30000}
wait_ms=5000 # How long a FETCH waits for a job, and an idle worker goes on after it was told to stop.
worker=bash-$(hostname)-$$

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# Curl reads the key from a file: on a command line others would see it.
printf 'Content-Type: application/json\n%s\n' "${OJS_API_KEY:+Authorization: Bearer $OJS_API_KEY}" >"$dir/headers"

# Runs a job of type $1, which comes on stdin. Its result goes to stdout, what went wrong to stderr; status 2 says that another
# attempt would only repeat it.
handle() {
    case $1 in
    greet) jq -c '{greeting: "hello, \(.args[0])"}' ;;
    nap) sleep "$(jq '.args[0]')" && echo '{"slept": true}' ;;
    charge)
        # With the job's id as its key, a payment is made once, however often the job runs.
        jq -ce 'if .args[0] > 0 then {charged: .args[0], key: .id} else empty end' && return
        echo 'the amount must be positive' >&2
        return 2
        ;;
    # The producers of the examples enqueue these.
    receipt.send | receipt.remind | welcome.send) jq -c '{sent: .args}' ;;
    *)
        echo "no handler for $1" >&2
        return 1
        ;;
    esac
}

# Posts what comes on stdin, which $2 tries allow to be repeated while the server is away or has no room: that changes nothing about
# ACK and NACK with a lease. Ctrl-C is for the worker, not for the request that is under way.
call() {
    (trap '' INT && exec curl -sS --fail-with-body --max-time 60 --retry "${2:-0}" --retry-connrefused --retry-max-time 60 \
        -H "@$dir/headers" --data-binary @- "$base/$1")
}

# Keeps the job that runs, and the worker itself while there is none.
heartbeats() {
    local job answer
    while sleep "$1"; do
        job=$(cat "$dir/job" 2>/dev/null || true)
        answer=$(jq -nc --arg worker "$worker" --arg job "$job" --arg state "$(cat "$dir/state")" --argjson lease "$lease_ms" \
            '{worker_id: $worker, active_jobs: [$job | select(. != "")], visibility_timeout_ms: $lease, state: $state}' |
            call heartbeat) || continue # The next one comes soon.
        if [ -n "$job" ] && ! jq -e --arg job "$job" '.jobs_extended | index($job)' <<<"$answer" >/dev/null; then
            echo "$job" >"$dir/lost"
        fi
        [ "$(jq -r .state <<<"$answer")" != terminate ] || kill -TERM $$
    done
}

work() {
    local job=$1 id kind pid status
    id=$(jq -r .id <<<"$job")
    kind=$(jq -r .type <<<"$job")
    echo "$id" >"$dir/job"
    rm -f "$dir/status"
    # With job control it is a process group, which neither Ctrl-C nor a signal for the worker reaches, and which ends as a whole.
    set -m
    (handle "$(jq -r .type <<<"$job")" <<<"$job" >"$dir/result" 2>"$dir/error"; echo $? >"$dir/status") &
    pid=$!
    set +m
    until [ -s "$dir/status" ] || [ "$(cat "$dir/lost" 2>/dev/null)" = "$id" ]; do sleep 0.1; done
    rm -f "$dir/job"
    if ! [ -s "$dir/status" ]; then
        kill -- "-$pid"
        echo "lost $kind $id"
        return
    fi
    status=$(cat "$dir/status")
    if [ "$status" = 0 ]; then
        jq -c --arg worker "$worker" --slurpfile result "$dir/result" \
            '{worker_id: $worker, job_id: .id, lease, result: $result[0]}' <<<"$job" | call ack 10 >/dev/null && echo "done $kind $id"
    else
        jq -c --arg worker "$worker" --rawfile message "$dir/error" --argjson status "$status" \
            '{worker_id: $worker, job_id: .id, lease, error: ({type: "exit_\($status)", message: $message}
              + if $status == 2 then {type: "invalid", retryable: false} else {} end)}' <<<"$job" | call nack 10 >/dev/null && echo "failed $kind $id: $(cat "$dir/error")"
    fi # A refusal, 409: the job was taken back; another worker has it.
}

stopping=
trap 'stopping=1; echo drain >"$dir/state"' TERM INT
echo running >"$dir/state"
registered=$(jq -nc --arg worker "$worker" --argjson queues "$queues" --argjson pid $$ \
    '{worker_id: $worker, queues: $queues, concurrency: 1, pid: $pid}' | call register 60) || exit 1
echo "serving ${OJS_QUEUES:-default} as $worker at $base"
set -m
heartbeats "$(jq --argjson lease "$lease_ms" '[.heartbeat_interval, $lease / 2000] | min' <<<"$registered")" &
beats=$!
set +m
while [ -z "$stopping" ]; do
    answer=$(jq -nc --arg worker "$worker" --argjson queues "$queues" --argjson lease "$lease_ms" --argjson wait "$wait_ms" \
        '{worker_id: $worker, queues: $queues, visibility_timeout_ms: $lease, wait_ms: $wait}' | call fetch) || {
        sleep 1
        continue
    }
    job=$(jq -c '.jobs[0] // empty' <<<"$answer")
    [ -z "$job" ] || work "$job"
done
kill -- "-$beats"
wait "$beats" 2>/dev/null
jq -nc --arg worker "$worker" '{worker_id: $worker}' | call deregister 3 >/dev/null
