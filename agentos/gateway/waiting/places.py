"""Places in line: a client that leaves and comes again is served before those that came after it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MOST: Final = 100_000
_BEFORE_OTHERS: Final = 0.4  # as a priority: before new requests, after those that a key has refused already
_STEP: Final = 1e-11


class PlacesInLine:
    """Numbers the requests by arrival, and remembers the number of those that left while they waited."""

    def __init__(self) -> None:
        self._last = 0
        self._kept: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def enter(self, digest: str, now: float) -> tuple[int, float]:
        """Return the number of a request that arrives, and its priority: above 0 if it had a place."""
        kept = self._kept.pop(digest, None)
        if kept is not None and kept[1] > now:
            return kept[0], _BEFORE_OTHERS - kept[0] * _STEP
        self._last += 1
        return self._last, 0.0

    def keep(self, digest: str, number: int, until: float) -> None:
        """Keep the place of a request that leaves until an instant."""
        self._kept[digest] = (number, until)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
