"""Read a response of any client: status, headers, URL, retries, and the body if it has been read.

Nothing is awaited or downloaded. An attribute that cannot be read counts as missing.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ..dialects import parse_origin
from .answer import Answer
from .client_table import find_maker
from .untrusted import parse_count, parse_status, read_attribute

_LONGEST_URL = 2048


def is_response(thing: object) -> bool:
    """Return whether *thing* has a status and headers, as every client's response has."""
    status = parse_status(read_attribute(thing, "status_code")) or parse_status(read_attribute(thing, "status"))
    return status is not None and callable(read_attribute(read_attribute(thing, "headers"), "items"))


def parse_response(response: object, *, request: object = None) -> Answer:
    """Read *response*. *request* is its request, where the client keeps that elsewhere."""
    if request is None:
        request = read_attribute(response, "request")
    return Answer(
        status=parse_status(read_attribute(response, "status_code"))
        or parse_status(read_attribute(response, "status")),
        headers=read_attribute(response, "headers"),
        body=_get_read_body(response),
        url=find_url(response, request),
        retried=count_noted_retries(request) or _count_urllib3_retries(response),
    )


def find_url(*things: object) -> str | None:
    """Return the URL of the first of *things* that has one."""
    for thing in things:
        for name in ("url", "real_url"):
            url = strip_url(read_attribute(thing, name)) if thing is not None else None
            if url:
                return url
    return None


def strip_url(url: object) -> str | None:
    """Return *url* without parts that may be secret: user, password, and the query, which may have the key."""
    if url is None or callable(url):
        return None
    try:
        text = str(url)[:_LONGEST_URL]
        origin, path = parse_origin(text), urlsplit(text).path
    except Exception:  # noqa: BLE001 - a foreign __str__, or not an address at all
        return None
    return None if origin is None else f"{origin}{path}"


def count_noted_retries(request: object) -> int:
    """Return the number of retries that openai's and anthropic's clients write into the request headers."""
    get = read_attribute(read_attribute(request, "headers"), "get")
    try:
        return parse_count(get("x-stainless-retry-count")) if callable(get) else 0
    except Exception:  # noqa: BLE001 - foreign headers
        return 0


def _count_urllib3_retries(response: object) -> int:
    """Return the number of urllib3's retries, under requests or by itself, without redirects."""
    retries = read_attribute(response, "retries") or read_attribute(read_attribute(response, "raw"), "retries")
    history = read_attribute(retries, "history")
    if not isinstance(history, tuple):
        return 0
    return sum(1 for one in history if read_attribute(one, "redirect_location") is None)


def _get_read_body(response: object) -> bytes | str | None:
    """Return the body if the client has read it. The public attributes of requests and urllib3 would fetch it."""
    if find_maker(type(response), "httpx", "httpx2"):
        body = read_attribute(response, "content")  # raises if it has not been read
    else:
        body = read_attribute(response, "_content") or read_attribute(response, "_body")
    return body if isinstance(body, (bytes, str)) and body else None
