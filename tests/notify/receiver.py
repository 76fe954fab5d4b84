"""A webhook on this machine that keeps what it is sent, or never answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any


class Receiver:
    """Listens from enter to exit. With *status* it answers that; with *hangs*, nothing until it is closed."""

    def __init__(self, *, status: int = 200, hangs: bool = False) -> None:
        self.received: Queue[dict[str, Any]] = Queue()
        released = self._released = threading.Event()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                if hangs:
                    released.wait(120)
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:9/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/SECRET-part-of-the-address"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
