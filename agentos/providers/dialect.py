"""The differences between providers as a table of plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .signal import Event


@dataclass(frozen=True, slots=True)
class Phrase:
    """A pattern in a message that decides where no code does. The evidence shows *name*, never the message."""

    name: str
    event: Event
    pattern: re.Pattern[str]  # applied to the message in lower case
    statuses: frozenset[int]  # with these only: elsewhere the words are less specific


def phrase(name: str, event: Event, pattern: str, *statuses: int) -> Phrase:
    """Build a :class:`Phrase` with a compiled pattern."""
    return Phrase(name, event, re.compile(pattern), frozenset(statuses))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The conventions of one provider. Defaults are the common ones (see ``dialects/default.py``)."""

    name: str
    hosts: tuple[str, ...] = ()  # patterns with *
    marks: tuple[str, ...] = ()  # prefixes of header names that only this provider sends
    windows: Mapping[str, float] = field(default_factory=dict)  # dimension: seconds, if the header does not state them
    resource_windows: Mapping[str, float] = field(default_factory=dict)  # the same, by x-ratelimit-resource
    zero_reset_is_unknown: bool = False
    codes: Mapping[str, Event] = field(default_factory=dict)  # in lower case; before the common ones
    phrases: tuple[Phrase, ...] = ()  # before the common ones
    per_model: bool = False  # limits apply per model
    day_zone: str | None = None  # a daily quota resets at midnight there
    misleading_day_delay: bool = False  # for a daily quota it states the delay of a minute's quota
    days_refill: bool = False  # a daily limit refills continuously, so a short delay is right
    month_codes: frozenset[str] = frozenset()  # resets at 00:00 UTC on the first
    limits_with_403: bool = False
    hidden_limit_delay: float | None = None  # refused although something remains: wait this long
    shared_hosts: tuple[str, ...] = ()  # there a bare 429 means that the quota shared by all customers is used up
