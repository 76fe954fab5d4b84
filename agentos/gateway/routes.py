"""The addresses that the gateway serves: which provider and which call each of them is, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from ..providers.dialects import DIALECTS
from ..providers.key_owner import KEY_FORMS, PROVIDERS


class WireForm(StrEnum):
    """The form of requests, streams and errors."""

    ANTHROPIC = "anthropic"
    CHAT = "chat"  # OpenAI's chat completions, and what else of it does not stream
    RESPONSES = "responses"  # OpenAI's responses
    GEMINI = "gemini"


class Operation(StrEnum):
    """The kind of a call. Only generating ones say how an item fares."""

    GENERATE = "generate"
    COUNT = "count"
    EMBED = "embed"
    MODELS = "models"


class RouteRefused(Exception):
    """The gateway does not serve this address."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class Route:
    """One call: to whom, in which form, and the path there."""

    provider: str
    form: WireForm
    operation: Operation
    path: str

    @property
    def origin(self) -> str:
        """The provider's own address; a key with a base URL replaces it by its own."""
        return f"https://{_find_host(self.provider)}"


_PLAIN: Final = re.compile(r"[A-Za-z0-9/._~:@!$&'()*+,;=-]+", re.ASCII)
_SEGMENT: Final = r"[A-Za-z0-9._~:@+-]+(?:/[A-Za-z0-9._~@+-]+)*"  # of a model's name, which may have slashes
_ANTHROPIC: Final = {
    ("POST", "/v1/messages"): Operation.GENERATE,
    ("POST", "/v1/messages/count_tokens"): Operation.COUNT,
}
_OPENAI: Final = {
    ("POST", "/v1/responses"): (WireForm.RESPONSES, Operation.GENERATE),
    ("POST", "/v1/responses/compact"): (WireForm.RESPONSES, Operation.GENERATE),
    ("POST", "/v1/chat/completions"): (WireForm.CHAT, Operation.GENERATE),
    ("POST", "/v1/embeddings"): (WireForm.CHAT, Operation.EMBED),
}
_MODELS: Final = re.compile(rf"/v1/models(?:/{_SEGMENT})?")
_GEMINI: Final = re.compile(rf"/v1(?:beta|alpha)?/models(?:/({_SEGMENT}))?")
_GEMINI_CALLS: Final = {
    "generateContent": Operation.GENERATE,
    "streamGenerateContent": Operation.GENERATE,
    "countTokens": Operation.COUNT,
    "embedContent": Operation.EMBED,
    "batchEmbedContents": Operation.EMBED,
}
# Where OpenAI's paths begin at others, if not at /v1.
_BASES: Final = {
    "groq": "/openai/v1",
    "openrouter": "/api/v1",
    "fireworks": "/inference/v1",
    "perplexity": "",
    "cohere": "/compatibility/v1",
}
_SAME_AS: Final = {"azure": "openai", "google": "gemini"}
_NOT_SERVED: Final = frozenset({"bedrock", "github"})


def find_route(method: str, path: str, headers: Mapping[str, str]) -> Route:
    """Return the call that *path* is. Raises RouteRefused for any other address."""
    if not path.startswith("/") or "//" in path or _PLAIN.fullmatch(path) is None or _has_dots(path):
        raise RouteRefused(404, "there is no such address: . and .., empty parts and % are not accepted in a path")
    if headers.get("upgrade", "").lower() == "websocket":
        raise RouteRefused(426, "only HTTP/1.1 is served here, no WebSocket")
    first, _, rest = path[1:].partition("/")
    provider = _SAME_AS.get(first, first)
    if provider in PROVIDERS:
        if provider in _NOT_SERVED:
            raise RouteRefused(404, f"the gateway has no addresses of {provider}")
        route = _find(method, f"/{rest}", headers, provider)
    else:
        route = _find(method, path, headers, None)
    if route is None:
        raise RouteRefused(404, "there is no such address; docs/gateway.md lists those that are served")
    return route


def _has_dots(path: str) -> bool:
    return "/." in path and any(part in (".", "..") for part in path.split("/"))


def _find(method: str, path: str, headers: Mapping[str, str], provider: str | None) -> Route | None:
    if provider in (None, "anthropic"):
        operation = _ANTHROPIC.get((method, path))
        if operation is not None:
            return Route("anthropic", WireForm.ANTHROPIC, operation, path)
        is_anthropic = provider is not None or "anthropic-version" in headers
        if is_anthropic and method == "GET" and _MODELS.fullmatch(path):
            return Route("anthropic", WireForm.ANTHROPIC, Operation.MODELS, path)
    if provider in (None, "gemini"):
        # Its newer SDKs use /v1, where others have their models too.
        found = _find_gemini(method, path, lists_v1=provider is not None or "x-goog-api-key" in headers)
        if found is not None:
            return found
    if provider in ("anthropic", "gemini"):
        return None
    return _find_openai(method, path, provider or "openai")


def _find_gemini(method: str, path: str, *, lists_v1: bool) -> Route | None:
    found = _GEMINI.fullmatch(path)
    if found is None:
        return None
    name, _, call = (found[1] or "").rpartition(":")
    if method == "POST" and name and call in _GEMINI_CALLS:
        return Route("gemini", WireForm.GEMINI, _GEMINI_CALLS[call], path)
    if method == "GET" and ":" not in path and (lists_v1 or not path.startswith("/v1/")):
        return Route("gemini", WireForm.GEMINI, Operation.MODELS, path)
    return None


def _find_openai(method: str, path: str, provider: str) -> Route | None:
    base = _BASES.get(provider, "/v1")
    if base != "/v1" and base and path.startswith(f"{base}/"):
        path = f"/v1{path.removeprefix(base)}"
    found = _OPENAI.get((method, path))
    if found is None and method == "GET" and _MODELS.fullmatch(path):
        found = (WireForm.CHAT, Operation.MODELS)
    return None if found is None else Route(provider, *found, f"{base}{path.removeprefix('/v1')}")


@lru_cache(maxsize=64)
def _find_host(provider: str) -> str:
    of_dialect = DIALECTS[provider].hosts if provider in DIALECTS else ()
    others = [host for form in KEY_FORMS if form.provider == provider for host in form.hosts]
    return next(host for host in (*of_dialect, *others) if "*" not in host)
