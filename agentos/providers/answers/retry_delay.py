"""Determine how long a refusal lasts: which stated delay to use, and whether a limit lasts hours or days."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..dialects import is_shared
from ..signal import LONGEST_DELAY, PARKED_FROM, Event, Reading
from .calendar_reset import until_midnight, until_next_month
from .date_and_number_formats import format_quoted, parse_delay, parse_number
from .readings import UNIFIED, last_valid, unified_rejection, violated_resets
from .refusal import DAY_WORDS, RefusedAnswer, named_dimensions

_LEAST_MONEY_DELAY = 3600.0
_LONG_WINDOW = 3600.0
_LONG_WORDS = re.compile(r"per[- ]week|\bweekly\b|per[- ]month|\bmonthly\b")
_NO_LIMIT_AT_ALL = re.compile(r"\blimit: 0\b(?!\.\d)|\brate limit of 0 |\blimit 0,")


@dataclass(frozen=True, slots=True)
class RetryHint:
    """A delay and its source."""

    seconds: float
    evidence: str


def determine_wait(refusal: RefusedAnswer, event: Event) -> tuple[Event, float | None]:
    """Return the final event, with long limits told from short ones, and the seconds until a retry makes sense."""
    if event is Event.LIMITED:
        return _classify_limit(refusal)
    if event is Event.MONEY_GONE:
        return event, _find_money_delay(refusal)
    if event in (Event.BUSY, Event.RAMP, Event.NETWORK):
        return event, _accept_hint(refusal, find_delay(refusal))
    return event, None


def _classify_limit(refusal: RefusedAnswer) -> tuple[Event, float | None]:
    """Return whether a reached limit lasts seconds, lasts long, or never allows the request."""
    fault, evidence = refusal.fault, refusal.evidence
    if _NO_LIMIT_AT_ALL.search(fault.message) or any(quota.value == "0" for quota in fault.quotas):
        evidence.insert(0, "rule: limit: 0")
        return Event.NOT_ENTITLED, None
    limit, requested = fault.amount("limit"), fault.amount("requested")
    if limit is not None and requested is not None and requested > limit:
        evidence.insert(0, "rule: Requested > Limit")
        return Event.NEVER_FITS, None
    if refusal.flag(UNIFIED + "status") == "rejected":
        evidence.insert(0, f"header {UNIFIED}status: rejected")
        until = unified_rejection(refusal.fields, refusal.readings, refusal.wall)
        return Event.PARKED, _accept_hint(refusal, find_delay(refusal)) if until is None else until
    hint = find_delay(refusal)
    if hint is None and not fault.quotas and is_shared(refusal.dialect, refusal.host):
        evidence.insert(0, "rule: 429 without detail, where all customers share a quota")
        return Event.BUSY, None
    words = " ".join([fault.message, *(quota.name for quota in fault.quotas)])
    if DAY_WORDS.search(words):
        return _classify_daily_limit(refusal, hint)
    if _LONG_WORDS.search(words):
        evidence.append("rule: a window of weeks")
        return Event.PARKED, _accept_hint(refusal, hint or _find_reset(refusal))
    return _classify_by_delay(refusal, _accept_hint(refusal, hint or _find_reset(refusal)))


def _classify_by_delay(refusal: RefusedAnswer, delay: float | None) -> tuple[Event, float | None]:
    if delay is not None and delay > PARKED_FROM:
        refusal.evidence.append("rule: longer than 10 minutes")
        return Event.PARKED, delay
    if delay is None and any(r.remaining == 0 and (r.window or 0.0) >= _LONG_WINDOW for r in refusal.readings):
        refusal.evidence.append("rule: nothing is left of a long window")
        return Event.PARKED, None
    return Event.LIMITED, delay


def _classify_daily_limit(refusal: RefusedAnswer, hint: RetryHint | None) -> tuple[Event, float | None]:
    dialect = refusal.dialect
    hint = hint or _find_reset(refusal)
    short = hint is not None and hint.seconds <= PARKED_FROM
    if short and dialect.days_refill:
        return Event.LIMITED, _accept_hint(refusal, hint)
    refusal.evidence.append("rule: PerDay")
    if dialect.day_zone and (hint is None or (short and dialect.misleading_day_delay)):
        refusal.evidence.append(f"rule: until midnight, {dialect.day_zone}")
        return Event.PARKED, until_midnight(refusal.wall, dialect.day_zone)
    return Event.PARKED, _accept_hint(refusal, hint)


def _find_money_delay(refusal: RefusedAnswer) -> float | None:
    fault = refusal.fault
    if any(code.lower() in refusal.dialect.month_codes for _, code in fault.codes):
        refusal.evidence.append("rule: until the first of the month, UTC")
        return until_next_month(refusal.wall)
    regained = fault.regained_at()
    if regained is not None:
        refusal.evidence.append(f"rule: access again on {regained}")
        return parse_delay(regained, wall=refusal.wall)
    hint = find_delay(refusal)
    # A bill is hardly paid within the hour, whatever a header states.
    return _accept_hint(refusal, hint) if hint is not None and hint.seconds >= _LEAST_MONEY_DELAY else None


def _accept_hint(refusal: RefusedAnswer, hint: RetryHint | None) -> float | None:
    if hint is None:
        return None
    refusal.evidence.append(hint.evidence)
    return hint.seconds


def find_delay(refusal: RefusedAnswer) -> RetryHint | None:
    """Return the delay that the server states: the most precise header, else the other, else the longest in the body.

    If it forbids a retry (``x-should-retry: false``), return the longest delay of all.
    """
    hints = [*_find_header_delays(refusal), *_find_body_delay(refusal)]
    if refusal.flag("x-should-retry") == "false":
        refusal.evidence.append("header x-should-retry: false")
        return max(hints, key=lambda each: each.seconds, default=None)
    return hints[0] if hints else None


def _find_header_delays(refusal: RefusedAnswer) -> list[RetryHint]:
    fields, wall = refusal.fields, refusal.wall
    hints = []
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        milliseconds = last_valid(fields.get(name, ""), parse_number)
        if milliseconds is not None and milliseconds / 1000 <= LONGEST_DELAY:
            hints.append(RetryHint(milliseconds / 1000, f"header {name}: {milliseconds:g}"))
    text = fields.get("retry-after", "")
    seconds = last_valid(text, lambda piece: parse_delay(piece, wall=wall))
    if seconds is not None:
        quoted = format_quoted(text, wall=wall) if parse_delay(text, wall=wall) == seconds else f"{seconds:g}"
        hints.append(RetryHint(seconds, f"header retry-after: {quoted}"))
    return hints


def _find_body_delay(refusal: RefusedAnswer) -> list[RetryHint]:
    fault = refusal.fault
    hints = []
    if fault.delay is not None:
        hints.append(RetryHint(fault.delay, f"body {fault.delay_field}: {fault.delay:g}"))
    if (seconds := fault.text_delay()) is not None:
        hints.append(RetryHint(seconds, f"message: retry in {seconds:g} s"))
    elif (seconds := _compute_refill_time(refusal)) is not None:
        hints.append(RetryHint(seconds, f"rule: Used + Requested - Limit refills in {seconds:g} s"))
    hints += [
        RetryHint(reading.resets_in, f"body {reading.source}: resets in {reading.resets_in:g} s")
        for reading in refusal.body_readings
        if reading.resets_in is not None and not reading.remaining
    ]
    return sorted(hints, key=lambda each: -each.seconds)[:1]


def _compute_refill_time(refusal: RefusedAnswer) -> float | None:
    """Return the time in which a continuously refilling bucket regains the missing amount, as OpenAI computes it."""
    limit, used, requested = (refusal.fault.amount(name) for name in ("limit", "used", "requested"))
    if not limit or used is None or requested is None:
        return None
    window = 86_400.0 if DAY_WORDS.search(refusal.fault.message) else 60.0
    return parse_delay(max(0.0, (used + requested - limit) * window / limit), wall=0.0)


def _find_reset(refusal: RefusedAnswer) -> RetryHint | None:
    """Return the reset of the dimension used up, else of the one the body names, else the longest plausible one."""
    violated = violated_resets(refusal.fields, refusal.fault.violated)
    if violated:
        return RetryHint(max(violated), f"header ratelimit: resets in {max(violated):g} s")
    resets = [reading for reading in refusal.readings if reading.resets_in is not None]
    empty = [reading for reading in resets if reading.remaining == 0]
    hidden = refusal.dialect.hidden_limit_delay
    if not empty and hidden is not None:
        return RetryHint(hidden, "rule: a limit without headers")
    named = named_dimensions(refusal.fault)
    matching = [reading for reading in resets if reading.dimension in named]
    # These have something left: waiting a minute for them is plausible, hours would be an expensive guess.
    likely = [r for r in resets if r.remaining is None or _resets_in(r) <= PARKED_FROM]
    for candidates in (empty, matching, likely):
        if candidates:
            last = max(candidates, key=_resets_in)
            return RetryHint(_resets_in(last), f"header {last.source}: resets in {_resets_in(last):g} s")
    return None


def _resets_in(reading: Reading) -> float:
    return reading.resets_in or 0.0
