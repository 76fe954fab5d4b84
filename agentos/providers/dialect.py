"""What differs from provider to provider, as one table of plain data each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .signal import Event


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words of a message that decide, where no code does. *name* is what the evidence shows, never the message."""

    name: str
    event: Event
    pattern: re.Pattern[str]  # searched in the message in lower case
    statuses: frozenset[int]  # with these only: the same words mean less elsewhere


def phrase(name: str, event: Event, pattern: str, *statuses: int) -> Phrase:
    """A :class:`Phrase`, its pattern compiled."""
    return Phrase(name, event, re.compile(pattern), frozenset(statuses))


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one provider says it. What is left out is said as everybody says it (see ``dialects/default.py``)."""

    name: str
    hosts: tuple[str, ...] = ()  # patterns with *
    marks: tuple[str, ...] = ()  # beginnings of header names that nobody else sends
    windows: Mapping[str, float] = field(default_factory=dict)  # dimension: seconds, where the header does not say
    resource_windows: Mapping[str, float] = field(default_factory=dict)  # the same, by x-ratelimit-resource
    window_from_reset: bool = False  # requests are per minute or per day, and only the reset tells
    zero_reset_is_unknown: bool = False
    codes: Mapping[str, Event] = field(default_factory=dict)  # in lower case; before the common ones
    phrases: tuple[Phrase, ...] = ()  # before the common ones
    per_model: bool = False  # limits are kept per model
    day_zone: str | None = None  # a day's quota is new at midnight there
    misleading_day_delay: bool = False  # what it says of a day's quota is the delay of a minute's
    days_refill: bool = False  # a day's limit refills all day long, so that a short delay is true
    month_codes: frozenset[str] = frozenset()  # new at 00:00 UTC on the first
    limits_with_403: bool = False
    hidden_limit_delay: float | None = None  # refused although something remains: wait so long
    shared_hosts: tuple[str, ...] = ()  # there a bare 429 means that the pool of all customers is full
