"""Render the keys of a pool as rows of the display: state, remaining limits, until when, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...pool.snapshot import OUT_OF_USE, CredentialStatus, describe_limit
from ...util.text_width import clip, display_width, pad
from .phrases import Span, format_states, format_until, is_at_limit

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState, Headroom

Row = list[Span]

STYLES: Mapping[str, str] = {
    CredentialStatus.AVAILABLE: "green",
    CredentialStatus.LEASED: "cyan",
    CredentialStatus.LIMITED: "cyan",  # it runs at its limit: nothing is wrong
    CredentialStatus.COOLING: "yellow",
    CredentialStatus.PARKED: "magenta",
    CredentialStatus.SPENT: "bold red",
    CredentialStatus.DEAD: "bold red",
    CredentialStatus.RETIRED: "dim",
}
# If not all fit, keys that may need the user's action come first.
_BY_INTEREST = (
    CredentialStatus.DEAD,
    CredentialStatus.SPENT,
    CredentialStatus.PARKED,
    CredentialStatus.COOLING,
    CredentialStatus.LIMITED,
    CredentialStatus.LEASED,
    CredentialStatus.AVAILABLE,
    CredentialStatus.RETIRED,
)

_STATE_WIDTH = max(map(len, STYLES))
_BAR = 8
_LONGEST_NAME = 20
_LEAST_DETAILS = 12
_GAP = 2


@dataclass(frozen=True, slots=True)
class BarGlyphs:
    """The characters of a bar."""

    line: str
    end: str
    rest: str


UNICODE_GLYPHS = BarGlyphs(line="━", end="╸", rest="─")
ASCII_GLYPHS = BarGlyphs(line="=", end=">", rest="-")


def render_key_rows(
    keys: Sequence[CredentialState],
    *,
    width: int,
    most: int,
    now: float,
    clean: Callable[[str], str],
    glyphs: BarGlyphs = UNICODE_GLYPHS,
) -> list[Row]:
    """Render at most *most* rows of *width* columns: all keys in order, or the most urgent ones and a tally."""
    if most <= 0 or not keys:
        return []
    if most == 1 and len(keys) > 1:
        return [_tally(keys)]
    if len(keys) <= most:
        return _table(keys, width, now, clean, glyphs)
    ranks: dict[str, int] = {state: rank for rank, state in enumerate(_BY_INTEREST)}
    ordered = sorted(keys, key=lambda key: ranks.get(key.state, 0))
    rows = _table(ordered[: most - 1], width, now, clean, glyphs)
    return [*rows, [(f"... and {_more(ordered[most - 1 :])}", "dim")]]


def _tally(keys: Sequence[CredentialState]) -> Row:
    row: Row = []
    for part in format_states(keys).split(", "):
        row += [(", ", ""), (part, STYLES.get(part.split()[-1], ""))]
    return row[1:]


def _more(keys: Sequence[CredentialState]) -> str:
    first, *others = format_states(keys).split(", ")
    count, state = first.split(" ", 1)
    return ", ".join([f"{count} more {state}", *others])


def _table(
    keys: Sequence[CredentialState], width: int, now: float, clean: Callable[[str], str], glyphs: BarGlyphs
) -> list[Row]:
    """Render name and state, with bar and details if they fit."""
    names = [clip(clean(key.name), _LONGEST_NAME) for key in keys]
    name_width = min(max(map(display_width, names)), max(4, width - _STATE_WIDTH - _GAP))
    left = width - name_width - _GAP - _STATE_WIDTH - _GAP
    has_bar = left - _BAR - _GAP >= _LEAST_DETAILS and any(_share(key) is not None for key in keys)
    if has_bar:
        left -= _BAR + _GAP
    rows = []
    for key, name in zip(keys, names, strict=True):
        refused = key.state in (CredentialStatus.DEAD, CredentialStatus.SPENT)
        row: Row = [(pad(name, name_width), "bold" if refused else ""), ("  ", "")]
        row.append((pad(key.state, _STATE_WIDTH), STYLES.get(key.state, "")))
        if has_bar:
            row += [("  ", ""), *_bar(_share(key), glyphs)]
        details = _details(key, now, clean, left)
        rows.append([*row, ("  ", ""), (details, "dim")] if details else row)
    return rows


def _details(key: CredentialState, now: float, clean: Callable[[str], str], width: int) -> str:
    """Return until when or what is left, and the reason if it fits."""
    if is_at_limit(key, now):
        return clip(clean(_format_at_limit(key)), width)
    why = "" if key.state == CredentialStatus.LEASED else clean(key.why)
    first = format_until(key.rate_limited_until, now) or ("" if key.state in OUT_OF_USE else _format_left(key))
    for shown in ([first, why], [first]):
        text = ": ".join(part for part in shown if part)
        if display_width(text) <= width or (why and width - display_width(first) > _LEAST_DETAILS):
            return clip(text, width)
    return clip(first.partition(" (")[0], width) if width >= _LEAST_DETAILS - 2 else ""


def _tightest(key: CredentialState) -> Headroom | None:
    limits = [limit for limit in key.limits if limit.amount > 0 and not limit.set_aside]
    return min(limits, key=lambda limit: limit.left / limit.amount, default=None)


def _share(key: CredentialState) -> float | None:
    """Return the filled share of the bar: what is left of the tightest limit, or the slots in use."""
    if key.state in OUT_OF_USE or key.slots < 1:
        return None
    limit = _tightest(key)
    share = key.leases / key.slots if limit is None else limit.left / limit.amount
    return min(1.0, max(0.0, share))


def _format_at_limit(key: CredentialState) -> str:
    if key.state == CredentialStatus.LIMITED:
        return key.why
    limit = next(each for each in key.limits if each.dimension == "requests" and each.left < 1 and not each.set_aside)
    return describe_limit(limit.dimension, limit.amount, limit.per, learned=limit.learned)


def _format_left(key: CredentialState) -> str:
    limit = _tightest(key)
    if limit is None:
        return f"{key.leases} of {key.slots} slots in use" if key.slots > 1 else ""
    return f"{_share(key) or 0:.0%} of its {limit.dimension.replace('_', ' ')} left"


def _bar(share: float | None, glyphs: BarGlyphs) -> Row:
    if share is None:
        return [(" " * _BAR, "")]
    full = round(share * _BAR)
    if share > 0:
        full = max(1, full)
    return [(glyphs.line * full, "cyan"), (glyphs.rest * (_BAR - full), "dim")]
