"""Estimate the model and the tokens of a request from its body and path.

A body too long to parse (one image is enough for that) is searched for the model at both ends, because clients write
the model first or after the messages. The search is exact: the first and the last character are known to be outside of
any string, and the meaning of every quote and bracket follows from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..pool.requests import ONE_REQUEST, Cost, UsageStats

SCANNED_BYTES = 128 * 1024  # at each end

_STRING_TAIL = rb'[^"\\]*(?:\\.[^"\\]*)*'
_STRING = re.compile(rb'"' + _STRING_TAIL + rb'"', re.DOTALL)
_UP_TO_A_QUOTE = re.compile(_STRING_TAIL + rb'"', re.DOTALL)
_TOKEN = re.compile(rb'"' + _STRING_TAIL + rb'(?:"|\Z)|[][{}]', re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING.pattern + rb")", re.DOTALL)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


def find_model_near_ends(body: bytes, near: int = SCANNED_BYTES) -> str | None:
    """Return the string value of ``model`` in *body*, a JSON object, if it is *near* an end; else None."""
    found = _find_model(body[:near], 0)
    if found is None:
        found = _find_model(*_split_end(body, near))
    if found is None:
        return None
    try:
        model: str = json.loads(found)
    except ValueError:
        return None
    return model


def _split_end(body: bytes, near: int) -> tuple[bytes, int]:
    """Return the last part of *body* that begins outside of a string, and its nesting depth."""
    # A backslash may precede the first character and change its meaning, so the first character is dropped.
    part = body[-near:].lstrip(b"\\")[1:]
    if _ESCAPED.sub(b"", part).count(b'"') % 2:
        inside = _UP_TO_A_QUOTE.match(part)
        part = part[inside.end() :] if inside else b""
    bare = _STRING.sub(b"", part)
    return part, bare.count(b"}") + bare.count(b"]") - bare.count(b"{") - bare.count(b"[")


def _find_model(part: bytes, depth: int) -> bytes | None:
    """Return the raw value of ``model`` in the outermost object; *part* begins at nesting depth *depth*."""
    if b'"model"' not in part:
        return None
    for token in _TOKEN.finditer(part):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b'"model"':
            value = _VALUE.match(part, token.end())
            if value is not None:
                return value[1]
    return None


# A request without a body reads a list or an earlier result; usage in such an answer was already counted.
NO_TOKENS: Cost = (1.0, 0.0, 0.0, 0.0)

_LONGEST_PARSED = 4 * 1024 * 1024
_LONGEST_MODEL = 200
_DECODER = json.JSONDecoder()
_MOST_MODELS = 1000
_MOST_TOKENS = 1e9

_MODEL_IN_PATH = re.compile(rb"/(?:models?|deployments)/([A-Za-z0-9._@-]+)(?=[:/]|%3A)")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")

# Start value: four characters per token, as in English prose. The real ratio is learned per model.
_BYTES_PER_TOKEN = 4.0
_FEWEST, _MOST = 1.0, 40.0
_SMOOTHING = 0.2  # weight of one answer

# An image in a body is a long string of letters and digits without spaces. Its length does not tell its tokens. Short
# bodies are not searched: there an image counts as a few thousand tokens of text at most.
_SEARCHED_FROM = 32 * 1024
_LONG_STRING = 8192
_SAMPLE = 512
_TOKENS_PER_IMAGE = 1000.0


class RequestEstimate:
    """The model of a request, its estimated cost, and the length of its text."""

    __slots__ = ("cost", "model", "text_bytes")

    def __init__(self, model: str | None, cost: Cost, text_bytes: float) -> None:
        self.model = model
        self.cost = cost
        self.text_bytes = text_bytes


class _ModelUsage:
    """Observed usage of requests for one model."""

    __slots__ = ("bytes_per_token", "output")

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self.output = UsageStats()


class Estimator:
    """Estimate the cost of requests, and learn from reported usage. A race between threads may drop an observation."""

    def __init__(self) -> None:
        self._learned: dict[str | None, _ModelUsage] = {}

    def estimate(self, body: bytes | None, path: bytes) -> RequestEstimate:
        """Estimate a request from its *body* and *path*. Never raises."""
        document = _parse_body(body)
        if body is None or document is None:
            return RequestEstimate(
                _choose_model(_find_model_unparsed(body), path), NO_TOKENS if body == b"" else ONE_REQUEST, 0.0
            )
        model = _choose_model(document.get("model"), path)
        learned = self._learned.get(model)
        text, images = (float(len(body)), 0) if len(body) <= _SEARCHED_FROM else _count_text_bytes(body)
        input_tokens = (
            text / (_BYTES_PER_TOKEN if learned is None else learned.bytes_per_token) + images * _TOKENS_PER_IMAGE
        )
        output_tokens = _find_output_limit(document)
        p95 = None if learned is None else learned.output.p95
        if p95 is not None:
            output_tokens = p95 if output_tokens is None else min(output_tokens, p95)
        total = None if output_tokens is None else input_tokens + output_tokens
        return RequestEstimate(model, (1.0, total, input_tokens, output_tokens), text if not images else 0.0)

    def record_usage(self, request: RequestEstimate, usage: Mapping[str, float]) -> None:
        """Learn from the reported *usage* of the request *request*."""
        learned = self._learned.get(request.model)
        if learned is None:
            if len(self._learned) >= _MOST_MODELS:
                return
            learned = self._learned.setdefault(request.model, _ModelUsage())
        input_tokens, output_tokens = usage.get("input_tokens"), usage.get("output_tokens")
        if input_tokens and request.text_bytes:
            ratio = min(_MOST, max(_FEWEST, request.text_bytes / input_tokens))
            learned.bytes_per_token += _SMOOTHING * (ratio - learned.bytes_per_token)
        if output_tokens is not None:
            learned.output.add(output_tokens)


def _parse_body(body: bytes | None) -> dict[str, Any] | None:
    if not body or len(body) > _LONGEST_PARSED or not body.startswith(b"{"):
        return None
    try:
        text = body.decode()
        found, end = _DECODER.raw_decode(text)  # faster than json.loads
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and (end == len(text) or not text[end:].strip()) else None


def _find_model_unparsed(body: bytes | None) -> str | None:
    """Return the model of a body that is too long to be parsed."""
    if body is None or len(body) <= _LONGEST_PARSED or body[:1] != b"{":
        return None
    return find_model_near_ends(body)


def _choose_model(model: object, path: bytes) -> str | None:
    if isinstance(model, str) and 0 < len(model) <= _LONGEST_MODEL and model.isprintable():
        return model
    found = _MODEL_IN_PATH.search(path)
    return None if found is None else found[1][:_LONGEST_MODEL].decode("ascii")


def _find_output_limit(document: dict[str, Any]) -> float | None:
    holder: Any = document
    names: tuple[str, ...] = _OUTPUT_LIMITS
    if "generationConfig" in document:
        holder, names = document["generationConfig"], ("maxOutputTokens",)
        if not isinstance(holder, dict):
            return None
    for name in names:
        value = holder.get(name)
        if value is not None and isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
            return float(value)
    return None


def _count_text_bytes(body: bytes) -> tuple[float, int]:
    """Return the number of bytes of text in *body*, and the number of images or files."""
    left, images = len(body), 0
    for string in body.split(b'"'):
        if len(string) > _LONG_STRING and _is_data(string[:_SAMPLE]):
            left -= len(string)
            images += 1
    return float(left), images


def _is_data(sample: bytes) -> bool:
    # Text in a script without spaces is not ASCII, or is escaped as \u4f60.
    return sample.isascii() and b" " not in sample and b"\\u" not in sample
