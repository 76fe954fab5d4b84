"""A server of the live page on a thread, and a client that asks it as a browser does, or as an attacker would."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from agentos.page.live.server import PageServer

TIMEOUT = 60.0


class Watching:
    """The live page of the runs in *folders*, from enter to exit."""

    def __init__(self, *folders: Path, chosen: str | None = None) -> None:
        self._server = PageServer(lambda: list(folders), chosen=chosen)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.address = ""

    @property
    def port(self) -> int:
        return int(self.address.partition("#")[0].rstrip("/").rpartition(":")[2])

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def __enter__(self) -> Watching:
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(self._server.listen(), self._loop).result(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()

    def ask(
        self, path: str, method: str = "GET", *, token: str | None = None, **headers: str
    ) -> tuple[int, Any, bytes]:
        """The status, the headers and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        sent = {"Host": f"127.0.0.1:{self.port}", "x-agentos-token": self.token if token is None else token}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers, body

    def get(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def stream(self, run: str, facts: dict[str, Any]) -> Generator[tuple[str, Any], None, None]:
        """The events of a run after what *facts* of its data cover, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request(
            "GET",
            f"/api/runs/{run}/events?after={facts['last_entry']}&journal={facts['journal']}",
            headers={"x-agentos-token": self.token},
        )
        answer = connection.getresponse()
        assert answer.status == 200
        try:
            event = ""
            while line := answer.fp.readline().decode():
                if line.startswith("event: "):
                    event = line[7:].strip()
                elif line.startswith("data: "):
                    text = line[6:].strip()
                    yield event, json.loads(text) if text else None
        finally:
            answer.close()
            connection.close()
