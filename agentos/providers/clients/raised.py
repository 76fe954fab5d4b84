"""Read the answer that an exception carries, if a client made it or it holds a client's response."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

from .answer import Answer
from .boto import parse_boto_answer
from .client_table import NO_ANSWER, PROVIDERS, SDKS, ErrorKind, find_kind, get_package
from .responses import count_noted_retries, find_url, is_response, parse_response, strip_url
from .untrusted import first_truthy, is_truthy, parse_count, parse_status, read_attribute

_STATUS_NAMES = {
    "aiohttp": ("status",),  # reading its ``code`` emits a warning
    "google.api_core": ("code",),
    "google.genai": ("code",),  # its ``status`` is a word
    "urllib": ("code",),
}
_NETWORK_ERRNOS = {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
_TOO_MANY = re.compile(r"too many ([1-5]\d\d) error responses", re.ASCII)
_LITELLM_PROVIDERS = {"azure_ai": "azure", "vertex_ai": "gemini", "vertex_ai_beta": "gemini"}


def parse_exception(exc: Exception) -> tuple[Answer | None, str]:
    """Return the answer that *exc* itself carries, without its causes, and a name of *exc* that is safe to show.

    The answer is None if *exc* is not about a call to a provider; the name is empty if no known client made *exc*.
    """
    maker, kind, shown = find_kind(type(exc))
    if kind is ErrorKind.PERHAPS:
        kind = ErrorKind.UNANSWERED if _is_network_error(exc) else None
    if kind is None:
        return _parse_unknown(exc), shown
    if kind is ErrorKind.OURS:
        return None, shown
    if kind in NO_ANSWER or _is_garbled(exc):
        gave_up = kind is ErrorKind.GAVE_UP and read_attribute(exc, "errno") is None  # else the system gave up
        return _parse_unanswered(exc, maker, gave_up=gave_up), shown
    if kind is ErrorKind.EXHAUSTED:
        return _parse_exhausted(exc), shown
    if maker == "botocore":
        streamed = shown == "botocore.EventStreamError"
        return parse_boto_answer(
            read_attribute(exc, "response"), read_attribute(exc, "operation_name"), streamed=streamed
        ), shown
    return _parse_answered(exc, maker), shown


def _parse_unknown(exc: Exception) -> Answer | None:
    response = read_attribute(exc, "response")
    # Not a known client. A number alone may mean anything: only a response makes it an HTTP status.
    if response is None or not is_response(response):
        return None
    return parse_response(response, request=read_attribute(exc, "request"))


def _is_network_error(exc: Exception) -> bool:
    reason = read_attribute(exc, "reason")  # of urllib's URLError; text if the request could not be sent
    if isinstance(reason, Exception):
        return find_kind(type(reason))[1] in NO_ANSWER or read_attribute(reason, "errno") in _NETWORK_ERRNOS
    return read_attribute(exc, "errno") in _NETWORK_ERRNOS


def _is_garbled(exc: Exception) -> bool:
    """Return whether this is the 400 that aiohttp reports for an answer that was not HTTP."""
    return exc.__cause__ is not None and "HttpProcessingError" in {
        base.__name__ for base in type(exc.__cause__).__mro__ if get_package(base) == "aiohttp"
    }


def _parse_unanswered(exc: Exception, maker: str, *, gave_up: bool) -> Answer:
    request = read_attribute(exc, "request")
    return Answer(
        status=None,
        url=find_url(request, read_attribute(exc, "request_info")) or _find_endpoint(exc),
        provider=_find_provider(exc, maker),
        retried=count_noted_retries(request),
        gave_up=gave_up,
    )


def _find_endpoint(exc: Exception) -> str | None:
    """Return the address of an exception without a request, which botocore's and aiohttp's have."""
    facts = read_attribute(exc, "kwargs")
    if isinstance(facts, Mapping):
        return strip_url(facts.get("endpoint_url"))
    host = read_attribute(exc, "host")
    return strip_url(f"https://{host}") if isinstance(host, str) else None


def _parse_exhausted(exc: Exception) -> Answer | None:
    """Read the last status from urllib3's reason after its last retry; the headers are lost."""
    exhausted = exc
    if exc.args and isinstance(exc.args[0], Exception):
        exhausted = exc.args[0]  # requests' RetryError wraps urllib3's
    reason = read_attribute(exhausted, "reason")
    text = reason.args[0] if isinstance(reason, Exception) and reason.args else None
    found = _TOO_MANY.search(text[:200]) if isinstance(text, str) else None
    kind = find_kind(type(reason))[1] if isinstance(reason, Exception) else ErrorKind.UNANSWERED
    if found is None and kind not in NO_ANSWER:
        return None  # for example too many redirects
    pool = read_attribute(exhausted, "pool")
    scheme, host = read_attribute(pool, "scheme"), read_attribute(pool, "host")
    return Answer(
        status=int(found[1]) if found else None,
        url=find_url(read_attribute(exc, "request"))
        or (strip_url(f"{scheme}://{host}") if isinstance(host, str) else None),
        gave_up=found is None and kind is ErrorKind.GAVE_UP,
    )


def _parse_answered(exc: Exception, maker: str) -> Answer | None:
    response = read_attribute(exc, "response")
    if response is None:
        response = read_attribute(exc, "raw_response")
    request = read_attribute(exc, "request")
    seen = parse_response(response, request=request) if is_response(response) else Answer(status=None)
    status, body = seen.status, seen.body
    for name in _STATUS_NAMES.get(maker, ("status_code",)):
        status = parse_status(read_attribute(exc, name)) if status is None else status
    if maker == "google.genai" or body is None:
        body = _find_body(exc, maker) or body
    if status is None:
        # An error event in a stream that began well; without a body, there was no answer.
        if not is_truthy(read_attribute(exc, "body")) and not is_truthy(read_attribute(exc, "details")):
            return None
        status = 200
        body = {"error": {"message": body}} if isinstance(body, str) else body
    named = read_attribute(exc, "model") if maker == "litellm" else None
    return Answer(
        status=status,
        headers=first_truthy(
            seen.headers, read_attribute(exc, "headers"), read_attribute(exc, "litellm_response_headers")
        ),
        body=body,
        url=None if maker == "litellm" else seen.url or find_url(request, read_attribute(exc, "request_info"), exc),
        provider=_find_provider(exc, maker),
        model=named if isinstance(named, str) else None,
        retried=seen.retried or count_noted_retries(request) or parse_count(read_attribute(exc, "num_retries")),
    )


def _find_body(exc: Exception, maker: str) -> Any:
    """Return the body as the client parsed it, or the message if an SDK kept only that."""
    for name in ("body", "details"):
        body = read_attribute(exc, name)
        if isinstance(body, dict) and body:
            # openai keeps only the content of "error"
            return body if "error" in body else {"error": body}
        if isinstance(body, (str, bytes)) and body:
            return body
    message = read_attribute(exc, "message")
    # With other clients it is the reason phrase, which would make a proxy's page look like a provider's error.
    kept = isinstance(message, str) and (maker in SDKS or maker == "google.api_core")
    return {"error": {"message": message}} if kept else None


def _find_provider(exc: Exception, maker: str) -> str | None:
    if maker == "litellm":
        name = read_attribute(exc, "llm_provider")
        return _LITELLM_PROVIDERS.get(name, name) if isinstance(name, str) else None
    return PROVIDERS.get(maker)
