"""The wire's verdict on an item: whether the last generation call of its main model was refused, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireVerdict:
    """The last generation call of an item's main model was refused, and none succeeded after it.

    ``why`` is one word: limited, parked, spent, dead, busy, network, context or request. ``until`` is the instant, in
    epoch seconds, at which a key opens again, if that is known.
    """

    why: str
    status: int
    model: str | None
    until: float | None = None


class WireLog:
    """Collects the ends of an item's generation calls, in order. The main model is the one that was sent the most."""

    __slots__ = ("_ends", "_sent", "calls", "waited")

    def __init__(self) -> None:
        self._sent: dict[str | None, int] = {}
        self._ends: dict[str | None, WireVerdict | None] = {}
        self.calls = 0
        self.waited = 0.0  # seconds for keys, all calls together

    def add_call(self, model: str | None, size: int, verdict: WireVerdict | None) -> None:
        """Add the end of a call with *size* bytes of prompt; *verdict* is None if it succeeded."""
        self.calls += 1
        self._sent[model] = self._sent.get(model, 0) + size
        self._ends[model] = verdict

    def verdict(self) -> WireVerdict | None:
        """Return why the main model's last call was refused; None if it succeeded, or there was none."""
        if not self._sent:
            return None
        main = max(self._sent, key=lambda model: self._sent[model])
        return self._ends[main]
