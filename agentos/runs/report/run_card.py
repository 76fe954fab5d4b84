"""The run card: how a run was started, as recorded in ``run.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...util.private_folder import folder_of

CARD_NAME: Final = "run.json"

MAX_CARD_SIZE: Final = 64 * 1024 * 1024  # bytes: far longer than what can be typed


@dataclass(frozen=True, slots=True)
class RunCard:
    """The last start of a run. ``arguments`` is what was typed after ``agentos run``."""

    name: str
    cwd: str
    arguments: tuple[str, ...]
    source_kind: str | None = None  # "file", "files", "folder", "glob", "words" or "stdin"
    started: float | None = None
    engine: str | None = None  # the cluster that ran the items; None: the machine of the run
    id_rules: int = 1  # the version of the rules for ids of items; not recorded by version 0.1.0

    def as_json(self) -> dict[str, Any]:
        """Return the card as the JSON object of a report, which differs from ``run.json``."""
        return {
            "name": self.name,
            "cwd": self.cwd,
            "arguments": self.arguments,
            "source_kind": self.source_kind,
            "started": self.started,
            "engine": self.engine,
        }


def read_card(folder: Path) -> RunCard | None:
    """Return the card of the run in *folder*; None if it has no readable one, as a run started from Python."""
    try:
        with folder_of(folder / CARD_NAME) as opened:
            return parse_card(opened.read(CARD_NAME, MAX_CARD_SIZE))
    except OSError:
        return None


def parse_card(content: bytes) -> RunCard | None:
    """Return the card parsed from the *content* of a ``run.json``; None if it is not one."""
    try:
        found = json.loads(content)
        source = found.get("source") or {}
        return RunCard(
            name=_text(found["name"]),
            cwd=_text(found["cwd"]),
            arguments=tuple(map(_text, found["arguments"])),
            source_kind=source.get("kind"),
            started=_number(found.get("started")),
            engine=None if found.get("engine") is None else _text(found["engine"]),
            id_rules=int(_number(found.get("id_rules")) or 1),
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("a text was expected")
    return found


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, (int, float)) else None
