"""A pool on a real server: opened in processes and here, broken, and observed from outside."""

from __future__ import annotations

import time
from typing import Any

from agentos import CredentialCoordinator

from ...redis_server import RedisServer
from ...tcp_proxy import TcpProxy
from ..histories import l1_by_store_order
from ..pool_child import Spec, credentials_of
from ..pool_processes import Child, Family, keys
from ..redis_monitor import Monitor, Window

DAY = 86_400.0
# How long leases last. A third of it may be over when a machine stands still, and a tenth of it is a holder's margin:
# who has to keep its lease keeps it though the machine stands still for two seconds.
TTL = 0.6  # of those who really lose theirs
STEADY = 3.6  # of those who keep theirs, where that time must pass
LONG = 30.0  # where it must not
# Both only tell what comes by itself from what never does: a machine that has other things to do may take its time.
GRACE = 6.0  # by then, after its time to live, what a dead process held is somebody else's
AWHILE = 6.0  # for what is over in a moment

TOKENS = [{"dimension": "tokens", "amount": 1000, "per": 3600}]
AFTERWARDS: dict[str, dict[str, float]] = {  # what one may do with a lease that is lost
    "held": {},
    "release": {},
    "settle": {"tokens": 900},
    "rate_limited": {"seconds": 3600},
    "reveal": {},
}


def aged(server: RedisServer) -> None:
    """Let it look as if it had run for a day."""
    server.jump(DAY)


class Scene:
    """One pool, by its name on one server."""

    def __init__(self, server: RedisServer, processes: Family, pool: str) -> None:
        self.server = server
        self.pool = pool
        self.window = Window(server, pool)
        self._processes = processes
        self._pools: list[CredentialCoordinator] = []
        self._slots: dict[str, int] = {}
        self._monitor = Monitor(server, self.window)

    def url(self, proxy: TcpProxy | None = None) -> str:
        return self.server.url(self.pool, port=None if proxy is None else proxy.port)

    def child(
        self,
        credentials: list[Spec] | None = None,
        ttl: float = TTL,
        proxy: TcpProxy | None = None,
        **options: Any,
    ) -> Child:
        """A process that has the pool open."""
        child = self._processes.child()
        child.do("open", url=self.url(proxy), credentials=self._known(credentials), lease_ttl=ttl, **options)
        return child

    def children(self, credentials: list[list[Spec]], ttl: float = TTL) -> list[Child]:
        """As many processes as there are lists of credentials."""
        children = self._processes.children(len(credentials))
        for child, own in zip(children, credentials, strict=True):
            child.tell("open", url=self.url(), credentials=self._known(own), lease_ttl=ttl)
        for child in children:
            child.answer().got  # noqa: B018 - it raises
        return children

    def open(
        self,
        credentials: list[Spec] | None = None,
        ttl: float = LONG,
        proxy: TcpProxy | None = None,
        **options: Any,
    ) -> CredentialCoordinator:
        """The pool, in this process."""
        made = credentials_of(self._known(credentials))
        pool = CredentialCoordinator(made, store=self.url(proxy), lease_ttl=ttl, **options)
        self._pools.append(pool)
        return pool

    def due(self) -> dict[int, float]:
        """Return when the session of each process expires if it is not renewed, by the monotonic clock."""
        pids, expiry = self.window.pids(), self.window.expiry()
        return {pids[session]: at for session, at in expiry.items() if session in pids}

    def tokens(self) -> list[int]:
        """The leases in force."""
        return [lease.token for lease in self.window.leases()]

    def _known(self, credentials: list[Spec] | None) -> list[Spec]:
        """The credentials, one of one slot if none are given; what they bear is noted for the judgement."""
        given = credentials or keys(1)
        self._slots |= {spec["name"]: spec["slots"] for spec in given}
        return given

    def close(self) -> None:
        """All is over. By the server's own account no credential had more leases than slots, and tokens only grew."""
        server = self.server
        if server.running:
            server.go_on()
        for pool in self._pools:
            pool.close()
        try:
            if server.running and server.starts == 1:  # else nobody has seen all of it
                assert l1_by_store_order(self._monitor.watched().order, self._slots) is None
        finally:
            self._monitor.close()
            self.window.close()


def said(child: Child, *words: str) -> list[str]:
    """The lines of its log in which all of these are."""
    return [line for line in child.do("said") if all(word in line.lower() for word in words)]


def lost(child: Child, token: int) -> int:
    """Return how often this lease was reported as lost."""
    return len(said(child, f"lease {token} ", "is lost"))


def let_pass(seconds: float) -> None:
    """A fault lasts for some time; this is how long."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)
