"""Digests by which item ids are compared where the ids themselves would take too much memory.

Not ``hash(str)``: CPython hashes the raw buffer of a string, so that "no" and "潮" have one hash, whatever the seed.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

# A key of this process: nobody can prepare ids whose digests collide, and no digest may be written down.
_KEYED = blake2b(key=os.urandom(32), digest_size=16)
_halves = Struct("<qq").unpack


def id_digest(item_id: str) -> tuple[int, int]:
    """128 bits for *item_id*, as two signed integers of 64 bits.

    Both together stand for the id. One alone does not: use it only to find an entry, and compare the ids then.
    Raises TypeError for anything but a text.
    """
    state = _KEYED.copy()  # half the time of passing the key each time
    state.update(str.encode(item_id, "utf-8", "surrogatepass"))
    return _halves(state.digest())
