"""Lay out the live display of a run as rows of styled text. Pure: no terminal, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...util.durations import format_hours, format_minutes
from ...util.sanitize import make_printable
from ...util.text_width import clip, display_width, pad, wrap
from ..results import ProgressStats
from .event_state import FailedItem
from .key_table import UNICODE_GLYPHS, BarGlyphs, Row, render_key_rows
from .phrases import describe_network, describe_no_usable_key, format_counts, format_progress, format_time_left

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

_LABEL = 9
_WIDE = 60  # columns from which rows have a label
_TALL = 16  # rows from which a quarter of the terminal is left for scrolling text
_MAX_KEYS = 12
_MAX_RUNNING = 8
_MAX_NOTICE = 3
_LEAST_BAR = 8
_PULSE = 10


@dataclass(frozen=True, slots=True)
class RunningItem:
    """A running item: its start (epoch seconds) and the last line it printed."""

    item_id: str
    since: float
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class DisplayState:
    """Everything that is shown at one instant. Texts are sanitised, except names of keys and reasons."""

    stats: ProgressStats
    now: float
    name: str = ""
    seconds_left: float | None = None
    speed: Sequence[str] = ()  # the rate, and what bounds it
    keys: Sequence[CredentialState] = ()
    running: Sequence[RunningItem] = ()
    failures: Sequence[FailedItem] = ()
    notice: str = ""
    stopping: bool = False


def render(
    state: DisplayState,
    width: int,
    height: int,
    *,
    clean: Callable[[str], str] = str,
    glyphs: BarGlyphs = UNICODE_GLYPHS,
) -> list[Row]:
    """Return rows that fit a terminal of *width* columns and *height* rows, leaving at least one of each free."""
    width = max(1, width - 1)  # a terminal may wrap in its last column
    height = max(1, height - 1 if height < _TALL else height * 3 // 4)
    most = _MAX_NOTICE if width >= _WIDE else 2 * _MAX_NOTICE
    notice = _notice(state.notice, width, max(1, min(most, height // 2)))
    head = list(_head(state, width, height - len(notice), glyphs))[: height - len(notice)]
    sections = _sections(state, width, clean, glyphs)
    body = _body(sections, height - len(notice) - len(head), width)
    return [_fit(row, width) for row in (*head, *body, *notice)]


# -- the head and the notice ----------------------------------------------------------------------------------


def _head(state: DisplayState, width: int, height: int, glyphs: BarGlyphs) -> Iterator[Row]:
    """Yield the head rows, the most important first in case only a few fit."""
    if state.name and height >= 6:
        yield [(clip(state.name, width), "bold")]
    yield _overall(state.stats, width, glyphs)
    counts = list(format_counts(state.stats))
    if state.running:
        counts += [(", ", ""), (f"running {len(state.running)}", "cyan")]
    left = "" if state.stopping or state.stats.unfinished == 0 else format_time_left(state.seconds_left, state.now)
    free = width - sum(display_width(text) for text, _ in counts) - display_width(left)
    if free >= 2:
        yield [*counts, (" " * free, ""), (left, "")]
    else:
        yield counts
        if left:
            yield [(clip(left, width), "")]
    if problem := make_printable(describe_network(state.stats)) or describe_no_usable_key(state.keys):
        yield [(clip(problem, width), "bold red")]
    elif state.speed:
        whole, bound = ", ".join(state.speed), state.speed[-1]
        is_cooling = bound.startswith("bound by: cooldowns")
        yield [(whole if display_width(whole) <= width else clip(bound, width), "yellow" if is_cooling else "")]


def _overall(stats: ProgressStats, width: int, glyphs: BarGlyphs) -> Row:
    far, elapsed = format_progress(stats), format_hours(stats.elapsed)
    for ending in ([(f"  {far}", "bold"), (f"  {elapsed}", "")], [(f"  {far}", "bold")]):
        room = width - sum(display_width(text) for text, _ in ending)
        if room >= _LEAST_BAR:
            return [*_bar(stats, room, glyphs), *ending]
    return [(clip(far, width), "bold")]


def _bar(stats: ProgressStats, width: int, glyphs: BarGlyphs) -> Row:
    if stats.total is None:  # unknown total: a moving segment shows activity
        place = int(stats.elapsed * 4) % width
        lit = min(_PULSE, width - place)
        return [(glyphs.rest * place, "dim"), (glyphs.line * lit, "cyan"), (glyphs.rest * (width - place - lit), "dim")]
    if stats.completed >= stats.total:
        full, end = width, ""
    else:
        full = stats.completed * width // stats.total
        end = glyphs.end if full < width and stats.completed else ""
    bad = min(full, -(-stats.failed * width // stats.total)) if stats.total else 0
    good = full - bad
    rest = width - full - len(end)
    end_style = "green" if good or not bad else "red"
    return [(glyphs.line * bad, "red"), (glyphs.line * good, "green"), (end, end_style), (glyphs.rest * rest, "dim")]


def _notice(text: str, width: int, most: int) -> list[Row]:
    """Return the whole notice, or its beginning and its final remark, which says what a second Ctrl-C does."""
    if not text:
        return []
    lines = wrap(text, width)
    remark = text.rfind(" (") if text.endswith(")") else len(text)
    room = min(remark, width * most)
    while len(lines) > most and room > 0:
        room -= max(1, width // 8)
        lines = wrap(clip(text[:remark], room) + text[remark:], width)
    return [[(pad(line, width), "bold black on yellow")] for line in lines[:most]]


# -- keys, running items, failures ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    label: str
    mark: str  # replaces the label in a narrow terminal
    style: str
    wants: int
    rows: Callable[[int, int], list[Row]]  # arguments: columns, rows


def _sections(state: DisplayState, width: int, clean: Callable[[str], str], glyphs: BarGlyphs) -> list[_Section]:
    def keys(room: int, most: int) -> list[Row]:
        return render_key_rows(state.keys, width=room, most=most, now=state.now, clean=clean, glyphs=glyphs)

    def running(room: int, most: int) -> list[Row]:
        if not state.running:
            return []
        arranged = _listed if any(each.last_line for each in state.running) else _side_by_side
        return arranged(state.running, state.now, room, most)

    def failures(room: int, most: int) -> list[Row]:
        return [_failure(each, room) for each in state.failures[len(state.failures) - most :]]

    return [
        _Section("keys", "", "dim", min(_MAX_KEYS, len(state.keys)), keys),
        _Section("running", "> ", "dim", len(running(width - _LABEL, _MAX_RUNNING)), running),
        _Section("failed", "x ", "red", len(state.failures), failures),
    ]


def _body(sections: Sequence[_Section], height: int, width: int) -> Iterator[Row]:
    for section, most in zip(sections, _shares([section.wants for section in sections], height), strict=True):
        label = _LABEL if width >= _WIDE else len(section.mark)
        for number, row in enumerate(section.rows(width - label, most) if most else ()):
            if width < _WIDE:
                yield [(section.mark, section.style), *row]
            else:
                yield [(pad("" if number else section.label, _LABEL), section.style), *row]


def _shares(wants: Sequence[int], height: int) -> list[int]:
    """Distribute *height* rows in turns until every section has what it wants or no rows are left."""
    shares = [0] * len(wants)
    while height > 0 and shares != list(wants):
        for place, wanted in enumerate(wants):
            if shares[place] < wanted and height > 0:
                shares[place] += 1
                height -= 1
    return shares


def _listed(running: Sequence[RunningItem], now: float, width: int, most: int) -> list[Row]:
    """Render one item per row with its last line, the longest running first."""
    if most == 1 and len(running) > 1:
        return _in_one_row(running, now)
    shown = running if len(running) <= most else running[: most - 1]
    ids = min(max(display_width(each.item_id) for each in shown), max(8, width // 3))
    times = max(len(format_minutes(now - each.since)) for each in shown)
    rows: list[Row] = [
        [
            (pad(each.item_id, ids), "cyan"),
            (f"  {format_minutes(now - each.since):>{times}}", ""),
            (f"  {clip(each.last_line, max(0, width - ids - times - 4))}", "dim"),
        ]
        for each in shown
    ]
    if len(shown) < len(running):
        rows.append([(f"... and {len(running) - len(shown)} more", "dim")])
    return rows


def _side_by_side(running: Sequence[RunningItem], now: float, width: int, most: int) -> list[Row]:
    """Render as many items side by side as fit, in columns."""
    ids = min(max(display_width(each.item_id) for each in running), max(4, width - 8))
    times = max(len(format_minutes(now - each.since)) for each in running)
    across = max(1, (width + 2) // (ids + 1 + times + 2))
    if most == 1 and len(running) > across:
        return _in_one_row(running, now)
    hidden = len(running) - across * (most - 1) if len(running) > across * most else 0
    shown = running[: len(running) - hidden]
    rows: list[Row] = []
    for place, each in enumerate(shown):
        if place % across == 0:
            rows.append([])
        gap = "  " if place % across else ""
        rows[-1] += [(gap + pad(each.item_id, ids), "cyan"), (f" {format_minutes(now - each.since):>{times}}", "dim")]
    if hidden:
        rows.append([(f"... and {hidden} more", "dim")])
    return rows


def _in_one_row(running: Sequence[RunningItem], now: float) -> list[Row]:
    longest = running[0]
    return [
        [(longest.item_id, "cyan"), (f" {format_minutes(now - longest.since)}, and {len(running) - 1} more", "dim")]
    ]


def _failure(failure: FailedItem, width: int) -> Row:
    item_id = clip(failure.item_id, max(8, width // 2))
    return [(f"{item_id}: ", ""), (clip(failure.why, max(0, width - display_width(item_id) - 2)), "")]


def _fit(row: Row, width: int) -> Row:
    """Return the row, cut to *width*."""
    fitted: Row = []
    room = width
    for text, style in row:
        if not text or room <= 0:
            continue
        fitted.append((clip(text, room), style))
        room -= display_width(fitted[-1][0])
    return fitted
