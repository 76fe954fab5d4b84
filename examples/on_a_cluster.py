"""Forty questions on a cluster of two worker processes, one of which is killed half-way: no question is lost by that.

Run it with `python examples/on_a_cluster.py`; it needs `pip install distributed cryptography` and no key. Everything is
on this machine and listens on loopback only; the provider is simulated. On real machines: docs/cluster.md.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

from agentos import CredentialCoordinator, Dask, ParallelCoordinator
from agentos.simulator import Latency, Simulator, organisations

PLAN = organisations({"acme": 4}, latency=Latency(0.05, 0.0))


def ask(item: dict[str, str], credential: str) -> dict[str, Any]:
    """Runs on a worker. It is in the main script, which no worker has, so that it is sent to them as it stands."""
    request = urllib.request.Request(
        f"{item['provider']}/chat/completions",
        data=json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": item["question"]}]}).encode(),
        headers={"Authorization": f"Bearer {credential}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        answer = json.load(response)
    return {"text": answer["choices"][0]["message"]["content"], "worker": os.getpid()}


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="        %(message)s", stream=sys.stdout)
    with (
        Simulator(PLAN) as provider,
        LocalCluster(
            n_workers=2, threads_per_worker=2, host="127.0.0.1", dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        workers = sorted(client.run(os.getpid).values())
        pool = CredentialCoordinator(provider.keys)
        # A worker that is not heard of for five seconds is lost; the default is ten.
        run = ParallelCoordinator(
            4, pool, journal=Path(folder) / "night", engine=Dask(client, ttl=5.0), ship_secrets=True
        )
        items = [
            {"id": f"q{number}", "question": f"What is {number} squared?", "provider": provider.base_url}
            for number in range(1, 41)
        ]
        done: Counter[int] = Counter()
        for number, result in enumerate(run.stream(items, ask, lambda item: item["id"]), start=1):
            done[result.value["worker"]] += 1
            print(f"{result.item_id} by {result.credential}, attempt {result.attempts}")
            if number == 15:
                print(f"killing worker process {workers[0]}")
                os.kill(workers[0], signal.SIGKILL)
        calls = provider.statistics().keys
    assert run.stats is not None
    print(f"{run.stats.success_count} of {run.stats.total} done, {run.stats.failed} failed")
    print(f"by {len(done)} worker processes: {dict(done)}")
    print(f"most calls at once on a key: {max(tally.most_in_flight for tally in calls.values())}")


if __name__ == "__main__":
    main()
