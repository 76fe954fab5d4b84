"""Classify a provider's answer for the item; the same rules serve real runs and virtual time."""

from __future__ import annotations

from ...providers.signal import GRAVE_EVENTS, Event, Signal
from .states import AttemptEnd, Trouble

TOO_MANY = frozenset({Event.LIMITED, Event.PARKED, Event.RAMP})
# A retry may help, with another key: these do not yet prove that the key is at fault.
_TRANSIENT = GRAVE_EVENTS | {Event.BUSY, Event.NETWORK}


def classify_signal(event: Event, *, acted: bool) -> AttemptEnd | None:
    """Return how the attempt ended; None if waiting and retrying do not help. *acted*: the pool has reacted."""
    if acted or event in TOO_MANY:
        return AttemptEnd.LIMIT
    return AttemptEnd.TRANSIENT if event in _TRANSIENT else None


def classify_trouble(event: Event) -> Trouble | None:
    """Return why the attempt got no result; None if the provider is overloaded or the request is at fault."""
    if event in TOO_MANY:
        return Trouble.LIMITED
    if event in GRAVE_EVENTS:
        return Trouble.REJECTED
    return Trouble.UNREACHABLE if event is Event.NETWORK else None


def lacks_tokens(signal: Signal | None) -> bool:
    """True if the limit may have been one of tokens; then the next request should reserve more of them."""
    if signal is None:
        return True  # the holder reported only that it was limited
    if signal.event is not Event.LIMITED:
        return False
    return not signal.dimensions or any(dimension != "requests" for dimension in signal.dimensions)
