"""The headers that pass: what a client may say to a provider, and what the client gets back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_PASSED: Final = frozenset(
    (
        *("accept", "accept-language", "content-type", "content-encoding", "user-agent"),
        *("originator", "version", "session-id", "session_id", "thread-id", "thread_id", "conversation_id"),
        *("x-client-request-id", "x-request-id", "idempotency-key", "x-app", "http-referer", "x-title"),
        *("x-goog-api-client", "x-goog-api-version", "x-initiator", "x-session-affinity"),
        *("x-session-id", "agent-session-id"),
    )
)
_PASSED_PREFIXES: Final = ("anthropic-", "openai-", "x-stainless-", "x-claude-", "x-codex-", "x-openai-", "x-gemini-")
# They belong to the key that serves a call, which the client does not know.
_OF_THE_KEY: Final = frozenset(("openai-organization", "openai-project", "x-goog-user-project"))
_NOT_RETURNED: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"content-length", b"date", b"set-cookie", b"alt-svc", b"strict-transport-security"),
        *(b"proxy-connection", b"location"),
    )
)
_PRIVATE: Final = b"x-agentos-"

KEY_OF: Final = {  # variables of a credential's env, and the header that each of them is
    "openai": {"OPENAI_ORG_ID": "openai-organization", "OPENAI_PROJECT_ID": "openai-project"},
    "gemini": {"GOOGLE_CLOUD_QUOTA_PROJECT": "x-goog-user-project"},
}


def select_request_headers(headers: Mapping[str, str], *, identity: bool) -> list[tuple[str, str]]:
    """Return the headers that are sent on. Credentials, cookies and anything unknown stay here.

    *identity*: the answer must not be compressed. It is a stream, which a compressor would hold back, begins early, or
    is read for state that binds its session.
    """
    passed = [
        (name, value)
        for name, value in headers.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and name not in _OF_THE_KEY
    ]
    passed.append(("accept-encoding", "identity" if identity else headers.get("accept-encoding", "identity")))
    return passed


def select_response_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers of a provider's answer that the client gets."""
    return [
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in raw
        if name.lower() not in _NOT_RETURNED and not name.lower().startswith(_PRIVATE)
    ]


def find_key_headers(provider: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that go with a key: its organisation and project, as its env states them."""
    return {
        header: environment[name] for name, header in KEY_OF.get(provider or "", {}).items() if environment.get(name)
    }
