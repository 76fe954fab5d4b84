"""Digests for comparing item ids where the ids themselves would take too much memory.

Not ``hash(str)``: CPython hashes the raw buffer of a string, so "no" and "潮" have the same hash with any seed.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

# A key of this process, so that ids with colliding digests cannot be prepared. Digests must not be stored.
_KEYED = blake2b(key=os.urandom(32), digest_size=16)
_halves = Struct("<qq").unpack


def id_digest(item_id: str) -> tuple[int, int]:
    """Return a digest of *item_id*: 128 bits as two signed 64-bit integers.

    Both together identify the id. One alone does not: use it only to find an entry, then compare the ids. Raises
    TypeError for anything but a string.
    """
    state = _KEYED.copy()  # takes half the time of passing the key each time
    state.update(str.encode(item_id, "utf-8", "surrogatepass"))
    return _halves(state.digest())
