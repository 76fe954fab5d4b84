"""An answer that is not fine, with all that was read of it, and what it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dialect import Dialect
from ..signal import Event, Reading
from .bodies import Document
from .error_details import ErrorDetails
from .headers import parse_headers
from .number_formats import parse_number
from .readings import UNIFIED, find_dimension, parse_readings

DAY_WORDS = re.compile(r"per[- ]?day|\brpd\b|\btpd\b|\bdaily\b|per 86400s|byday")

_DIMENSION_WORDS = re.compile(
    r"\b(?:(input|output|prompt|completion)[ -])?(tokens?|requests?)\b[ -](?:rate|per|limit)|too many (tokens|requests)"
)
_SHORT_WORDS = re.compile(r"\b(tpm|tpd|rpm|rpd|rps|call rate)\b")
_SHORT = {"tpm": "tokens", "tpd": "tokens"}

# The windows of a subscription that are for all models; the others have a model in their name.
_CLAIMS_OF_ALL = ("", "five_hour", "seven_day")


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """The facts. *evidence* grows while they are weighed, the most telling first."""

    status: int | None  # of an error inside a 200: the one it would have had
    fields: Mapping[str, str]
    dialect: Dialect
    recognised: bool  # the headers themselves name the dialect
    host: str
    wall: float
    body: object
    document: Document | None
    fault: ErrorDetails
    readings: tuple[Reading, ...]
    told_in_body: tuple[Reading, ...]  # those of them that came in the body
    model: str | None
    evidence: list[str] = field(default_factory=list)

    def flag(self, name: str) -> str:
        """The value of a header that is one word, plain; empty if there is none."""
        return self.fields.get(name, "").strip().lower()


def parse_body_readings(fault: ErrorDetails, dialect: Dialect, wall: float) -> tuple[Reading, ...]:
    """What a body tells of limits: by headers handed on inside it, or by the quotas it names."""
    readings: list[Reading] = []
    if fault.headers:
        inner, _ = parse_headers(fault.headers)
        readings += parse_readings(inner, dialect, wall)
    for quota in fault.quotas:
        dimension = find_dimension(quota.name) or find_dimension(quota.metric)
        limit = parse_number(quota.value)
        if dimension is not None and limit is not None:
            window = 86_400.0 if "perday" in quota.name else 60.0 if "perminute" in quota.name else None
            readings.append(Reading(dimension, limit, None, None, window, "quotaId"))
    return tuple(readings)


def find_dimensions(refusal: RefusedAnswer) -> tuple[str, ...]:
    """What there was too much of: as the body names it, else what the headers show nothing is left of."""
    return named_dimensions(refusal.fault) or tuple(
        dict.fromkeys(reading.dimension for reading in refusal.readings if reading.remaining == 0)
    )


def named_dimensions(fault: ErrorDetails) -> tuple[str, ...]:
    """Those a body names: by the type of its error, by its quotas, or in its words."""
    found = [code for where, code in fault.codes if where.endswith("type") and code in ("requests", "tokens")]
    found += [find_dimension(quota.name) or find_dimension(quota.metric) or "" for quota in fault.quotas]
    if not any(found):
        found += [
            find_dimension(" ".join(filter(None, m.groups()))) or "" for m in _DIMENSION_WORDS.finditer(fault.message)
        ]
        found += [_SHORT.get(match[1], "requests") for match in _SHORT_WORDS.finditer(fault.message)]
    return tuple(dict.fromkeys(filter(None, found)))


def is_scoped(refusal: RefusedAnswer, event: Event) -> bool:
    """Only the model is touched, not all of the quota."""
    if refusal.model is None:
        return False
    if event is Event.NOT_ENTITLED:
        return True
    if event not in (Event.LIMITED, Event.PARKED, Event.RAMP):
        return False
    if event is Event.PARKED and UNIFIED + "status" in refusal.fields:
        return refusal.flag(UNIFIED + "representative-claim") not in _CLAIMS_OF_ALL
    return refusal.dialect.per_model
