"""How a provider words its answers: headers and error bodies, by style and by how much it tells.

All from one set of facts. The full dialect gives every header of its style; OpenAI's resets are Go durations until the
limit is full again, Anthropic's are instants in RFC 3339.
"""

from __future__ import annotations

import datetime
import json
import math
from typing import Literal, NamedTuple

from .buckets import Level
from .plan import Dialect, Style

Reason = Literal[
    "unknown_key", "dead_key", "money", "day", "concurrency", "requests", "tokens", "too_large", "scripted"
]
Headers = tuple[tuple[str, str], ...]

# Token counts of large limits are told by the thousand.
_ROUNDED_FROM = 10_000


class Facts(NamedTuple):
    """What an answer may tell. *wall* is the hour in epoch seconds; *retry_in* is exact, None where nobody knows."""

    style: Style
    dialect: Dialect
    exact: bool
    call: int
    wall: float
    organisation: str | None = None
    model: str | None = None
    requests: Level | None = None
    tokens: Level | None = None
    day: Level | None = None
    retry_in: float | None = None


def headers_of(facts: Facts) -> Headers:
    """The headers about limits, organisation and request that this dialect gives with these facts."""
    found: list[tuple[str, str]] = []
    if facts.dialect == "full":
        found = _openai_headers(facts) if facts.style == "openai" else _anthropic_headers(facts)
    if facts.dialect != "none" and facts.retry_in is not None:
        found.append(("retry-after", retry_after(facts.retry_in, exact=facts.exact)))
        if facts.dialect == "full" and facts.style == "openai":
            found.append(("retry-after-ms", str(_ceil(facts.retry_in * 1000))))
    return tuple(found)


def _openai_headers(facts: Facts) -> list[tuple[str, str]]:
    found = [("x-request-id", f"req_{facts.call:012x}")]
    if facts.organisation is not None:
        found.append(("openai-organization", facts.organisation))
    for kind, level in (("requests", facts.requests or facts.day), ("tokens", facts.tokens)):
        if level is not None:
            found += [
                (f"x-ratelimit-limit-{kind}", _whole(level.limit)),
                (f"x-ratelimit-remaining-{kind}", _whole(level.remaining)),
                (f"x-ratelimit-reset-{kind}", go_duration(level.full_in)),
            ]
    return found


def _anthropic_headers(facts: Facts) -> list[tuple[str, str]]:
    found = [("request-id", f"req_{facts.call:012x}")]
    if facts.organisation is not None:
        found.append(("anthropic-organization-id", facts.organisation))
    for kind, level in (("requests", facts.requests or facts.day), ("tokens", facts.tokens)):
        if level is not None:
            remaining = level.remaining
            if kind == "tokens" and level.limit >= _ROUNDED_FROM:
                remaining = round(remaining / 1000) * 1000
            found += [
                (f"anthropic-ratelimit-{kind}-limit", _whole(level.limit)),
                (f"anthropic-ratelimit-{kind}-remaining", _whole(remaining)),
                (f"anthropic-ratelimit-{kind}-reset", rfc3339(facts.wall + level.full_in)),
            ]
    return found


def status_of(reason: Reason, style: Style) -> int:
    """The status of a refusal."""
    if reason in ("unknown_key", "dead_key"):
        return 401
    return 400 if reason == "money" and style == "anthropic" else 429


def overloaded_status(style: Style) -> int:
    """The status by which this style says that it is overloaded."""
    return 529 if style == "anthropic" else 503


