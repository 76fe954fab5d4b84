"""The chain: one value per commit, over the value before it and all its entries, so that no entry can change unseen."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

# What the first commit of a journal is chained to.
ORIGIN: Final = ""


def compute_link(previous: str, first: int, rows: str) -> str:
    """The value of a commit whose entries begin at number *first*; *rows* is the JSON array of their row texts."""
    return blake2b(f"{previous}:{first}:{rows}".encode("ascii"), digest_size=16).hexdigest()
