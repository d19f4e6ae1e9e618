// A worker: node worker.mjs. It needs nothing but Node.js, 20 or newer.
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const base = `${process.env.OJS_URL ?? "http://127.0.0.1:8080"}/ojs/v1/workers/`;
const headers = { "Content-Type": "application/json" };
if (process.env.OJS_API_KEY) headers.Authorization = `Bearer ${process.env.OJS_API_KEY}`;
const queues = (process.env.OJS_QUEUES ?? "default").split(",");
const leaseMs = Number(process.env.OJS_LEASE_MS ?? 30000);
const waitMs = 5000; // How long a FETCH waits for a job, and an idle worker goes on after it was told to stop.
const slots = 4; // Jobs at a time.
const worker = `node-${hostname()}-${process.pid}`;

const running = new Map(); // Id of a job: the controller that aborts it when it was lost.
const stopping = new AbortController(); // No job is fetched any more.
const stopped = new AbortController(); // No job runs any more.

// A failure that another attempt would only repeat.
class Permanent extends Error {
  constructor(kind, message) {
    super(message);
    this.name = kind;
  }
}

const send = async (job) => ({ sent: job.args });

const handlers = {
  greet: async (job) => ({ greeting: `hello, ${job.args[0]}` }),

  // What takes long ends when the job is no longer this worker's.
  nap: async (job, lost) => {
    await sleep(job.args[0] * 1000, undefined, { signal: lost });
    return { slept: true };
  },

  charge: async (job) => {
    if (!(job.args[0] > 0)) throw new Permanent("invalid_amount", "the amount must be positive");
    // With the job's id as its key, a payment is made once, however often the job runs.
    return { charged: job.args[0], key: job.id };
  },

  // The producers of the examples enqueue these.
  "receipt.send": send,
  "receipt.remind": send,
  "welcome.send": send,
};

// Posts, and asks again while the server is away or has no room, which changes nothing about ACK and NACK with a lease.
async function call(what, body, tries = 1) {
  for (;;) {
    let pause = 1;
    try {
      const answer = await fetch(base + what, {
        method: "POST",
        headers,
        body: JSON.stringify({ worker_id: worker, ...body }),
        signal: AbortSignal.timeout(waitMs + 30000),
      });
      if (answer.ok) return await answer.json();
      const text = await answer.text();
      if ((answer.status !== 429 && answer.status !== 503) || --tries <= 0) {
        throw Object.assign(new Error(`${what}: ${answer.status} ${text}`), { final: true });
      }
      pause = Number(answer.headers.get("Retry-After") ?? 1);
    } catch (failure) {
      if (failure.final || --tries <= 0) throw failure;
    }
    await sleep(pause * 1000);
  }
}

async function work(job) {
  const lost = new AbortController();
  running.set(job.id, lost);
  const end = { job_id: job.id, lease: job.lease };
  let verb = "ack";
  try {
    if (!Object.hasOwn(handlers, job.type)) throw new ReferenceError(`no handler for ${job.type}`);
    end.result = await handlers[job.type](job, lost.signal);
  } catch (failure) {
    verb = "nack";
    end.error = { type: failure.name, message: String(failure.message) };
    if (failure instanceof Permanent) end.error.retryable = false;
  }
  try {
    if (lost.signal.aborted) {
      console.log(`lost ${job.type} ${job.id}`);
    } else {
      await call(verb, end, 10);
      console.log(verb === "ack" ? `done ${job.type} ${job.id}` : `failed ${job.type} ${job.id}: ${end.error.message}`);
    }
  } catch (refusal) {
    console.error(refusal.message); // 409: the job was taken back; another worker has it.
  } finally {
    running.delete(job.id);
  }
}

async function slot() {
  while (!stopping.signal.aborted) {
    try {
      const { jobs } = await call("fetch", { queues, visibility_timeout_ms: leaseMs, wait_ms: waitMs });
      for (const job of jobs) await work(job);
    } catch (refusal) {
      console.error(refusal.message);
      await pauseFor(1000, stopping.signal);
    }
  }
}

// Keeps the jobs that run, and the worker itself while there is none.
async function heartbeats(intervalMs) {
  while (await pauseFor(intervalMs, stopped.signal)) {
    const jobs = new Map(running);
    const state = stopping.signal.aborted ? "drain" : "running";
    try {
      const answer = await call("heartbeat", { active_jobs: [...jobs.keys()], visibility_timeout_ms: leaseMs, state });
      for (const [id, lost] of jobs) if (!answer.jobs_extended.includes(id)) lost.abort();
      if (answer.state === "terminate") stopping.abort();
    } catch (refusal) {
      console.error(refusal.message); // The next one comes soon.
    }
  }
}

// True when the time is over, false when the signal came first.
const pauseFor = (ms, signal) => sleep(ms, true, { signal }).catch(() => false);

for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => stopping.abort());
const about = { queues, concurrency: slots, hostname: hostname(), pid: process.pid };
const registered = await call("register", about, 60);
console.log(`serving ${queues} as ${worker} at ${base}`);
const beats = heartbeats(Math.min(registered.heartbeat_interval * 1000, leaseMs / 2));
await Promise.all(Array.from({ length: slots }, slot));
stopped.abort();
await beats;
await call("deregister", {}, 3);
