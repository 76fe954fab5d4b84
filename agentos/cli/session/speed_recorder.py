"""Record what bounds the speed of a run, once a second, as ``bound`` events: for "why was it not faster?"."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...pool.snapshot import OUT_OF_USE, UNAVAILABLE
from ...runs.display.phrases import is_at_limit
from ...runs.display.speed import WorkerCounts, find_bound

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState
    from ...runs.results import ProgressStats
    from ...util.clock import Clock
    from ...workflows.parallel import ParallelCoordinator
    from .request import RunRequest

log = logging.getLogger("agentos")

_INTERVAL: Final = 1.0
_CLOSE_TIMEOUT: Final = 2.0
# Seconds that one event covers, by the age of the run: a day of a run takes less than a megabyte.
_PERIODS: Final = ((120.0, 1.0), (3_600.0, 5.0), (float("inf"), 30.0))
_LONGEST: Final = 30.0  # seconds after which an event is written even if nothing has changed, in a run of minutes
_SHORTEST: Final = 3.0  # and in a young one: it is watched, and a crash loses less

_WORD_OF: Final = {
    "resting": "quota",
    "cooldowns": "quota",
    "limits": "quota",
    "keys": "slots",
    "slots": "slots",
    "workers": "workers",
    "input": "input",
    "end": "end",
}


@dataclass(frozen=True, slots=True)
class SpeedFacts:
    """The state of a run at one instant, as far as it decides what bounds the speed."""

    stats: ProgressStats
    keys: Sequence[CredentialState]
    workers: WorkerCounts
    held: bool = False  # nothing starts, because the journal cannot be written
    offline: bool = False  # the network does not answer
    on_cluster: bool = False


def collect_facts(
    coordinator: ParallelCoordinator | None, request: RunRequest, keys: Sequence[CredentialState], *, held: bool
) -> SpeedFacts | None:
    """Return the state of a run now; None before it begins."""
    if coordinator is None or coordinator.stats is None:
        return None
    workers = WorkerCounts(request.parallel, len(coordinator.get_running()), coordinator.get_waiting())
    offline = coordinator.stats.unreachable_since is not None
    on_cluster = request.engine is not None
    return SpeedFacts(coordinator.stats, keys, workers, held=held, offline=offline, on_cluster=on_cluster)


def classify(facts: SpeedFacts, wall: float) -> tuple[str, list[str]]:
    """Return what bounds the run, one of BOUNDS, and for "quota" the keys that are limited or cooling down."""
    if facts.held:
        return "disk", []
    if facts.offline:
        return "network", []
    bound = find_bound(facts.stats, facts.keys, facts.workers, wall)
    if bound is None:
        is_short = facts.workers.most is not None and facts.workers.running < facts.workers.most
        return ("cluster" if facts.on_cluster and is_short else "unknown"), []
    word = _WORD_OF.get(bound.kind, "unknown")
    if word != "quota":
        return word, []
    usable = [key for key in facts.keys if key.state not in OUT_OF_USE]
    return word, [key.name for key in usable if key.state in UNAVAILABLE or is_at_limit(key, wall)]


@dataclass(slots=True)
class _Period:
    since: float
    by: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0
    seconds: float = 0.0


class SpeedRecorder:
    """A daemon thread that reads *facts* once a second, from ``start`` to ``close``, and writes periods with *write*.

    *facts* returns None while the run has not begun; *on_sample* gets what it returned, and the wall clock's time. An
    error of either is logged once, and that second is not recorded.
    """

    def __init__(
        self,
        facts: Callable[[], SpeedFacts | None],
        write: Callable[..., object],
        *,
        on_sample: Callable[[SpeedFacts, float], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if clock is None:
            from ...util.clock import SystemClock

            clock = SystemClock()
        self._facts = facts
        self._write = write
        self._on_sample = on_sample
        self._clock = clock
        self._lock = threading.Lock()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._closed = False
        self._has_warned = False
        self._began = self._sampled = clock.now()
        self._parallel = 0
        self._period = _Period(clock.wall())
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="agentos-speed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and write what is left."""
        if self._closed:
            return
        self._closed = True
        self._wakeup.release()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        self.sample()
        with self._lock:
            self._flush()

    def sample(self) -> None:
        """Attribute the time since the last sample to what bounds the run now; write the period if it is over."""
        with self._lock:
            try:
                self._sample()
            except Exception as error:  # noqa: BLE001 - the run must go on
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("what bounds the speed cannot be recorded: %s: %s", type(error).__name__, error)

    def _run(self) -> None:
        while not self._closed:
            self._clock.wait(self._wakeup, self._clock.now() + _INTERVAL)
            if not self._closed:
                self.sample()

    def _sample(self) -> None:
        now = self._clock.now()
        seconds, self._sampled = now - self._sampled, now
        facts = self._facts()
        if facts is None or seconds <= 0:
            return
        wall = self._clock.wall()
        if self._on_sample is not None:
            self._on_sample(facts, wall)
        word, names = classify(facts, wall)
        age = now - self._began
        length = next(period for until, period in _PERIODS if age <= until)
        before = self._period
        changed = before.by and (set(before.by) != {word} or set(before.keys) != set(names))
        if changed and before.seconds >= length:
            self._flush()
        self._add(word, names, seconds, facts.workers)
        if self._period.seconds >= min(_LONGEST, max(_SHORTEST, age / 4)):
            self._flush()

    def _add(self, word: str, names: Sequence[str], seconds: float, workers: WorkerCounts) -> None:
        period, self._parallel = self._period, workers.most or workers.running
        period.by[word] = period.by.get(word, 0.0) + seconds
        period.idle[word] = period.idle.get(word, 0.0) + seconds * max(0, self._parallel - workers.running)
        for name in names:
            period.keys[name] = period.keys.get(name, 0.0) + seconds / len(names)
        period.busy += seconds * workers.running
        period.seconds += seconds

    def _flush(self) -> None:
        period = self._period
        if period.seconds <= 0:
            self._period = _Period(self._clock.wall())
            return
        until = period.since + period.seconds
        self._period = _Period(until if abs(self._clock.wall() - until) < _LONGEST else self._clock.wall())
        facts: dict[str, Any] = {
            "since": round(period.since, 3),
            "until": round(until, 3),
            "parallel": self._parallel,
            "running": round(period.busy / period.seconds, 2),
            "by": _rounded(period.by),
            "idle": _rounded({name: each for name, each in period.idle.items() if each}),
        }
        if period.keys:
            facts["keys"] = _rounded(period.keys)
        self._write("bound", **facts)


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(each, 3) for name, each in seconds.items()}
