// A producer over HTTP: node producer.mjs. It needs nothing but Node.js, 20 or newer.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const url = `${process.env.OJS_URL ?? "http://127.0.0.1:8080"}/ojs/v1/jobs/batch`;

// Enqueues all of the jobs or none, once for each key, however often it is called.
async function enqueue(jobs, tenant, key) {
  const headers = { "Content-Type": "application/json", "X-OJS-Tenant": tenant, "Idempotency-Key": key };
  if (process.env.OJS_API_KEY) headers.Authorization = `Bearer ${process.env.OJS_API_KEY}`;
  for (let tries = 10; ; ) {
    // Without an answer the jobs may be there already. With the same key they will be there once.
    const answer = await fetch(url, {
      method: "POST",
      headers,
      body: JSON.stringify({ jobs }),
      signal: AbortSignal.timeout(30000),
    }).catch((failure) => failure);
    if (answer.ok) return (await answer.json()).jobs;
    // 429: a limit of the tenant; 503: the server or the database is away. Anything else will not get better.
    const again = answer instanceof Error || answer.status === 429 || answer.status === 503;
    if (!again || --tries <= 0) throw answer instanceof Error ? answer : new Error(await answer.text());
    await sleep(1000 * Number(answer.headers?.get("Retry-After") ?? 1));
  }
}

const jobs = ["ada@example.com", "grace@example.com"].map((email, n) => ({
  type: "receipt.send",
  args: [n + 1, email],
}));
const key = randomUUID(); // Better: something of the order's own, such as its id.
for (const job of await enqueue(jobs, "acme", key)) console.log(job.id);
