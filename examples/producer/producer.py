#!/usr/bin/env python3
"""A producer over HTTP: python3 producer.py. It needs nothing but Python, 3.8 or newer."""
import json
import os
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ.get("OJS_URL", "http://127.0.0.1:8080") + "/ojs/v1/jobs"


def enqueue(job, tenant, key):
    """Enqueues, once for each key, however often it is called."""
    headers = {"Content-Type": "application/json", "X-OJS-Tenant": tenant, "Idempotency-Key": key}
    if os.environ.get("OJS_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["OJS_API_KEY"]
    for attempt in range(10):
        try:
            with urllib.request.urlopen(urllib.request.Request(URL, json.dumps(job).encode(), headers), timeout=30) as answer:
                return json.load(answer)["job"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                # 429: a limit of the tenant; 503: the server or the database is away. Anything else will not get better.
                if refusal.code not in (429, 503) or attempt == 9:
                    raise RuntimeError(refusal.read().decode()) from None
                pause = float(refusal.headers.get("Retry-After", 1))
        except OSError:
            # The job may be there already. With the same key there will be only one.
            if attempt == 9:
                raise
            pause = 1
        time.sleep(pause)


job = {"type": "receipt.send", "args": [1, "ada@example.com"], "options": {"retry": {"max_attempts": 5}}}
key = str(uuid.uuid4())  # Better: something of the order's own, such as its id.
print(enqueue(job, "acme", key)["id"])
