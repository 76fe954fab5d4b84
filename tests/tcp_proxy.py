"""A small TCP proxy on loopback, which does to a connection what networks do: on request, and counting."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from queue import SimpleQueue
from typing import Self

_CHUNK = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Afterwards(Enum):
    """What becomes of a connection on which a reply was lost."""

    RESET = auto()
    SILENT = auto()


@dataclass(eq=False)
class _Link:
    """A connection of a client, and the one it has at the server."""

    client: socket.socket
    server: socket.socket
    fate: Afterwards | None = None  # its next reply is lost
    mute: bool = False  # all its replies are


class TcpProxy:
    """Passes on what is sent to its port to another of this machine.

    What is withheld by `silence` is not lost: as after a break in a network, it arrives when that is over.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._nudge, self._nudged = socket.socketpair()
        self._orders: SimpleQueue[tuple[Callable[[], None], threading.Event]] = SimpleQueue()
        self._links: list[_Link] = []
        self._refusing = self._requests_held = self._replies_held = self._ended = False
        self._armed: tuple[bytes, Afterwards] | None = None
        self.accepted = 0  # connections, of which so many were
        self.refused = 0
        self.cuts = 0  # connections that were cut
        self.lost: list[bytes] = []  # requests that were executed, and whose reply was lost
        self.reply_lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._do(self._end)
        self._thread.join()
        for each in (self._listener, self._nudge, self._nudged):
            each.close()

    # -- what happens to connections --------------------------------------------------------------------------

    def lose_reply(self, to: bytes, then: Afterwards) -> None:
        """The next request in which these bytes are reaches the server, but its reply never the client."""

        def arm() -> None:
            self._armed = (to, then)
            self.reply_lost.clear()

        self._do(arm)

    def cut(self) -> None:
        """Reset all connections, and every new one at once, until `heal`."""

        def cut() -> None:
            self._refusing = True
            self.cuts += len(self._links)
            self._drop_all()

        self._do(cut)

    def silence(self, *, requests: bool = True, replies: bool = True) -> None:
        """Nothing arrives any more, in one direction or both; no connection is closed by that."""

        def hold() -> None:
            self._requests_held, self._replies_held = requests, replies

        self._do(hold)

    def heal(self) -> None:
        """All is as it should be; only a connection on which a reply was lost stays as it is."""

        def heal() -> None:
            self._refusing = self._requests_held = self._replies_held = False

        self._do(heal)

    # -- inside, on the one thread that touches connections ---------------------------------------------------

    def _do(self, order: Callable[[], None]) -> None:
        """Have that done, and wait until it is."""
        done = threading.Event()
        self._orders.put((order, done))
        self._nudge.send(b"!")
        done.wait()

    def _run(self) -> None:
        while not self._ended:
            watched = [self._listener, self._nudged]
            for link in self._links:
                watched += [] if self._requests_held else [link.client]
                watched += [] if self._replies_held else [link.server]
            ready, _, _ = select.select(watched, [], [])
            if self._nudged in ready:
                self._nudged.recv(1)
                order, done = self._orders.get()
                order()
                done.set()
                continue  # who may be heard now is another matter
            if self._listener in ready:
                self._accept()
            for link in list(self._links):
                if link.client in ready:
                    self._pass_request(link)
                if link.server in ready and link in self._links:
                    self._pass_reply(link)

    def _end(self) -> None:
        self._ended = True
        self._drop_all()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.accepted += 1
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            self.refused += 1
            _reset(client)
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links.append(_Link(client, server))

    def _pass_request(self, link: _Link) -> None:
        data = _received(link.client)
        if self._armed is not None and self._armed[0] in data:
            link.fate = self._armed[1]
            self._armed = None
            self.lost.append(data)
        self._pass(link, data, link.server)

    def _pass_reply(self, link: _Link) -> None:
        data = _received(link.server)
        if link.fate is not None and data:
            link.mute, fate, link.fate = True, link.fate, None
            self.reply_lost.set()
            if fate is Afterwards.RESET:
                self._drop(link)
                return
        if not link.mute or not data:
            self._pass(link, data, link.client)

    def _pass(self, link: _Link, data: bytes, to: socket.socket) -> None:
        """Nothing at all is the end of the connection, for both sides."""
        try:
            if data:
                to.sendall(data)
                return
        except OSError:
            pass
        self._drop(link)

    def _drop(self, link: _Link) -> None:
        self._links.remove(link)
        for each in (link.client, link.server):
            _reset(each)

    def _drop_all(self) -> None:
        for link in list(self._links):
            self._drop(link)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(_CHUNK)
    except OSError:
        return b""


def _reset(each: socket.socket) -> None:
    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    each.close()
