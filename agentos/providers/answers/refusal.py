"""The facts of a refused answer, and the dimensions and scope it concerns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dialect import Dialect
from ..signal import Event, Reading
from .bodies import Document
from .date_and_number_formats import parse_number
from .error_details import ErrorDetails
from .headers import parse_headers
from .readings import UNIFIED, find_dimension, parse_readings

DAY_WORDS = re.compile(r"per[- ]?day|\brpd\b|\btpd\b|\bdaily\b|per 86400s|byday")

_DIMENSION_WORDS = re.compile(
    r"\b(?:(input|output|prompt|completion)[ -])?(tokens?|requests?)\b[ -](?:rate|per|limit)|too many (tokens|requests)"
)
_SHORT_WORDS = re.compile(r"\b(tpm|tpd|rpm|rpd|rps|call rate)\b")
_SHORT = {"tpm": "tokens", "tpd": "tokens"}

# Subscription windows that apply to all models; other names contain a model.
_CLAIMS_OF_ALL = ("", "five_hour", "seven_day")


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """The facts of a refused answer. *evidence* grows during classification, the most relevant first."""

    status: int | None  # for an error inside a 200: the inferred status
    fields: Mapping[str, str]
    dialect: Dialect
    recognised: bool  # the headers identify the dialect
    host: str
    wall: float
    body: object
    document: Document | None
    fault: ErrorDetails
    readings: tuple[Reading, ...]
    body_readings: tuple[Reading, ...]  # the readings that came in the body
    model: str | None
    evidence: list[str] = field(default_factory=list)

    def flag(self, name: str) -> str:
        """Return the value of a one-word header, normalised; empty if missing."""
        return self.fields.get(name, "").strip().lower()


def parse_body_readings(fault: ErrorDetails, dialect: Dialect, wall: float) -> tuple[Reading, ...]:
    """Return the limits stated in a body: in embedded headers, or as quotas."""
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
    """Return the exceeded dimensions: those that the body names, else those with nothing remaining."""
    return named_dimensions(refusal.fault) or tuple(
        dict.fromkeys(reading.dimension for reading in refusal.readings if reading.remaining == 0)
    )


def named_dimensions(fault: ErrorDetails) -> tuple[str, ...]:
    """Return the dimensions that a body names: in its error type, its quotas, or its message."""
    found = [code for where, code in fault.codes if where.endswith("type") and code in ("requests", "tokens")]
    found += [find_dimension(quota.name) or find_dimension(quota.metric) or "" for quota in fault.quotas]
    if not any(found):
        found += [
            find_dimension(" ".join(filter(None, m.groups()))) or "" for m in _DIMENSION_WORDS.finditer(fault.message)
        ]
        found += [_SHORT.get(match[1], "requests") for match in _SHORT_WORDS.finditer(fault.message)]
    return tuple(dict.fromkeys(filter(None, found)))


def is_scoped(refusal: RefusedAnswer, event: Event) -> bool:
    """Return whether only the model is affected, not the whole quota."""
    if refusal.model is None:
        return False
    if event is Event.NOT_ENTITLED:
        return True
    if event not in (Event.LIMITED, Event.PARKED, Event.RAMP):
        return False
    if event is Event.PARKED and UNIFIED + "status" in refusal.fields:
        return refusal.flag(UNIFIED + "representative-claim") not in _CLAIMS_OF_ALL
    return refusal.dialect.per_model
