"""Read the answer that a returned value carries: a response, a parsed answer of an SDK, or a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..answers.usage import DETAIL_FIGURES, DETAIL_NAMES, FIGURE_NAMES
from .answer import Answer
from .boto import parse_boto_answer
from .client_table import PROVIDERS, SDKS, find_maker
from .responses import is_response, parse_response, strip_url
from .untrusted import parse_count, parse_status, read_attribute

_GEMINI_USAGE_NAMES = {
    "prompt_token_count": "promptTokenCount",
    "candidates_token_count": "candidatesTokenCount",
    "thoughts_token_count": "thoughtsTokenCount",
    "cached_content_token_count": "cachedContentTokenCount",
    "tool_use_prompt_token_count": "toolUsePromptTokenCount",
    "total_token_count": "totalTokenCount",
}


def parse_result(thing: object) -> Answer | None:
    """Return the answer that *thing* carries; None if it is not a client's, as most results of workers."""
    if isinstance(thing, Mapping):
        return _from_mapping(thing)
    if thing is None or isinstance(thing, (str, bytes, bool, int, float, list, tuple, type)):
        return None
    maker = find_maker(type(thing), *SDKS)
    if maker:
        return _from_sdk(thing, maker)
    return parse_response(thing) if is_response(thing) else None


def _from_mapping(thing: Mapping[Any, Any]) -> Answer | None:
    if "ResponseMetadata" in thing:
        return parse_boto_answer(thing)
    headers = thing.get("headers")
    status = parse_status(thing.get("status")) or parse_status(thing.get("status_code"))
    if status is None or not isinstance(headers, (Mapping, list, tuple)):
        return None  # a user's own result may have a status, too
    return Answer(status, headers, thing.get("body"), url=strip_url(thing.get("url")))


def _from_sdk(thing: object, maker: str) -> Answer | None:
    """Read a raw response of an SDK or a stream, which wrap the client's response, or a parsed answer."""
    provider = PROVIDERS.get(maker)
    for name in ("http_response", "response"):
        response = read_attribute(thing, name)
        if response is not None and is_response(response):
            answer = parse_response(response)
            retried = answer.retried or parse_count(read_attribute(thing, "retries_taken"))
            return replace(answer, provider=provider, retried=retried)
    body = _read_parsed_answer(thing)
    if not body:
        return None
    model = read_attribute(thing, "model") or read_attribute(thing, "model_version")
    return Answer(
        status=200,
        headers=read_attribute(read_attribute(thing, "sdk_http_response"), "headers"),  # google-genai keeps them
        body=body,
        provider=provider,
        model=model if isinstance(model, str) else None,
    )


def _read_parsed_answer(thing: object) -> dict[str, Any]:
    """Return the relevant parts of a parsed answer in their wire format."""
    body: dict[str, Any] = {}
    metadata = read_attribute(thing, "usage_metadata")
    usage = read_attribute(thing, "usage")
    if metadata is not None:
        numbers = _read_numbers(metadata, _GEMINI_USAGE_NAMES)
        body["usageMetadata"] = {_GEMINI_USAGE_NAMES[name]: number for name, number in numbers.items()}
    elif usage is not None:
        details = {name: read_attribute(usage, name) for name in DETAIL_NAMES}
        body["usage"] = _read_numbers(usage, FIGURE_NAMES) | {
            name: _read_numbers(found, DETAIL_FIGURES) for name, found in details.items() if found is not None
        }
    error = read_attribute(thing, "error")  # a response that failed after a status of 200
    code = read_attribute(error, "code")
    if isinstance(code, str):
        body["error"] = {"code": code, "message": read_attribute(error, "message")}
    return {name: value for name, value in body.items() if value}


def _read_numbers(thing: object, names: Iterable[str]) -> dict[str, int]:
    found = {name: read_attribute(thing, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}
