"""Recognise the refusal of a request that is longer than the model's context."""

from __future__ import annotations

import re
from typing import Final

from .bodies import parse_document
from .error_details import parse_error

_STATUSES: Final = frozenset({400, 413, 422})
_CODES: Final = frozenset({"context_length_exceeded", "context_window_exceeded", "prompt_too_long"})
# In lower case. Anthropic and Gemini have no code of their own for it.
_MESSAGE: Final = re.compile(
    r"^prompt is too long\b"
    r"|^the input token count \(?\d+\)? exceeds the maximum\b"
    r"|\bmaximum context length is \d"
    r"|^your input exceeds the context window\b"
)


def exceeds_context(status: int, body: object) -> bool:
    """True if the provider refused a request because it is longer than the model's context."""
    document = parse_document(body) if status in _STATUSES else None
    if document is None:
        return False
    error = parse_error(document, 0.0)
    return any(code.lower() in _CODES for _, code in error.codes) or _MESSAGE.search(error.message) is not None
