"""The head of the page: what it says about a run in words and small tables, for the report and the live page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ..runs.failures import describe_failure, describe_unreachable
from ..runs.report.failure_causes import FailureGroup
from ..runs.report.run_report import RunReport
from ..util.durations import format_duration
from ..util.sanitize import make_printable, shorten
from .previews import clean_text

_CAUSES: Final = 100
_LONGEST: Final = 300
_LONGEST_TRACEBACK: Final = 8_000  # characters; the end says what happened
_TRACEBACKS: Final = 512 * 1024  # characters in all

_BOUND_TEXT: Final = {
    "workers": ("Workers", "all workers were busy", "a larger -j"),
    "slots": ("Slots", "every key was used by as many items as it has slots", "more slots or more keys"),
    "quota": ("Quota", "keys were at their limit or cooling down", "more quota or more keys"),
    "network": ("Network", "no answer from the network", ""),
    "input": ("Input", "workers waited for items", "a faster source of items"),
    "disk": ("Disk", "the journal could not be written", "room on the disk"),
    "cluster": ("Cluster", "the cluster had too few free workers", "more workers there"),
    "end": ("Last items", "nothing was left to start", "longer items first"),
    "unknown": ("Unknown", "none of the above", ""),
}


@dataclass(frozen=True, slots=True)
class HeadCard:
    """One large figure with its label and a note; ``tone`` is good, bad, warn or empty."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class HeadTable:
    """A small table; columns whose number is in ``right`` hold figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """Failures with one cause."""

    count: int
    cause: str
    place: str
    example: str
    detail: str  # a traceback, or the whole error


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The head of the page."""

    name: str
    word: str
    state: str
    when: str
    command: str
    damage: str
    cards: tuple[HeadCard, ...]
    notes: tuple[str, ...]
    bounds: HeadTable
    bound_note: str
    keys: HeadTable
    failures: tuple[FailureFacts, ...]
    failed: int
    sessions: HeadTable
    quota_keys: HeadTable = field(default_factory=lambda: HeadTable((), ()))

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON values for the page's script."""
        return {
            "name": self.name,
            "word": self.word,
            "state": self.state,
            "when": self.when,
            "command": self.command,
            "damage": self.damage,
            "cards": [[each.label, each.value, each.note, each.tone] for each in self.cards],
            "notes": list(self.notes),
            "bounds": _table_json(self.bounds),
            "bound_note": self.bound_note,
            "quota_keys": _table_json(self.quota_keys),
            "keys": _table_json(self.keys),
            "failures": [[each.count, each.cause, each.place, each.example, each.detail] for each in self.failures],
            "failed": self.failed,
            "sessions": _table_json(self.sessions),
        }


def _table_json(table: HeadTable) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": [list(row) for row in table.rows], "right": list(table.right)}


def build_head(report: RunReport, now: float) -> HeadFacts:
    """Return the head of the page about the run of *report* at *now*."""
    return HeadFacts(
        name=_clean(report.name),
        word=report.state.word,
        state=_clean(str(report.state)),
        when=_describe_when(report, now),
        command=_describe_command(report),
        damage=_clean(report.damage or ""),
        cards=tuple(_build_cards(report)),
        notes=tuple(map(_clean, _describe_notes(report))),
        bounds=_build_bounds(report),
        bound_note=describe_main_bound(report),
        quota_keys=_build_quota_keys(report),
        keys=_build_keys(report),
        failures=tuple(_list_failures(report)),
        failed=report.counts["failed"],
        sessions=_build_sessions(report),
    )


