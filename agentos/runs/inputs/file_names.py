"""Tell the format of a file from its name."""

from __future__ import annotations

import os

GZIP_SUFFIX = ".gz"
_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}
_WITH_ITEMS = (*_BY_SUFFIX, ".json", ".txt", ".text")


def find_format_name(path: str) -> str | None:
    """Return the name of the format of a file's suffix, or None."""
    return _BY_SUFFIX.get(_find_suffix(path))


def is_json_document(path: str) -> bool:
    """Return whether the file's suffix is ``.json``: an array, or JSON lines."""
    return _find_suffix(path) == ".json"


def has_items_by_name(path: str) -> bool:
    """Return whether the file's suffix is one of files that contain items."""
    return _find_suffix(path) in _WITH_ITEMS


def is_compressed(path: str) -> bool:
    """Return whether the file's suffix is that of gzip."""
    return path.lower().endswith(GZIP_SUFFIX)


def _find_suffix(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(GZIP_SUFFIX))[1]
