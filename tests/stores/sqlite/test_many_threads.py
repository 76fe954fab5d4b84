"""Waiting threads of one process cost the others nothing on a pool with an SQLite store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from agentos import Credential, CredentialCoordinator
from agentos.util.locks import FairLock

THREADS = 100
LEASES = 4  # of each thread
PATIENCE = 60.0
# Of a lease: asked for, put in line, looked at again, given back. A thread that tried again and again while it waits
# would need hundreds.
TRIES_PER_LEASE = 6
STEPS_PER_LEASE = 3  # granted, ended, and now and then a bid for a slot that was taken meanwhile


class CountingLock:
    def __init__(self, lock: Any) -> None:
        self._inner = lock
        self.tries = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.tries += 1
        return bool(self._inner.acquire(blocking, timeout))


def test_many_threads_take_the_lock_and_the_store_only_a_few_times_for_each_lease(tmp_path: Path) -> None:
    with CredentialCoordinator([Credential("a-secret-key", slots=20)], store=tmp_path / "pool.sqlite") as pool:
        lock, store = pool._runtime.scheduler.lock, pool._runtime.store
        assert isinstance(lock, FairLock)
        lock._lock = counting = CountingLock(lock._lock)  # type: ignore[assignment]
        steps = 0
        plain_step = store._step  # type: ignore[union-attr]

        def counted_step(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            return plain_step(*arguments, **named)

        store._step = counted_step  # type: ignore[union-attr]
        lock.acquire()  # until all of them want it
        done: list[int] = []

        def work() -> None:
            for _ in range(LEASES):
                with pool.lease(timeout=PATIENCE):
                    done.append(1)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        while len(lock.queue) < THREADS:
            threading.Event().wait(0.001)
        lock.release()
        for thread in threads:
            thread.join(PATIENCE)

        assert len(done) == THREADS * LEASES
        assert counting.tries <= TRIES_PER_LEASE * len(done)
        assert steps <= STEPS_PER_LEASE * len(done)
        assert pool.get_available_count() == 1
