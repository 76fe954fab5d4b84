"""The newest state of each item in 50 MB per million items (a dict of their ids takes 250 MB).

Three arrays form an open-addressing hash table: 64 bits of the digest of an item's id, the number of its newest
deciding entry with the state, and the fingerprint recorded there. The ids themselves stay in the journal. Where the 64
bits are equal, the id of the entry decides: the caller passes a function that reads one (*id_at*), or those of many
items at once (*ids_at*).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ...util.id_digest import id_digest
from .entry_kinds import RecordedState

IdAt = Callable[[int], str | None]
IdsAt = Callable[[Sequence[int]], Mapping[int, str | None]]

_STATES: Final = tuple(RecordedState)
_CODES: Final = {state: code for code, state in enumerate(_STATES)}
_CODE_BITS: Final = 3


class KnownItem(NamedTuple):
    """The number of an item's newest deciding entry, its state, and the fingerprint recorded there, if any."""

    seq: int
    state: RecordedState
    fingerprint: str | None


class KnownItems:
    """The newest state of each item, by id. *digest* maps an id to a pair of which the first has 64 bits."""

    def __init__(self, *, digest: Callable[[str], tuple[int, int]] = id_digest) -> None:
        self._digest = digest
        self._count = 0
        self._counts = [0] * len(_STATES)
        self._resize(1024)

    def __len__(self) -> int:
        return self._count

    def counts(self) -> dict[RecordedState, int]:
        """Return the number of items in each state."""
        return dict(zip(_STATES, self._counts, strict=True))

    def find(self, item_ids: Sequence[str], ids_at: IdsAt) -> list[KnownItem | None]:
        """Return the record of each of *item_ids*; None for an item without a deciding entry.

        *ids_at* is called once and returns the item ids of the entries with the given numbers.
        """
        payloads, prints = self._payloads, self._prints
        places = [self._slots(self._digest(item_id)[0]) for item_id in item_ids]
        ids = ids_at([payloads[slot] >> _CODE_BITS for slots in places for slot in slots])
        answer: list[KnownItem | None] = []
        for item_id, slots in zip(item_ids, places, strict=True):
            slot = next((slot for slot in slots if ids.get(payloads[slot] >> _CODE_BITS) == item_id), None)
            if slot is None:
                answer.append(None)
                continue
            payload, printed = payloads[slot], prints[slot]
            state = _STATES[payload & 7]
            answer.append(KnownItem(payload >> _CODE_BITS, state, f"{printed:016x}" if printed else None))
        return answer

    def state_at(self, item_id: str, seq: int) -> RecordedState | None:
        """Return the item's state if its entry *seq* is the newest that decides it."""
        for slot in self._slots(self._digest(item_id)[0]):
            found = self._payloads[slot]
            if found >> _CODE_BITS == seq:
                return _STATES[found & 7]
        return None

    def put(self, item_id: str, seq: int, state: RecordedState, fingerprint: str | None, id_at: IdAt) -> None:
        """Record that entry *seq* puts the item with *fingerprint* in *state*."""
        key = self._digest(item_id)[0]
        slot = self._slot(key, item_id, id_at)
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

    def _slot(self, key: int, item_id: str, id_at: IdAt) -> int:
        """Return the index of the item, or the free index where it belongs."""
        keys, payloads, mask = self._keys, self._payloads, self._mask
        slot = key & mask
        while (found := payloads[slot]) and (keys[slot] != key or id_at(found >> _CODE_BITS) != item_id):
            slot = (slot + 1) & mask
        return slot

    def _slots(self, key: int) -> list[int]:
        """Return the indexes of all items with *key*: nearly always one or none."""
        keys, payloads, mask = self._keys, self._payloads, self._mask
        slot = key & mask
        found = []
        while payloads[slot]:
            if keys[slot] == key:
                found.append(slot)
            slot = (slot + 1) & mask
        return found

    def _grow(self) -> None:
        keys, payloads, prints = self._keys, self._payloads, self._prints
        self._resize(2 * len(keys))
        for key, payload, fingerprint in zip(keys, payloads, prints, strict=True):
            if payload:
                slot = key & self._mask
                while self._payloads[slot]:
                    slot = (slot + 1) & self._mask
                self._keys[slot], self._payloads[slot], self._prints[slot] = key, payload, fingerprint

    def _resize(self, size: int) -> None:
        self._mask = size - 1
        self._keys = array("q", bytes(8 * size))
        self._payloads = array("q", bytes(8 * size))  # 0: free, as entries are numbered from 1
        self._prints = array("Q", bytes(8 * size))  # 0: none
