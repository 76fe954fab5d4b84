"""State that only the organisation that made it understands: ids of responses, encrypted content, files, turns.

A real provider refuses such state from the key of another organisation. Here the organisation is a part of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

TURN_STATE = "x-codex-turn-state"

_IN_BODY = (
    (
        re.compile(rb'"previous_response_id"\s*:\s*"resp_([0-9a-f]{8})_'),
        "previous_response_not_found",
        "The previous response was not found.",
    ),
    (
        re.compile(rb'"encrypted_content"\s*:\s*"gAAAAA([0-9a-f]{8})'),
        "invalid_encrypted_content",
        "The encrypted content could not be verified.",
    ),
    (re.compile(rb'"file_id"\s*:\s*"file-([0-9a-f]{8})'), "file_not_found", "There is no such file."),
)
_IN_HEADER = re.compile(r"turn-([0-9a-f]{8})-")


class ForeignState(NamedTuple):
    """Why a request is refused: it has state of another organisation."""

    code: str
    message: str


@functools.lru_cache(maxsize=1024)
def organisation_mark(quota: str) -> str:
    """Return the eight digits by which state of the organisation *quota* is known."""
    return sha256(quota.encode()).hexdigest()[:8]


def encrypted_content(quota: str, call: int) -> str:
    """Return encrypted content of an answer of *quota*."""
    return f"gAAAAA{organisation_mark(quota)}{call:016x}"


def file_id(quota: str, number: int) -> str:
    """Return the id of a file that was uploaded to *quota*."""
    return f"file-{organisation_mark(quota)}{number:08x}"


def turn_state(quota: str, call: int) -> str:
    """Return the routing state of an answer of *quota*, which a client sends back with its next request."""
    return f"turn-{organisation_mark(quota)}-{call}"


def find_foreign_state(quota: str, body: bytes, headers: Mapping[str, str]) -> ForeignState | None:
    """Return why a request to *quota* is refused, if it has state of another organisation."""
    own = organisation_mark(quota)
    for pattern, code, message in _IN_BODY:
        if any(mark.decode() != own for mark in pattern.findall(body)):
            return ForeignState(code, message)
    found = _IN_HEADER.match(headers.get(TURN_STATE, ""))
    if found is not None and found[1] != own:
        return ForeignState("invalid_turn_state", "The turn state is of another organisation.")
    return None
