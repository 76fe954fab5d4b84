"""Select the key for a request: the one on which it can start earliest.

All keys on which it can start now are equal in that; among them the one with the fewest leases, then the longest
unused. A request with an affinity keeps its previous key if that is one of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from .candidate_index import CandidateIndex
from .learning.first_call import find_next_start
from .limits.base import FOREVER
from .records import Key, LeaseRequest
from .reservations import RefillClaims, opens_at
from .states import Life

_AFFINITIES_REMEMBERED = 10_000

StartsAt = Callable[[Key, LeaseRequest, float, RefillClaims | None], float]


def _is_barred(key: Key, request: LeaseRequest) -> bool:
    """Return True if this credential must not be used for that model."""
    return bool(key.barred) and key.is_barred(request.model)


def _opens_at(key: Key, model: str | None, now: float) -> float:
    """Return a lower bound for every request for *model* on this key at any cost."""
    return max(opens_at(key.quota, model, now), find_next_start(key, model))


class Affinities:
    """The last key of each affinity."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, Key] = OrderedDict()

    def remember(self, affinity: str, key: Key) -> None:
        """Note that a request of *affinity* started on *key*."""
        self._keys[affinity] = key
        self._keys.move_to_end(affinity)
        if len(self._keys) > _AFFINITIES_REMEMBERED:
            self._keys.popitem(last=False)

    def get(self, affinity: str | None) -> Key | None:
        """Return the last key of *affinity*, if known."""
        return None if affinity is None else self._keys.get(affinity)


def find_key(
    index: CandidateIndex,
    request: LeaseRequest,
    now: float,
    claims: RefillClaims | None,
    preferred: Key | None,
    starts_at: StartsAt,
) -> tuple[Key | None, float]:
    """Return the key on which *request* can start earliest, and when. Without *claims* only "now" matters."""
    usable = preferred is not None and index.has_ready(preferred) and not _is_barred(preferred, request)
    if usable and preferred is not None and starts_at(preferred, request, now, claims) <= now:
        return preferred, now
    best: Key | None = None
    best_at = FOREVER
    closed: list[tuple[Key, float]] = []
    for key in index.ready():
        if key.barred and _is_barred(key, request):
            continue
        at = now if key.quota.open_wide else starts_at(key, request, now, claims)
        if at <= now:
            best, best_at = key, at
            break
        if at < best_at:
            best, best_at = key, at
        bound = _opens_at(key, index.model, now)
        if bound > now:
            closed.append((key, bound))
    for key, bound in closed:
        index.postpone(key, bound)
    if best_at <= now or claims is None:
        return best, best_at
    checked: list[Key] = []
    while index.next_bound() < best_at:
        key = index.take_next()
        checked.append(key)
        if key.leases < key.slots and not _is_barred(key, request):
            at = starts_at(key, request, now, claims)
            if at < best_at:
                best, best_at = key, at
    for key in checked:
        index.postpone(key, _opens_at(key, index.model, now))
    return best, best_at


def next_spare_slot_at(keys: Collection[Key], plain: CandidateIndex, keep_free: int, now: float) -> float:
    """Return when more than *keep_free* slots are free and open; *plain* has all keys."""
    spare = -keep_free
    plain.promote_due(now)  # the last check may be long ago
    for key in plain.ready():  # the first few are nearly always enough
        if key.quota.open_wide or _opens_at(key, None, now) <= now:
            spare += key.slots - key.leases
            if spare > 0:
                return now
    openings = []
    for key in keys:
        if key.leases < key.slots and key.life is Life.ALIVE and not key.quota.open_wide:
            at = _opens_at(key, None, now)
            if at > now:
                openings.append((at, key.slots - key.leases))
    for at, free in sorted(openings):
        spare += free
        if spare > 0:
            return at
    return FOREVER
