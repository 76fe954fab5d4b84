"""Parse what a request asks for, from its address and its body."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from .plan import Style

Route = Literal["chat/completions", "completions", "responses", "messages", "generateContent", "embeddings"]
StreamUsage = Literal["nowhere", "apart", "last"]


class RequestTarget(NamedTuple):
    """The target of a request, and what its address alone says.

    A Gemini address names the *model*, and whether the answer is a *stream*: of events, or *as_list*, as one JSON list.
    With *usage_unasked* the last event of a stream has the usage, whether or not the body asks for it.
    """

    route: Route
    style: Style
    model: str | None = None
    stream: bool = False
    as_list: bool = False
    usage_unasked: bool = False


class ParsedRequest(NamedTuple):
    """A parsed request, as far as the simulator needs it.

    *usage* is where a stream of chat completions states it: nowhere, in a separate event, or in the last event with
    text.
    """

    target: RequestTarget
    model: str
    prompt_tokens: int
    max_output: int | None
    stream: bool
    usage: StreamUsage = "nowhere"
    inputs: int = 1  # texts to embed
    dimensions: int | None = None  # of an embedding
    in_base64: bool = False
    wants_encrypted: bool = False  # reasoning of a response, encrypted, which the client sends back

    @property
    def tokens(self) -> int:
        """Return the most tokens that the call may use: the prompt and the output it allows."""
        return self.prompt_tokens + (self.max_output or 0)


class NotUnderstood(ValueError):
    """A request body that is not valid for its route. The message says why, without quoting it."""


_TARGETS = {
    "chat/completions": RequestTarget("chat/completions", "openai"),
    "completions": RequestTarget("completions", "openai"),
    "responses": RequestTarget("responses", "openai"),
    "messages": RequestTarget("messages", "anthropic"),
    "embeddings": RequestTarget("embeddings", "openai"),
}
_MISTRAL = {"chat/completions": RequestTarget("chat/completions", "openai", usage_unasked=True)}
_GEMINI = re.compile(
    r"(?:/.*)?/v1(?:alpha|beta)?/models/([^/:%]{1,200})(?::|%3[Aa])(generateContent|streamGenerateContent)"
)

_MAX_TOKENS = 10**9
_MAX_DIMENSIONS = 4_096
_LIMITS_OF_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_TEXTS = ("messages", "system", "input", "instructions", "prompt")
_GEMINI_TEXTS = ("contents", "systemInstruction", "system_instruction")


def parse_target(path: str, query: str = "") -> RequestTarget | None:
    """Return the target of this address, or None. Any prefix is accepted; with ``/mistral`` it is Mistral's."""
    prefix, found, tail = path.rpartition("/v1/")
    place = (_MISTRAL if prefix == "/mistral" else _TARGETS).get(tail) if found else None
    return place if place is not None else _parse_gemini_target(path, query)


def _parse_gemini_target(path: str, query: str) -> RequestTarget | None:
    found = _GEMINI.fullmatch(path)
    if found is None:
        return None
    stream = found[2] == "streamGenerateContent"
    return RequestTarget(
        "generateContent", "gemini", found[1], stream, as_list=stream and "alt=sse" not in query.split("&")
    )


def read_request(place: RequestTarget, body: bytes) -> ParsedRequest:
    """Parse the body. Tokens are estimated as a quarter of the prompt's characters. Raises NotUnderstood."""
    fields = _parse_object(body)
    if place.model is not None:
        config = fields.get("generationConfig") or {}
        if not isinstance(config, dict):
            raise NotUnderstood("generationConfig must be an object.")
        limit = _find_limit(config, ("maxOutputTokens",))
        return ParsedRequest(place, place.model, _count_tokens(fields, _GEMINI_TEXTS), limit, place.stream)
    model = fields.get("model", "simulated-model")
    if not isinstance(model, str) or len(model) > 200:
        raise NotUnderstood("model must be a name.")
    if place.route == "embeddings":
        return _read_embeddings(place, model, fields)
    max_output = _find_limit(fields, _LIMITS_OF_OUTPUT)
    stream = fields.get("stream") or False
    if not isinstance(stream, bool):
        raise NotUnderstood("stream must be true or false.")
    options = fields.get("stream_options")
    usage: StreamUsage = "last" if place.usage_unasked else "nowhere"
    if isinstance(options, dict) and options.get("include_usage") is True and not place.usage_unasked:
        usage = "apart"
    include = fields.get("include")
    encrypted = isinstance(include, list) and "reasoning.encrypted_content" in include
    tokens = _count_tokens(fields, _TEXTS)
    return ParsedRequest(place, model, tokens, max_output, stream, usage, wants_encrypted=encrypted)


def _read_embeddings(place: RequestTarget, model: str, fields: dict[str, Any]) -> ParsedRequest:
    given = fields.get("input")
    if not given or not isinstance(given, (str, list)):
        raise NotUnderstood("input must be a text or a list of texts.")
    # A list of numbers is one text, as tokens; there may be several of them.
    texts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    dimensions = _find_limit(fields, ("dimensions",))
    if dimensions is not None and not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise NotUnderstood(f"dimensions must be from 1 to {_MAX_DIMENSIONS}.")
    tokens = sum(
        -(-len(text) // 4) if isinstance(text, str) else len(text) for text in texts if isinstance(text, (str, list))
    )
    in_base64 = fields.get("encoding_format") == "base64"
    return ParsedRequest(place, model, tokens, 0, False, "nowhere", len(texts), dimensions, in_base64)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise NotUnderstood("The body is not JSON.") from None
    if not isinstance(fields, dict):
        raise NotUnderstood("The body is not a JSON object.")
    return fields


def _find_limit(fields: dict[str, Any], names: tuple[str, ...]) -> int | None:
    limit = next((fields[name] for name in names if fields.get(name) is not None), None)
    if limit is not None and (type(limit) is not int or not 0 <= limit <= _MAX_TOKENS):
        raise NotUnderstood("The limit of output tokens must be a whole number.")
    return limit


def _count_tokens(fields: dict[str, Any], names: tuple[str, ...]) -> int:
    return -(-sum(_characters(fields[name]) for name in names if name in fields) // 4)


def _characters(value: Any, deepest: int = 8) -> int:
    """Return the number of characters in a prompt: a string, a message, a part of one, or a list of these."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [value[name] for name in ("content", "text", "input", "parts") if name in value]
    return sum(_characters(each, deepest - 1) for each in value) if isinstance(value, list) and deepest else 0