def format_instant(at: float) -> str:
    """Return ``2026-11-15 15:02:31``, in local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?"


def describe_main_bound(report: RunReport) -> str:
    """Return what bounded the run for the longest time; empty if it is not known."""
    by = {name: seconds for name, seconds in report.bounds.by.items() if name not in ("unknown", "end") and seconds > 0}
    if not by:
        return ""
    name = max(by, key=lambda each: by[each])
    share = 100 * by[name] / sum(report.bounds.by.values())
    return f"mostly {_BOUND_TEXT[name][0].lower()} ({share:.0f} % of the time: {_BOUND_TEXT[name][1]})"


def describe_cause(group: FailureGroup) -> str:
    """Return one line about failures with one cause."""
    text = group.text if group.place or group.same_text else group.cause
    return _clean(describe_failure(text, group.error_type))


def _clean(text: str, longest: int = _LONGEST) -> str:
    return shorten(make_printable(text[: 10 * longest]), longest)


def _describe_when(report: RunReport, now: float) -> str:
    if not report.sessions:
        return ""
    first, last = report.sessions[0], report.sessions[-1]
    if last.ended_at is None:
        return f"since {format_instant(first.started_at)}; as of {format_instant(now)}"
    return f"{format_instant(first.started_at)} to {format_instant(last.ended_at)}"


def _describe_command(report: RunReport) -> str:
    return "" if report.card is None else _clean(shlex.join(["agentos", "run", *report.card.arguments]), 1_000)


def _build_cards(report: RunReport) -> Iterator[HeadCard]:
    counts = report.counts
    of = "items" if report.total is None else f"of {report.total:,} items"
    yield HeadCard("Done", f"{counts['done']:,}", of, "good")
    yield HeadCard("Failed", f"{counts['failed']:,}", _count_causes(report), "bad" if counts["failed"] else "")
    if report.left:
        yield HeadCard("Left", f"{report.left:,}", _describe_left(report), "warn")
    sessions = len(report.sessions)
    yield HeadCard("Duration", format_duration(report.wall), f"in {sessions} sessions" if sessions > 1 else "")
    if report.rate is not None:
        yield HeadCard("Speed", *format_speed(report.rate))
    if report.usage:
        usage = report.usage
        yield HeadCard("Tokens", f"{usage.total:,}", f"{usage.total - usage.output:,} in, {usage.output:,} out")
    if report.durations is not None:
        times = report.durations
        spread = f"p50; p95 {format_duration(times.p95)}, max {format_duration(times.longest)}"
        yield HeadCard("Item duration", format_duration(times.p50), spread)
    if report.limited or report.keys:
        yield HeadCard("Rate-limited", f"{report.limited:,}", f"of {report.attempts:,} attempts")


def _count_causes(report: RunReport) -> str:
    causes = len(report.failures)
    more = "+" if report.other_failures else ""
    return "" if not causes else f"{causes:,}{more} cause{'' if causes == 1 and not more else 's'}"


def _describe_left(report: RunReport) -> str:
    counts = report.counts
    states = {"running" if report.state.word == "running" else "were running": counts["running"]}
    states |= {name: counts[name] for name in ("interrupted", "parked")}
    states["to be retried"] = counts["pending"] - report.not_begun
    states["not begun"] = report.not_begun
    return ", ".join(f"{number:,} {name}" for name, number in states.items() if number > 0)


def format_speed(rate: float) -> tuple[str, str]:
    """Return the figure and the unit of items per second."""
    if rate >= 0.5:
        return f"{rate:,.{0 if rate >= 100 else 1}f}", "items/s"
    return f"{rate * 60:.2g}", "items/min"


def _describe_notes(report: RunReport) -> Iterator[str]:
    if report.card is not None and report.card.engine is not None:
        yield f"on {report.card.engine}"
    why = report.retry_cause
    stopped = {
        "retried after an error" + (f" ({describe_cause(why)})" if why is not None else ""): report.retried,
        "rejected (401, 402, 403)": report.rejected,
        "without an answer": report.unreachable,
        "interrupted": report.interrupted,
    }
    if any(stopped.values()):
        listed = ", ".join(f"{count:,} {what}" for what, count in stopped.items() if count)
        yield f"{report.attempts:,} attempts: {listed}"
    spent = report.key_time
    if spent.unreachable_since is not None:
        yield describe_unreachable(spent.unreachable_since, spent.unreachable_why)
    yield from spent.describe()
    if report.redacted:
        yield f"{report.redacted:,} values had a secret in them, which was replaced"
    if report.not_json:
        yield f"{report.not_json:,} values are not JSON: only their repr is recorded"


def _build_bounds(report: RunReport) -> HeadTable:
    bounds = report.bounds
    total = sum(bounds.by.values())
    ordered = sorted(bounds.by.items(), key=lambda each: -each[1])
    rows = [
        (
            _BOUND_TEXT[name][0],
            _BOUND_TEXT[name][1],
            format_duration(seconds),
            f"{100 * seconds / total:.0f} %",
            format_duration(bounds.lost.get(name, 0.0)),
            _BOUND_TEXT[name][2],
        )
        for name, seconds in ordered
        if seconds > 0
    ]
    return HeadTable(("Bound by", "Meaning", "Time", "Share", "Lost", "What would help"), tuple(rows), (2, 3, 4))


def _build_quota_keys(report: RunReport) -> HeadTable:
    ordered = sorted(report.bounds.keys.items(), key=lambda each: -each[1])
    rows = tuple((_clean(name, 60), format_duration(seconds)) for name, seconds in ordered if seconds > 0)
    return HeadTable(("Key at its limit or cooling down", "Time"), rows, (1,))


def _build_keys(report: RunReport) -> HeadTable:
    head = ("Key", "Done", "Failed", "Rate-limited", "Rejected", "No answer", "Used", "Cooling", "Waited for", "Tokens")
    rows = tuple(
        (
            _clean(key.name, 60),
            f"{key.done:,}",
            f"{key.failed:,}",
            f"{key.limited:,}",
            f"{key.rejected:,}",
            f"{key.unreachable:,}",
            format_duration(key.seconds),
            format_duration(key.cooling) if key.cooling else "–",  # noqa: RUF001 - a dash in a table
            format_duration(key.waited) if key.waited else "–",  # noqa: RUF001
            f"{key.usage.total:,}" if key.usage else "–",  # noqa: RUF001
        )
        for key in report.keys
    )
    return HeadTable(head, rows, tuple(range(1, len(head))))


def _build_sessions(report: RunReport) -> HeadTable:
    rows = tuple(
        (
            str(each.number),
            format_instant(each.started_at),
            "" if each.ended_at is None else format_duration(max(0.0, each.ended_at - each.started_at)),
            f"{each.finished:,}",
            _clean(each.ended),
        )
        for each in report.sessions
    )
    return HeadTable(("Session", "Started", "Lasted", "Finished items", "Ended"), rows, (0, 3))


def _list_failures(report: RunReport) -> Iterator[FailureFacts]:
    room = _TRACEBACKS
    for group in report.failures[:_CAUSES]:
        detail = clean_text((group.traceback or group.text)[-_LONGEST_TRACEBACK:])
        detail = detail if len(detail) <= room else ""
        room -= len(detail)
        yield FailureFacts(group.count, describe_cause(group), _clean(group.place or ""), _clean(group.example), detail)
