"""Measure the speed of a run and find what bounds it: ``12 items/s, bound by: -j 8 (all workers busy)``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...pool.snapshot import OUT_OF_USE, UNAVAILABLE, CredentialStatus
from ...util.durations import format_rough_duration
from ..results import ProgressStats
from .phrases import find_next_available, format_clock_time, format_rate, is_at_limit

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

_RATE_OVER = 30.0  # seconds over which the rate is measured, or longer, until enough items ended
_RATE_ITEMS = 10
_FEWEST_SECONDS = 1.0
_BOUND_OVER = 10.0  # seconds over which the most frequent bound is shown: keys change state many times a second
_SHORTEST_COOLDOWN = 5.0  # seconds; for a shorter one no time is named


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """How many items may run at once (None: unknown), how many run, and how many workers wait for a key."""

    most: int | None = None
    running: int = 0
    waiting: int = 0


class SpeedBound(NamedTuple):
    """What keeps the run from going faster; *certain*: it is so now, however it was in the last seconds."""

    kind: str
    text: str
    certain: bool = False


def find_bound(
    stats: ProgressStats, keys: Sequence[CredentialState], workers: WorkerCounts, now: float
) -> SpeedBound | None:
    """Return what bounds the speed at this instant; None: unknown, or no key is usable at all."""
    usable = [key for key in keys if key.state not in OUT_OF_USE]
    if keys and not usable:
        return None
    resting = [key for key in usable if key.state in UNAVAILABLE and not is_at_limit(key, now)]
    if resting and len(resting) == len(usable):
        return _all_resting(resting, now)
    if stats.unfinished is not None and 0 < stats.unfinished <= workers.running:
        last = "the last item" if stats.unfinished == 1 else f"the last {stats.unfinished} items"
        return SpeedBound("end", f"{last} (nothing else is left to start)", certain=True)
    if workers.waiting > 0 and not usable:
        return SpeedBound("keys", f"keys (workers that wait for one: {workers.waiting})")
    are_all_taken = bool(usable) and all(_is_taken(key, now) for key in usable)
    is_beyond_keys = workers.most is None or workers.running > sum(key.leases for key in usable)
    if usable and (workers.waiting > 0 or (are_all_taken and is_beyond_keys)):
        return _bound_by_keys(usable, resting, now)
    if workers.most is not None and workers.running >= workers.most:
        return SpeedBound("workers", f"-j {workers.most} (all workers busy)")
    if workers.most is not None and stats.total is None and workers.waiting == 0:
        return SpeedBound("input", "the input (workers wait for items)")
    return None


def _is_taken(key: CredentialState, now: float) -> bool:
    return key.state in UNAVAILABLE or key.state == CredentialStatus.LEASED or is_at_limit(key, now)


def _all_resting(resting: Sequence[CredentialState], now: float) -> SpeedBound:
    of = "the only key" if len(resting) == 1 else f"all {len(resting)} keys"
    due = find_next_available(resting, now)
    wait = 0.0 if due is None else due - now
    when = f"; next at {format_clock_time(now + wait, now)}, in {format_rough_duration(wait)}"
    are_limits = all(key.state == CredentialStatus.LIMITED for key in resting)  # of an hour or a day
    what = "key limits" if are_limits else "cooldowns"
    return SpeedBound("resting", f"{what} ({of}{when if wait >= _SHORTEST_COOLDOWN else ''})", certain=True)


def _bound_by_keys(usable: Sequence[CredentialState], resting: Sequence[CredentialState], now: float) -> SpeedBound:
    """Return what holds up most keys: their limits, cooldowns or slots."""
    leased = [key for key in usable if key.state == CredentialStatus.LEASED and not is_at_limit(key, now)]
    at_limit = len(usable) - len(resting) - len(leased)  # available ones too: what is left does not suffice for a call
    of = f" of {len(usable)}" if len(usable) > max(at_limit, len(resting), len(leased)) else ""
    if at_limit >= max(len(resting), len(leased)):
        one = at_limit == 1 and not of
        return SpeedBound("limits", f"key limits ({at_limit}{of} {'key at its' if one else 'keys at their'} limit)")
    if len(resting) >= len(leased):
        return SpeedBound("cooldowns", f"cooldowns ({len(resting)}{of} keys)")
    slots = {key.slots for key in leased}
    each = f" x {_count(slots.pop(), 'slot')}" if len(slots) == 1 else ""
    total = "" if each else f", {sum(key.slots for key in leased)} slots in all"
    return SpeedBound(
        "slots", f"slots ({len(leased)}{of} {'key' if len(leased) == 1 and not of else 'keys'}{each}{total})"
    )


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"


class SpeedMeter:
    """Measures the rate of finished items and what bounds it over the last seconds. Call ``observe`` often."""

    def __init__(self) -> None:
        self._finished: deque[tuple[float, int]] = deque()  # instants, and how many items had finished by then
        self._bounds: deque[tuple[float, SpeedBound | None]] = deque()
        self._runs_none = False

    def observe(self, stats: ProgressStats, keys: Sequence[CredentialState], workers: WorkerCounts, now: float) -> None:
        """Note the state of the run at *now*, in seconds."""
        ran = stats.completed - stats.cached
        self._runs_none = workers.running == 0
        if self._finished and now < self._finished[-1][0]:  # the clock was set back
            self._finished.clear()
            self._bounds.clear()
        if not self._finished or (ran > self._finished[-1][1] and now >= self._finished[-1][0] + _FEWEST_SECONDS):
            self._finished.append((now, ran))
        while (
            len(self._finished) > 2
            and self._finished[1][0] <= now - _RATE_OVER
            and ran - self._finished[1][1] >= _RATE_ITEMS
        ):
            self._finished.popleft()
        self._bounds.append((now, find_bound(stats, keys, workers, now)))
        while self._bounds[0][0] < now - _BOUND_OVER:
            self._bounds.popleft()

    def describe(self, stats: ProgressStats, now: float) -> list[str]:
        """Return the rate and what bounds it, as far as they are known: ``["12 items/s", "bound by: -j 8"]``."""
        bound = self._find_usual_bound()
        since, before = self._finished[0] if self._finished else (now, 0)
        ran = stats.completed - stats.cached - before
        parts = [format_rate(ran, now - since)] if ran > 0 and now - since >= _FEWEST_SECONDS else []
        if bound is not None and bound.kind == "resting" and self._runs_none:
            parts = ["standing still"]
        return parts if bound is None else [*parts, f"bound by: {bound.text}"]

    def _find_usual_bound(self) -> SpeedBound | None:
        latest = self._bounds[-1][1] if self._bounds else None
        if latest is not None and latest.certain:
            return latest
        kinds = Counter(bound.kind for _, bound in self._bounds if bound is not None)
        if not kinds or kinds.total() * 2 < len(self._bounds):  # mostly unknown
            return None
        usual = kinds.most_common(1)[0][0]
        return next(bound for _, bound in reversed(self._bounds) if bound is not None and bound.kind == usual)
