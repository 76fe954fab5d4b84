"""Serve the live page on 127.0.0.1: the page, the list of runs, and for each run its data, a stream, items and logs.

Everything but the page itself needs the token of this server. Nothing can be changed from here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from ...errors import AgentOSError
from ...runs.report.run_summary import build_summary
from ...util.http_server.connection import HttpConnection, HttpDate, HttpListener, build_head
from ...util.http_server.request_parser import BadRequest, HttpRequest, RequestReader
from ..html_page import build_live_page
from .access import PageAccess
from .item_facts import read_item, read_log
from .readers import read_on_thread
from .run_feed import RunFeed

_MOST_RUNS: Final = 200
_ALWAYS: Final = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
)

ListFolders = Callable[[], Sequence[Path]]


class PageServer:
    """The runs of a folder and who looks at them. *list_folders* returns their folders, the newest first."""

    def __init__(self, list_folders: ListFolders, *, chosen: str | None = None) -> None:
        self._list_folders = list_folders
        self.chosen = chosen
        self.connections: set[HttpConnection] = set()
        self.access = PageAccess(0)
        self.date = HttpDate()
        self._feeds: dict[Path, RunFeed] = {}
        self._listener: HttpListener | None = None

    async def listen(self, port: int = 0) -> str:
        """Listen on 127.0.0.1 and return the address to open, with the token in its fragment. Raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: PageConnection(self, loop), "127.0.0.1", port)
        self._listener = HttpListener(server, self.connections)
        self.access = PageAccess(self._listener.address[1])
        return f"{self._listener.url}/#token={self.access.token}"

    async def close(self) -> None:
        """End all streams and release the port."""
        for feed in self._feeds.values():
            feed.close()
        if self._listener is not None:
            await self._listener.close()

    def find_folder(self, name: str) -> Path | None:
        """Return the folder of the run of that name; None if there is no such run."""
        return next((each for each in self._list_folders() if each.name == name), None)

    def get_feed(self, folder: Path) -> RunFeed:
        """Return the feed of the run in *folder*, the same for all viewers."""
        feed = self._feeds.get(folder)
        if feed is None:
            feed = self._feeds[folder] = RunFeed(folder)
        return feed

    def list_runs(self) -> dict[str, Any]:
        """Return all runs in one line each, and the one to show first."""
        folders = list(self._list_folders())[:_MOST_RUNS]
        return {"chosen": self.chosen, "runs": [build_summary(folder).as_json() for folder in folders]}


class PageConnection(HttpConnection):
    """One browser's connection. It is also the viewer of a stream."""

    def __init__(self, server: PageServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, RequestReader())
        self._server = server
        self._feed: RunFeed | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a new connection."""
        super().connection_made(transport)
        self._server.connections.add(self)

    def on_lost(self) -> None:
        self._server.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._feed is not None:
            self._feed.remove(self)

    def on_bad_request(self, error: BadRequest) -> bytes:
        """Return the answer to bytes that are no request."""
        body = json.dumps({"error": error.why}).encode()
        headers = [*_ALWAYS, ("content-type", "application/json"), ("content-length", str(len(body)))]
        return build_head(error.status, headers, date=self._server.date.text(), keep_alive=False, http10=False) + body

    def on_request(self, request: HttpRequest) -> None:
        """Answer a request, if it is allowed."""
        parts = [unquote(part) for part in request.path.split("/")[1:]]
        is_page = parts == [""]
        refused = self._server.access.refuse(request.headers, with_token=not is_page)
        if refused is not None:
            self._error(request, *refused)
        elif request.method != "GET":
            self._error(request, 405, "only GET is served: the page is for reading", ("allow", "GET"))
        elif is_page:
            page, policy = build_live_page()
            self._answer(request, 200, "text/html; charset=utf-8", page, ("content-security-policy", policy))
        elif parts == ["api", "runs"]:
            self._later(request, self._answer_runs(request))
        elif len(parts) == 4 and parts[:2] == ["api", "runs"]:
            self._later(request, self._answer_run(request, parts[2], parts[3]))
        else:
            self._error(request, 404, "there is no such address")

    # -- the viewer of a stream -------------------------------------------------------------------------------

    def send(self, event: str, data: str, number: int) -> bool:
        """Send an event of the stream; False if the browser does not read."""
        if self.transport is None or self.is_full:
            return False
        message = f"event: {event}\nid: {number}\ndata: {data}\n\n".encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(message), message))
        return True

    def drop(self) -> None:
        """End the stream."""
        if self.transport is not None:
            self.transport.close()

    # -- answers ----------------------------------------------------------------------------------------------

    def _later(self, request: HttpRequest, answer: Awaitable[None]) -> None:
        self.begin()

        async def run() -> None:
            try:
                await answer
            except AgentOSError as error:
                self._error(request, 503, str(error))
            except OSError as error:
                self._error(request, 503, error.strerror or type(error).__name__)
            if self._feed is None:
                self.finished()

        self._task = asyncio.ensure_future(run())

    async def _answer_runs(self, request: HttpRequest) -> None:
        self._json(request, await read_on_thread(self._server.list_runs))

    async def _answer_run(self, request: HttpRequest, name: str, what: str) -> None:
        folder = await read_on_thread(partial(self._server.find_folder, name))
        if folder is None:
            self._error(request, 404, f"there is no run {name}")
            return
        feed = self._server.get_feed(folder)
        query = {key: values[0] for key, values in parse_qs(request.query, keep_blank_values=True).items()}
        if what == "data":
            data = await feed.read_snapshot()
            self._answer(request, 200, "application/octet-stream", data.packed)
        elif what == "events":
            await feed.read_snapshot()  # a stream is relative to it
            self._stream(request, feed, _number(query.get("after")) or 0, query.get("journal", ""))
        elif what == "item":
            self._json(request, await read_on_thread(partial(read_item, folder, query.get("id", ""))))
        elif what == "log":
            start = _number(query.get("from"))
            self._json(request, await read_on_thread(partial(read_log, folder, query.get("id", ""), start)))
        else:
            self._error(request, 404, "there is no such address")

    def _stream(self, request: HttpRequest, feed: RunFeed, after: int, journal: str) -> None:
        if self.transport is None:
            return
        headers = [*_ALWAYS, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
        self.transport.write(
            build_head(200, headers, date=self._server.date.text(), keep_alive=True, http10=request.http10)
        )
        self._feed = feed
        feed.add(self, after, journal)

    def _json(self, request: HttpRequest, value: Any) -> None:
        self._answer(request, 200, "application/json", json.dumps(value).encode())

    def _error(self, request: HttpRequest, status: int, why: str, *more: tuple[str, str]) -> None:
        self._answer(request, status, "application/json", json.dumps({"error": why}).encode(), *more)

    def _answer(self, request: HttpRequest, status: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
        if self.transport is None:
            return
        headers = [*_ALWAYS, ("content-type", kind), ("content-length", str(len(body))), *more]
        head = build_head(
            status, headers, date=self._server.date.text(), keep_alive=request.keep_alive, http10=request.http10
        )
        self.transport.write(head)
        self.transport.write(body)
        if not request.keep_alive:
            self.transport.close()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 16 else None
