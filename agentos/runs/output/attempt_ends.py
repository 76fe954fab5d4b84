"""The lines with which the log of an item begins and ends each attempt, and those that are not in the log yet."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...util.durations import format_duration
from ...util.sanitize import make_printable, shorten
from ..failures import describe_failure

_MOST: Final = 20  # ends of one item that wait for its log
_LONGEST_REASON: Final = 300
_IS_END: Final = re.compile(rb"(?:\A|\n)--- (?:attempt \d+|the attempt above) [^\n]* ---\n?\Z")
_UNKNOWN: Final = b"--- the attempt above was interrupted ---\n"

_WORDS: Final = {"rejected": "rejected", "unreachable": "got no answer"}


def format_heading(number: int, at: float, key: str | None) -> str:
    """Return the line with which an attempt begins; *at* in epoch seconds."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    named = "" if key is None else f", key {make_printable(key, tabs=False)}"
    return f"--- attempt {number}, {when}{named} ---"


def format_end(
    number: int, kind: str, seconds: float | None, error: str | None, facts: Mapping[str, Any], *, output: bool = True
) -> str:
    """Return how an attempt ended: a traceback if there is one, and a line.

    *kind* is that of the journal's entry: done, failed, retry, limited or interrupted. *facts* are those of a failure.
    The last lines of a command are added if its *output* is not above.
    """
    trace = "" if kind in ("done", "limited") else facts.get("traceback") or ""
    if not trace and not output:
        trace = "\n".join(facts.get("tail") or ())
    lines = [make_printable(line) for line in trace.rstrip("\n").split("\n")] if trace else []
    return "\n".join([*lines, f"--- attempt {number} {_describe(kind, seconds, error, facts)} ---"])


def _describe(kind: str, seconds: float | None, error: str | None, facts: Mapping[str, Any]) -> str:
    after = "" if seconds is None else f" after {format_duration(seconds)}"
    if kind == "done":
        return f"done{after}"
    reason = describe_failure(error, facts.get("error_type"), facts.get("place"))
    reason = shorten(make_printable(reason, tabs=False), _LONGEST_REASON)
    if kind == "interrupted":
        return f"interrupted{after}: {reason.removeprefix('interrupted: ')}"
    if kind == "limited":
        word = _WORDS.get(str(facts.get("trouble")), "rate-limited")
        until = facts.get("until")
        when = f" until {time.strftime('%H:%M:%S', time.localtime(until))}" if isinstance(until, (int, float)) else ""
        return f"{word}{when}{after}: {reason}; the item waits"
    again = "; the item is retried" if kind == "retry" else ""
    if facts.get("error_type") == "TimeoutError" and facts.get("place") is None:
        return f"{reason}{again}"  # "timed out after 5s"
    if facts.get("signal") is not None:
        return f"killed by {facts.get('code')}{after}{again}"
    return f"failed{after}: {reason}{again}"


@dataclass(frozen=True, slots=True)
class _PendingEnd:
    heading: bytes
    end: bytes
    printed: bool | None  # the heading is in the log; None: not known, because the run was killed


class PendingEnds:
    """The ends of attempts that are not in the log of their item yet.

    Whoever writes them holds ``lock`` from ``take`` until they are written, so that an attempt's end precedes the next
    attempt's heading. An end without output stays here until the log has a reason to exist.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ends: dict[str, list[_PendingEnd]] = {}

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._ends

    def add(self, item_id: str, heading: str, end: str, *, printed: bool | None) -> None:
        """Add the end of an attempt. Never blocks."""
        found = [f"{line}\n".encode("utf-8", "replace") for line in (heading, end)]
        ends = self._ends.setdefault(item_id, [])
        ends.append(_PendingEnd(found[0], found[1], printed))
        del ends[:-_MOST]

    def take(self, item_id: str, tail: bytes) -> bytes:
        """Return what is to be written after *tail*, the last bytes of the log. The caller holds the lock."""
        is_open = bool(tail) and _IS_END.search(tail) is None
        text = b"" if not tail or tail.endswith(b"\n") else b"\n"
        ends = self._ends.pop(item_id, [])
        if is_open and (not ends or ends[0].printed is False):
            text += _UNKNOWN
        for each in ends:
            text += each.end if each.printed or (each.printed is None and is_open) else each.heading + each.end
            is_open = False
        return text

    def drop(self, item_id: str) -> None:
        """Forget the ends of an item that needs no log."""
        self._ends.pop(item_id, None)
