"""The hash chain: one value per commit, over the previous value and all entries, so that every change is detected."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

# The first commit of a journal is chained to this.
ORIGIN: Final = ""


def compute_link(previous: str, first: int, rows: str) -> str:
    """Return the value of a commit that begins at entry *first*; *rows* is the JSON array of the row texts."""
    return blake2b(f"{previous}:{first}:{rows}".encode("ascii"), digest_size=16).hexdigest()
