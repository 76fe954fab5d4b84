"""A provider on the loopback that answers as it is told, for clients that are the real ones."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the server says next. *cut*: it hangs up in the middle of the body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"
    cut: bool = False

    def content(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


class Provider(ThreadingHTTPServer):
    """Gives the answers in turn, and the last one ever after."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = [Answer()]
        self.asked = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def will(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked = 0

    def next_answer(self) -> Answer:
        with self._lock:
            self.asked += 1
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is none of the server's business."""


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = self.server.next_answer()
        content = answer.content()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(content) + (1000 if answer.cut else 0)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.close_connection or answer.cut

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Nothing: the tests' output is not the place."""


@contextmanager
def running() -> Iterator[Provider]:
    """A provider for as long as the block lasts."""
    provider = Provider()
    thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.server_close()


@contextmanager
def nobody() -> Iterator[str]:
    """The address of a port at which nobody listens: bound, so that nobody else gets it meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