def refusal_body(facts: Facts, reason: Reason, tokens: int = 0) -> str:
    """The body of a refusal of a call of *tokens*."""
    if facts.style == "anthropic":
        kind, message = _anthropic_refusal(facts, reason)
        return anthropic_error(kind, message, facts)
    if reason in ("unknown_key", "dead_key"):
        return openai_error("Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
    if reason == "money":
        message = "You exceeded your current quota, please check your plan and billing details."
        return openai_error(message, "insufficient_quota", "insufficient_quota")
    if reason == "concurrency":
        message = "Rate limit reached: too many concurrent requests."
        return openai_error(message, "requests", "rate_limit_exceeded")
    kind = "tokens" if reason in ("tokens", "too_large") else "requests"
    return openai_error(_openai_limit_message(facts, reason, tokens), kind, "rate_limit_exceeded")


_UNITS: dict[str, str] = {
    "requests": "requests per min (RPM)",
    "tokens": "tokens per min (TPM)",
    "too_large": "tokens per min (TPM)",
    "day": "requests per day (RPD)",
}


def _level_of(facts: Facts, reason: Reason) -> Level | None:
    if facts.dialect != "full":
        return None
    return {"requests": facts.requests, "day": facts.day}.get(reason, facts.tokens)


def _openai_limit_message(facts: Facts, reason: Reason, tokens: int) -> str:
    level = _level_of(facts, reason)
    if level is None:
        return "Rate limit reached."
    where = f"for {facts.model or 'this model'} in organization {facts.organisation}"
    if reason == "too_large":
        limit = f"Limit {_whole(level.limit)}, Requested {tokens}"
        return f"Request too large {where} on {_UNITS[reason]}: {limit}. Reduce the tokens of the request."
    used = _ceil(max(0.0, level.limit - level.remaining))
    asked = tokens if reason == "tokens" else 1
    again = f" Please try again in {go_duration(facts.retry_in)}." if facts.retry_in is not None else ""
    limit = f"Limit {_whole(level.limit)}, Used {used}, Requested {asked}"
    return f"Rate limit reached {where} on {_UNITS[reason]}: {limit}.{again}"


def _anthropic_refusal(facts: Facts, reason: Reason) -> tuple[str, str]:
    if reason in ("unknown_key", "dead_key"):
        return "authentication_error", "invalid x-api-key"
    if reason == "money":
        return "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    if reason == "concurrency":
        return "rate_limit_error", "Number of concurrent connections has exceeded your rate limit."
    level = _level_of(facts, reason)
    if level is None:
        return "rate_limit_error", "This request would exceed a rate limit."
    unit = {"requests": "requests per minute", "day": "requests per day"}.get(reason, "tokens per minute")
    return "rate_limit_error", f"This request would exceed the limit of your organization of {level.limit:,.0f} {unit}."


_PLAIN: dict[int, tuple[str, str, str]] = {
    # status: OpenAI's type, Anthropic's type, message
    400: ("invalid_request_error", "invalid_request_error", "The request could not be understood."),
    401: ("invalid_request_error", "authentication_error", "Incorrect API key provided."),
    402: ("insufficient_quota", "billing_error", "Payment is required."),
    403: ("invalid_request_error", "permission_error", "This key may not do this."),
    404: ("invalid_request_error", "not_found_error", "There is nothing here."),
    405: ("invalid_request_error", "invalid_request_error", "This method is not for this address."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_error", "Rate limit reached."),
    503: ("server_error", "overloaded_error", "Overloaded."),
    529: ("server_error", "overloaded_error", "Overloaded."),
}
_CODES = {401: "invalid_api_key", 402: "insufficient_quota", 429: "rate_limit_exceeded"}


def plain_error(facts: Facts, status: int, message: str | None = None) -> str:
    """The body of an answer of this status that has nothing else to tell."""
    openai, anthropic, usual = _PLAIN.get(status, ("server_error", "api_error", "The server had an error."))
    if status < 500 and status not in _PLAIN:
        openai = anthropic = "invalid_request_error"
        usual = "The request was refused."
    if facts.style == "anthropic":
        return anthropic_error(anthropic, message or usual, facts)
    return openai_error(message or usual, openai, _CODES.get(status))


def openai_error(message: str, kind: str, code: str | None) -> str:
    """An error object in OpenAI's shape."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def anthropic_error(kind: str, message: str, facts: Facts) -> str:
    """An error object in Anthropic's shape."""
    error = {"type": kind, "message": message}
    return json.dumps({"type": "error", "error": error, "request_id": f"req_{facts.call:012x}"})


def retry_after(seconds: float, *, exact: bool) -> str:
    """The value of Retry-After: whole seconds, rounded up and at least 1, or with decimals (never too early)."""
    if not exact:
        return str(max(1, _ceil(seconds)))
    return f"{_ceil(seconds * 1000) / 1000:.3f}".rstrip("0").rstrip(".")


def go_duration(seconds: float) -> str:
    """A duration as Go writes it, rounded up to milliseconds: ``12ms``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    thousandths = _ceil(seconds * 1000)
    if thousandths == 0:
        return "0s"
    if thousandths < 1000:
        return f"{thousandths}ms"
    whole, rest = divmod(thousandths, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = (f"{whole}.{rest:03d}".rstrip("0") if rest else f"{whole}") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def rfc3339(wall: float) -> str:
    """An instant in UTC, rounded up to the second."""
    return datetime.datetime.fromtimestamp(_ceil(wall), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ceil(value: float) -> int:
    # What is a hair above a whole number by rounding alone is that number: 0.2 + 0.1 is not four tenths.
    return math.ceil(value - 1e-6)


def _whole(value: float) -> str:
    return str(int(value + 1e-6))
