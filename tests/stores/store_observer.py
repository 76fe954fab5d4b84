"""Observe a store that several processes share, from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from agentos import CredentialCoordinator

from ..redis_server import PATIENCE, RedisServer, fresh_pool
from ..tcp_proxy import TcpProxy
from .histories import History, StoreEvent, read
from .pool_processes import Child, eventually, install_triggers, locked_by, order_of, rows, session_of, sound
from .redis_monitor import Monitor, Watched, Window


class Witness(Protocol):
    """One place of one store."""

    where: dict[str, str]  # what a process is told, to open it
    folder: Path
    share: float  # of the usual number of leases: where each of them takes longer, fewer must do

    def watch(self) -> None:
        """Have the order of grants and ends written down from now on. Somebody must have opened the place."""
        ...

    def granted(self) -> int:
        """Return how many leases it has granted."""
        ...

    def held_by(self, child: Child) -> int:
        """Return how many leases of a process are in force."""
        ...

    def in_a_step(self, child: Child) -> bool:
        """Return whether a stopped process blocks all others in the middle of a step."""
        ...

    def session_of(self, child: Child) -> tuple[str, float]:
        """The session of a process, and when it ends if it is not renewed, by the monotonic clock."""
        ...

    def knows(self, session: str) -> bool:
        """Return whether a session has not ended."""
        ...

    def in_force(self) -> int:
        """Return how many leases are in force."""
        ...

    def order(self, labels: dict[int, str] | None = None) -> list[StoreEvent]:
        """Grants and ends, in the store's own order; *labels* are put in the place of the sessions of these pids."""
        ...

    def due(self) -> dict[int, float]:
        """By when leases that ended had to be renewed, by their tokens."""
        ...

    def check(self) -> None:
        """Check that the store is sound."""
        ...

    def close(self) -> None: ...


class SqliteWitness:
    """Of a file: triggers write its order down."""

    share = 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "pool.sqlite"
        self.where = {"path": str(self._path)}

    def watch(self) -> None:
        install_triggers(self._path)

    def granted(self) -> int:
        return int(rows(self._path, "select max(token) from log")[0][0])

    def held_by(self, child: Child) -> int:
        query = "select count(*) from leases join sessions on sessions.id = leases.session where sessions.pid = ?"
        return int(rows(self._path, query, child.pid)[0][0])

    def in_a_step(self, child: Child) -> bool:
        return locked_by(self._path, child)

    def session_of(self, child: Child) -> tuple[str, float]:
        return session_of(self._path, child)

    def knows(self, session: str) -> bool:
        return bool(rows(self._path, "select 1 from sessions where id = ?", session))

    def in_force(self) -> int:
        return int(rows(self._path, "select count(*) from leases")[0][0])

    def order(self, labels: dict[int, str] | None = None) -> list[StoreEvent]:
        return order_of(self._path, labels)

    def due(self) -> dict[int, float]:
        return dict(rows(self._path, "select token, expires_at from due where expires_at is not null"))

    def check(self) -> None:
        assert sound(self._path) == "ok"

    def close(self) -> None:
        pass


_A_DAY = 86_400.0


class RedisWitness:
    """Of a pool on a server of its own, which reports all that it does."""

    share = 0.3

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = RedisServer(folder / "redis", faketime=True)
        self.server.start()
        self.server.jump(_A_DAY)  # a young server grants nothing for one time to live
        self._pool = fresh_pool()
        self.where = {"url": self.url()}
        with CredentialCoordinator(["planted-secret"], store=self.where["url"]) as first:
            first.acquire(timeout=PATIENCE).release()
        self._window = Window(self.server, self._pool)
        self._before = self._window.last_token()  # a store does not begin to count at one
        self._monitor: Monitor | None = None
        self._watched: Watched | None = None

    def url(self, proxy: TcpProxy | None = None) -> str:
        return self.server.url(self._pool, port=None if proxy is None else proxy.port)

    def watch(self) -> None:
        self._monitor = Monitor(self.server, self._window)

    def granted(self) -> int:
        return self._window.last_token() - self._before

    def held_by(self, child: Child) -> int:
        pids = self._window.pids()
        return sum(pids.get(lease.session) == child.pid for lease in self._window.leases())

    def in_a_step(self, child: Child) -> bool:
        return False  # a step is the server's alone

    def session_of(self, child: Child) -> tuple[str, float]:
        (session,) = [session for session, pid in self._window.pids().items() if pid == child.pid]
        return session, self._window.expiry()[session]

    def knows(self, session: str) -> bool:
        return session in self._window.pids()

    def in_force(self) -> int:
        return len(self._window.leases())

    def order(self, labels: dict[int, str] | None = None) -> list[StoreEvent]:
        watched = self._all()
        if labels is None:
            return watched.order
        return [replace(event, session=labels[watched.pids[event.session]]) for event in watched.order]

    def due(self) -> dict[int, float]:
        return self._all().due

    def _all(self) -> Watched:
        assert self._monitor is not None, "nobody watched"
        if self._watched is None:
            self._watched = self._monitor.watched()
        return self._watched

    def check(self) -> None:
        assert self.server.running

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._window.close()
        self.server.close()


def until_granted(witness: Witness, count: int) -> None:
    """Until the store has granted so many leases: for as long as that takes, if only it goes on."""
    while (granted := witness.granted()) < count:
        some = min(granted + 50, count)
        # Whoever looks takes time from those at work.
        eventually(lambda some=some: witness.granted() >= some, every=0.01)  # type: ignore[misc]


def recording_of(witness: Witness, recordings: list[Path]) -> History:
    """Return the processes' history; an unreleased lease may end when it was not renewed in time."""
    return History(read(recordings).operations, witness.due())


WITNESSES: dict[str, Callable[[Path], Witness]] = {"sqlite": SqliteWitness, "redis": RedisWitness}
