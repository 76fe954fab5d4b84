"""What a response of any client carries: status, headers, address, retries, and the body if it has been read.

Nothing is awaited or downloaded. An attribute that cannot be read is not there.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from .answer import Answer
from .client_table import maker_of
from .untrusted import attribute, count_from, status_from

_LONGEST_URL = 2048


def is_response(thing: object) -> bool:
    """It has a status and headers, as every client's response does."""
    status = status_from(attribute(thing, "status_code")) or status_from(attribute(thing, "status"))
    return status is not None and callable(attribute(attribute(thing, "headers"), "items"))


def answer_of_response(response: object, *, request: object = None) -> Answer:
    """What *response* carries. *request* is what it answers, where the client keeps that elsewhere."""
    if request is None:
        request = attribute(response, "request")
    return Answer(
        status=status_from(attribute(response, "status_code")) or status_from(attribute(response, "status")),
        headers=attribute(response, "headers"),
        body=_body_read(response),
        url=address_of(response, request),
        retried=retries_noted_on(request) or _retries_below(response),
    )


def address_of(*things: object) -> str | None:
    """Where the first of *things* that has an address went to."""
    for thing in things:
        for name in ("url", "real_url"):
            url = bare_address(attribute(thing, name)) if thing is not None else None
            if url:
                return url
    return None


def bare_address(url: object) -> str | None:
    """*url* without what may be secret in it: user, password, and the query, where some providers take the key."""
    if url is None or callable(url):
        return None
    try:
        parts = urlsplit(str(url)[:_LONGEST_URL])
        host = parts.hostname
    except Exception:  # noqa: BLE001 - somebody else's __str__, or not an address at all
        return None
    return f"{parts.scheme}://{host}{parts.path}" if host else None


def retries_noted_on(request: object) -> int:
    """How often it was asked before, as openai's and anthropic's clients note on the request itself."""
    get = attribute(attribute(request, "headers"), "get")
    try:
        return count_from(get("x-stainless-retry-count")) if callable(get) else 0
    except Exception:  # noqa: BLE001 - somebody else's headers
        return 0


def _retries_below(response: object) -> int:
    """How often urllib3 asked before, under requests or by itself. Its redirects are not counted."""
    retries = attribute(response, "retries") or attribute(attribute(response, "raw"), "retries")
    history = attribute(retries, "history")
    if not isinstance(history, tuple):
        return 0
    return sum(1 for one in history if attribute(one, "redirect_location") is None)


def _body_read(response: object) -> bytes | str | None:
    """The body, if the client has it already. Asking requests or urllib3 for it by its public name would fetch it."""
    if maker_of(type(response), "httpx", "httpx2"):
        body = attribute(response, "content")  # raises if it has not been read
    else:
        body = attribute(response, "_content") or attribute(response, "_body")
    return body if isinstance(body, (bytes, str)) and body else None
