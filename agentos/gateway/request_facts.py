"""Facts about a request that decide how it is served: model, stream, session, and state that only one account has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from ..agents.programs import PROGRAMS
from ..util.http_server.request_body import RequestBody
from .routes import Route, WireForm

_LONGEST_PARSED: Final = 4 * 1024 * 1024
_LONGEST_WORD: Final = 200
# The session that a client names, the most telling first.
_SESSION_HEADERS: Final = (
    *(header for program in PROGRAMS.values() for header in program.session_headers),
    *("session_id", "conversation_id", "x-session-affinity"),
)
_BOUND: Final = re.compile(
    rb'"(?:encrypted_content|file_id|fileUri|file_uri)"\s*:\s*"([^"\\]{1,64})|"container"\s*:\s*"([^"\\]{1,64})'
)
_PREVIOUS: Final = re.compile(rb'"previous_response_id"\s*:\s*"([^"\\]{1,200})"')
_MODEL_IN_PATH: Final = re.compile(r"/models/([^:]+):")
_TURN_STATE: Final = "x-codex-turn-state"


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Facts about one request."""

    model: str | None
    stream: bool
    session: str | None  # the client's own name of it
    agent: str | None  # a subagent within the session
    affinity: str | None  # a digest: requests with the same one share a prompt cache
    bound_to: tuple[str, ...]  # digests of state that only the account that made it understands
    digest: str  # of the request: a client that comes again sends the same


def read_facts(route: Route, headers: Mapping[str, str], query: str, body: RequestBody, holder: str) -> RequestFacts:
    """Read the facts from headers and body. *holder* is the token's: two holders never share a session."""
    text = body.read() if body.size <= _LONGEST_PARSED else body.start(_LONGEST_PARSED)
    document = _parse(text) if body.size <= _LONGEST_PARSED else {}
    session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), None)
    cache_key = _word(document.get("prompt_cache_key"))
    metadata = document.get("metadata")
    user = _word(metadata.get("user_id")) if isinstance(metadata, dict) else None
    named = session or cache_key or user
    return RequestFacts(
        model=_find_model(route, document, text),
        stream=_is_stream(route, document, text, query, headers),
        session=named[:_LONGEST_WORD] if named else None,
        agent=headers.get("x-claude-code-agent-id"),
        affinity=None if named is None else digest_state(holder, named),
        bound_to=tuple(digest_state(each) for each in _find_bound_state(text, headers)),
        digest=digest_state(holder, route.path, named or "", text),
    )


def digest_state(*parts: str | bytes) -> str:
    """Return a short digest of *parts*."""
    digest = blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def find_response_state(piece: bytes) -> list[str]:
    """Return digests of the state in a part of an answer that its client may send back: ids, encrypted content."""
    found = [first or second for first, second in _BOUND.findall(piece)]
    found += re.findall(rb'"id"\s*:\s*"(resp_[^"\\]{1,195})"', piece)
    return [digest_state(each) for each in found]


def _find_bound_state(text: bytes, headers: Mapping[str, str]) -> list[str | bytes]:
    found: list[str | bytes] = []
    if headers.get(_TURN_STATE):
        found.append(headers[_TURN_STATE])
    found += _PREVIOUS.findall(text)
    found += [first or second for first, second in _BOUND.findall(text)]
    return found


def _parse(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _find_model(route: Route, document: dict[str, Any], text: bytes) -> str | None:
    if route.form is WireForm.GEMINI:
        found = _MODEL_IN_PATH.search(route.path)
        return None if found is None else found[1][:_LONGEST_WORD]
    model = _word(document.get("model"))
    if model is None and not document and text.startswith(b"{"):
        near = re.search(rb'"model"\s*:\s*"([^"\\]{1,200})"', text)
        model = None if near is None else near[1].decode("utf-8", "replace")
    return model


def _is_stream(route: Route, document: dict[str, Any], text: bytes, query: str, headers: Mapping[str, str]) -> bool:
    if route.form is WireForm.GEMINI:
        return route.path.endswith(":streamGenerateContent") and "alt=sse" in query
    if document:
        return document.get("stream") is True
    if re.search(rb'"stream"\s*:\s*true', text):
        return True
    return "text/event-stream" in headers.get("accept", "")


def _word(value: object) -> str | None:
    return value[:_LONGEST_WORD] if isinstance(value, str) and value and value.isprintable() else None
