"""Determine the event of a refusal: by its code, else by its message, else by its status."""

from __future__ import annotations

import re

from ..dialects.default import COMMON_CODES, COMMON_PHRASES, STATUS_BY_CODE
from ..signal import Event
from .bodies import get_text
from .error_details import ErrorDetails, parse_code_header
from .refusal import RefusedAnswer

_TRANSIENT = frozenset({408, 409, 425, 498, 499})  # 498: Groq has no capacity; 499: the client closed the connection
_NOT_CALLERS_FAULT = _TRANSIENT | {424, 429}
_WRONG_5XX = frozenset({501, 505})
_BY_STATUS = {401: Event.KEY_DEAD, 402: Event.MONEY_GONE, 413: Event.NEVER_FITS, 429: Event.LIMITED}

_NAMES_A_MODEL = re.compile(r"\bmodels?\b|\bdeployment\b")
_LIMIT_WORDS = re.compile(r"\brate limit|\bquota\b|too many requests")


def determine_event(refusal: RefusedAnswer) -> Event:
    """Return the event, and add the reason to the evidence. LIMITED may still turn out to be a longer limit."""
    status = refusal.status
    if status is None:
        return Event.NETWORK
    event = _find_by_code(refusal, status)
    if status == 413 and event in (None, Event.LIMITED):  # Groq uses rate_limit_exceeded for a call that never fits
        return Event.NEVER_FITS
    if event in (None, Event.LIMITED):  # many different errors are called a rate limit: the message may be more precise
        event = _find_by_message(refusal, status) or event
    if event is None and status == 403:
        return _classify_403(refusal)
    if event is None and status == 404 and _NAMES_A_MODEL.search(refusal.fault.message):
        refusal.evidence.append("rule: 404 names a model")
        return Event.NOT_ENTITLED
    return event or map_status(status)


def map_status(status: int | None) -> Event:
    """Return the event for a status without further information.

    304 is a success, other 3xx are a wrong address, 1xx is not final. 409 and 425 are transient.
    """
    if status is None or status in (407, 511):
        return Event.NETWORK
    if status < 300 or status == 304:
        return Event.OK
    if status >= 500:
        return Event.CALLER if status in _WRONG_5XX else Event.BUSY
    return Event.BUSY if status in _TRANSIENT else _BY_STATUS.get(status, Event.CALLER)


def infer_status(fault: ErrorDetails) -> int:
    """Return the status that an error inside a 200 stands for; 500 if unknown, because the request was accepted."""
    for _, code in fault.codes:
        if len(code) == 3 and code.isascii() and code.isdigit() and 400 <= int(code) <= 599:
            return int(code)
        if code.lower() in STATUS_BY_CODE:
            return STATUS_BY_CODE[code.lower()]
    return 500


def _find_by_code(refusal: RefusedAnswer, status: int) -> Event | None:
    codes = [(f"body {where}", code) for where, code in refusal.fault.codes]
    if "x-amzn-errortype" in refusal.fields:
        codes.insert(0, ("header x-amzn-errortype", parse_code_header(refusal.fields["x-amzn-errortype"])))
    for where, code in codes:
        plain = code.lower()
        event = refusal.dialect.codes.get(plain) or COMMON_CODES.get(plain)
        if event is Event.BUSY and 400 <= status < 500 and status not in _NOT_CALLERS_FAULT:
            continue  # "server_error" for a request that the status calls wrong
        if event is not None:
            refusal.evidence.append(f"{where}: {code}")  # safe to quote: the code is in our tables
            return event
    return None


def _find_by_message(refusal: RefusedAnswer, status: int) -> Event | None:
    message = refusal.fault.message
    for phrase in (*refusal.dialect.phrases, *COMMON_PHRASES):
        if status in phrase.statuses and phrase.pattern.search(message):
            refusal.evidence.insert(0, f"rule: {phrase.name}")
            return phrase.event
    return None


def _classify_403(refusal: RefusedAnswer) -> Event:
    """Return the event for a 403 without more precise information.

    A key is not declared dead without an explicit statement: losing a good key costs a run more than one item.
    """
    if refusal.dialect.limits_with_403 and _looks_limited(refusal):
        refusal.evidence.append("rule: a rate limit with status 403")
        return Event.LIMITED
    if refusal.document is None and not refusal.recognised and _is_html(refusal):
        refusal.evidence.append("rule: a page of a proxy, not the provider")
        return Event.NETWORK
    if _NAMES_A_MODEL.search(refusal.fault.message):
        refusal.evidence.append("rule: no permission for the model")
        return Event.NOT_ENTITLED
    if refusal.model is not None and any(what == "permission_error" for _, what in refusal.fault.codes):
        refusal.evidence.append("rule: no permission, and a model is known")
        return Event.NOT_ENTITLED
    return Event.CALLER


def _looks_limited(refusal: RefusedAnswer) -> bool:
    return (
        "retry-after" in refusal.fields
        or any(reading.remaining == 0 for reading in refusal.readings)
        or _LIMIT_WORDS.search(refusal.fault.message) is not None
    )


def _is_html(refusal: RefusedAnswer) -> bool:
    return refusal.flag("content-type").startswith("text/html") or get_text(refusal.body).startswith("<")
