#!/usr/bin/env python3
"""A worker: python3 worker.py. It needs nothing but Python, 3.8 or newer."""
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("OJS_URL", "http://127.0.0.1:8080") + "/ojs/v1/workers/"
HEADERS = {"Content-Type": "application/json"}
if os.environ.get("OJS_API_KEY"):
    HEADERS["Authorization"] = "Bearer " + os.environ["OJS_API_KEY"]
QUEUES = os.environ.get("OJS_QUEUES", "default").split(",")
LEASE_MS = int(os.environ.get("OJS_LEASE_MS", "30000"))
WAIT_MS = 5000  # How long a FETCH waits for a job, and an idle worker goes on after it was told to stop.
SLOTS = 4  # Jobs at a time.
WORKER = "python-%s-%d" % (socket.gethostname(), os.getpid())

stopping = threading.Event()  # No job is fetched any more.
stopped = threading.Event()  # No job runs any more.
running = {}  # Id of a job: the event that says that it was lost.
lock = threading.Lock()


class Permanent(Exception):
    """A failure that another attempt would only repeat."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def greet(job, lost):
    return {"greeting": "hello, " + job["args"][0]}


def nap(job, lost):
    # What takes long looks now and then whether the job is still this worker's.
    return {"slept": not lost.wait(job["args"][0])}


def charge(job, lost):
    if job["args"][0] <= 0:
        raise Permanent("invalid_amount", "the amount must be positive")
    # With the job's id as its key, a payment is made once, however often the job runs.
    return {"charged": job["args"][0], "key": job["id"]}


def send(job, lost):
    return {"sent": job["args"]}


# The producers of the examples enqueue the last three.
HANDLERS = {"greet": greet, "nap": nap, "charge": charge, "receipt.send": send, "receipt.remind": send, "welcome.send": send}


def say(line):
    print(line, flush=True)


def call(what, body, tries=1):
    """Posts, and asks again while the server is away or has no room, which changes nothing about ACK and NACK with a lease."""
    data = json.dumps({"worker_id": WORKER, **body}).encode()
    while True:
        tries -= 1
        try:
            with urllib.request.urlopen(urllib.request.Request(URL + what, data, HEADERS), timeout=WAIT_MS / 1000 + 30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code not in (429, 503) or tries <= 0:
                    raise RuntimeError("%s: %d %s" % (what, refusal.code, refusal.read().decode())) from None
                pause = float(refusal.headers.get("Retry-After", 1))
        except OSError:
            if tries <= 0:
                raise
            pause = 1
        time.sleep(pause)


def work(job):
    lost = threading.Event()
    with lock:
        running[job["id"]] = lost
    end = {"job_id": job["id"], "lease": job["lease"]}
    try:
        if job["type"] not in HANDLERS:
            raise LookupError("no handler for %s" % job["type"])
        verb, end["result"] = "ack", HANDLERS[job["type"]](job, lost)
    except Exception as failure:
        verb, end["error"] = "nack", {"type": getattr(failure, "kind", type(failure).__name__), "message": str(failure)}
        if isinstance(failure, Permanent):
            end["error"]["retryable"] = False
    try:
        if lost.is_set():
            say("lost %s %s" % (job["type"], job["id"]))
        else:
            call(verb, end, tries=10)
            say("done %s %s" % (job["type"], job["id"]) if verb == "ack" else
                "failed %s %s: %s" % (job["type"], job["id"], end["error"]["message"]))
    except Exception as refusal:
        print(refusal, file=sys.stderr)  # 409: the job was taken back; another worker has it.
    finally:
        with lock:
            del running[job["id"]]


def slot():
    while not stopping.is_set():
        try:
            jobs = call("fetch", {"queues": QUEUES, "visibility_timeout_ms": LEASE_MS, "wait_ms": WAIT_MS})["jobs"]
        except Exception as refusal:
            print(refusal, file=sys.stderr)
            stopping.wait(1)
            continue
        for job in jobs:
            work(job)


def heartbeats(interval):
    """Keeps the jobs that run, and the worker itself while there is none."""
    while not stopped.wait(interval):
        with lock:
            jobs = dict(running)
        state = "drain" if stopping.is_set() else "running"
        try:
            answer = call("heartbeat", {"active_jobs": list(jobs), "visibility_timeout_ms": LEASE_MS, "state": state})
        except Exception as refusal:
            print(refusal, file=sys.stderr)  # The next one comes soon.
            continue
        for job in jobs.keys() - set(answer["jobs_extended"]):
            jobs[job].set()
        if answer["state"] == "terminate":
            stopping.set()


def main():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    about = {"queues": QUEUES, "concurrency": SLOTS, "hostname": socket.gethostname(), "pid": os.getpid()}
    registered = call("register", about, tries=60)
    say("serving %s as %s at %s" % (",".join(QUEUES), WORKER, URL))
    interval = min(registered["heartbeat_interval"], LEASE_MS / 2000)
    beats = threading.Thread(target=heartbeats, args=(interval,))
    slots = [threading.Thread(target=slot) for _ in range(SLOTS)]
    for thread in [beats, *slots]:
        thread.start()
    for thread in slots:
        thread.join()
    stopped.set()
    beats.join()
    call("deregister", {}, tries=3)


main()
