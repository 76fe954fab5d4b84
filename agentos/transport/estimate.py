"""Estimate what a request will use, from its body and address: the model, and about how many tokens.

A body that is too long to be parsed (one picture is enough for that) is searched for the model at both ends, because
clients write the model first or after the messages. The search is exact: the first and the last character are known to
be outside of any string, and from there the kind of every quote and bracket follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..pool.requests import ONE_REQUEST, Cost, UsageStats

SCANNED_BYTES = 128 * 1024  # bytes of each end

_REST_OF_A_STRING = rb'[^"\\]*(?:\\.[^"\\]*)*'
_STRING = re.compile(rb'"' + _REST_OF_A_STRING + rb'"', re.DOTALL)
_UP_TO_A_QUOTE = re.compile(_REST_OF_A_STRING + rb'"', re.DOTALL)
_TOKEN = re.compile(rb'"' + _REST_OF_A_STRING + rb'(?:"|\Z)|[][{}]', re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING.pattern + rb")", re.DOTALL)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


def find_model_near_ends(body: bytes, near: int = SCANNED_BYTES) -> str | None:
    """The text that *body*, a JSON object, has as its ``model``; None if that is not *near* an end, or is no text."""
    found = _model_in(body[:near], 0)
    if found is None:
        found = _model_in(*_end_of(body, near))
    if found is None:
        return None
    try:
        model: str = json.loads(found)
    except ValueError:
        return None
    return model


def _end_of(body: bytes, near: int) -> tuple[bytes, int]:
    """The last part of *body* that begins outside of a string, and how many brackets deep that is."""
    # What stands before may end with a backslash, so that the first character could mean anything: it is left out.
    part = body[-near:].lstrip(b"\\")[1:]
    if _ESCAPED.sub(b"", part).count(b'"') % 2:
        inside = _UP_TO_A_QUOTE.match(part)
        part = part[inside.end() :] if inside else b""
    bare = _STRING.sub(b"", part)
    return part, bare.count(b"}") + bare.count(b"]") - bare.count(b"{") - bare.count(b"[")


def _model_in(part: bytes, depth: int) -> bytes | None:
    """The value of ``model`` in the outermost object, as it is written in *part*, which begins so deep inside."""
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


# Who sends nothing asks for a list, or for what was made before; the usage in such an answer was counted then.
NO_TOKENS: Cost = (1.0, 0.0, 0.0, 0.0)

_LONGEST_PARSED = 4 * 1024 * 1024
_LONGEST_MODEL = 200
_DECODER = json.JSONDecoder()
_MOST_MODELS = 1000
_MOST_TOKENS = 1e9

_MODEL_IN_PATH = re.compile(rb"/(?:models?|deployments)/([A-Za-z0-9._@-]+)(?=[:/]|%3A)")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")

# English prose has four characters to a token; what is really so for these requests is learned.
_BYTES_PER_TOKEN = 4.0
_FEWEST, _MOST = 1.0, 40.0
_SMOOTHING = 0.2  # how much one answer changes what was learned

# A picture in a body is a long string of letters and digits without a blank. Its length says nothing of its tokens.
# Short bodies are not searched: there a picture would be taken for a few thousand tokens of text, at most.
_SEARCHED = 32 * 1024
_LONG_STRING = 8192
_LOOKED_AT = 512
_TOKENS_OF_A_PICTURE = 1000.0


class RequestEstimate:
    """One request: its model, the tokens it may take, and how long its text is."""

    __slots__ = ("cost", "model", "text_bytes")

    def __init__(self, model: str | None, cost: Cost, text_bytes: float) -> None:
        self.model = model
        self.cost = cost
        self.text_bytes = text_bytes


class _ModelUsage:
    """What the requests for one model were seen to take."""

    __slots__ = ("bytes_per_token", "output")

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self.output = UsageStats()


class Estimator:
    """Guesses what a request will take, and is corrected by what others took. Threads may lose a lesson, no more."""

    def __init__(self) -> None:
        self._seen: dict[str | None, _ModelUsage] = {}

    def estimate(self, body: bytes | None, path: bytes) -> RequestEstimate:
        """What a request with this *body* and *path* asks for. Never raises."""
        document = _document(body)
        if body is None or document is None:
            return RequestEstimate(_model(_skimmed(body), path), NO_TOKENS if body == b"" else ONE_REQUEST, 0.0)
        model = _model(document.get("model"), path)
        seen = self._seen.get(model)
        text, pictures = (float(len(body)), 0) if len(body) <= _SEARCHED else _text_bytes(body)
        given = text / (_BYTES_PER_TOKEN if seen is None else seen.bytes_per_token) + pictures * _TOKENS_OF_A_PICTURE
        made = _output_limit(document)
        usual = None if seen is None else seen.output.p95
        if usual is not None:
            made = usual if made is None else min(made, usual)
        whole = None if made is None else given + made
        return RequestEstimate(model, (1.0, whole, given, made), text if not pictures else 0.0)

    def record_usage(self, asked: RequestEstimate, usage: Mapping[str, float]) -> None:
        """A request really took this."""
        seen = self._seen.get(asked.model)
        if seen is None:
            if len(self._seen) >= _MOST_MODELS:
                return
            seen = self._seen.setdefault(asked.model, _ModelUsage())
        given, made = usage.get("input_tokens"), usage.get("output_tokens")
        if given and asked.text_bytes:
            ratio = min(_MOST, max(_FEWEST, asked.text_bytes / given))
            seen.bytes_per_token += _SMOOTHING * (ratio - seen.bytes_per_token)
        if made is not None:
            seen.output.add(made)


def _document(body: bytes | None) -> dict[str, Any] | None:
    if not body or len(body) > _LONGEST_PARSED or not body.startswith(b"{"):
        return None
    try:
        text = body.decode()
        found, end = _DECODER.raw_decode(text)  # less around it than json.loads has
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and (end == len(text) or not text[end:].strip()) else None


def _skimmed(body: bytes | None) -> str | None:
    """The model of a body that was not parsed, if that is only because it is too long."""
    if body is None or len(body) <= _LONGEST_PARSED or body[:1] != b"{":
        return None
    return find_model_near_ends(body)


def _model(model: object, path: bytes) -> str | None:
    if isinstance(model, str) and 0 < len(model) <= _LONGEST_MODEL and model.isprintable():
        return model
    found = _MODEL_IN_PATH.search(path)
    return None if found is None else found[1][:_LONGEST_MODEL].decode("ascii")


def _output_limit(document: dict[str, Any]) -> float | None:
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


def _text_bytes(body: bytes) -> tuple[float, int]:
    """How many bytes of *body* are text, and how many pictures or files stand in it."""
    left, pictures = len(body), 0
    for string in body.split(b'"'):
        if len(string) > _LONG_STRING and _is_data(string[:_LOOKED_AT]):
            left -= len(string)
            pictures += 1
    return float(left), pictures


def _is_data(sample: bytes) -> bool:
    # Text of a script without blanks is not ASCII, or has its letters as \u4f60.
    return sample.isascii() and b" " not in sample and b"\\u" not in sample
