"""Classify an HTTP answer with the tables of ``dialects/``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .answers.bodies import Document, has_error, parse_document, parse_success_document
from .answers.date_and_number_formats import parse_number
from .answers.error_details import ErrorDetails, parse_error
from .answers.event_rules import determine_event, infer_status, map_status
from .answers.headers import parse_headers
from .answers.readings import last_valid, parse_provider_time, parse_readings
from .answers.refusal import RefusedAnswer, find_dimensions, is_scoped, parse_body_readings
from .answers.retry_delay import determine_wait
from .answers.usage import NOTHING_STATED, find_usage
from .dialect import Dialect
from .dialects import DEFAULT, DIALECTS, find_dialect, parse_host, parse_origin
from .signal import LARGEST, LONGEST_DELAY, Event, Signal

_LONGEST_MODEL = 200
_COST = "x-ratelimit-tokens-query-cost"
_ORGANISATION = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)
_LIMIT_EVENTS = (Event.LIMITED, Event.PARKED, Event.NEVER_FITS, Event.RAMP)


def classify(
    status: int | None,
    headers: object,
    body: object,
    *,
    now: float,
    provider: str | None = None,
    url: str | None = None,
    model: str | None = None,
) -> Signal:
    """Return what an answer means for the credential, its quota and the item.

    *status* None means that there was no answer. *headers* and *body* may have any form that clients use; *now* is the
    current time (epoch seconds), corrected by the answer's own ``Date``. The dialect is that of *provider*, else of the
    *url*'s host, else the one that the answer reveals. Never raises, sleeps or reads a clock; the evidence never quotes
    a message.
    """
    parsed_status = _parse_status(status)
    # A client's object may fail in any way. Then only the headers are used, and if they fail too, the status.
    for facts in ((headers, body, provider, url, model), (headers, None, None, None, None)):
        try:
            return _classify(parsed_status, now, *facts)
        except Exception:  # noqa: BLE001, S112
            continue
    return Signal(map_status(parsed_status), evidence=(_format_status(parsed_status),), status=parsed_status)


def _classify(
    status: int | None, now: float, headers: object, body: object, provider: object, url: object, known_model: object
) -> Signal:
    model = known_model if isinstance(known_model, str) and known_model else None
    fields, mark = parse_headers(headers)
    host = "" if url is None else parse_host(url)
    dialect = DIALECTS.get(provider.lower()) if isinstance(provider, str) else None
    if dialect is None:
        dialect = (find_dialect(host) if host else None) or mark
    ok = status is not None and (status < 300 or status == 304)
    if ok:
        document = None if body is None else parse_success_document(body)
        if document is None or not has_error(document):
            return _build_success(status, fields, document, dialect, now, model)
    else:
        document = None if body is None else parse_document(body)
    dialect = dialect or _detect_dialect(document) or DEFAULT
    wall = parse_provider_time(fields, now)
    fault = parse_error(document, wall)
    body_readings = parse_body_readings(fault, dialect, wall)
    # An error in mid-stream has no status of its own, and some clients then report none.
    statusless = ok or (status is None and fault.codes)
    refusal = RefusedAnswer(
        status=infer_status(fault) if statusless else status,
        fields=fields,
        dialect=dialect,
        recognised=mark is not None,
        host=host,
        wall=wall,
        body=body,
        document=document,
        fault=fault,
        readings=parse_readings(fields, dialect, now) + body_readings,
        body_readings=body_readings,
        model=model or _find_model(document, fault),
    )
    return _build_refusal(refusal, status, None if url is None else parse_origin(url))


def _build_success(
    status: int | None,
    fields: Mapping[str, str],
    document: Document | None,
    dialect: Dialect | None,
    now: float,
    model: str | None,
) -> Signal:
    stated = NOTHING_STATED
    if document is not None:
        stated = find_usage(document)
        model = model or _find_model(document, None)
        dialect = dialect or _detect_dialect(document)
    dialect = dialect or DEFAULT
    usage = stated.counted
    if not usage and _COST in fields:
        cost = last_valid(fields[_COST], parse_number)
        usage = {} if cost is None or cost > LARGEST else {"tokens": cost}
    return Signal(
        Event.OK,
        readings=parse_readings(fields, dialect, now),
        evidence=(_format_status(status),),
        provider=dialect.name,
        status=status,
        model=model,
        scoped=model is not None and dialect.per_model,
        organisation=_find_organisation(fields),
        usage=usage,
        billed=stated.billed,
    )


def _build_refusal(refusal: RefusedAnswer, status: int | None, origin: str | None) -> Signal:
    event, delay = determine_wait(refusal, determine_event(refusal))
    if delay is not None and not 0 <= delay <= LONGEST_DELAY:
        delay = None
    refusal.evidence.append(_format_status(status))
    return Signal(
        event,
        delay,
        dimensions=find_dimensions(refusal) if event in _LIMIT_EVENTS else (),
        readings=refusal.readings,
        evidence=tuple(dict.fromkeys(refusal.evidence)),
        provider=refusal.dialect.name,
        status=status,
        model=refusal.model,
        scoped=is_scoped(refusal, event),
        organisation=_find_organisation(refusal.fields),
        origin=origin,
    )


def _parse_status(status: object) -> int | None:
    """Return a valid HTTP status; anything else, such as the 0 of some clients, means no answer."""
    kind = type(status)  # not isinstance, which asks the object itself
    if kind is str and len(str(status)) == 3 and str(status).isascii() and str(status).isdigit():
        return _parse_status(int(str(status)))
    if kind is bool or not issubclass(kind, int):
        return None
    number = int.__int__(status)  # type: ignore[arg-type]
    return number if 100 <= number <= 599 else None


def _format_status(status: int | None) -> str:
    return "no answer" if status is None else f"status {status}"


def _find_organisation(fields: Mapping[str, str]) -> str | None:
    for name in ("anthropic-organization-id", "openai-organization"):
        value = fields.get(name)
        if value is not None and _ORGANISATION.fullmatch(value.strip()):
            return value.strip()
    return None


def _find_model(document: Document | None, fault: ErrorDetails | None) -> str | None:
    if fault is not None:
        named = next((quota.model for quota in fault.quotas if quota.model), None)
        if named is not None:
            return named
    if document is None:
        return None
    for key in ("model", "modelVersion"):
        model = document.get(key)
        if isinstance(model, str) and 0 < len(model) <= _LONGEST_MODEL:
            return model
    return None


def _detect_dialect(document: Document | None) -> Dialect | None:
    """Return the dialect that the structure of a body reveals."""
    if document is None:
        return None
    error = document.get("error")
    if "usageMetadata" in document:
        return DIALECTS["gemini"]
    if "documentation_url" in document:
        return DIALECTS["github"]
    if "__type" in document:
        return DIALECTS["bedrock"]
    if document.get("object") == "error" and isinstance(document.get("code"), str):
        return DIALECTS["mistral"]
    if not isinstance(error, dict):
        return None
    if document.get("type") == "error":
        return DIALECTS["anthropic"]
    if isinstance(error.get("status"), str) and "message" in error:
        return DIALECTS["gemini"]
    if isinstance(error.get("metadata"), dict):
        return DIALECTS["openrouter"]
    return DIALECTS["openai"] if {"message", "type", "param", "code"} <= error.keys() else None
