"""Worker slots on threads of this process, which reach the driver over a real connection."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentos.runs.cluster.driver.command_engine import ClusterCommandEngine
from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.driver.engine import ClusterEngine
from agentos.runs.cluster.worker.client import DriverEndpoint, DriverUnreachable, WorkerClient
from agentos.runs.cluster.worker.slot import CLIENTS, run_worker_slot

WAIT = 20.0  # for what comes at once, unless it never comes
_ROOM = 128


class ThreadSeating:
    """Places seats on threads, as many as there is room for. With *through*, they reach the driver by that proxy.

    With *replace*, seats are placed again that have left though there is work for them, as a cluster does it.
    """

    def __init__(
        self, *, width: int = 1, through: Proxy | None = None, place: bool = True, replace: bool = False
    ) -> None:
        self.closed = threading.Event()
        self.placed = threading.Event()
        self.post: DriverEndpoint | None = None
        self.hub: DriverServer | None = None
        self._width = width
        self._through = through
        self._place = place
        self._replace = replace
        self._workers = 0
        self.taken = 0  # seats that somebody sits in

    def open(self, workers: int) -> tuple[str, int, int]:
        self._workers = -(-workers // self._width)
        return "127.0.0.1", 0, self._width

    def place(self, post: DriverEndpoint, hub: DriverServer) -> None:
        self.hub = hub
        if self._through is not None:
            self._through.target = post.host, post.port
            host, port = self._through.address
            post = DriverEndpoint(post.run_id, host, port, post.certificate, post.password, post.ttl)
        self.post = post
        for _ in range(self._workers if self._place else 0):
            self.add_slot()
        self.placed.set()
        if self._replace:
            threading.Thread(target=self._watch, args=(hub,), name="watch", daemon=True).start()

    def _watch(self, hub: DriverServer) -> None:
        while not self.closed.wait(0.1):
            if hub.count_waiting(0.1):
                self.request_slots()

    def add_slot(self) -> None:
        if self.taken >= _ROOM:
            return
        self.taken += 1
        threading.Thread(target=self._sit, name="seat", daemon=True).start()

    def request_slots(self) -> None:
        if self._place and self.taken < self._workers:
            self.add_slot()

    def _sit(self) -> None:
        assert self.post is not None
        with contextlib.suppress(DriverUnreachable):
            run_worker_slot(self.post)
        self.taken -= 1

    def close(self) -> None:
        self.closed.set()

    # -- what else only time would bring: a worker and its driver that have not heard of each other for too long ----

    @property
    def link(self) -> WorkerClient:
        """Of the seats there are."""
        assert self.post is not None
        return CLIENTS._clients[self.post.run_id]

    def lose_driver(self) -> None:
        """The time is over in which its worker should have heard of the driver."""
        link, over = self.link, threading.Event()

        def look() -> None:
            link._deadline = time.monotonic()
            link._check_deadline()
            over.set()

        link._calls.call(look)
        assert over.wait(WAIT)

    def lose_workers(self) -> None:
        """The time is over in which the driver should have heard of its workers."""
        hub, over = self.hub, threading.Event()
        assert hub is not None

        def look() -> None:
            for member in hub._workers.values():
                member.last_frame_at = -1e9
            hub._checked_at = time.monotonic()
            hub._check_workers()
            over.set()

        hub._calls.call(look)
        assert over.wait(WAIT)


@pytest.fixture
def seating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ThreadSeating]]:
    """Let the runs of this test have their items in such seats: ``seating(ttl=..., width=...)``.

    The time to live is longer than a slow machine stands still: nobody is lost by accident.
    """
    made: list[ThreadSeating] = []

    def use(*, ttl: float | None = 60.0, **options: Any) -> ThreadSeating:
        places = ThreadSeating(**options)
        made.append(places)

        def engine_for(run: Any) -> ClusterEngine:
            kind = ClusterCommandEngine if run.worker.is_command else ClusterEngine
            return kind(run, places, ttl=ttl)

        monkeypatch.setattr("agentos.workflows.parallel.coordinator.build_engine", engine_for)
        return places

    yield use
    for places in made:
        assert places.closed.wait(WAIT), "the hub did not close"


class Proxy:
    """Stands between workers and their driver, and may cut them off: ``cut`` what is, ``shut`` what comes.

    ``swallow``: the connections there are stay open, and nothing goes through them any more. ``cut_each``: the n-th
    connection passes n times so many bytes of its worker on, no more, and breaks: each gets further than the one
    before, and how many a number of bytes needs at least does not depend on how they are read.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.target: tuple[str, int] | None = None
        self.shut = False
        self.cut_each: int | None = None
        self.made = 0  # connections
        self._sockets: list[socket.socket] = []
        self._swallowed: frozenset[socket.socket] = frozenset()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break all connections."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # whoever pumps it closes it

    def swallow(self) -> None:
        """As if a cable had been pulled: nobody is told."""
        self._swallowed = frozenset(self._sockets)

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listener.accept()
            except OSError:
                return
            if self.shut or self.target is None:
                theirs.close()
                continue
            try:
                ours = socket.create_connection(self.target)
            except OSError:
                theirs.close()
                continue
            self.made += 1
            self._sockets += [theirs, ours]
            most = None if self.cut_each is None else self.made * self.cut_each
            threading.Thread(target=self._pump, args=(theirs, ours, most), name="proxied", daemon=True).start()

    def _pump(self, theirs: socket.socket, ours: socket.socket, most: int | None) -> None:
        """Both ways, until one of the two ends."""
        came = 0
        with theirs, ours, contextlib.suppress(OSError):
            while True:
                for source in select.select([theirs, ours], [], [])[0]:
                    data = source.recv(65_536 if most is None or source is ours else most - came)
                    if not data:
                        return
                    if source not in self._swallowed:
                        (ours if source is theirs else theirs).sendall(data)
                    came += len(data) if source is theirs else 0
                    if came == most:
                        return


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()
