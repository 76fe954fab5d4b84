"""The TLS end of a server that has none: a proxy on loopback, in front of a port of it or of another proxy."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from typing import Self

from .redis_server import PATIENCE

_CHUNK = 1 << 16


class TlsProxy:
    """Ends TLS on a port of its own and passes on what was said to another of this machine.

    A connection that ends on one side, in whatever way, ends on the other without a word, as if a network had cut it.
    """

    def __init__(self, target: int, server: ssl.SSLContext) -> None:
        self._target = target
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._end, self._over = socket.socketpair()  # what is sent is never read: everybody is to see it
        self._links: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="tls-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end.send(b"!")
        self._thread.join()  # first: until then it may still begin to serve one more
        for link in self._links:
            link.join()
        for each in (self._listener, self._end, self._over):
            each.close()

    # -- inside: a thread that accepts, and one for each connection --------------------------------------------

    def _run(self) -> None:
        while self._over not in _ready(self._listener, self._over):
            client, _ = self._listener.accept()
            client.settimeout(PATIENCE)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = threading.Thread(target=self._link, args=(client,), name="tls-link", daemon=True)
            self._links.append(link)
            link.start()

    def _link(self, client: socket.socket) -> None:
        try:
            with (
                self._server.wrap_socket(client, server_side=True) as here,
                socket.create_connection(("127.0.0.1", self._target), PATIENCE) as there,
            ):
                there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pass(here, there)
        except OSError:
            pass  # no handshake, nobody there, or the end of one of the two

    def _pass(self, here: ssl.SSLSocket, there: socket.socket) -> None:
        """All that is said, in both directions, until one of them ends or all is over."""
        while True:
            ready = [here] if here.pending() else _ready(here, there, self._over)
            for source, to in ((here, there), (there, here)):
                if source in ready:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    to.sendall(data)
            if self._over in ready:
                return


def _ready(*watched: socket.socket) -> list[socket.socket]:
    return select.select(watched, [], [])[0]
