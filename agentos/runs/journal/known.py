"""What a journal knows of each item, in 50 MB for a million of them (a dict of their ids takes 250).

Three arrays make an open hash table: the hash of an item's id, the number of its newest deciding entry with the state,
and the fingerprint recorded there. The ids themselves stay in the journal, so a hit is only very likely: whoever acts
on it fetches the entry and compares its id. Should the 64-bit hashes of two ids of one journal be the same (one chance
in 30 million at a million items), only the later one is known, and the other runs again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from .kinds import State

_STATES: Final = tuple(State)
_CODES: Final = {state: code for code, state in enumerate(_STATES)}
_CODE_BITS: Final = 3


class Known:
    """The newest state of each item, by id."""

    def __init__(self, *, hash_of: Callable[[str], int] = hash) -> None:
        self._hash = hash_of
        self._count = 0
        self._counts = [0] * len(_STATES)
        self._resize(1024)

    def __len__(self) -> int:
        return self._count

    def counts(self) -> dict[State, int]:
        """How many items are in each state."""
        return dict(zip(_STATES, self._counts, strict=True))

    def get(self, item_id: str) -> tuple[int, State] | None:
        """The number of the item's newest deciding entry and its state. Verify the id of that entry before acting."""
        found = self._payloads[self._slot(self._hash(item_id))]
        return (found >> _CODE_BITS, _STATES[found & 7]) if found else None

    def with_fingerprint(self, item_id: str) -> tuple[State, str | None] | None:
        """The item's state, and the fingerprint that its newest deciding entry has, if any."""
        slot = self._slot(self._hash(item_id))
        found, fingerprint = self._payloads[slot], self._prints[slot]
        return (_STATES[found & 7], f"{fingerprint:016x}" if fingerprint else None) if found else None

    def put(self, item_id: str, seq: int, state: State, fingerprint: str | None = None) -> None:
        """Entry *seq* says that the item, of which *fingerprint* is a hash, is now in *state*."""
        key = self._hash(item_id)
        slot = self._slot(key)
        before = self._payloads[slot]
        code = _CODES[state]
        self._keys[slot] = key
        self._payloads[slot] = seq << _CODE_BITS | code
        self._prints[slot] = int(fingerprint, 16) if fingerprint else 0
        self._counts[code] += 1
        if before:
            self._counts[before & 7] -= 1
            return
        self._count += 1
        if self._count * 2 > self._mask:
            self._grow()

    def _slot(self, key: int) -> int:
        """Where *key* is, or the free place where it belongs."""
        keys, payloads, mask = self._keys, self._payloads, self._mask
        slot = key & mask
        while payloads[slot] and keys[slot] != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        keys, payloads, prints = self._keys, self._payloads, self._prints
        self._resize(2 * len(keys))
        for key, payload, fingerprint in zip(keys, payloads, prints, strict=True):
            if payload:
                slot = self._slot(key)
                self._keys[slot], self._payloads[slot], self._prints[slot] = key, payload, fingerprint

    def _resize(self, size: int) -> None:
        self._mask = size - 1
        self._keys = array("q", bytes(8 * size))
        self._payloads = array("q", bytes(8 * size))  # 0: free, as entries are numbered from 1
        self._prints = array("Q", bytes(8 * size))  # 0: none
