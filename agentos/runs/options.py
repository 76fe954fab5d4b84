"""RunOptions: the checked options of a run, from the arguments of ``ParallelCoordinator``."""

from __future__ import annotations

import datetime
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..providers.key_owner import ANY_PROVIDER, PROVIDERS
from ..util.durations import LONGEST_DURATION, parse_duration
from .core.halt import Halt, parse_halt
from .engines.engine_option import check_engine
from .execution.error_policy import RetryRule, is_transient
from .progress import Progress

__all__ = [
    "CostFunction",
    "Deadline",
    "Duration",
    "NameFunction",
    "RunOptions",
    "call_for_text",
    "parse_halt",
    "read_duration",
]

Duration = float | str  # seconds, or text such as "90s", "5m" or "1h30m"
Deadline = float | datetime.datetime | None
CostFunction = Callable[[Any], Mapping[str, float] | None] | None
NameFunction = Callable[[Any], str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run. An invalid one raises a ValueError that names it."""

    max_workers: int
    lease: str = "item"
    provider: str | None = None
    journal: str | os.PathLike[str] | None = None
    retries: int = 2
    retry_if: RetryRule = is_transient
    timeout: float | None = None
    grace: float = 8.0
    term_window: float = 0.0
    halt: str | None = None
    deadline: Deadline = None
    max_wait: float | None = None
    worker_version: str | None = None
    retry_failed: bool = False
    reopen: Collection[str] = ()
    reopen_changed: bool = False
    results_file: bool = True
    accept_loss: bool = False
    accept_worker: bool = False
    start: str = "queued"
    cost_func: CostFunction = None
    model_func: NameFunction = None
    affinity_func: NameFunction = None
    on_progress: Callable[[Progress], object] | None = None
    engine: Any = None
    ship_secrets: bool = False
    halt_clause: Halt | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "halt_clause", parse_halt(self.halt))
        _check_one_of("lease", self.lease, ("item", "call"))
        _check_one_of("start", self.start, ("queued", "strict"))
        if self.provider not in (None, *PROVIDERS, ANY_PROVIDER):
            raise ValueError(
                f"provider must be one of {', '.join(PROVIDERS)}, or {ANY_PROVIDER!r}, not {self.provider!r}"
            )
        if self.journal is not None and (
            not isinstance(self.journal, (str, os.PathLike)) or not os.fspath(self.journal)
        ):
            raise ValueError("journal must be the path of a run folder or file, or left out")
        if isinstance(self.reopen, str) or not all(isinstance(item_id, str) for item_id in self.reopen):
            raise ValueError("reopen must be a list of item ids, or left out")
        if (self.reopen or self.reopen_changed) and self.journal is None:
            raise ValueError("reopen and reopen_changed need a journal, which has the results of before")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError("retries must be a whole number of at least 0")
        if self.timeout is not None:
            _check_seconds("timeout", self.timeout, "above 0")
        if self.max_wait is not None:
            _check_seconds("max_wait", self.max_wait, "of at least 0")
        _check_seconds("grace", self.grace, "of at least 0")
        _check_seconds("term_window", self.term_window, "of at least 0")
        if self.deadline is not None and not isinstance(self.deadline, datetime.datetime):
            _check_seconds("deadline", self.deadline, "of at least 0", " from the start, or a datetime")
        for name in ("retry_if", "cost_func", "model_func", "affinity_func", "on_progress"):
            function = getattr(self, name)
            if not (callable(function) or (function is None and name != "retry_if")):
                raise ValueError(f"{name} must be a function, or left out")
        if inspect.iscoroutinefunction(self.on_progress):
            raise ValueError("on_progress must be a plain function: it is called on a thread, where nothing awaits it")
        check_engine(self.engine)
        if not isinstance(self.ship_secrets, bool):
            raise ValueError("ship_secrets must be True or False")
        if self.worker_version is not None and not (isinstance(self.worker_version, str) and self.worker_version):
            raise ValueError("worker_version must be text, or left out")

    def deadline_at(self, now: float, wall: float) -> float:
        """Return the instant, on the run's clock, after which nothing starts."""
        if self.deadline is None:
            return math.inf
        if isinstance(self.deadline, datetime.datetime):
            return now + self.deadline.timestamp() - wall  # a naive datetime is local time
        return now + self.deadline


def read_duration(name: str, given: Any) -> Any:
    """Return the seconds of a duration that is text such as ``"5m"``; anything else as it is, to be checked.

    Raise ValueError, which names the argument, for any other text.
    """
    if not isinstance(given, str):
        return given
    found = parse_duration(given)
    if found is None or found > LONGEST_DURATION:
        raise ValueError(f"{name} must be a number of seconds, or a time such as '90s', '5m' or '1h30m', not {given!r}")
    return found


def _check_seconds(name: str, value: object, least: str, or_what: str = "") -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (least == "above 0" and value == 0):  # type: ignore[operator]
        raise ValueError(f"{name} must be a number of seconds {least}{or_what}")


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


def call_for_text(name: str, function: Any, payload: Any) -> str | None:
    """Return the text that *function* gives for an item, or None. Raise ValueError for anything else."""
    if function is None:
        return None
    found = function(payload)
    if found is not None and not (isinstance(found, str) and found):
        raise ValueError(f"{name} must give text or None, not {found!r}")
    return found
