"""Answers and errors in Gemini's shape. It states its limits in the body and not in headers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .answer_facts import Facts, Reason, request_id
from .number_text import retry_after, whole

# Answers.

_CHUNK = (
    '{"candidates":[{"content":{"parts":[{"text":"%(text)s"}],"role":"model"},%(finish)s"index":0}],"usageMetadata":{'
    '"promptTokenCount":%(input)d,"candidatesTokenCount":%(output)d,"totalTokenCount":%(total)d},'
    '"modelVersion":%(model)s,"responseId":"%(id)s"}'
)


def whole_content(facts: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the answer as one JSON object."""
    return _chunk(facts, "".join(words), facts["output"], last=True)


def streamed_content(facts: Mapping[str, Any], words: Sequence[str], *, as_list: bool) -> list[str]:
    """Return the answer word by word, each piece with the usage so far: as events, or as one JSON list."""
    number = len(words)
    chunks = [
        _chunk(facts, word, facts["output"] * place // number, last=place == number)
        for place, word in enumerate(words, 1)
    ]
    if as_list:
        return ["[" + chunks[0], *(f",\r\n{each}" for each in chunks[1:-1]), f",\r\n{chunks[-1]}]"]
    return [f"data: {each}\r\n\r\n" for each in chunks]


def _chunk(facts: Mapping[str, Any], text: str, output: int, *, last: bool) -> str:
    finish = f'"finishReason":"{"MAX_TOKENS" if facts["short"] else "STOP"}",' if last else ""
    return _CHUNK % {
        "text": text,
        "finish": finish,
        "input": facts["input"],
        "output": output,
        "total": facts["input"] + output,
        "model": facts["model"],
        "id": request_id(facts["call"]),
    }


# Errors.

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_SERVICE = "generativelanguage.googleapis.com"
_TYPES = "type.googleapis.com/google.rpc."

# The real one limits input tokens; this provider limits all tokens, and the name of the metric says so.
_QUOTAS: dict[str, tuple[str, str]] = {
    # reason: metric, id
    "requests": ("generate_content_requests", "GenerateRequestsPerMinutePerProjectPerModel"),
    "day": ("generate_content_requests", "GenerateRequestsPerDayPerProjectPerModel"),
    "tokens": ("generate_content_token_count", "GenerateContentTokensPerModelPerMinute"),
    "too_large": ("generate_content_token_count", "GenerateContentTokensPerModelPerMinute"),
}


def refusal(facts: Facts, reason: Reason) -> str:
    """Return the body of a refusal."""
    if reason in ("unknown_key", "dead_key"):
        return error(400, "API key not valid. Please pass a valid API key.", [_info("API_KEY_INVALID")])
    if reason == "money":
        return error(403, "This project has no billing account that can pay.", [_info("BILLING_DISABLED")])
    message, details = "Resource has been exhausted (e.g. check quota).", []
    level = facts.level(reason)
    if level is not None and reason in _QUOTAS:
        metric, name = _QUOTAS[reason]
        limit, model = whole(level.limit), facts.model or "simulated-model"
        message = f"Quota exceeded for metric: {_SERVICE}/{metric}, limit: {limit}, model: {model}."
        violation = {
            "quotaMetric": f"{_SERVICE}/{metric}",
            "quotaId": name,
            "quotaDimensions": {"location": "global", "model": model},
            "quotaValue": limit,
        }
        details.append({"@type": f"{_TYPES}QuotaFailure", "violations": [violation]})
    if facts.retry_in is not None and facts.dialect != "none":
        if facts.dialect == "full":
            message += f" Please retry in {retry_after(facts.retry_in, exact=True)}s."
        delay = retry_after(facts.retry_in, exact=facts.exact)
        details.append({"@type": f"{_TYPES}RetryInfo", "retryDelay": f"{delay}s"})
    return error(429, message, details)


def error(code: int, message: str, details: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return an error object in Google's shape."""
    status = _STATUSES.get(code, "INVALID_ARGUMENT" if code < 500 else "UNKNOWN")
    content: dict[str, Any] = {"code": code, "message": message, "status": status}
    if details:
        content["details"] = list(details)
    return json.dumps({"error": content})


def _info(reason: str) -> dict[str, Any]:
    return {
        "@type": f"{_TYPES}ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": {"service": _SERVICE},
    }
