"""The meaning of an answer: the value into which every provider's dialect is translated.

There are ten kinds of event, by the action they require. The letters are those of the table in docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ..costs.usage import NO_USAGE, Usage

LARGEST = 1e15  # a larger limit is invalid
LONGEST_DELAY = 35 * 86_400.0  # no window of a provider is longer

# A longer quota wait is "parked", not "cooling": a person should know of it.
PARKED_FROM = 600.0


class Event(Enum):
    """An event, by the action it requires."""

    OK = "-"  # success
    LIMITED = "A"  # rate-limited: the quota (or one model family of it) cools down for seconds or minutes
    PARKED = "B"  # a window of hours or days is used up: the quota waits for its reset
    NOT_ENTITLED = "C"  # this credential may not use this model
    NEVER_FITS = "D"  # larger than the limit: waiting does not help
    MONEY_GONE = "E"  # no money left: the quota is unusable until a payment
    KEY_DEAD = "F"  # the credential is rejected until a person acts
    BUSY = "G"  # the provider is overloaded or broken: no key is to blame
    RAMP = "H"  # traffic grew too fast, though within the limits
    NETWORK = "I"  # no answer at all: no key is to blame
    CALLER = "J"  # the request itself is wrong


# Events that take a credential, its quota or a model out of use.
GRAVE_EVENTS = frozenset({Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED})
# Dialects that any server may speak, so that an answer may come from another server than the credential's provider.
GENERIC_PROVIDERS = frozenset({"default", "github"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The facts about one limit in an answer. None: not stated."""

    dimension: str  # requests, tokens, input_tokens or output_tokens
    limit: float | None = None
    remaining: float | None = None
    resets_in: float | None = None  # seconds from the answer until the limit is full again
    window: float | None = None  # seconds of the limit's window: 60, 3600, 86400, ...
    source: str = ""  # the header or field
    spent: float | None = None  # the used share, if only that is stated: 0.25 is a quarter
    assumed: bool = False  # the window is the usual one of the dialect: the answer does not say
    dated: bool = False  # the reset was given as an instant; else it may count from when the call arrived
    overdue: float = 0.0  # seconds since that instant, if the answer took longer

    def sane(self) -> Reading:
        """Return the reading without impossible numbers."""
        if (
            type(self.limit) is type(self.remaining) is float
            and 1.0 <= self.limit <= LARGEST
            and 0.0 <= self.remaining <= LARGEST
            and (self.resets_in is None or (type(self.resets_in) is float and 0.0 <= self.resets_in <= LONGEST_DELAY))
            and (self.window is None or (type(self.window) is float and 0.0 < self.window <= LONGEST_DELAY))
            and 0.0 <= self.overdue <= LONGEST_DELAY
        ):
            return self  # a fast path for nearly all readings
        limit, remaining = _in_range(self.limit, LARGEST, least=1.0), _in_range(self.remaining, LARGEST)
        resets_in, window = _in_range(self.resets_in, LONGEST_DELAY), _in_range(self.window, LONGEST_DELAY) or None
        overdue = _in_range(self.overdue, LONGEST_DELAY) or 0.0
        return replace(self, limit=limit, remaining=remaining, resets_in=resets_in, window=window, overdue=overdue)


def _in_range(value: object, largest: float, least: float = 0.0) -> float | None:
    return value if isinstance(value, (int, float)) and least <= value <= largest else None


_OPTIONAL_TEXT = (str, type(None))


@dataclass(frozen=True, slots=True)
class Signal:
    """The meaning of an answer, or of its absence, for the credential, its quota and the item."""

    event: Event
    delay: float | None = None  # seconds until a retry makes sense; None: not stated
    dimensions: tuple[str, ...] = ()  # the exceeded dimensions, as far as stated
    readings: tuple[Reading, ...] = ()
    evidence: tuple[str, ...] = ()  # the deciding headers, fields or rules, the most relevant first
    provider: str = "default"
    status: int | None = None
    model: str | None = None  # if the caller or the answer names it
    scoped: bool = False  # the limit applies to that model only
    organisation: str | None = None  # the account, if the answer names it
    usage: Mapping[str, float] = field(default_factory=dict)  # input_tokens, output_tokens, as the limits count them
    retried: int = 0  # the client's own retries, as far as it reports them
    gave_up: bool = False  # the caller's timeout expired: that does not indicate a network failure
    billed: Usage = NO_USAGE  # the same tokens as they are billed
    origin: str | None = None  # of a refusal, who answered: https://api.openai.com, http://127.0.0.1:8000

    def sane(self) -> Signal:
        """Return the signal without impossible values: negative, absurdly large, or not numbers."""
        if self._is_plain():
            return self
        readings = tuple(reading.sane() for reading in self.readings if isinstance(reading, Reading))
        usage = {name: used for name, used in self.usage.items() if _in_range(used, LARGEST) is not None}
        evidence = tuple(str(each) for each in self.evidence)
        delay = _in_range(self.delay, LONGEST_DELAY)
        words = (self.provider, *self.dimensions, self.model or "", self.organisation or "", self.origin or "")
        if (
            not isinstance(self.event, Event)
            or not isinstance(self.billed, Usage)
            or not all(isinstance(word, str) for word in words)
        ):
            raise TypeError("a signal's event must be an Event, its billed a Usage; its names must be text")
        found = (delay, readings, usage, evidence)
        if found == (self.delay, self.readings, self.usage, self.evidence):
            return self
        return replace(self, delay=delay, readings=readings, usage=usage, evidence=evidence)

    def _is_plain(self) -> bool:
        """Return whether this is a plain success with nothing to correct: a fast path."""
        if self.event is not Event.OK or self.delay is not None or self.dimensions:
            return False
        for reading in self.readings:
            if type(reading) is not Reading or reading.sane() is not reading:
                return False
        for entry in self.evidence:
            if type(entry) is not str:
                return False
        for used in self.usage.values():
            if type(used) is not float or not 0.0 <= used <= LARGEST:
                return False
        return (
            type(self.provider) is str
            and type(self.billed) is Usage
            and type(self.model) in _OPTIONAL_TEXT
            and type(self.organisation) in _OPTIONAL_TEXT
        )

    @property
    def why(self) -> str:
        """The evidence as one line."""
        return "; ".join(self.evidence)
