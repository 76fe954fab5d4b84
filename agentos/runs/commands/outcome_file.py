"""Read the outcome that a command reports in the file named by AGENTOS_OUTCOME."""

from __future__ import annotations

import datetime
import json
import math
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...providers.answers.usage import (
    DETAIL_NAMES,
    FIGURE_NAMES,
    GEMINI_NAMES,
    LIMIT_NAMES,
    NOTHING_STATED,
    StatedUsage,
    parse_reported_usage,
)
from ...providers.signal import LONGEST_DELAY

_MAX_SIZE = 1_000_000  # bytes
_WORDS = ("rate_limited", "park_until", "rejected", "spent", "failed", "usage", "model")


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The reported outcome: one JSON object with optional fields.

    ``rate_limited``: the provider refused a call because of a limit; seconds to leave the key alone, or true.
    ``park_until``: the same, with the instant at which the limit ends. ``rejected`` and ``spent``: the key does not
    work any more, or has no money left, and why; the item goes on with another key. ``failed``: the item cannot be
    done, and why. ``usage``: tokens used by the calls, as limits name them or as the ``usage`` object of an answer;
    fields that are unknown or no numbers are ignored. ``model``: the model that a limit is for.
    """

    rate_limited: float | None = None  # seconds; None with ``limited``: unknown
    limited: bool = False
    rejected: str | None = None
    spent: str | None = None
    failed: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)  # the figures, for the item's value
    model: str | None = None
    stated: StatedUsage = NOTHING_STATED  # the usage that the figures state
    ignored: str | None = None  # why a part of the usage is ignored


class InvalidOutcome(ValueError):
    """The outcome file is invalid."""


def load_outcome(path: Path, wall: float) -> CommandOutcome | None:
    """Return the command's outcome, or None without one. Raise ``InvalidOutcome`` if it is invalid."""
    return parse_outcome(read_outcome_file(path), wall)


def read_outcome_file(path: Path) -> bytes | None:
    """Return the contents of the file, or None without one. Raise ``InvalidOutcome`` if it cannot be read."""
    try:
        # The command may have put anything there: a pipe without a writer, a symbolic link.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidOutcome("it is not a regular file")
        data = file.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise InvalidOutcome("it is longer than a megabyte")
    return data


def parse_outcome(data: bytes | None, wall: float) -> CommandOutcome | None:
    """Parse the contents of an outcome file. Raise ``InvalidOutcome`` if they are invalid."""
    if data is None or not data.strip():
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidOutcome("it is not JSON") from None
    if not isinstance(fields, dict):
        raise InvalidOutcome(f"it must be an object with some of {', '.join(_WORDS)}")
    return _parse_object(fields, wall)


def _parse_object(fields: dict[str, Any], wall: float) -> CommandOutcome:
    unknown = [name for name in fields if name not in _WORDS]
    if unknown:
        raise InvalidOutcome(f"unknown field {unknown[0][:40]!r}; it may have {', '.join(_WORDS)}")
    limited, seconds = False, None
    if (limit := fields.get("rate_limited")) not in (None, False):
        limited = True
        seconds = None if limit is True else _number("rate_limited", limit)
    if (until := fields.get("park_until")) is not None:
        limited = True
        # The longest delay that is believed; the limit certainly does not end before.
        seconds = min(max(seconds or 0.0, _instant(until) - wall, 0.0), LONGEST_DELAY)
    usage = fields.get("usage") or {}
    if not isinstance(usage, dict):
        raise InvalidOutcome("usage must be an object such as {'input_tokens': 900, 'output_tokens': 120}")
    figures = {name: _amount(amount) for name, amount in usage.items() if _is_number(amount)}
    stated = _read_usage(usage, figures)
    return CommandOutcome(
        rate_limited=seconds,
        limited=limited,
        rejected=_text("rejected", fields.get("rejected")),
        spent=_text("spent", fields.get("spent")),
        failed=_text("failed", fields.get("failed")),
        # An integer stays one.
        usage={name: usage[name] if usage[name] == amount else amount for name, amount in figures.items()},
        model=_text("model", fields.get("model")),
        stated=stated,
        ignored=_find_ignored(usage, stated),
    )


def _read_usage(usage: dict[str, Any], figures: dict[str, float]) -> StatedUsage:
    known = {name: amount for name, amount in figures.items() if name in LIMIT_NAMES | FIGURE_NAMES | GEMINI_NAMES}
    details = {name: usage[name] for name in DETAIL_NAMES if isinstance(usage.get(name), dict)}
    return parse_reported_usage({**known, **details}) if known else NOTHING_STATED


def _find_ignored(usage: dict[str, Any], stated: StatedUsage) -> str | None:
    for name in LIMIT_NAMES:
        if usage.get(name) is not None and not _is_number(usage[name]):
            return f"usage.{name} must be a number of at least 0"
    if usage and not stated:
        return f"usage has none of {', '.join(sorted(LIMIT_NAMES))}, nor the names of a provider's answer"
    return None


def _number(name: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf:
            return float(value)
    except OverflowError:
        pass  # an integer of hundreds of digits
    raise InvalidOutcome(f"{name} must be a number of at least 0")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _amount(value: float) -> float:
    """Convert any number to one that JSON can hold: the pool ignores and logs impossible usage."""
    largest = sys.float_info.max
    return float(value) if -largest <= value <= largest else largest


def _text(name: str, value: object) -> str | None:
    if value is None or value is False:
        return None
    if value is True:
        return f"the command reported {name}"
    if not isinstance(value, str):
        raise InvalidOutcome(f"{name} must be text")
    return value[:2_000]


def _instant(value: object) -> float:
    """Parse epoch seconds or an ISO 8601 date and time; without a zone it is local time."""
    if isinstance(value, (int, float)):
        return _number("park_until", value)
    try:
        return datetime.datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidOutcome("park_until must be a time such as 2026-11-16T05:00:00+01:00, or epoch seconds") from None
