"""Estimate when a run will end: from the pool's forecast if there is one, else from the rate so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from ..results import ProgressStats
from .phrases import describe_no_usable_key, find_next_available

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

Forecasting = Callable[[int], float | None]  # seconds for so many more items; None: unknown

_FEWEST_ITEMS = 3
_SHORTEST = 3.0
_SETTLES_IN = 5.0  # seconds in which two thirds of a changed estimate are shown
_REFRESH_INTERVAL = 1.0
_SHARE_OF_TIME = 0.01  # share of time that forecasts may take
_REMEMBERED = 50
_NOISE, _NOISE_SHARE = 1.0, 0.02  # rises of a forecast up to these are noise
_ONE_EVENT = 10.0  # seconds: keys that begin to cool down one after the other count as one event
_MAX_EVENTS = 3
_LONG_COOLDOWN = 0.5  # a rise by this share is a long cooldown and always an event
_LAG_FORGOTTEN_IN = 300.0
_SHORTEST_LAG = 3.0
_SLOWEST = 0.1


class Eta:
    """Estimated seconds left, smoothed: a new estimate is blended in over some seconds; in between, time counts down.

    There is no estimate before three items have ended and three seconds have passed.
    """

    def __init__(self, forecast: Forecasting | None = None, *, timer: Callable[[], float] = time.perf_counter) -> None:
        self._forecast = forecast
        self._timer = timer
        self._lag = _Lag()
        self._ends_at: float | None = None
        self._refreshed_at = -math.inf
        self._refresh_at = -math.inf

    def seconds_left(self, stats: ProgressStats, now: float, keys: Sequence[CredentialState] = ()) -> float | None:
        """Return the seconds left at *now* (epoch seconds), or None if unknown.

        While all *keys* are cooling down it is at least the time until the first is available.
        """
        if stats.unfinished is None or stats.completed - stats.cached < _FEWEST_ITEMS or stats.elapsed < _SHORTEST:
            return None
        if describe_no_usable_key(keys) or stats.unreachable_since is not None:
            return None
        wait = max(0.0, (find_next_available(keys, now) or now) - now)
        if now >= self._refresh_at or now < self._refreshed_at:
            self._refresh(stats, now, wait)
        return None if self._ends_at is None else max(wait, self._ends_at - now)

    def _refresh(self, stats: ProgressStats, now: float, wait: float) -> None:
        began = self._timer()
        left = self._estimate(stats, now, wait)
        # The forecast of a pool with many closed quotas is slow: then refresh less often.
        self._refresh_at = now + max(_REFRESH_INTERVAL, (self._timer() - began) / _SHARE_OF_TIME)
        passed = now - self._refreshed_at
        self._refreshed_at = now
        if not math.isfinite(left):
            self._ends_at = None
        elif self._ends_at is None or passed < 0:
            self._ends_at = now + left
        else:
            self._ends_at += (now + left - self._ends_at) * (1 - math.exp(-passed / _SETTLES_IN))

    def _estimate(self, stats: ProgressStats, now: float, wait: float) -> float:
        count = stats.unfinished or 0
        forecast = None
        if self._forecast is not None:
            try:
                forecast = self._forecast(count)
            except Exception:  # noqa: BLE001 - it is given to us, and the display must go on
                self._forecast = None
        if forecast is not None and not math.isnan(forecast):
            return self._lag.correct(forecast, now)
        return wait + stats.elapsed / (stats.completed - stats.cached) * count  # cached items took no time


class _Lag:
    """Ratio by which progress is slower than the forecast. A correct forecast falls by a second each second.

    A forecast includes stated and learned limits and the keys that are cooling down, but not limits that are still
    unknown. When a key begins to cool down the forecast rises; such a rise is an event and says nothing about its
    accuracy. If it happens repeatedly, it is treated as normal and counts as lag.
    """

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._passed = self._fell = 0.0
        self._events = 0
        self._event_at = -math.inf

    def correct(self, forecast: float, now: float) -> float:
        """Return *forecast*, stretched by the factor by which earlier ones were too short."""
        if self._before is not None and math.isfinite(forecast) and math.isfinite(self._before[1]):
            passed, fell = now - self._before[0], self._before[1] - forecast
            if passed > 0 and not self._is_event(-fell, forecast, now):
                keep = math.exp(-passed / _LAG_FORGOTTEN_IN)
                self._passed = self._passed * keep + passed
                self._fell = self._fell * keep + fell
        self._before = (now, forecast)
        if self._passed < _SHORTEST_LAG:
            return forecast
        return forecast / min(1.0, max(self._fell / self._passed, _SLOWEST))

    def _is_event(self, rise: float, forecast: float, now: float) -> bool:
        if rise <= max(_NOISE, forecast * _NOISE_SHARE):
            return False
        if now > self._event_at + _ONE_EVENT:
            self._events += 1
            self._event_at = now
        return self._events <= _MAX_EVENTS or rise > forecast * _LONG_COOLDOWN


class PoolForecast:
    """A forecast for ``Eta`` from a pool, which knows when its keys are available and what its limits allow.

    It assumes that items take as long as the last ones did: pass every event to ``note``. Until one has ended it
    returns None.
    """

    def __init__(self, pool: Any, parallel: int) -> None:
        self._pool = pool
        self._parallel = parallel
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, event: Progress) -> None:
        """Record the duration of a finished item."""
        result = event.result
        if event.kind == "item_finished" and result is not None and not result.cached and result.duration >= 0:
            self._durations.append(result.duration)

    def __call__(self, count: int) -> float | None:
        durations = tuple(self._durations)
        if not durations:
            return None
        mean = sum(durations) / len(durations)
        return float(self._pool.forecast(count, duration=mean, parallel=self._parallel).seconds)
