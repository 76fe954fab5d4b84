"""Detect terminals."""

from __future__ import annotations

from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether *stream* is a terminal; a closed or missing stream is not."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False  # closed, or not a real stream
