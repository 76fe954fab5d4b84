"""Parse the body of a refusal: codes, message, delays and quotas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .bodies import Document
from .date_and_number_formats import parse_delay

_LONGEST_MESSAGE = 4096
_LONGEST_CODE = 200
_MOST_DETAILS = 32

# the first match counts
_UNITS = (("mil", 1e-3), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0))
_DELAY = re.compile(
    r"(?:try again|retry|wait)(?: again)?(?: in| after| for)?:? (?:about |at least )?"
    r"(?:(?P<duration>(?:\d+(?:\.\d+)?(?:ms|us|[dhms])){1,6})\b"
    r"|(?P<number>\d{1,12}(?:\.\d{1,12})?) ?(?P<unit>milliseconds?|ms|seconds?|secs?|minutes?|mins?|hours?|days?)\b)",
    re.ASCII,
)
_REGAINED = re.compile(r"regain access on (\d{4}-\d\d-\d\d)(?: at (\d\d:\d\d))?", re.ASCII)
_AMOUNTS = {
    name: re.compile(rf"\b{words}:? (\d[\d,]{{0,17}})\b", re.ASCII)
    for name, words in (("limit", "limit"), ("used", "(?:used|current)"), ("requested", "requested"))
}


@dataclass(frozen=True, slots=True)
class QuotaViolation:
    """A quota that Google reports as exceeded: its id in lower case, and further facts."""

    name: str
    metric: str
    value: str
    model: str | None


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """A parsed error. Only what the patterns here find in its message may be used as evidence."""

    codes: tuple[tuple[str, str], ...] = ()  # (field, code), the most specific first
    message: str = ""  # in lower case, truncated
    delay: float | None = None  # from a field of its own
    delay_field: str = ""
    quotas: tuple[QuotaViolation, ...] = ()
    headers: dict[str, Any] = field(default_factory=dict)  # of another answer, embedded in this one
    violated: tuple[str, ...] = ()  # names of IETF policies

    def text_delay(self) -> float | None:
        """Return the delay stated in the text of the message."""
        match = _DELAY.search(self.message)
        if match is None:
            return None
        if match["duration"]:
            return parse_delay(match["duration"], wall=0.0)
        scale = next(seconds for beginning, seconds in _UNITS if match["unit"].startswith(beginning))
        return parse_delay(float(match["number"]) * scale, wall=0.0)

    def regained_at(self) -> str | None:
        """Return the date, as RFC 3339, on which the message promises access again."""
        match = _REGAINED.search(self.message)
        return None if match is None else f"{match[1]}T{match[2] or '00:00'}:00Z"

    def amount(self, name: str) -> float | None:
        """Return the number after *limit*, *used* or *requested* in the message."""
        match = _AMOUNTS[name].search(self.message)
        return None if match is None else float(match[1].replace(",", ""))


def parse_error(document: Document | None, wall: float) -> ErrorDetails:
    """Parse the error in *document*: under ``error``, in a choice, or the document itself."""
    if document is None:
        return ErrorDetails()
    error, path = _find_error(document)
    details = error.get("details")
    codes = _find_codes(error, path, details)
    if error is not document:
        codes += _find_codes(document, "", None)
    delay, delay_field = _find_delay(error, path, details, wall)
    metadata = error.get("metadata")
    headers = metadata.get("headers") if isinstance(metadata, dict) else None
    violated = document.get("violated-policies")
    return ErrorDetails(
        codes=tuple(codes),
        message=_find_message(error, document, metadata),
        delay=delay,
        delay_field=delay_field,
        quotas=tuple(_find_quotas(details)),
        headers=headers if isinstance(headers, dict) else {},
        violated=tuple(name for name in violated[:_MOST_DETAILS] if isinstance(name, str))
        if isinstance(violated, list)
        else (),
    )


def _find_error(document: Document) -> tuple[Document, str]:
    for key in ("error", "Error", "detail"):
        inner = document.get(key)
        if isinstance(inner, dict):
            return inner, f"{key}."
    response = document.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        return response["error"], "response.error."
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        inner = choices[0].get("error")
        if isinstance(inner, dict):
            return inner, "choices.error."
    return document, ""


def _find_codes(error: Document, path: str, details: object) -> list[tuple[str, str]]:
    found: list[tuple[str, object]] = []
    if isinstance(details, dict):
        found.append(("details.error_code", details.get("error_code")))
    elif isinstance(details, list):
        found += [("details.reason", entry.get("reason")) for entry in _entries(details)]
    found += [(key, error.get(key)) for key in ("code", "Code")]
    inner = error.get("innererror")
    if isinstance(inner, dict):
        found.append(("innererror.code", inner.get("code")))
    found += [(key, error.get(key)) for key in ("type", "status", "__type", "error")]
    return [(path + key, code) for key, value in found if (code := _code(value))]


def _code(value: object) -> str:
    """Return the code in *value*: the last part of a problem type URL or of ``namespace#EmbeddedCode:http://...``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1e6 else ""
    if not isinstance(value, str) or len(value) > _LONGEST_CODE:
        return ""
    if "://" in value:
        head, _, url = value.partition(":")
        value = url if head in ("http", "https") else head
    return re.split(r"[/#]", value)[-1].strip()


def parse_code_header(value: str) -> str:
    """Return the code in a header such as ``ThrottlingException:http://...``."""
    return _code(value.strip())


def _find_message(error: Document, document: Document, metadata: object) -> str:
    # OpenRouter: the message of the provider behind it
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    upstream = raw[:_LONGEST_MESSAGE].lower() if isinstance(raw, str) else ""
    for holder in (error, document):
        for key in ("message", "Message", "error", "detail", "title"):
            text = holder.get(key)
            if isinstance(text, str) and text:
                return f"{text[:_LONGEST_MESSAGE].lower()} {upstream}".rstrip()
    return upstream


def _find_delay(error: Document, path: str, details: object, wall: float) -> tuple[float | None, str]:
    holders = [("details.", entry) for entry in _entries(details)] if isinstance(details, list) else []
    metadata = error.get("metadata")
    if isinstance(metadata, dict):
        holders.append(("metadata.", metadata))
    for prefix, holder in (*holders, ("", error)):
        for key in ("retryDelay", "retry_after", "retryAfter", "retry_after_seconds"):
            value = holder.get(key)
            if isinstance(value, dict):  # a protobuf duration; the nanos are negligible
                value = value.get("seconds")
            seconds = parse_delay(value, wall=wall)
            if seconds is not None:
                return seconds, path + prefix + key
    return None, ""


def _find_quotas(details: object) -> list[QuotaViolation]:
    quotas = []
    for entry in _entries(details):
        for violation in _entries(entry.get("violations")):
            dimensions = violation.get("quotaDimensions")
            model = dimensions.get("model") if isinstance(dimensions, dict) else None
            quotas.append(
                QuotaViolation(
                    name=_short(violation.get("quotaId")),
                    metric=_short(violation.get("quotaMetric")),
                    value=_short(violation.get("quotaValue")),
                    model=model if isinstance(model, str) and 0 < len(model) <= _LONGEST_CODE else None,
                )
            )
    return quotas


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e18:
        return str(value)
    return value[:_LONGEST_CODE].lower() if isinstance(value, str) else ""


def _entries(details: object) -> list[Document]:
    if not isinstance(details, list):
        return []
    return [entry for entry in details[:_MOST_DETAILS] if isinstance(entry, dict)]
