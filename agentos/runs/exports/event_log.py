"""``events.jsonl``: events of a run other than results, one JSON object per line, for reports and programs.

Each has ``at`` (epoch seconds) and ``kind``: ``session`` (a start), ``item_retried``, ``item_limited``, ``key`` (a key
changed its state), ``waiting`` (how this session spent its time so far), ``bound`` (what bounded the speed from
``since`` to ``until``), ``stopping``, ``held``, ``going_on``, ``unreachable``, ``reachable``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ...util.private_folder import PrivateFolder, folder_of
from .append_file import AppendOnlyFile

log = logging.getLogger("agentos")

EVENTS_NAME: Final = "events.jsonl"

_LONGEST_LINE: Final = 1024 * 1024


class EventLog:
    """Writes events, from any thread. Never raises: an event that cannot be written is dropped and logged once.

    Texts are written as they are: the caller redacts secrets first.
    """

    def __init__(
        self, path: Path, *, folder: PrivateFolder | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self._lines = AppendOnlyFile(path, what="the event log", folder=folder)
        self._wall = wall
        self._has_warned = False

    def write(self, kind: str, /, **facts: Any) -> None:
        """Write an event of *kind* with the current time."""
        try:
            line = json.dumps({"at": round(self._wall(), 4), "kind": kind, **facts}, allow_nan=False)
        except Exception as error:  # noqa: BLE001 - a fact may be any object, and no event is worth a run
            if not self._has_warned:
                self._has_warned = True
                log.warning("an event of kind %s is not JSON and was dropped (%s)", kind, type(error).__name__)
            return
        self._lines.add(line)

    def close(self) -> None:
        self._lines.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in *path*, in order; none without a file. Torn lines and non-events are skipped."""
    try:
        with folder_of(path) as folder:
            descriptor = folder.open(path.name, os.O_RDONLY)
    except OSError:
        return
    with open(descriptor, "rb") as file:
        skipping = False
        while line := file.readline(_LONGEST_LINE):
            whole = line.endswith(b"\n")
            if not skipping and whole:
                event = _event(line)
                if event is not None:
                    yield event
            skipping = not whole


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None
