"""Twenty items on eight threads over three keys, one of which gets rate-limited on the way.

Run it with `make demo`. The "provider" is a function below: it takes a moment, and refuses the second key once.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from agentos import CredentialCoordinator, Lease

ITEMS = [f"item-{number:02d}" for number in range(1, 21)]
began = time.monotonic()
speaking = threading.Lock()


def say(text: str) -> None:
    with speaking:
        print(f"{time.monotonic() - began:5.2f}s  {text}", flush=True)


class Provider:
    """Stands in for an API: it knows three keys and says "too many" to the second one, once."""

    def __init__(self) -> None:
        self._calls = 0
        self._lock = threading.Lock()

    def answer(self, secret: str) -> float | None:
        """None for a good answer, or the seconds a 429 tells the caller to stay away."""
        time.sleep(random.uniform(0.05, 0.15))
        with self._lock:
            self._calls += 1
            if secret == "demo-secret-two" and self._calls > 6:
                self._calls = -1000
                return 0.4
        return None


def work(item: str, pool: CredentialCoordinator, provider: Provider) -> str:
    while True:
        with pool.lease(item) as lease:
            retry_after = provider.answer(lease.reveal())
            if retry_after is None:
                say(f"{item} done with {lease.name}")
                return lease.name
            refused(item, lease, retry_after)


def refused(item: str, lease: Lease, retry_after: float) -> None:
    lease.rate_limited(retry_after)
    say(f"{item} got a 429 on {lease.name}: nobody uses it for {retry_after}s, {item} waits for another key")


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="        %(message)s", stream=sys.stdout)
    pool = CredentialCoordinator(["demo-secret-one", "demo-secret-two", "demo-secret-three"])
    provider = Provider()
    say(f"{len(ITEMS)} items, 8 threads, {pool.get_stats()['total']} keys: each key has one user at a time")
    with ThreadPoolExecutor(max_workers=8) as threads:
        used = list(threads.map(lambda item: work(item, pool, provider), ITEMS))
    say(f"all {len(used)} items done, none lost to the 429")
    for row in pool.snapshot():
        why = f" ({row.why})" if row.why else ""
        print(f"        {row.name}: {used.count(row.name):2d} items, now {row.state}{why}")


if __name__ == "__main__":
    main()
