"""Follow one run for all viewers of it: a snapshot of everything, then what is new, then the head of the page again."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from ...errors import AgentOSError
from ...runs.exports.event_log import EVENTS_NAME, read_events
from ...runs.journal.journal_files import locate_files
from ...runs.report.run_report import build_report
from ..head_facts import build_head
from ..report_file import PageData, identify_journal, list_periods, read_page_data
from .journal_changes import find_newest_entry, read_changes
from .readers import read_on_thread

_POLL: Final = 0.25  # seconds between two looks at the journal
_SHARE: Final = 12  # a read that takes long is followed by a pause as many times as long: the run has the machine
_HEAD_EVERY: Final = 2.0  # seconds between two heads
_HEAD_SHARE: Final = 30
_KEEP_ALIVE: Final = 15.0
_OLD: Final = 20_000  # entries after which a new viewer gets a new snapshot


class Viewer(Protocol):
    """One open page. ``send`` returns False if the page does not read what it was sent."""

    def send(self, event: str, data: str, number: int) -> bool: ...

    def drop(self) -> None: ...


class RunFeed:
    """One run and its viewers. Files are read on threads, everything else happens on the loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = locate_files(folder)
        self._snapshot: PageData | None = None
        self._building: asyncio.Future[PageData] | None = None
        self._viewers: dict[Viewer, int] = {}  # with the entry up to which each has been told
        self._journals: dict[Viewer, str] = {}  # whose entry that is
        self._task: asyncio.Task[None] | None = None
        self._told_head = 0.0
        self._head_pause = _HEAD_EVERY
        self._head = ""

    # -- for the server ---------------------------------------------------------------------------------------

    async def read_snapshot(self) -> PageData:
        """Return the data of the whole page; one read serves all who ask meanwhile. Raises AgentOSError."""
        snapshot = self._snapshot
        newest = find_newest_entry(self._files) or 0
        is_same = snapshot is not None and snapshot.journal == identify_journal(self.folder)
        if snapshot is not None and is_same and newest < snapshot.last_entry + _OLD:
            return snapshot
        if self._building is None:
            self._building = asyncio.ensure_future(read_on_thread(lambda: read_page_data(self.folder)))
            self._building.add_done_callback(self._on_built)
        return await asyncio.shield(self._building)

    def add(self, viewer: Viewer, after: int, journal: str) -> None:
        """Tell *viewer* everything after entry *after* of *journal*, and what comes."""
        self._viewers[viewer] = after
        self._journals[viewer] = journal
        if self._head:
            viewer.send("head", self._head, after)
        if self._task is None:
            self._told_head = 0.0
            self._task = asyncio.ensure_future(self._follow())

    def remove(self, viewer: Viewer) -> None:
        self._viewers.pop(viewer, None)
        self._journals.pop(viewer, None)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> None:
        for viewer in list(self._viewers):
            viewer.drop()
            self.remove(viewer)

    # -- following --------------------------------------------------------------------------------------------

    def _on_built(self, built: asyncio.Future[PageData]) -> None:
        self._building = None
        if not built.cancelled() and built.exception() is None:
            self._snapshot = built.result()

    async def _follow(self) -> None:
        quiet_since = time.monotonic()
        while True:
            began = time.monotonic()
            try:
                told = await self._tell_changes()
                await self._tell_head(soon=told)
            except (AgentOSError, OSError):
                told = False  # a journal that is being replaced or cannot be read just now
            now = time.monotonic()
            if told:
                quiet_since = now
            elif now - quiet_since > _KEEP_ALIVE:
                quiet_since = now
                self._send_all("alive", "", list(self._viewers))
            await asyncio.sleep(max(_POLL, _SHARE * (now - began)))

    async def _tell_changes(self) -> bool:
        journal = identify_journal(self.folder)
        replaced = [viewer for viewer, known in self._journals.items() if journal and known != journal]
        self._send_all("reset", "", replaced)  # --fresh has put another journal there
        for viewer in replaced:
            self._journals[viewer] = journal  # it is told once
        newest = find_newest_entry(self._files)
        if newest is None:
            return False
        ended = False
        for after in sorted(set(self._viewers.values())):
            viewers = [viewer for viewer, number in self._viewers.items() if number == after]
            if newest <= after:  # the head file may be one commit behind the journal
                continue
            changes = await read_on_thread(partial(read_changes, self._files, after, self._began()))
            still = [viewer for viewer in viewers if viewer in self._viewers]
            for viewer in still:
                self._viewers[viewer] = changes.last
            self._send_all("items", changes.as_json(), still)
            ended |= changes.ended
        return ended

    async def _tell_head(self, *, soon: bool) -> None:
        now = time.monotonic()
        if not soon and now - self._told_head < self._head_pause:
            return
        head = await read_on_thread(self._read_head)
        self._told_head = time.monotonic()
        self._head_pause = max(_HEAD_EVERY, _HEAD_SHARE * (self._told_head - now))
        if head != self._head:
            self._head = head
            self._send_all("head", head, list(self._viewers))

    def _read_head(self) -> str:
        now = time.time()
        report = build_report(self.folder, wall=lambda: now)
        facts: dict[str, Any] = {
            "head": build_head(report, now).as_json(),
            "word": report.state.word,
            **list_periods(report, read_events(self.folder / EVENTS_NAME), self._began(), now),
        }
        return json.dumps(facts, separators=(",", ":"))

    def _began(self) -> float:
        return 0.0 if self._snapshot is None else self._snapshot.began

    def _send_all(self, event: str, data: str, viewers: list[Viewer]) -> None:
        for viewer in viewers:
            if not viewer.send(event, data, self._viewers.get(viewer, 0)):
                viewer.drop()  # it comes back when it reads again, and goes on after the last entry it has
                self.remove(viewer)
