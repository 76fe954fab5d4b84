"""Watch the keys during a run: their states, changes, and the time lost waiting for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...pool.snapshot import UNAVAILABLE, CredentialStatus
from ...runs.report.key_time import KeyClock, KeyTime, is_resting

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState
    from ...util.clock import Clock

log = logging.getLogger("agentos")

_REFRESH_INTERVAL = 1.0
_TICK_INTERVAL = 30.0
_CLOSE_TIMEOUT = 2.0
_MOVED = 5.0  # seconds by which the end of a cooldown must move to be reported

NO_KEY = ""  # for time lost while no key was cooling down: all were in use


class Snapshots(Protocol):
    """The method of a pool that is used here."""

    def snapshot(self) -> Sequence[CredentialState]: ...


class KeyMonitor:
    """A daemon thread that reads a snapshot of *pool* once a second and after ``wake``, from ``start`` to ``close``.

    *idle* returns how many workers wait for a key. *on_change* is called with ``(name, state, until, why)`` when a key
    starts to cool down, becomes available, dies, or cools down longer than before; ``until`` is None or epoch seconds.
    *unreachable* returns since when the network does not answer, and why; None while it does.
    Keys in use, or limited for a few seconds, count as ``"available"``. *on_tick* is called every half minute. An
    error of any of these is logged once, and the monitor continues.
    """

    def __init__(
        self,
        pool: Snapshots,
        *,
        idle: Callable[[], int] = int,
        unreachable: Callable[[], tuple[float | None, str]] = lambda: (None, ""),
        on_change: Callable[[str, str, float | None, str], object] | None = None,
        on_tick: Callable[[], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if clock is None:
            from ...util.clock import SystemClock

            clock = SystemClock()
        self._pool = pool
        self._idle = idle
        self._unreachable = unreachable
        self._key_clock = KeyClock()
        self._refreshed_wall = clock.wall()
        self._on_change = on_change
        self._on_tick = on_tick
        self._clock = clock
        self._refresh_lock = threading.Lock()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._rows: tuple[CredentialState, ...] = ()
        self._last_states: dict[str, tuple[str, float | None]] = {}
        self._refreshed_at: float | None = None
        self._ticked_at = clock.now()
        self._waiting = 0
        self._lost: dict[str, float] = {}
        self._has_warned: set[str] = set()

    def rows(self) -> Sequence[CredentialState]:
        """Return the keys as of the last refresh."""
        return self._rows

    def totals(self) -> tuple[float, dict[str, float]]:
        """Return the worker-seconds lost waiting, in total and by key.

        The time of waiting workers is divided evenly among the keys that are cooling, parked or limited. If there is
        none, all keys were in use, and the time counts under ``""``.
        """
        lost = dict(self._lost)
        return sum(lost.values()), lost

    def key_time(self) -> KeyTime:
        """Return how the run spent its time so far, by the wall clock."""
        since, why = self._call("the state of the network", self._unreachable, (None, ""))
        return self._key_clock.read(since, why)

    def start(self) -> None:
        """Refresh now, and start the thread."""
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="agentos-keys", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread refresh now."""
        try:
            self._wakeup.release()
        except RuntimeError:
            pass  # already signalled

    def close(self) -> None:
        """End the thread, and refresh a last time."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        self.refresh()

    def refresh(self) -> None:
        """Read a snapshot, count the time lost since the last one, and report changes."""
        with self._refresh_lock:
            now, wall = self._clock.now(), self._clock.wall()
            offline = self._call("the state of the network", self._unreachable, (None, ""))[0] is not None
            passed = 0.0 if self._refreshed_at is None else now - self._refreshed_at
            self._key_clock.add(self._rows, passed, self._refreshed_wall, offline=offline)
            self._refreshed_wall = wall
            self._count(now)
            self._waiting = max(0, self._call("the count of waiting workers", self._idle, self._waiting))
            self._rows = tuple(self._call("the snapshot of the keys", self._pool.snapshot, self._rows))
            self._key_clock.observe(self._rows, now, wall)
            changes = self._changes(wall)
            ticks = now - self._ticked_at >= _TICK_INTERVAL
            if ticks:
                self._ticked_at = now
        if self._on_change is not None:
            for change in changes:
                self._call("the callback for key changes", partial(self._on_change, *change), None)
        if ticks and self._on_tick is not None:
            self._call("the periodic callback", self._on_tick, None)

    def _run(self) -> None:
        while not self._closed:
            self._clock.wait(self._wakeup, self._clock.now() + _REFRESH_INTERVAL)
            if not self._closed:
                self.refresh()

    def _count(self, now: float) -> None:
        """Attribute the time since the last refresh to the states of that refresh."""
        since = now if self._refreshed_at is None else self._refreshed_at
        self._refreshed_at = now
        lost = self._waiting * (now - since)
        if lost <= 0:
            return
        names = [row.name for row in self._rows if row.state in UNAVAILABLE] or [NO_KEY]
        shares = dict(self._lost)  # a copy: another thread may be reading the old one
        for name in names:
            shares[name] = shares.get(name, 0.0) + lost / len(names)
        self._lost = shares

    def _changes(self, wall: float) -> list[tuple[str, str, float | None, str]]:
        changes = []
        for row in self._rows:
            until = row.rate_limited_until if row.rate_limited_until > wall else None
            short = row.state == CredentialStatus.LIMITED and not is_resting(row, wall)
            state = CredentialStatus.AVAILABLE if row.state == CredentialStatus.LEASED or short else row.state
            until = until if state in UNAVAILABLE else None
            before, until_before = self._last_states.get(row.name, (CredentialStatus.AVAILABLE, None))
            longer = until is not None and until_before is not None and until > until_before + _MOVED
            if state != before or longer:
                self._last_states[row.name] = (state, until)
                changes.append((row.name, state, until, "" if state == CredentialStatus.AVAILABLE else row.why))
        return changes

    def _call(self, what: str, read: Callable[[], Any], default: Any) -> Any:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - the monitor must continue
            if what not in self._has_warned:
                self._has_warned.add(what)
                log.warning("%s failed (logged once): %s: %s", what, type(error).__name__, error)
            return default
