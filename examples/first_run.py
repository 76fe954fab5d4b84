"""Thirty items over three keys: one key gets rate-limited, the run is stopped half-way, and the next one goes on.

Run it with `make demo`. The "provider" is a class below: it takes a moment, and refuses the second key once.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from agentos import CredentialCoordinator, ParallelCoordinator, RateLimited

ITEMS = [{"id": f"item-{number:02d}", "question": f"What is {number} squared?"} for number in range(1, 31)]
began = time.monotonic()
speaking = threading.Lock()


def say(text: str) -> None:
    with speaking:
        print(f"{time.monotonic() - began:5.2f}s  {text}", flush=True)


class Provider:
    """Stands in for an API: it knows three keys and says "too many" to the second one, once."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answer(self, question: str, secret: str) -> str:
        time.sleep(random.uniform(0.05, 0.15))
        with self._lock:
            self._calls[secret] += 1
            if secret == "demo-secret-two" and self._calls[secret] == 3:
                raise RateLimited(0.4)  # nobody uses this key for 0.4 s; the item waits, and spends no try
        number = int(question.split()[2])
        return str(number * number)


provider = Provider()


def ask(item: dict[str, str], credential: str | None) -> str:
    return provider.answer(item["question"], str(credential))


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="        %(message)s", stream=sys.stdout)
    pool = CredentialCoordinator(["demo-secret-one", "demo-secret-two", "demo-secret-three"])
    with tempfile.TemporaryDirectory() as folder:
        first = ParallelCoordinator(8, pool, journal=Path(folder) / "night")
        say(f"{len(ITEMS)} items, 8 workers, 3 keys: each key has one user at a time")
        for number, result in enumerate(first.stream(ITEMS, ask, lambda item: item["id"]), start=1):
            say(f"{result.item_id} done with {result.credential}: {result.value}")
            if number == 15:
                say("stopping half-way, as Ctrl-C would")
                first.shutdown()
        say(f"stopped; {len(first.get_checkpoints())} items are left, and the journal knows them")

        again = ParallelCoordinator(8, pool, journal=Path(folder) / "night")
        stats, results = again.execute_parallel(ITEMS, ask, lambda item: item["id"])
        say(f"the same call again: {stats.cached} came from the journal, {stats.completed - stats.cached} were run")
    used = Counter(result.credential for result in results)
    say(f"{stats.success_count} of {stats.total} done, {stats.failed} failed, none lost to the 429")
    for row in pool.snapshot():
        why = f" ({row.why})" if row.why else ""
        print(f"        {row.name}: {used[row.name]:2d} items, now {row.state}{why}")


if __name__ == "__main__":
    main()
