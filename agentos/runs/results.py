"""The results of a run: one per finished item, and the counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ..costs.usage import NO_USAGE, Usage
from ..errors import AgentOSError, error_fields
from .core.records import ItemText
from .core.states import Cause

__all__ = ["Cause", "ProgressStats", "RunStopped", "WorkflowResult"]


@dataclass(slots=True)
class WorkflowResult:
    """The outcome of one item.

    ``index`` is its position in the input, from 0. ``outcome`` is ``"done"`` or ``"failed"``. ``cached`` results come
    from the journal of an earlier run. The journal cannot restore a value that is not JSON: then ``value`` is None and
    ``value_repr`` describes it. ``item`` is the item itself; ``usage`` has the tokens that it used, if any were
    reported; ``redacted`` is set if a secret was removed from the value; ``value_type`` names the class of a value that
    was converted to JSON. With a journal ``value`` is the recorded JSON in the first run too. A cached result has the
    time of its end in ``metadata["finished_at"]``, in epoch seconds.
    """

    item_id: str
    success: bool
    error: str | None = None
    duration: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    attempts: int = 1
    credential: str | None = None
    outcome: str = "done"
    cached: bool = False
    value_repr: str | None = None
    index: int = -1
    item: Any = None
    usage: Usage | None = None
    redacted: bool = False
    value_type: str | None = None
    item_text: ItemText | None = field(default=None, repr=False, compare=False)  # as recorded in the journal


@dataclass
class ProgressStats:
    """The counts of a run, while it runs and after its end.

    ``total`` is None while the length of the input is unknown. ``completed`` counts items that are done or failed.
    ``interrupted`` items had started and will run again; ``parked`` ones wait for a limit to end. ``stopped_by`` is why
    the run ended before its input did, ``cause`` the same as one word for programs; ``wakes_at`` is when a run that
    ended because all credentials are cooling down can continue, in epoch seconds. Attempts without a result are counted
    by what stopped them: ``limited`` by a rate limit, ``rejected`` by a refused key (401, 402, 403), ``unreachable`` by
    the lack of an answer; ``retried`` counts attempts that were followed by another, whatever stopped them but a limit.
    ``unreachable_since`` is set while no answer comes at all, with the error in ``unreachable_why``. ``redacted``
    counts values from which a secret was removed, ``not_json`` those of which the journal has only the ``repr``;
    ``usage`` has the tokens that this run used, without those of cached results.
    """

    total: int | None
    completed: int = 0
    failed: int = 0
    success_count: int = 0
    start_time: float = field(default_factory=time.time)
    interrupted: int = 0
    parked: int = 0
    retried: int = 0
    cached: int = 0
    limited: int = 0
    stopped_by: str | None = None
    cause: Cause | None = None
    wakes_at: float | None = None
    end_time: float | None = None
    redacted: int = 0
    not_json: int = 0
    usage: Usage = NO_USAGE
    rejected: int = 0
    unreachable: int = 0
    unreachable_since: float | None = None
    unreachable_why: str = ""

    def raise_if_stopped(self) -> None:
        """Raise ``RunStopped`` if the run ended before its input did: by a signal, a halt, a deadline, lost keys."""
        if self.stopped_by is not None:
            raise RunStopped(stopped_by=self.stopped_by, stats=self)

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run; its duration once it has ended."""
        return (time.time() if self.end_time is None else self.end_time) - self.start_time

    @property
    def completion_rate(self) -> float:
        """The completed part of the input in percent; 0 while its length is unknown."""
        return self.completed / self.total * 100 if self.total else 0.0

    @property
    def unfinished(self) -> int | None:
        """The number of items that are neither done nor failed; None while the length of the input is unknown."""
        return None if self.total is None else self.total - self.completed


@error_fields()
class RunStopped(AgentOSError):
    """A run ended before its input did: ``stopped_by`` says why, ``stats`` has the counts."""

    stopped_by: str
    stats: ProgressStats

    def describe(self) -> str:
        stats, of = self.stats, "" if self.stats.total is None else f" of {self.stats.total}"
        return (
            f"the run was stopped by {self.stopped_by}: {stats.success_count}{of} items are done, {stats.failed} failed"
        )
