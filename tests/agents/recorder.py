"""A proxy on loopback that records what a program sends to a provider, and passes it on to the simulator."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentos.simulator import ProviderPlan, Simulator

_HOP_BY_HOP = {"connection", "host", "transfer-encoding", "content-length", "keep-alive", "accept-encoding"}


@dataclass(frozen=True)
class RecordedRequest:
    """One request: its method and path, its headers in lower case, and its body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def fields(self) -> dict[str, Any]:
        """The body, if it is a JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass
class Recording:
    """The address to give to a program, and what arrived there so far."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)
    turns: list[tuple[int, Mapping[str, str], bytes]] = field(default_factory=list)  # given to the agent's own calls
    arrived: list[bytes] = field(default_factory=list)  # bodies of those calls, before they are answered

    def generations(self) -> list[RecordedRequest]:
        """Return the requests for text, without those that look around."""
        return [each for each in self.requests if each.method == "POST"]

    def take_answer(self, method: str, body: bytes) -> tuple[int, Mapping[str, str], bytes] | None:
        """Return the answer that is planned for this request; None: the simulator answers it."""
        if method != "POST" or b'"tools"' not in body:  # a title or a choice of the model comes at any time
            return None
        self.arrived.append(body)
        return self.turns.pop(0) if self.turns else None


@contextmanager
def recording(plan: ProviderPlan) -> Iterator[Recording]:
    """Serve the plan through a recording proxy."""
    with Simulator(plan) as provider:
        address = provider.url.removeprefix("http://")
        kept = Recording("")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                pass

            def _pass_on(self) -> None:
                if "chunked" in self.headers.get("transfer-encoding", "").lower():
                    body = _read_chunks(self.rfile)
                else:
                    body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                planned = kept.take_answer(self.command, body)
                if planned is not None:
                    status, extra, text = planned
                    kept.requests.append(RecordedRequest(self.command, self.path, headers, body, status))
                    self._send(status, [*extra.items()], [text])
                    return
                upstream = http.client.HTTPConnection(address, timeout=120)
                try:
                    sent = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
                    upstream.request(self.command, self.path, body, sent)
                    answer = upstream.getresponse()
                    kept.requests.append(RecordedRequest(self.command, self.path, headers, body, answer.status))
                    named = [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP]
                    self._send(answer.status, named, _pieces(answer))
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                finally:
                    upstream.close()

            def _send(
                self, status: int, headers: Sequence[tuple[str, str]], pieces: Iterator[bytes] | list[bytes]
            ) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                if self.command == "HEAD":
                    return
                for piece in pieces:
                    if piece:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_HEAD = _pass_on  # noqa: N815 - the names that the base class calls

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a program that leaves

        server = Server(("127.0.0.1", 0), Handler)
        kept.url = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        try:
            yield kept
        finally:
            server.shutdown()
            server.server_close()
            serving.join()


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read1(65_536):
        yield piece


def _read_chunks(stream: Any) -> bytes:
    body = b""
    while size := int(stream.readline().split(b";")[0], 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body
