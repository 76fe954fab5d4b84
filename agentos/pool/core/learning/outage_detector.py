"""Trouble that is no credential's fault: the network, or a provider that is overloaded or broken.

One failed call says nothing. Where most calls to a provider fail, or several unrelated quotas fail in the same way at
once and nothing succeeds, everything concerned rests for a while, and then goes on carefully.
"""

from __future__ import annotations

from collections import deque

_SHORTEST, _LONGEST = 1.0, 60.0
_AT_ONCE = 10.0  # seconds within which failures belong together
_UNRELATED = 3  # quotas that fail in the same way
_LOOKED_AT = 10  # the last answers of a provider
_MOST = 0.5  # of them busy: it is
_NETWORK = ""  # in the place of a provider


class OutageDetector:
    """What the last calls met with, whatever their credentials."""

    __slots__ = ("_answers", "_pauses", "_resting", "_trouble")

    def __init__(self) -> None:
        self._answers: dict[str, deque[bool]] = {}  # by provider: whether it was able to answer
        self._trouble: dict[str, deque[tuple[float, str]]] = {}  # by kind: when, and whose quota
        self._pauses: dict[str, float] = {}  # the last pause of each provider
        self._resting: dict[str, float] = {}  # until when that is

    @property
    def has_no_failures(self) -> bool:
        """Nothing has failed of late: that a call went well is no news."""
        return not (self._answers or self._trouble or self._pauses)

    def on_answer(self, provider: str | None) -> None:
        """A provider (None: one of them) answered: whatever it said, it is there, and so is the network."""
        self._trouble.clear()
        self._pauses.pop(_NETWORK, None)
        for name in list(self._answers) if provider is None else [provider]:
            answers = self._answers.get(name)
            self._pauses.pop(name, None)
            if answers is not None:
                answers.append(True)
                if all(answers):
                    del self._answers[name]

    def on_busy(self, provider: str, told: float | None, now: float) -> float | None:
        """A provider could not answer. How long to leave it alone; None: this one call says nothing new."""
        answers = self._answers.setdefault(provider, deque(maxlen=_LOOKED_AT))
        answers.append(False)
        failed = answers.count(False)
        if failed < _UNRELATED or failed <= _MOST * len(answers):
            return None
        return self._pause(provider, told, now)

    def is_paused(self, provider: str | None, now: float) -> bool:
        """Whether a provider (None: everything) is being left alone."""
        return now < self._resting.get(_NETWORK if provider is None else provider, now)

    def on_unreachable(self, quota: str, quotas: int, now: float) -> float | None:
        """There was no answer at all. How long everything should rest; None: this one call says nothing new."""
        return self._pause(_NETWORK, None, now) if self.has_similar_failures("network", quota, quotas, now) else None

    def has_similar_failures(self, kind: str, quota: str, quotas: int, now: float) -> bool:
        """A call failed in a way that may have nothing to do with its credential: whether others did so just now."""
        seen = self._trouble.setdefault(kind, deque(maxlen=64))
        seen.append((now, quota))
        while seen and seen[0][0] < now - _AT_ONCE:
            seen.popleft()
        return len(seen) >= _UNRELATED and len({whose for _, whose in seen}) >= min(_UNRELATED, quotas)

    def _pause(self, provider: str, told: float | None, now: float) -> float | None:
        if now < self._resting.get(provider, now):
            return None  # one of those that were under way
        last = self._pauses.get(provider)
        pause = self._pauses[provider] = _SHORTEST if last is None else min(_LONGEST, last * 2)
        if told is not None:
            pause = max(pause, min(told, _LONGEST))
        self._resting[provider] = now + pause
        return pause
