"""What an answer means for the item whose attempt met with it: one rule, for runs in earnest and in virtual time."""

from __future__ import annotations

from ...providers.signal import GRAVE_EVENTS, Event, Signal
from .states import AttemptEnd

TOO_MANY = frozenset({Event.LIMITED, Event.PARKED, Event.RAMP})
# Another try may help: with another key, if nobody can be sure yet that this one is to blame.
_TRANSIENT = GRAVE_EVENTS | {Event.BUSY, Event.NETWORK}


def classify_signal(event: Event, *, acted: bool) -> AttemptEnd | None:
    """How the attempt ended; None: nothing that waiting or another try would cure. *acted*: the pool sees to it."""
    if acted or event in TOO_MANY:
        return AttemptEnd.LIMIT
    return AttemptEnd.TRANSIENT if event in _TRANSIENT else None


def lacks_tokens(signal: Signal | None) -> bool:
    """Whether a limit may have been of tokens: then more of them should be reserved the next time."""
    if signal is None:
        return True  # its holder said no more than that it was a limit
    if signal.event is not Event.LIMITED:
        return False
    return not signal.dimensions or any(dimension != "requests" for dimension in signal.dimensions)
