"""The store contract's fixture: a location for a pool's state, and pools opened there."""

from __future__ import annotations

import hashlib
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentos import CredentialCoordinator, Lease
from agentos.testing import FakeClock
from agentos.util.clock import Alarm, Sleeper

from ..background_threads import Background
from ..redis_server import shared_server
from .engine_contract import eventually

# A clock that is moved by an hour at once leaves nobody the time to renew: except where that is the matter, leases last
# longer than any story.
NO_MATTER = 40 * 86_400.0

# Between processes nobody is told: a waiter finds out what another process did when it looks again, within this time.
SOON = 2.0


@dataclass(frozen=True)
class Store:
    """A kind of store. *shared*: several pools can open one location, and its state outlives them."""

    name: str
    stories: int
    shared: bool = False

    def url(self, folder: Path) -> str:
        return f"{self.name}:///{folder / 'pool.db'}" if self.shared else self.name

    def kept(self, folder: Path) -> dict[str, bytes]:
        """All that is kept there, as it is kept."""
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class RedisStore(Store):
    """A real server, which the tests start; each folder is a pool of its own there."""

    def url(self, folder: Path) -> str:
        return shared_server().url(self._pool(folder))

    def kept(self, folder: Path) -> dict[str, bytes]:
        read = {"hash": "HGETALL", "zset": "ZRANGE", "string": "GET"}
        found = {}
        with closing(shared_server().client()) as client:
            for key in client.scan_iter(f"agentos:{{{self._pool(folder)}}}:*"):
                command = read[client.type(key)]
                words = (key, 0, -1, "WITHSCORES") if command == "ZRANGE" else (key,)
                found[key] = repr(client.execute_command(command, *words)).encode()
        return found

    def _pool(self, folder: Path) -> str:
        return f"p{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}"


STORES = [
    Store("memory", stories=300),
    Store("sqlite", stories=40, shared=True),
    RedisStore("redis", stories=40, shared=True),
]
SHARED = [store for store in STORES if store.shared]


class Place:
    """One place of a store, with the pools that were opened there."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.clock = FakeClock()
        self.pools: list[CredentialCoordinator] = []
        self._calls: list[Background[Lease]] = []  # that wait on the clock

    def open(self, *credentials: Any, **options: Any) -> CredentialCoordinator:
        """A pool that keeps its state here and checks its own promises after every step."""
        usual: dict[str, Any] = {"store": self.store.url(self.folder), "clock": self.clock, "debug": True}
        if self.store.shared:
            usual["lease_ttl"] = NO_MATTER
        pool = CredentialCoordinator(list(credentials), **(usual | options))
        self.pools.append(pool)
        return pool

    def restart(self, pool: CredentialCoordinator, *credentials: Any, **options: Any) -> CredentialCoordinator:
        """The process ends in good order, and another begins."""
        pool.close()
        return self.open(*credentials, **options)

    def elsewhere(self, folder: Path) -> Place:
        """Another place of the same store."""
        folder.mkdir()
        return Place(self.store, folder)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()

    def kept(self) -> dict[str, bytes]:
        """All that the store keeps here, as it keeps it."""
        return self.store.kept(self.folder)

    # -- time, and threads ------------------------------------------------------------------------------------

    def waiting(self, pool: CredentialCoordinator, name: str, **options: Any) -> Background[Lease]:
        """A thread that asks for a lease, stands in line and has gone to sleep."""
        self.rest()
        asleep = self.clock.sleepers
        call = Background(lambda: pool.acquire(name, **options), name=name)
        eventually(lambda: pool.explain(name).state == "waiting" and self.clock.sleepers > asleep)
        if pool._runtime.clock is self.clock:
            self._calls.append(call)
        return call

    def soon(self, condition: Callable[[], object], within: float = SOON) -> None:
        """Until something holds that a pool has to find out for itself. Time goes on meanwhile, by at most *within*."""
        moments = 40
        for _ in range(moments):
            if _comes_true(condition, 0.02):
                return
            self.clock.advance(within / moments)
        eventually(condition)

    def pass_time(self, seconds: float) -> None:
        """Let time go on, and every pool see to what that brings: a shared one has a thread that does so.

        They may get into each other's way; who found the store busy tries again a moment later.
        """
        self.rest()
        for part in (seconds - 0.03, 0.01, 0.01, 0.01):
            self.clock.advance(part)
            self.rest()

    def rest(self) -> None:
        """Until the threads of all pools are asleep on the clock, and with them those that wait."""
        if self.store.shared:
            working = [
                pool for pool in self.pools if pool._runtime.clock is self.clock and not pool._runtime.is_finished()
            ]
            eventually(lambda: self.clock.sleepers >= len(working) + sum(call.running for call in self._calls))


class StandingStill:
    """The clock of a process that is stopped: what its threads wait for never comes, though time goes on."""

    def __init__(self, clock: FakeClock) -> None:
        self.now = clock.now
        self.wall = clock.wall

    def wait(self, sleeper: Sleeper, until: float) -> None:
        sleeper.acquire()

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        raise AssertionError("a stopped process sets no alarm")


def _comes_true(condition: Callable[[], object], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            return False
        threading.Event().wait(0.001)
    return True


def ended(call: Background[Any]) -> Callable[[], bool]:
    """Return whether a thread is done; for ``soon``."""
    return lambda: not call.running
