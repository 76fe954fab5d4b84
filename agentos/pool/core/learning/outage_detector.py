"""Detect outages: failures of the network or of a provider, for which no credential is responsible.

One failed call proves nothing. If most calls to a provider fail, or several unrelated quotas fail in the same way at
once without a success, everything concerned is paused, and then resumed carefully.
"""

from __future__ import annotations

from collections import deque

_SHORTEST, _LONGEST = 1.0, 60.0
_AT_ONCE = 10.0  # seconds within which failures count together
_UNRELATED = 3  # quotas that fail in the same way
_ANSWERS_KEPT = 10  # number of last answers of a provider that count
_MOST = 0.5  # share of busy answers from which a provider is busy
_NETWORK = ""  # stands for all providers


class OutageDetector:
    """Recent outcomes of calls, over all credentials."""

    __slots__ = ("_answers", "_failures", "_paused_until", "_pauses")

    def __init__(self) -> None:
        self._answers: dict[str, deque[bool]] = {}  # by provider: True if it could answer
        self._failures: dict[str, deque[tuple[float, str]]] = {}  # by kind: (when, quota)
        self._pauses: dict[str, float] = {}  # the length of each provider's last pause
        self._paused_until: dict[str, float] = {}  # by provider, when its pause ends

    @property
    def has_no_failures(self) -> bool:
        """Return True if there are no recent failures, so that a success changes nothing."""
        return not (self._answers or self._failures or self._pauses)

    def on_answer(self, provider: str | None) -> None:
        """Note that a provider (None: any) answered: it is reachable, and so is the network."""
        self._failures.clear()
        self._pauses.pop(_NETWORK, None)
        for name in list(self._answers) if provider is None else [provider]:
            answers = self._answers.get(name)
            self._pauses.pop(name, None)
            if answers is not None:
                answers.append(True)
                if all(answers):
                    del self._answers[name]

    def on_busy(self, provider: str, delay: float | None, now: float) -> float | None:
        """Note that a provider could not answer. Return how long to pause it; None: this call proves nothing new."""
        answers = self._answers.setdefault(provider, deque(maxlen=_ANSWERS_KEPT))
        answers.append(False)
        failed = answers.count(False)
        if failed < _UNRELATED or failed <= _MOST * len(answers):
            return None
        return self._pause(provider, delay, now)

    def is_paused(self, provider: str | None, now: float) -> bool:
        """Return True if a provider (None: everything) is paused."""
        return now < self._paused_until.get(_NETWORK if provider is None else provider, now)

    def on_unreachable(self, quota: str, quotas: int, now: float) -> float | None:
        """Note a call without an answer. Return how long to pause everything; None: it proves nothing new."""
        return self._pause(_NETWORK, None, now) if self.has_similar_failures("network", quota, quotas, now) else None

    def has_similar_failures(self, kind: str, quota: str, quotas: int, now: float) -> bool:
        """Note a failure; return True if enough other quotas failed in the same way just now."""
        seen = self._failures.setdefault(kind, deque(maxlen=64))
        seen.append((now, quota))
        while seen and seen[0][0] < now - _AT_ONCE:
            seen.popleft()
        return len(seen) >= _UNRELATED and len({whose for _, whose in seen}) >= min(_UNRELATED, quotas)

    def _pause(self, provider: str, delay: float | None, now: float) -> float | None:
        if now < self._paused_until.get(provider, now):
            return None  # one of the calls in flight
        last = self._pauses.get(provider)
        pause = self._pauses[provider] = _SHORTEST if last is None else min(_LONGEST, last * 2)
        if delay is not None:
            pause = max(pause, min(delay, _LONGEST))
        self._paused_until[provider] = now + pause
        return pause
