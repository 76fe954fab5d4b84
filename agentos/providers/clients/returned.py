"""What answer a thing that a client returned carries: a response, a parsed answer of an SDK, or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .answer import Answer
from .boto import answer_of_boto
from .client_table import PROVIDERS, SDKS, maker_of
from .responses import answer_of_response, bare_address, is_response
from .untrusted import attribute, count_from, status_from

_USAGE_NAMES = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_GEMINI_USAGE_NAMES = {
    "prompt_token_count": "promptTokenCount",
    "candidates_token_count": "candidatesTokenCount",
    "thoughts_token_count": "thoughtsTokenCount",
    "cached_content_token_count": "cachedContentTokenCount",
    "tool_use_prompt_token_count": "toolUsePromptTokenCount",
    "total_token_count": "totalTokenCount",
}


def answer_of_result(thing: object) -> Answer | None:
    """The answer *thing* carries; None if it is none of a client's, as most results of a worker are."""
    if isinstance(thing, Mapping):
        return _from_mapping(thing)
    if thing is None or isinstance(thing, (str, bytes, bool, int, float, list, tuple, type)):
        return None
    maker = maker_of(type(thing), *SDKS)
    if maker:
        return _from_sdk(thing, maker)
    return answer_of_response(thing) if is_response(thing) else None


def _from_mapping(thing: Mapping[Any, Any]) -> Answer | None:
    if "ResponseMetadata" in thing:
        return answer_of_boto(thing)
    headers = thing.get("headers")
    status = status_from(thing.get("status")) or status_from(thing.get("status_code"))
    if status is None or not isinstance(headers, (Mapping, list, tuple)):
        return None  # a result of the user's own may well have a status
    return Answer(status, headers, thing.get("body"), url=bare_address(thing.get("url")))


def _from_sdk(thing: object, maker: str) -> Answer | None:
    """A raw response of an SDK or a stream, which have the client's under them; or a parsed answer."""
    provider = PROVIDERS.get(maker)
    for name in ("http_response", "response"):
        response = attribute(thing, name)
        if response is not None and is_response(response):
            answer = answer_of_response(response)
            retried = answer.retried or count_from(attribute(thing, "retries_taken"))
            return replace(answer, provider=provider, retried=retried)
    body = _parsed(thing)
    if not body:
        return None
    model = attribute(thing, "model") or attribute(thing, "model_version")
    return Answer(
        status=200,
        headers=attribute(attribute(thing, "sdk_http_response"), "headers"),  # google-genai keeps them
        body=body,
        provider=provider,
        model=model if isinstance(model, str) else None,
    )


def _parsed(thing: object) -> dict[str, Any]:
    """The part of a parsed answer that counts, as it came over the wire."""
    body: dict[str, Any] = {}
    metadata = attribute(thing, "usage_metadata")
    usage = attribute(thing, "usage")
    if metadata is not None:
        body["usageMetadata"] = _numbers(metadata, _GEMINI_USAGE_NAMES)
    elif usage is not None:
        body["usage"] = _numbers(usage, {name: name for name in _USAGE_NAMES})
    error = attribute(thing, "error")  # a response that failed on its way, though the answer was a 200
    code = attribute(error, "code")
    if isinstance(code, str):
        body["error"] = {"code": code, "message": attribute(error, "message")}
    return {name: value for name, value in body.items() if value}


def _numbers(thing: object, names: Mapping[str, str]) -> dict[str, int]:
    found = {wire: attribute(thing, name) for name, wire in names.items()}
    return {wire: value for wire, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}
