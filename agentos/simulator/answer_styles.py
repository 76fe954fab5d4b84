"""Headers and error bodies of answers, by provider style and by dialect (how much it states).

All are built from one set of facts. Every answer has its request's id. The full dialect has every header of its style;
OpenAI's resets are Go durations until the limit is full again, Anthropic's are instants in RFC 3339. Gemini has no such
headers. Compatible providers use OpenAI's names and no other mark of it. X-RateLimit and the IETF's fields state the
limit of requests, in whole seconds.
"""

from __future__ import annotations

import json

from . import gemini_answers
from .answer_facts import Facts, Headers, Reason, request_id
from .limiters import LimitLevel
from .number_text import ceil, go_duration, retry_after, rfc3339, whole
from .plan import DAY, Style

# Token counts of large limits are stated in thousands.
_ROUNDED_FROM = 10_000


def build_headers(facts: Facts) -> Headers:
    """Return the headers about limits, organisation and request in this dialect."""
    if facts.style == "gemini":
        return ()
    openai = facts.style == "openai"
    found = [("x-request-id" if openai else "request-id", request_id(facts.call))]
    if facts.dialect == "full":
        found += _organisation(facts) + (_openai_headers(facts) if openai else _anthropic_headers(facts))
    elif facts.dialect == "compatible":
        found += _openai_headers(facts)
    elif (level := facts.requests or facts.day) is not None:
        window = DAY if level is facts.day else facts.window
        found += _x_ratelimit_headers(level) if facts.dialect == "x-ratelimit" else _ietf_headers(level, window)
    if facts.dialect != "none" and facts.retry_in is not None:
        found.append(("retry-after", retry_after(facts.retry_in, exact=facts.exact)))
        if facts.dialect == "full" and openai:
            found.append(("retry-after-ms", str(ceil(facts.retry_in * 1000))))
    return tuple(found)


def _organisation(facts: Facts) -> list[tuple[str, str]]:
    if facts.organisation is None:
        return []
    return [("openai-organization" if facts.style == "openai" else "anthropic-organization-id", facts.organisation)]


def _openai_headers(facts: Facts) -> list[tuple[str, str]]:
    found = []
    for kind, level in (("requests", facts.requests or facts.day), ("tokens", facts.tokens)):
        if level is not None:
            found += [
                (f"x-ratelimit-limit-{kind}", whole(level.limit)),
                (f"x-ratelimit-remaining-{kind}", whole(level.remaining)),
                (f"x-ratelimit-reset-{kind}", go_duration(level.full_in)),
            ]
    return found


def _x_ratelimit_headers(level: LimitLevel) -> list[tuple[str, str]]:
    return [
        ("x-ratelimit-limit", whole(level.limit)),
        ("x-ratelimit-remaining", whole(level.remaining)),
        ("x-ratelimit-reset", str(ceil(level.full_in))),
    ]


def _ietf_headers(level: LimitLevel, window: float) -> list[tuple[str, str]]:
    return [
        ("ratelimit-policy", f'"requests";q={whole(level.limit)};w={ceil(window)}'),
        ("ratelimit", f'"requests";r={whole(level.remaining)};t={ceil(level.full_in)}'),
    ]


def _anthropic_headers(facts: Facts) -> list[tuple[str, str]]:
    found = []
    for kind, level in (("requests", facts.requests or facts.day), ("tokens", facts.tokens)):
        if level is not None:
            remaining = level.remaining
            if kind == "tokens" and level.limit >= _ROUNDED_FROM:
                remaining = round(remaining / 1000) * 1000
            found += [
                (f"anthropic-ratelimit-{kind}-limit", whole(level.limit)),
                (f"anthropic-ratelimit-{kind}-remaining", whole(remaining)),
                (f"anthropic-ratelimit-{kind}-reset", rfc3339(facts.wall + level.full_in)),
            ]
    return found


def find_status(reason: Reason, style: Style) -> int:
    """Return the status of a refusal."""
    if reason in ("unknown_key", "dead_key"):
        return 400 if style == "gemini" else 401
    return {"anthropic": 400, "gemini": 403}.get(style, 429) if reason == "money" else 429


def overloaded_status(style: Style) -> int:
    """Return the status for an overloaded provider in this style."""
    return 529 if style == "anthropic" else 503


def refusal_body(facts: Facts, reason: Reason, tokens: int = 0) -> str:
    """Return the body of a refusal of a call with *tokens*."""
    if facts.style == "anthropic":
        kind, message = _anthropic_refusal(facts, reason)
        return anthropic_error(kind, message, facts)
    if facts.style == "gemini":
        return gemini_answers.refusal(facts, reason)
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


def _openai_limit_message(facts: Facts, reason: Reason, tokens: int) -> str:
    level = facts.level(reason)
    if level is None:
        return "Rate limit reached."
    where = f"for {facts.model or 'this model'} in organization {facts.organisation}"
    if reason == "too_large":
        limit = f"Limit {whole(level.limit)}, Requested {tokens}"
        return f"Request too large {where} on {_UNITS[reason]}: {limit}. Reduce the tokens of the request."
    used = ceil(max(0.0, level.limit - level.remaining))
    requested = tokens if reason == "tokens" else 1
    again = f" Please try again in {go_duration(facts.retry_in)}." if facts.retry_in is not None else ""
    limit = f"Limit {whole(level.limit)}, Used {used}, Requested {requested}"
    return f"Rate limit reached {where} on {_UNITS[reason]}: {limit}.{again}"


def _anthropic_refusal(facts: Facts, reason: Reason) -> tuple[str, str]:
    if reason in ("unknown_key", "dead_key"):
        return "authentication_error", "invalid x-api-key"
    if reason == "money":
        return "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    if reason == "concurrency":
        return "rate_limit_error", "Number of concurrent connections has exceeded your rate limit."
    level = facts.level(reason)
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
    """Return the body of an answer of this status without further facts."""
    openai, anthropic, usual = _PLAIN.get(status, ("server_error", "api_error", "The server had an error."))
    if status < 500 and status not in _PLAIN:
        openai = anthropic = "invalid_request_error"
        usual = "The request was refused."
    if facts.style == "anthropic":
        return anthropic_error(anthropic, message or usual, facts)
    if facts.style == "gemini":
        return gemini_answers.error(status, message or usual)
    return openai_error(message or usual, openai, _CODES.get(status))


def openai_error(message: str, kind: str, code: str | None) -> str:
    """Return an error object in OpenAI's shape."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def anthropic_error(kind: str, message: str, facts: Facts) -> str:
    """Return an error object in Anthropic's shape."""
    error = {"type": kind, "message": message}
    return json.dumps({"type": "error", "error": error, "request_id": request_id(facts.call)})
