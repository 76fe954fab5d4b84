"""Phrases of the live display and the plain lines: times, counts, progress, closing summary."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...pool.snapshot import OUT_OF_USE, UNAVAILABLE, CredentialStatus
from ...util.durations import format_hours, format_rough_duration
from ..failures import describe_unreachable
from ..results import ProgressStats

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

_SHORTEST_REST = 60.0  # seconds; a key that waits longer for its limit rests
_DAY = 86_400.0

Span = tuple[str, str]  # text, and its rich style


def format_clock_time(at: float, now: float) -> str:
    """Return ``15:32``, with the day if the hour alone would be ambiguous."""
    far = at - now
    pattern = "%H:%M" if far < 0.8 * _DAY else "%a %H:%M" if far < 6 * _DAY else "%d %b %H:%M"
    return time.strftime(pattern, time.localtime(at))


def format_until(at: float, now: float) -> str:
    """Return ``for 42 s``, ``until 15:32 (4 min)``, or nothing once *at* has passed."""
    if at <= now:
        return ""
    if at - now < 90:
        return f"for {format_rough_duration(at - now)}"
    return f"until {format_clock_time(at, now)} ({format_rough_duration(at - now)})"


def format_progress(stats: ProgressStats) -> str:
    """Return ``142/300 (47.3%)``, or only the count if the total is unknown."""
    if stats.total is None:
        return str(stats.completed)
    return f"{stats.completed}/{stats.total} ({stats.completion_rate:.1f}%)"


def format_counts(stats: ProgressStats) -> Iterator[Span]:
    """Yield the counts of items done and failed, and of attempts that were retried or got no result, by reason."""
    yield f"done {stats.success_count}", "green"
    yield ", ", ""
    yield f"failed {stats.failed}", "red" if stats.failed else ""
    for what, count in (*_count_troubles(stats), ("cached", stats.cached)):
        if count:
            yield f", {what} {count}", ""


def _count_troubles(stats: ProgressStats) -> Iterator[tuple[str, int]]:
    """Yield the counts of attempts that did not end their item."""
    yield "retried", stats.retried
    yield "rate-limited", stats.limited
    yield "rejected", stats.rejected
    yield "unreachable", stats.unreachable


def describe_network(stats: ProgressStats) -> str:
    """Return a message while no answer comes from the network; else nothing."""
    since = stats.unreachable_since
    return "" if since is None else describe_unreachable(since, stats.unreachable_why)


def format_time_left(seconds: float | None, now: float) -> str:
    """Return ``about 0:12:30 left, done at 03:41``, rounded to a plausible precision."""
    if seconds is None or not math.isfinite(seconds):
        return "time left not known"
    step = next(step for limit, step in ((60, 1), (600, 10), (3_600, 30), (math.inf, 60)) if seconds < limit)
    rounded = round(seconds / step) * step
    return f"about {format_hours(rounded)} left, done at {format_clock_time(now + seconds, now)}"


def describe_no_usable_key(keys: Sequence[CredentialState]) -> str:
    """Return a message if no key can be used until a person acts; else nothing."""
    is_over = bool(keys) and all(key.state in OUT_OF_USE for key in keys)
    return f"no usable key left: {format_states(keys)}" if is_over else ""


def find_next_available(keys: Sequence[CredentialState], now: float) -> float | None:
    """Return when the first key is available again (epoch seconds); None if one is now, or no instant is known."""
    usable = [key for key in keys if key.state not in OUT_OF_USE]
    if not usable or any(key.state not in UNAVAILABLE or key.rate_limited_until <= now for key in usable):
        return None
    return min(key.rate_limited_until for key in usable)


def is_at_limit(key: CredentialState, now: float) -> bool:
    """Return whether a key runs at its limit, as it should: it waits only for the limit to refill, for a short time."""
    if key.state == CredentialStatus.LIMITED:
        return key.rate_limited_until - now <= _SHORTEST_REST
    if key.state not in (CredentialStatus.AVAILABLE, CredentialStatus.LEASED):
        return False
    return any(limit.dimension == "requests" and limit.left < 1 and not limit.set_aside for limit in key.limits)


def format_states(keys: Sequence[CredentialState]) -> str:
    """Return the number of keys in each state: ``34 available, 2 cooling``."""
    tally: dict[str, int] = {}
    for key in keys:
        tally[key.state] = tally.get(key.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in tally.items())


def format_closing(stats: ProgressStats, name: str = "") -> Iterator[str]:
    """Yield the closing summary: counts, duration, unfinished items, and the reason for a stop with its advice."""
    total = "" if stats.total is None else f" of {stats.total}"
    parts = [f"{stats.success_count}{total} done", f"{stats.failed} failed"]
    parts += [
        f"{count} {what}" for what, count in (*_count_troubles(stats), ("from an earlier run", stats.cached)) if count
    ]
    yield (f"{name}: " if name else "") + ", ".join(parts)
    yield f"took {format_hours(stats.elapsed)}{_format_rate(stats)}"
    if stats.usage:
        yield f"used {stats.usage}"
    yield from describe_changed_values(stats.redacted, stats.not_json)
    if network := describe_network(stats):
        yield network
    left = [(stats.interrupted, "interrupted"), (stats.parked, "parked")]
    not_begun = (stats.unfinished or 0) - stats.interrupted - stats.parked
    left += [(not_begun, "not begun")]
    unfinished = ", ".join(f"{count} {what}" for count, what in left if count > 0)
    if stats.stopped_by is not None:
        reason, *advice = stats.stopped_by.split("; ")
        yield f"stopped by {reason}" + (f": {unfinished}" if unfinished else "")
        yield from (f"  {each}" for each in advice)
    elif unfinished:
        yield f"left over: {unfinished}"


def describe_changed_values(redacted: int, not_json: int) -> Iterator[str]:
    """Yield how many values are not what the worker returned."""
    if redacted:
        yield f'{redacted} {"values" if redacted > 1 else "value"} contained a secret, which was removed ("redacted")'
    if not_json:
        what = "values are not JSON and are" if not_json > 1 else "value is not JSON and is"
        yield f'{not_json} {what} kept as text only ("value_repr")'


def _format_rate(stats: ProgressStats) -> str:
    """Return the rate of items that were run; cached ones took no time."""
    ran = stats.completed - stats.cached
    return f", {format_rate(ran, stats.elapsed)}" if ran > 0 and stats.elapsed > 0 else ""


def format_rate(count: int, seconds: float) -> str:
    """Return ``12.5 items/s``, or per minute or hour where that is easier to read."""
    rates = [(count / seconds * size, unit) for size, unit in ((1, "s"), (60, "min"), (3_600, "h"))]
    rate, unit = next((each for each in rates if each[0] >= 2), rates[-1])
    return f"{rate:.{0 if rate >= 20 else 1}f} items/{unit}"
