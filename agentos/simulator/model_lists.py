"""The lists of models that SDKs ask for, and embeddings: small, in the real shapes."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from .plan import Style

_PATH = re.compile(r"(?:/.*)?/(v1|v1beta|v1alpha)/models(?:/([^/:%]{1,200}))?")

# The simulator accepts any model; these are some that people use.
_NAMES: dict[Style, tuple[str, ...]] = {
    "openai": ("gpt-4o", "gpt-4o-mini", "text-embedding-3-small"),
    "anthropic": ("claude-sonnet-4", "claude-haiku-4"),
    "gemini": ("gemini-2.5-flash", "gemini-2.5-pro"),
}
_SINCE = 1_700_000_000
_DIMENSIONS = 8


class ModelQuery(NamedTuple):
    """A request for the list of models, or for one *model*."""

    style: Style
    model: str | None

    def answer(self) -> str:
        """Return the body of the answer."""
        describe = {"openai": _openai_model, "anthropic": _anthropic_model, "gemini": _gemini_model}[self.style]
        if self.model is not None:
            return json.dumps(describe(self.model))
        models = [describe(name) for name in _NAMES[self.style]]
        if self.style == "gemini":
            return json.dumps({"models": models})
        if self.style == "openai":
            return json.dumps({"object": "list", "data": models})
        return json.dumps({"data": models, "has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]})


def parse_model_query(path: str, headers: Mapping[str, str]) -> ModelQuery | None:
    """Return what the address asks for, in the style of the client; None if it is another address."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    style: Style = "openai"
    if found[1] != "v1" or "x-goog-api-key" in headers:
        style = "gemini"
    elif "x-api-key" in headers or "anthropic-version" in headers:
        style = "anthropic"
    return ModelQuery(style, found[2])


def embeddings(call: int, model: str, inputs: int, dimensions: int | None, tokens: int, *, in_base64: bool) -> str:
    """Return the answer to a request for embeddings; *model* is JSON."""
    data = []
    for index in range(inputs):
        vector = [((31 * call + 7 * index + place) % 17 - 8) / 8 for place in range(dimensions or _DIMENSIONS)]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if in_base64 else vector
        data.append({"object": "embedding", "index": index, "embedding": packed})
    usage = f'{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}'
    return f'{{"object":"list","data":{json.dumps(data)},"model":{model},"usage":{usage}}}'


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _SINCE, "owned_by": "simulator"}


def _anthropic_model(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"}


def _gemini_model(name: str) -> dict[str, Any]:
    methods = ["generateContent", "streamGenerateContent"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
